"""The part of the task that searches with tags: its options, its generator, and the tags on the screen."""

# No postponed annotations here: fairseq makes options out of the configuration's types, which must not be strings.

import math
from dataclasses import dataclass, field
from typing import Any

from fairseq.dataclass import ChoiceEnum
from fairseq.dataclass.configs import FairseqDataclass

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.systems.lasyn.ensemble import is_latent
from fairseq_syntax.systems.lasyn.generator import MODES, LatentGenerator, TemplateSource
from fairseq_syntax.systems.lasyn.model import LaSynDecoder, check_tags
from fairseq_syntax.systems.lasyn.templates import OPEN, OPEN_TAG, FileTemplates, ReferenceTemplates

REFERENCE = "reference"


@dataclass
class TagSearchConfig(FairseqDataclass):
    """Options of a search in LaSyn models."""

    tag_search: ChoiceEnum(MODES) = field(  # type: ignore[valid-type]
        default="marginal",
        metadata={
            "help": "what a beam is scored by: marginal, the words with the tags summed out; joint, the best words and "
            "tags; template, the words given a tag sequence (--tag-templates)"
        },
    )
    tag_templates: str = field(
        default="",
        metadata={
            "help": "for --tag-search template: a file of tag sequences, a line per sentence, a tag per piece, _ for "
            "any; or the word reference, for the tags of the references' parse"
        },
    )
    print_tags: bool = field(
        default=False,
        metadata={"help": "print the tag sequence of each of the n best as a line Z-NUMBER, score, tags"},
    )


class TagSearch:
    """Mixed into a translation task whose configuration has :class:`TagSearchConfig`."""

    cfg: Any

    def build_generator(
        self, models, args, seq_gen_cls=None, extra_gen_cls_kwargs=None, prefix_allowed_tokens_fn=None
    ) -> Any:
        """fairseq's; for LaSyn models one that knows tags, unless something else has been asked for."""
        mode = str(self.cfg.tag_search)
        latent = all(map(is_latent, models))
        other = [o for o in ("print_alignment", "score_reference") if getattr(args, o, None)]
        ours = latent and seq_gen_cls is None and not other
        if not ours and (mode != "marginal" or self.cfg.print_tags):
            raise SyntaxDataError(
                "--tag-search joint and template, and --print-tags, are for searches in LaSyn models alone",
                hint="without --print-alignment and --score-reference",
            )
        self._print_best = getattr(args, "nbest", 1) if self.cfg.print_tags else 0
        if ours:
            seq_gen_cls = LatentGenerator
            templates = self._templates(models[0].decoder) if mode == "template" else None
            extra_gen_cls_kwargs = {**(extra_gen_cls_kwargs or {}), "mode": mode, "templates": templates}
        return super().build_generator(  # type: ignore[misc]
            models, args, seq_gen_cls, extra_gen_cls_kwargs, prefix_allowed_tokens_fn
        )

    def _templates(self, decoder: LaSynDecoder) -> TemplateSource:
        source = self.cfg.tag_templates
        if not source:
            raise SyntaxDataError("--tag-search template needs --tag-templates")
        if source == REFERENCE:
            check_tags(decoder, self)
            return ReferenceTemplates()
        templates = FileTemplates(source, decoder.latent_names)
        for dataset in self.datasets.values():  # type: ignore[attr-defined]  # none in fairseq-interactive
            templates.check_count(len(dataset))
        return templates

    def inference_step(self, generator, models, sample, prefix_tokens=None, constraints=None) -> Any:
        """fairseq's; prints the tags of the hypotheses where that is asked for."""
        hypotheses = super().inference_step(  # type: ignore[misc]
            generator, models, sample, prefix_tokens=prefix_tokens, constraints=constraints
        )
        if getattr(self, "_print_best", 0) and isinstance(generator, LatentGenerator):
            for number, best in zip(sample["id"].tolist(), hypotheses):
                for hypothesis in best[: self._print_best]:
                    # In base 2, as fairseq prints scores.
                    score = hypothesis["score"].item() / math.log(2)
                    tags = tag_string(hypothesis["tags"][:-1].tolist(), generator.model.latent_names)
                    print(f"Z-{number}\t{score}\t{tags}")
        return hypotheses


def tag_string(values: list[int], names: list[str]) -> str:
    """Latent values as tags separated by spaces: what a file of templates holds."""
    return " ".join(OPEN_TAG if v == OPEN else names[v] for v in values)

"""Search with tags: its options, its generator, and the output of tags."""

# No postponed annotations here: fairseq makes options out of the configuration's types, which must not be strings.

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from fairseq.dataclass import ChoiceEnum
from fairseq.dataclass.configs import FairseqDataclass

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.model.options import option, option_name
from fairseq_syntax.model.task import SyntaxTask, SystemSearch, register_search
from fairseq_syntax.systems.lasyn.model import SEARCHES, LaSynDecoder, check_tags, is_latent
from fairseq_syntax.systems.lasyn.templates import FileTemplates, reference_templates, tag_string

logger = logging.getLogger(__name__)
REFERENCE = "reference"


@dataclass
class TagSearchConfig(FairseqDataclass):
    """Options of a search in LaSyn models."""

    tag_search: ChoiceEnum(SEARCHES) = option(  # type: ignore[valid-type] # noqa: RUF009
        "marginal",
        "what a beam is scored by: marginal, the words with the tags summed out; joint, the best words and tags; "
        "template, the words given a tag sequence (--tag-templates)",
        "",
    )
    tag_templates: str = option(
        "",
        "for --tag-search template: a file of tag sequences, a line per sentence, a tag per piece, _ for any; or the "
        "word reference, for the tags of the references' parse",
    )
    print_tags: bool = option(False, "print the tag sequence of each of the n best as a line Z-NUMBER, score, tags", "")


@register_search
class TagSearch(SystemSearch):
    """The search for LaSyn models."""

    config = TagSearchConfig

    def __init__(self, task: SyntaxTask) -> None:
        super().__init__(task)
        self._print_best = 0

    def generator(self, models: Sequence[Any], args: Any, taken: bool) -> tuple[type, dict[str, Any]] | None:
        cfg = self.task.cfg
        mode = str(cfg.tag_search)
        other = [o for o in ("print_alignment", "score_reference") if getattr(args, o, None)]
        ours = all(map(is_latent, models)) and not taken and not other
        if not ours and (mode != "marginal" or cfg.print_tags):
            raise SyntaxDataError(
                "--tag-search joint and template, and --print-tags, are for searches in LaSyn models alone",
                hint="without --print-alignment and --score-reference",
            )
        self._print_best = getattr(args, "nbest", 1) if cfg.print_tags else 0
        if not ours:
            return None
        for name, what in (
            ("prefix_size", "forces words whose tags the template would have to know"),
            ("match_source_len", "would cut translations by the longest source of their batch, and not by templates"),
        ):
            if mode == "template" and getattr(args, name, None):
                hint = f"without {option_name(name)}, or with --tag-search marginal or joint"
                raise SyntaxDataError(f"{option_name(name)} {what}", hint=hint)
        if len(models) > 1 and models[0].decoder.tags is None and (mode != "marginal" or cfg.print_tags):
            logger.warning("unnamed latent values of models that were trained apart have nothing in common but numbers")
        from fairseq_syntax.systems.lasyn.generator import LatentGenerator  # not needed in training

        templates = self._templates(models[0].decoder) if mode == "template" else None
        return LatentGenerator, {"mode": mode, "templates": templates}

    def _templates(self, decoder: LaSynDecoder) -> Any:
        source = self.task.cfg.tag_templates
        if not source:
            hint = f"a file of tag sequences, or {REFERENCE}"
            raise SyntaxDataError("--tag-search template needs --tag-templates", hint=hint)
        if source == REFERENCE:
            check_tags(decoder, self.task)
            return partial(reference_templates, decoder)
        templates = FileTemplates(source, decoder.latent_names)
        for dataset in self.task.datasets.values():  # empty in fairseq-interactive
            templates.check_count(len(dataset))
        return templates

    def observe(self, generator: Any, sample: dict[str, Any], hypotheses: list[list[dict[str, Any]]]) -> None:
        """Print the tags of the hypotheses if requested."""
        if not self._print_best:
            return
        for number, best in zip(sample["id"].tolist(), hypotheses):
            for hypothesis in best[: self._print_best]:
                # In base 2, like fairseq's scores.
                score = hypothesis["score"].item() / math.log(2)
                tags = tag_string(hypothesis["tags"][:-1].tolist(), generator.model.latent_names)
                print(f"Z-{number}\t{score}\t{tags}")

"""fairseq's generator for LaSyn models, whose hypotheses have tags."""

from __future__ import annotations

from typing import Any

import torch
from fairseq.search import BeamSearch
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.systems.lasyn.ensemble import LatentEnsemble
from fairseq_syntax.systems.lasyn.joint import JointBeamSearch
from fairseq_syntax.systems.lasyn.templates import Template


class LatentGenerator(SequenceGenerator):
    """Beam search with the tags summed out, maximized or given.

    In addition to fairseq's entries, each hypothesis has ``tags``: [T] int64, the latent value of each token including
    ``</s>``, which is the given one, or the most probable one for the token.

    Args:
        models: LaSyn models
        tgt_dict: the target dictionary
        mode: ``marginal`` (Equation 5), ``joint`` (max over z of P(y, z)) or ``template`` (P(y | z), z given)
        templates: the source of templates, such as :class:`.templates.FileTemplates`; needed for ``template``
        other arguments: as in fairseq
    """

    def __init__(
        self,
        models: list[Any],
        tgt_dict: Any,
        *,
        mode: str = "marginal",
        templates: Any = None,
        search_strategy: Any = None,
        **kwargs: Any,
    ) -> None:
        if (mode == "template") != (templates is not None):
            raise SyntaxDataError("a template search needs templates, and no other search takes them")
        ensemble = LatentEnsemble(models)
        if mode == "joint":
            if type(search_strategy) not in (type(None), BeamSearch):
                raise SyntaxDataError("a joint search is a plain beam search", hint="leave the other strategy out")
            if kwargs.get("temperature", 1.0) != 1.0:
                raise SyntaxDataError("a joint search has no temperature", hint="leave --temperature out")
            search_strategy = JointBeamSearch(tgt_dict, ensemble)
        super().__init__(ensemble, tgt_dict, search_strategy=search_strategy, **kwargs)
        self.templates = templates

    @torch.no_grad()
    def generate(self, models: list[Any], sample: dict[str, Any], **kwargs: Any) -> list[list[dict[str, Tensor]]]:
        """Translate a batch.

        Raises:
            SyntaxDataError: a template is missing, or its length exceeds the search's limit
        """
        if self.templates is not None:
            templates = self.templates.of(sample, models)
            self._check_lengths(templates, sample)
            self.model.templates = templates
        return super().generate(models, sample, **kwargs)

    def _check_lengths(self, templates: list[Template], sample: dict[str, Any]) -> None:
        source_length = sample["net_input"]["src_tokens"].size(1)
        path = getattr(self.templates, "path", None)  # templates from references have no path
        # The limit of steps in fairseq's generator.
        longest = min(int(self.max_len_a * source_length + self.max_len_b), self.max_len - 1)
        for number, template in zip(sample["id"].tolist(), templates):
            if not self.min_len <= len(template) <= longest:
                raise SyntaxDataError(
                    f"a template of {len(template)} tags, where a translation has {self.min_len} to {longest} pieces",
                    hint="change the template, or --min-len, --max-len-a and --max-len-b",
                    path=path,
                    line=None if path is None else number + 1,
                )

    def finalize_hypos(self, step, bbsz_idx, eos_scores, tokens, scores, finalized, finished, beam_size, *args, **kw):
        """Finalize the rows that end now, as in fairseq, and add their tags."""
        tags = self.model.finished_tags(bbsz_idx)
        unfinished = [i for i, done in enumerate(finished) if not done]
        sentences = [unfinished[row // beam_size] for row in bbsz_idx.tolist()]
        before = [len(hypotheses) for hypotheses in finalized]
        newly = super().finalize_hypos(
            step, bbsz_idx, eos_scores, tokens, scores, finalized, finished, beam_size, *args, **kw
        )
        # fairseq takes the rows in order, at most beam-size rows per sentence.
        for sentence, row in zip(sentences, tags):
            if before[sentence] < len(finalized[sentence]):
                finalized[sentence][before[sentence]]["tags"] = row
                before[sentence] += 1
        return newly

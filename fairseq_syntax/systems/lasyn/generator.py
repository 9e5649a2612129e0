"""Beam search with LaSyn models: the tags summed out, maximized or given by a template.

fairseq's generator asks its ensemble for the scores of the next word, and tells it how the rows of the beam are
reordered. In addition to the decoders' states, :class:`LatentEnsemble` keeps what determines a hypothesis's tags.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from fairseq.search import BeamSearch
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor

from fairseq_syntax.compat.search import EnsembleModel, checked_at_once
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.systems.lasyn.joint import JointBeamSearch
from fairseq_syntax.systems.lasyn.model import END
from fairseq_syntax.systems.lasyn.templates import OPEN, Template


class LatentEnsemble(EnsembleModel):
    """LaSyn models with the same latent values, whose probabilities are averaged.

    A row is a hypothesis of a sentence. All log-probabilities are float32, [R, V] over words or [R, Z] over values.

    Attributes:
        templates: the tag sequence of each sentence in the next batch; None to sum the tags out
    """

    def __init__(self, models: list[Any]) -> None:
        super().__init__(models)
        names = models[0].decoder.latent_names
        if any(m.decoder.latent_names != names for m in models):
            raise SyntaxDataError("the models of an ensemble have different latent values", hint="train them alike")
        self.latent_names: list[str] = names
        self.n_values = len(names)
        self.end = names.index(END) if models[0].decoder.tags else None
        self.eos: int = models[0].decoder.dictionary.eos()
        self.templates: list[Template] | None = None

    @torch.no_grad()
    def forward_encoder(self, net_input: dict[str, Any]) -> list[Any]:
        """Encode a batch, and start its search."""
        tokens = net_input["src_tokens"]
        self._tables = [m.decoder.tables() for m in self.models]
        self._moved: Tensor | None = None  # for each row, its index in the last step
        self._tags = torch.empty(len(tokens), 0, dtype=torch.long, device=tokens.device)
        self._marginal: list[Tensor] = []
        self._rest: list[Tensor] = []
        self._template_tags: Tensor | None = None
        if self.templates is not None:
            # Column n of the tags [R, T] is position n; </s> must come at the position given by the length [R].
            self._length = torch.tensor([len(t) for t in self.templates], device=tokens.device)
            template_tags = [[*t, OPEN if self.end is None else self.end] for t in self.templates]
            # Computed once, so that no step has to synchronize with the device.
            longest = max(map(len, template_tags))
            self._open = [any(n < len(t) and t[n] == OPEN for t in template_tags) for n in range(longest)]
            padded = [t + [OPEN] * (longest - len(t)) for t in template_tags]
            self._template_tags = torch.tensor(padded, dtype=torch.long, device=tokens.device)
        return super().forward_encoder(net_input)

    def reorder_encoder_out(self, encoder_outs: list[Any], new_order: Tensor) -> list[Any]:
        """Reorder the rows of the search together with those of the encoder."""
        if self._template_tags is not None:
            self._template_tags, self._length = self._template_tags[new_order], self._length[new_order]
        self._tags = self._tags[new_order]
        self._moved = new_order
        return super().reorder_encoder_out(encoder_outs, new_order)

    @torch.no_grad()
    def forward_decoder(
        self, tokens: Tensor, encoder_outs: list[Any], incremental_states: list[Any], temperature: float = 1.0
    ) -> tuple[Tensor, Tensor | None]:
        """The scores of the next word [R, V] after ``tokens`` [R, T], and the average attention [R, S] or None."""
        if tokens.size(1) > 1:
            self._extend_tags(tokens[:, -1])
        step = tokens.size(1) - 1
        with self.in_search():
            hiddens, attention = self._decode(tokens, encoder_outs, incremental_states)
            scores = self._scores(hiddens, step, temperature)
        return checked_at_once(scores), attention if self.keeps_attention else None

    def _scores(self, hiddens: list[Tensor], step: int, temperature: float) -> Tensor:
        template_tags = None if self._template_tags is None else self._template_tags[:, step]
        if template_tags is None or self._open[step]:
            pairs = [m.decoder.scores(h, t) for m, h, t in zip(self.models, hiddens, self._tables)]
            self._marginal, self._rest = [p[0] for p in pairs], [p[1] for p in pairs]
            scores = mean_log(self._marginal, temperature)
        if template_tags is not None:
            values = template_tags.clamp(min=0)  # open places: any value, since its scores are not used
            exact = mean_log([m.decoder.conditional(h, values) for m, h in zip(self.models, hiddens)], temperature)
            scores = torch.where(template_tags.eq(OPEN)[:, None], scores, exact) if self._open[step] else exact
            scores = self._end_with_the_template(scores, step)
        return scores

    def log_posterior(self, rows: Tensor, words: Tensor) -> Tensor:
        """log P(z | y) [..., Z] in the last step, for words y [...] int64 after the rows [...] int64."""
        each = [torch.log_softmax(rest[rows] + t.by_word[words], dim=-1) for rest, t in zip(self._rest, self._tables)]
        if len(each) == 1:
            return each[0]
        # The models' P(y, z), averaged like their P(y).
        joint = [m[rows, words][..., None] + post for m, post in zip(self._marginal, each)]
        return torch.log_softmax(mean_log(joint), dim=-1)

    def finished_tags(self, rows: Tensor) -> Tensor:
        """The latent values [N, T] of the hypotheses that now end with ``</s>``, by their rows [N] in the last step."""
        template_tags = None if self._template_tags is None else self._template_tags[rows]
        last = self._values(rows, torch.full_like(rows, self.eos), template_tags)
        return torch.cat([self._tags[rows], last[:, None]], dim=1)

    def copy_rows(self, rows: Tensor) -> None:
        """Give each row what determines the tags of another one in this step, of the row numbers ``rows`` [R] int64."""
        self._tags = self._tags[rows]
        self._marginal, self._rest = ([x[rows] for x in part] for part in (self._marginal, self._rest))

    def _extend_tags(self, words: Tensor) -> None:
        """Record the values of the words [R] chosen in the last step, whose rows have been reordered since."""
        rows = torch.arange(len(words), device=words.device) if self._moved is None else self._moved
        self._moved = None
        values = self._values(rows, words, self._template_tags)
        self._tags = torch.cat([self._tags, values[:, None]], dim=1)

    def _values(self, rows: Tensor, words: Tensor, template_tags: Tensor | None) -> Tensor:
        """The values [R] of the last step's words [R], chosen in ``rows`` [R]: the template's [R, T], or the best."""
        step = self._tags.size(1)
        if template_tags is not None and not self._open[step]:
            return template_tags[:, step]
        best = self.log_posterior(rows, words).argmax(dim=-1)
        if template_tags is None:
            return best
        return torch.where(template_tags[:, step].eq(OPEN), best, template_tags[:, step])

    def _decode(self, tokens: Tensor, encoder_outs: list[Any], states: list[Any]) -> tuple[list[Tensor], Tensor | None]:
        hiddens, attentions = [], []
        for model, encoder_out, state in zip(self.models, encoder_outs, states):
            hidden, extra = model.decoder(tokens, encoder_out=encoder_out, incremental_state=state, features_only=True)
            hiddens.append(hidden[:, -1])
            if extra["attn"][0] is not None:
                attentions.append(extra["attn"][0][:, -1])
        return hiddens, sum(attentions) / len(attentions) if attentions else None

    def _end_with_the_template(self, scores: Tensor, step: int) -> Tensor:
        """Allow ``</s>`` after the template's last tag, and only there."""
        is_eos = torch.arange(scores.size(1), device=scores.device) == self.eos
        ends = self._length <= step
        return scores.masked_fill(is_eos[None] != ends[:, None], -math.inf)


def mean_log(logs: list[Tensor], temperature: float = 1.0) -> Tensor:
    """The logarithm of the mean of the exponentials, after a temperature is applied to each distribution."""
    if temperature != 1.0:  # log-probabilities serve as logits
        logs = [torch.log_softmax(log / temperature, dim=-1) for log in logs]
    if len(logs) == 1:
        return logs[0]
    return torch.logsumexp(torch.stack(logs), dim=0) - math.log(len(logs))


class LatentGenerator(SequenceGenerator):
    """Beam search with the tags summed out, maximized or given.

    In addition to fairseq's entries, each hypothesis has ``tags``: [T] int64, the latent value of each token including
    ``</s>``, which is the given one, or the most probable one for the token.

    Args:
        mode: ``marginal`` (Equation 5), ``joint`` (max over z of P(y, z)) or ``template`` (P(y | z), z given)
        templates: gives the templates of a batch, such as :class:`.templates.FileTemplates`; needed for ``template``
        others: as in fairseq, for LaSyn models
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
        """Translate a batch; an error if a template is missing, or its length exceeds the search's limit."""
        if self.templates is not None:
            self.model.templates = self.templates(sample)
            self._check_lengths(self.model.templates, sample)
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

    def _prefix_tokens(self, step, lprobs, scores, tokens, prefix_tokens, beam_size):
        """As in fairseq. Where a prefix ends, all rows of a sentence become its first one, and so do their tags."""
        ends = prefix_tokens[:, step].eq(self.eos)
        if ends.any():
            rows = torch.arange(len(tokens), device=tokens.device).view(-1, beam_size)
            self.model.copy_rows(torch.where(ends[:, None], rows[:, :1], rows).flatten())
        return super()._prefix_tokens(step, lprobs, scores, tokens, prefix_tokens, beam_size)

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

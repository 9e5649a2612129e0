"""Changes to fairseq's searches: less work in each step, diverse beams, lengths of the source, and repeated n-grams."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from threading import RLock
from typing import Any
from weakref import WeakKeyDictionary

import torch
from fairseq import ngram_repeat_block, search, sequence_generator
from torch import Tensor

_NORMALIZED = ("get_normalized_probs", "get_normalized_probs_scriptable")
PARTS = 8  # the number of lines into which a long row is folded
SHARED = 4  # sentences of a batch from which on their hypotheses share a source: it takes more operations

# For each decoder whose rows may share sources, the lock of a search.
_in_search: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


def has_heap(x: Tensor) -> bool:
    """Whether ``topk`` of a tensor uses a heap, as on CPUs, which is slow for long rows."""
    return x.device.type == "cpu"


def largest(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """``x.topk(k)`` for each row [N]: values and indices [B, k], the highest first.

    It is faster on CPUs unless k is small, since PyTorch keeps a heap of k elements there. If a row is folded into
    :data:`PARTS` lines, its k largest elements are in the k columns with the largest maxima, or in the remainder at its
    end. For 50 rows of 40,000, k = 64 and one thread, this takes 3 ms instead of 17.
    """
    rows, n = x.size()
    width = n // PARTS
    if not has_heap(x) or k * 4 > width:
        return x.topk(k)
    laid_out = x[:, : PARTS * width].view(rows, PARTS, width)
    column = laid_out.amax(dim=1).topk(k, sorted=False).indices  # [B, k]
    index = (column[:, None] + torch.arange(PARTS)[:, None] * width).flatten(1)  # [B, PARTS k]
    index = torch.cat((index, torch.arange(PARTS * width, n).expand(rows, -1)), dim=1)
    values, place = x.gather(1, index).topk(k)
    return values, index.gather(1, place)


class LogProbabilities(Tensor):
    """Log-probabilities [R, V] in which fairseq looks for NaN by ``x[x != x] = …``, in every step.

    On a CPU, that takes as long as the softmax. Their maxima say sooner that there is none.
    """

    # What is computed from them is an ordinary tensor.
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def __ne__(self, other: Any) -> Any:
        """Where two tensors differ, bool; compared with themselves and without NaN, an index of no rows, int64 [0].

        A mask would be read, and all values with it, by what is done where it holds.
        """
        if other is self and not self.amax(dim=-1).isnan().any():
            return torch.empty(0, dtype=torch.long)
        return super().__ne__(other)


class BeamSearch(search.BeamSearch):
    """fairseq's beam search, which on a CPU looks for the best words of each hypothesis before it adds their scores."""

    def step(
        self,
        step: int,
        lprobs: Tensor,
        scores: Any,
        prev_output_tokens: Any = None,
        original_batch_idxs: Any = None,
        candidate_multiple: int = 2,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The scores, words and beams [B, K] of the best candidates in ``lprobs`` [B, beam, V], the best first."""
        if not has_heap(lprobs):
            return super().step(step, lprobs, scores, prev_output_tokens, original_batch_idxs, candidate_multiple)
        n_sentences, beam, n_words = lprobs.size()
        if step == 0:  # all hypotheses of a sentence are equal
            lprobs = lprobs[:, :1]
        n_best = min(candidate_multiple * beam, lprobs.size(1) * n_words - 1)  # as in fairseq, which excludes padding
        each = min(n_best, n_words)
        values, words = (one.view(n_sentences, -1, each) for one in largest(lprobs.reshape(-1, n_words), each))
        if step > 0:
            values = values + scores[:, :, step - 1, None]
        best, place = values.flatten(1).topk(n_best)
        return best, words.flatten(1).gather(1, place), place // each


class DiverseBeamSearch(search.DiverseBeamSearch):
    """fairseq's search with sentences numbered by their places in the batch.

    fairseq stores their penalties by these places, but looks them up by ``id``: it fails, or takes those of another
    sentence.
    """

    def step(self, step: int, lprobs: Tensor, scores: Any, tokens: Any = None, ids: Any = None) -> Any:
        """See the base class; ``ids`` are those of the sentences that are still searched, int64 [B]."""
        if step == 0:
            self._ids = ids
        places = (ids[:, None] == self._ids).int().argmax(dim=1)
        return super().step(step, lprobs, scores, tokens, places)


class LengthConstrainedBeamSearch(search.LengthConstrainedBeamSearch):
    """The search of ``--match-source-len``: every hypothesis has as many pieces as its source.

    fairseq counts ``</s>`` on one side alone, so translations get a piece more, and lets hypotheses that do not end at
    their limit go on. One piece is the least, since a search that may only end at once would wait for a beam of others.
    """

    def set_src_lengths(self, src_lengths: Tensor) -> None:
        """See the base class; the lengths [B] include ``</s>``."""
        super().set_src_lengths((src_lengths - 1).clamp(min=1))

    def step(self, step: int, lprobs: Tensor, scores: Any, tokens: Any = None, ids: Any = None) -> Any:
        """See the base class; ``lprobs``: [B, beam, V]."""
        ends = step >= self.max_len_a * self.src_lengths + self.max_len_b
        at_end = torch.full_like(lprobs, -torch.inf)
        end = lprobs[:, :, self.eos]
        at_end[:, :, self.eos] = end.masked_fill(end.isneginf(), 0.0)  # forbidden below --min-len
        lprobs[step < self.min_len_a * self.src_lengths + self.min_len_b, :, self.eos] = -torch.inf
        return self.beam.step(step, torch.where(ends[:, None, None], at_end, lprobs), scores)


class NGramRepeatBlock(ngram_repeat_block.NGramRepeatBlock):
    """``--no-repeat-ngram-size N``: words that would complete an n-gram of the hypothesis for the second time.

    fairseq compares the end of the whole buffer, which is padding until the last step, so it forbids nothing.
    """

    def forward(self, tokens: Tensor, lprobs: Tensor, bsz: int, beam_size: int, step: int) -> Tensor:
        """The log-probabilities with those of forbidden words at −∞.

        A row in which nothing would be left keeps its own: a forced prefix or the end may repeat an n-gram.

        Args:
            tokens: [R, T] int64, the hypotheses, of which columns 1 to ``step`` are words
            lprobs: [R, V], of the next word
        """
        n = self.no_repeat_ngram_size
        if step < n:
            return lprobs
        words = tokens[:, 1 : step + 1]
        ngrams = words.unfold(1, n, 1)  # [R, step − n + 1, n]
        is_repeated = (ngrams[..., : n - 1] == words[:, None, step - n + 1 :]).all(dim=-1)
        forbidden = torch.zeros_like(lprobs).scatter_add_(1, ngrams[..., n - 1], is_repeated.to(lprobs)) > 0
        allowed = lprobs.masked_fill(forbidden, -torch.inf)
        return torch.where(allowed.isneginf().all(dim=1, keepdim=True), lprobs, allowed)


class EnsembleModel(sequence_generator.EnsembleModel):
    """The models of a search, which does only what a step changes.

    fairseq reorders the encoder's output in every step, looks through all modules of a decoder for those that keep a
    state, and copies the attention of all steps to the hypotheses that go on. It gives each hypothesis keys and values
    of the source of its own; its attention can share those of a sentence, which fairseq asks of BART alone.

    Attributes:
        keeps_attention: whether hypotheses have their ``attention``, which only alignments by a search read
    """

    def __init__(self, models: list[Any]) -> None:
        # Where nothing is searched, as in training, they are not needed.
        from fairseq_syntax.compat.decoder_steps import DecoderSteps
        from fairseq_syntax.compat.packed_weights import PackedWeights

        super().__init__(models)
        self.keeps_attention = True
        self._rows = self._each = 0
        self._with_state: list[list[Any]] = []
        self._over_source: list[Any] = []
        self._locks: list[Any] = []
        self._is_softmax = [ends_in_a_softmax(model) for model in models]
        self._weights, self._steps = PackedWeights(models), DecoderSteps(models)

    def forward_encoder(self, net_input: dict[str, Any]) -> list[Any]:
        """Encode a batch, and start its search."""
        self._rows = self._each = 0
        decoders = [model.decoder for model in self.models] if self.has_incremental_states() else []
        named = "reorder_incremental_state"
        self._with_state = [[module for module in of.modules() if hasattr(module, named)] for of in decoders]
        self._over_source = []
        locks = []
        for decoder, modules in zip(decoders, self._with_state):
            over_source = [m for m in modules if can_share(m) and (m.beam_size == 1 or decoder in _in_search)]
            if over_source:
                locks.append(_in_search.setdefault(decoder, RLock()))
                self._over_source += over_source
        self._locks = sorted(locks, key=id)  # in one order, so that searches do not wait for each other
        self._weights.update()
        self._steps.update(self.keeps_attention)
        self._sentences = len(net_input["src_tokens"]) if "src_tokens" in net_input else 0
        return super().forward_encoder(net_input)

    @contextmanager
    def in_search(self) -> Iterator[None]:
        """A context of a step, in which decoders do what only a search can ask of them.

        The hypotheses of a sentence share the keys and values of its source: attention that is told of a beam takes
        every batch for one of such hypotheses. Searches with one model in several threads take turns. Large weights
        are those packed for a search, and plain layers take steps.
        """
        with ExitStack() as searching:
            for change in (*self._locks, self._weights.in_use(), self._steps.in_use()):
                searching.enter_context(change)
            # Not by setattr, with which a module takes as long as some of its operations.
            shared = [module.__dict__ for module in self._over_source] if self._each > 1 else []
            try:
                for attributes in shared:
                    attributes["beam_size"] = self._each
                yield
            finally:
                for attributes in shared:
                    attributes["beam_size"] = 1

    def reorder_encoder_out(self, encoder_outs: list[Any], new_order: Tensor) -> list[Any]:
        """See the base class.

        The hypotheses of a sentence share its source, so if the number of rows and thus their sentences have not
        changed, nothing needs to be reordered.
        """
        rows, self._rows = self._rows, len(new_order)
        if not self._each:
            self._each = self._rows // self._sentences if self._sentences >= SHARED else 1
        return encoder_outs if rows == self._rows else super().reorder_encoder_out(encoder_outs, new_order)

    def reorder_incremental_state(self, incremental_states: list[Any], new_order: Tensor) -> None:
        """See the base class."""
        with self.in_search():
            for state, modules in zip(incremental_states, self._with_state):
                for module in modules:
                    module.reorder_incremental_state(state, new_order)

    def forward_decoder(
        self, tokens: Tensor, encoder_outs: Any, incremental_states: Any, temperature: float = 1.0
    ) -> tuple[Tensor, Tensor | None]:
        """The log-probabilities of the next word [R, V], and the average attention [R, S] if it is kept.

        Args:
            tokens: [R, T] int64, the hypotheses so far, of which decoders with a state read the last token
        """
        with self.in_search():
            if self._is_softmax == [True] and has_heap(tokens):
                with_state = {"incremental_state": incremental_states[0]} if self.has_incremental_states() else {}
                encoded = encoder_outs[0] if self.has_encoder() else None
                output, extra, *_ = self.models[0].decoder.forward(tokens, encoder_out=encoded, **with_state)
                logits = output[:, -1] if temperature == 1 else output[:, -1].div_(temperature)
                log_probs, attention = log_softmax_(logits.float()), last_attention(extra)
            else:
                log_probs, attention = super().forward_decoder(tokens, encoder_outs, incremental_states, temperature)
        return checked_at_once(log_probs), attention if self.keeps_attention else None


def can_share(module: Any) -> bool:
    """Whether a module is fairseq's attention to a source, whose keys and values rows of one sentence can share."""
    from fairseq_syntax.compat.decoder_steps import is_plain_attention

    return is_plain_attention(module) and module.encoder_decoder_attention and not module.self_attention


def ends_in_a_softmax(model: Any) -> bool:
    """Whether the log-probabilities of a model are the softmax of its decoder's output, as fairseq has it."""
    decoder = getattr(model, "decoder", None)
    methods = [getattr(type(part), name, None) for part in (model, decoder) for name in _NORMALIZED]
    fairseqs_own = all(method and method.__module__.startswith("fairseq.models.") for method in methods)
    return fairseqs_own and getattr(decoder, "adaptive_softmax", None) is None


def last_attention(extra: Any) -> Tensor | None:
    """The attention [R, S] to the source in the last step, from what a decoder returns beside its output, if any."""
    attention = extra.get("attn") if isinstance(extra, dict) else extra
    if isinstance(attention, list):
        attention = attention[0] if attention else None
    return None if attention is None else attention[:, -1]


def log_softmax_(logits: Tensor) -> Tensor:
    """The log-softmax of each row [R, V], in place of the logits.

    In parts, so that the memory beside them stays in the processor's cache: to get new pages from the system costs more
    than the softmax.
    """
    for part in logits.split(64):
        part.copy_(part.log_softmax(dim=-1))
    return logits


def checked_at_once(log_probs: Tensor) -> Tensor:
    """Log-probabilities [R, V] in which fairseq finds no NaN without looking at every one; on GPUs, as they are."""
    return log_probs.as_subclass(LogProbabilities) if has_heap(log_probs) else log_probs


def install() -> None:
    """Make fairseq's generators use these, with a beam that the words of the first step can fill.

    A beam that is wider than the vocabulary without padding and ``</s>`` would hold hypotheses that never end, where a
    translation may have one word.
    """
    original = sequence_generator.SequenceGenerator.__init__

    @functools.wraps(original)
    def limited(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.beam_size = min(self.beam_size, self.vocab_size - 2)

    sequence_generator.SequenceGenerator.__init__ = limited
    sequence_generator.EnsembleModel = EnsembleModel
    search.BeamSearch = BeamSearch
    search.DiverseBeamSearch = DiverseBeamSearch
    search.LengthConstrainedBeamSearch = LengthConstrainedBeamSearch
    sequence_generator.NGramRepeatBlock = NGramRepeatBlock

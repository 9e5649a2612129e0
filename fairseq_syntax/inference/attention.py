"""The attention weights of a trained model on given sentences, whatever its systems do to them."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from fairseq import utils
from fairseq.modules import MultiheadAttention
from torch import Tensor, nn

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.inference.loading import load_models
from fairseq_syntax.inference.spelling import text_of_tokens
from fairseq_syntax.model.attention import SyntaxSelfAttention, causal_mask

KINDS = ("encoder", "cross", "decoder")


@contextmanager
def recorded(model: nn.Module, kinds: Sequence[str] = KINDS) -> Iterator[dict[str, list[Tensor]]]:
    """Within it, every attention of a Transformer notes its weights of its last call.

    Args:
        kinds: which of :data:`KINDS` to note

    Yields:
        by kind (``encoder``: self-attention of the encoder; ``decoder``: of the decoder; ``cross``: over the source)
        the weights of each layer, [B, H, rows, columns] in float32, as they are used: after all score terms, the
        mask and the softmax. Filled while the model runs.
    """
    places = [(kind, module) for kind, module in _attentions(model) if kind in kinds]
    weights: dict[str, list[Tensor]] = {kind: [] for kind in KINDS}
    for kind, _ in places:
        weights[kind].append(torch.empty(0))
    numbers = {kind: iter(range(len(weights[kind]))) for kind in KINDS}
    patched = []
    decoder = getattr(model, "decoder", None)
    needed = getattr(decoder, "need_attn", True)  # False once an LSTM has been made fast
    try:
        for kind, module in places:
            note = partial(weights[kind].__setitem__, next(numbers[kind]))
            wrapper = _observing if isinstance(module, SyntaxSelfAttention) else _weighing
            # on the object, not on its class: other models keep their own
            module.forward = partial(wrapper, module, module.forward, note)  # type: ignore[method-assign]
            # fairseq hands the rest to PyTorch's function, which returns the mean over the heads only; this keeps it
            # from doing so
            patched.append((module, module.skip_embed_dim_check))
            module.skip_embed_dim_check = True
        if decoder is not None:
            decoder.need_attn = True
        yield weights
    finally:
        if decoder is not None:
            decoder.need_attn = needed
        for module, flag in patched:
            del module.forward
            module.skip_embed_dim_check = flag


def _attentions(model: nn.Module) -> Iterator[tuple[str, MultiheadAttention]]:
    for side in ("encoder", "decoder"):
        for layer in getattr(getattr(model, side, None), "layers", ()):
            own = getattr(layer, "self_attn", None)
            if isinstance(own, MultiheadAttention):
                yield side, own
            cross = getattr(layer, "encoder_attn", None)
            if isinstance(cross, MultiheadAttention):
                yield "cross", cross


def _observing(
    module: SyntaxSelfAttention, forward, note, query, key_padding_mask=None, attn_mask=None, *, observe=(), **options
):
    """Run a syntax self-attention with all heads observed; the caller gets those that it asked for."""
    wanted = list(observe)
    out, scores = forward(query, key_padding_mask, attn_mask, observe=range(module.num_heads), **options)
    weights = scores
    if attn_mask is not None:
        weights = weights + causal_mask(attn_mask, key_padding_mask)
    elif key_padding_mask is not None:
        weights = weights.masked_fill(key_padding_mask[:, None, None, :], float("-inf"))
    note(torch.softmax(weights.float(), dim=-1))
    return out, scores[:, wanted] if wanted else None


def _weighing(module: MultiheadAttention, forward, note, *arguments, **options):
    """Run fairseq's attention with the weights of each head; the caller gets what it asked for."""
    of_heads = options.pop("need_head_weights", False)
    mean = options.pop("need_weights", True)
    out, weights = forward(*arguments, need_weights=True, need_head_weights=True, **options)
    note(weights.transpose(0, 1).float())
    if not (of_heads or mean):
        return out, None
    return out, weights if of_heads else weights.mean(dim=0)


class Reader:
    """Translates sentences of a dataset with a model and reads its attention.

    Args:
        model: in evaluation mode
        task: the task it was trained with
        beam, max_len_b: of the search
    """

    def __init__(self, model: nn.Module, task: Any, beam: int = 5, max_len_b: int = 200) -> None:
        model.eval()  # whose result is None for a model that has been prepared for inference already
        self.model, self.task = model, task
        self._generator = task.build_generator([model], Namespace(beam=beam, nbest=1, max_len_b=max_len_b))

    @torch.no_grad()
    def read(self, dataset: Any, sentence: int) -> dict:
        """Translate a sentence (0-based) of a dataset, and read the attention in making that translation.

        Returns:
            ``text``; ``pieces`` of the target with ``</s>``; ``score``, the mean log-probability (base e) of its
            pieces; ``attention``: by kind, one float32 array [H, rows, columns] per layer (source columns with
            ``</s>``); ``parents``: (layer, head) of the encoder's parent head, or None
        """
        batch = dataset.collater([dataset[sentence]])
        if next(self.model.parameters()).is_cuda:
            batch = utils.move_to_cuda(batch)
        best = self.task.inference_step(self._generator, [self.model], batch)[0][0]
        tokens = best["tokens"].long().cpu()
        dictionary = self.task.target_dictionary
        eos = torch.tensor([dictionary.eos()])
        net_input = {
            **batch["net_input"],
            "prev_output_tokens": torch.cat([eos, tokens[:-1]])[None].to(batch["net_input"]["src_tokens"]),
        }
        with recorded(self.model) as weights:
            _, extra = self.model(**net_input)
        attention = {kind: [w[0].cpu().numpy() for w in layers] for kind, layers in weights.items() if layers}
        if "cross" not in attention and isinstance(extra, Tensor):
            # an LSTM decoder: one head over the source, [B, T', S]
            attention["cross"] = [extra[:1].float().cpu().numpy()]
        pieces = [dictionary[i] for i in tokens.tolist()]
        return {
            "text": text_of_tokens(tokens, dictionary, getattr(self.task, "target_segmenter", None)),
            "pieces": pieces,
            "score": float(best["score"]),
            "attention": attention,
            "parents": self._parents(),
        }

    def _parents(self) -> tuple[int, int] | None:
        from fairseq_syntax.inference.parent_head import parent_head

        try:
            return parent_head(self.model)
        except (SyntaxDataError, AttributeError):
            return None


def load_reader(path: str, data: str, beam: int = 5) -> Reader:
    """A reader of a checkpoint.

    Raises:
        SyntaxDataError: there is no such checkpoint, or it does not fit the data
    """
    loaded = load_models([path], data, device="cpu")
    return Reader(loaded.models[0], loaded.task, beam)


def predicted_heads(weights: np.ndarray, counts: Sequence[int], sentences: Sequence[tuple[int, int]]) -> list[int]:
    """The tree that a parent head believes in: heads of the words, 0-based, a root its own.

    Args:
        weights: [T, T] attention of the head, ``</s>`` last
        counts: pieces of each word
        sentences: word spans
    """
    from fairseq_syntax.inference.spanning_tree import decode_line

    first = np.cumsum([0, *counts[:-1]])
    scores = np.log(np.maximum(weights[np.ix_(first, first)], 1e-30))
    return decode_line(scores, list(sentences)).heads

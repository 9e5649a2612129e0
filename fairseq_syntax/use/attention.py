"""A trained model's translations of sentences of a dataset, with its attention in making them."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from fairseq import utils
from torch import Tensor, nn

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.inference.recorded_attention import recorded
from fairseq_syntax.inference.search_control import OnStep, SearchControl
from fairseq_syntax.inference.spelling import text_of_tokens
from fairseq_syntax.use import BEAM
from fairseq_syntax.use.loading import load_models


class Reader:
    """Translates sentences of a dataset with a model and reads its attention.

    Args:
        model: in evaluation mode
        task: the task it was trained with
        beam, max_len_a, max_len_b: of the search
    """

    def __init__(
        self, model: nn.Module, task: Any, beam: int = BEAM, max_len_b: int = 200, max_len_a: float = 0.0
    ) -> None:
        model.eval()  # whose result is None for a model that has been prepared for inference already
        self.model, self.task = model, task
        lengths = {"max_len_a": max_len_a, "max_len_b": max_len_b}
        self._generator = task.build_generator([model], Namespace(beam=beam, nbest=1, **lengths))
        self._control = SearchControl(self._generator)

    @torch.no_grad()
    def read(self, dataset: Any, sentence: int, on_step: OnStep | None = None) -> dict:
        """Translate a sentence (0-based) of a dataset, and read the attention in making that translation.

        Args:
            on_step: called before each step of the search, which ends with what it raises

        Returns:
            ``text``; ``pieces`` of the target with ``</s>``; ``score``, the mean log-probability (base e) of its
            pieces; ``attention``: by kind, one float32 array [H, rows, columns] per layer (source columns with
            ``</s>``); ``parents``: (layer, head) of the encoder's parent head, or None
        """
        batch = dataset.collater([dataset[sentence]])
        if next(self.model.parameters()).is_cuda:
            batch = utils.move_to_cuda(batch)
        with self._control.search({}, on_step):
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
            "text": text_of_tokens(
                tokens, dictionary, getattr(self.task, "target_segmenter", None), self.task.cfg.target_lang or ""
            ),
            "pieces": pieces,
            "score": float(best["score"]),
            "attention": attention,
            "parents": self._parents(),
        }

    def _parents(self) -> tuple[int, int] | None:
        from fairseq_syntax.use.parent_head import parent_head

        try:
            return parent_head(self.model)
        except (SyntaxDataError, AttributeError):
            return None


def load_reader(path: str, data: str, beam: int = BEAM) -> Reader:
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
    from fairseq_syntax.use.spanning_tree import decode_line

    first = np.cumsum([0, *counts[:-1]])
    scores = np.log(np.maximum(weights[np.ix_(first, first)], 1e-30))
    return decode_line(scores, list(sentences)).heads

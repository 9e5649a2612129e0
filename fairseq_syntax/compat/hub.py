"""Patch of fairseq's hub interface: ``from_pretrained(…).translate("raw text")`` parses and segments text."""

from __future__ import annotations

from typing import Any

from fairseq import hub_utils
from torch import Tensor


class GeneratorHubInterface(hub_utils.GeneratorHubInterface):
    """fairseq's hub interface with raw text encoded by the task; fairseq's own would treat each word as a piece."""

    def __init__(self, cfg: Any, task: Any, models: Any) -> None:
        super().__init__(cfg, task, models)
        self.bpe: Any
        # With --bpe, the user has chosen one of fairseq's segmentations, which the base class applies.
        self._cuts = self.bpe is None and hasattr(task, "encode_raw")
        if self._cuts:
            self.bpe = task.build_bpe(cfg.bpe)

    def encode(self, sentence: str) -> Tensor:
        """Encode a text as tokens [T]."""
        return self.task.encode_raw([sentence])[0] if self._cuts else super().encode(sentence)

    def sample(self, sentences: Any, beam: int = 1, verbose: bool = False, **kwargs: Any) -> Any:
        """The best translation of a text, or of each text in a list."""
        if not self._cuts or isinstance(sentences, str):
            return super().sample(sentences, beam, verbose, **kwargs)
        hypotheses = self.generate(self.task.encode_raw(sentences), beam, verbose, **kwargs)
        return [self.decode(best[0]["tokens"]) for best in hypotheses]


def install() -> None:
    """Make ``from_pretrained`` return this interface."""
    hub_utils.GeneratorHubInterface = GeneratorHubInterface

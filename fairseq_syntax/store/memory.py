"""A store in memory, for sentences that are not in a file, such as a user's input."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.store.schema import StoredSentence


class MemoryStore:
    """Sentences in memory, with the part of :class:`SyntaxStore` that batching uses.

    Args:
        sentences: in the order of their numbers
    """

    path = "<memory>"
    labels: ClassVar[dict[str, list[str]]] = {}  # none are kept: the ids are those of who made the sentences

    def __init__(self, sentences: list[StoredSentence]) -> None:
        self._sentences = sentences

    def __len__(self) -> int:
        return len(self._sentences)

    def spans(self, sentence: int) -> list[tuple[int, int]]:
        """As :meth:`SyntaxStore.spans`."""
        found = self._sentences[sentence]
        starts = found.sentences or ([0] if found.pieces else [])
        return list(zip(starts, [*starts[1:], len(found.pieces)]))

    def fetch(self, ids: np.ndarray, *, arcs: bool = False) -> dict[str, np.ndarray | int]:
        """As :meth:`SyntaxStore.fetch`, sentence by sentence, with ``parsed`` where a sentence has no parse."""
        chosen = [self._sentences[i] for i in ids]
        if arcs and any(s.arcs is None and s.parsed for s in chosen):
            raise SyntaxDataError("the parse has no arcs", hint="parse with --distributions")
        found = [sorted(s.arcs or ()) if arcs else [] for s in chosen]
        words = [np.array([s.head, s.deprel, s.upos, s.xpos], dtype=np.int32).reshape(4, -1) for s in chosen]
        flat: dict[str, np.ndarray | int] = {
            "counts": np.array(
                [
                    [sum(s.pieces) for s in chosen],
                    [len(s.pieces) for s in chosen],
                    [len(a) for a in found],
                ],
                dtype=np.int32,
            ),
            "pieces": np.array([p for s in chosen for p in s.pieces], dtype=np.int32),
            "words": np.concatenate([np.zeros((4, 0), dtype=np.int32), *words], axis=1),
            "n_tree_arcs": sum(p * s.pieces[h] for s in chosen for p, h in zip(s.pieces, s.head)),
        }
        if arcs:
            flat |= {
                "arcs": np.array([a[:3] for run in found for a in run], dtype=np.int32).reshape(-1, 3).T.copy(),
                "probs": np.array([a[3] for run in found for a in run], dtype=np.float32),
                "n_piece_arcs": sum(s.pieces[a[0]] * s.pieces[a[1]] for s, run in zip(chosen, found) for a in run),
            }
        if not all(s.parsed for s in chosen):
            flat["parsed"] = np.array([s.parsed for s in chosen], dtype=np.int32)
        return flat

"""A store in memory, for sentences without a file, such as user input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from fairseq_syntax.corpus.store.flat import WORD_FIELDS, FlatArcs, FlatSyntax
from fairseq_syntax.corpus.store.store_format import StoredSentence
from fairseq_syntax.errors import SyntaxDataError


class MemoryStore:
    """Sentences in memory, by number, with the methods of :class:`.reader.SyntaxStore` that batching needs."""

    path = "<memory>"
    labels: ClassVar[dict[str, list[str]]] = {}  # no labels; the ids are those of the creator of the sentences

    def __init__(self, sentences: list[StoredSentence]) -> None:
        self._sentences = sentences

    def __len__(self) -> int:
        return len(self._sentences)

    def fetch(self, ids: np.ndarray, *, arcs: bool = False) -> FlatSyntax[np.ndarray]:
        """See :meth:`SyntaxStore.fetch`; includes ``parsed`` if a sentence has no parse."""
        chosen = [self._sentences[i] for i in ids]
        if arcs and any(s.arcs is None and s.parsed for s in chosen):
            raise SyntaxDataError("the parse has no arcs", hint="parse with --distributions")
        runs = [sorted(s.arcs or ()) for s in chosen]  # arcs in the order of a store
        words: dict[str, Any] = {
            name: _int32([number for s in chosen for number in getattr(s, name)]) for name in WORD_FIELDS
        }
        flat = FlatSyntax(
            n_pieces=_int32([sum(s.pieces) for s in chosen]),
            n_words=_int32([len(s.pieces) for s in chosen]),
            **words,
            n_tree_arcs=sum(p * s.pieces[h] for s in chosen for p, h in zip(s.pieces, s.head)),
        )
        if arcs:
            numbers = np.array([arc for run in runs for arc in run], dtype=np.float64).reshape(-1, 4)
            dependent, head, label = numbers[:, :3].T.astype(np.int32, order="C")
            flat.arcs = FlatArcs(
                n_arcs=_int32([len(run) for run in runs]),
                dependent=dependent,
                head=head,
                label=label,
                prob=numbers[:, 3].astype(np.float32),
                n_piece_arcs=sum(s.pieces[a[0]] * s.pieces[a[1]] for s, run in zip(chosen, runs) for a in run),
            )
        if not all(s.parsed for s in chosen):
            flat.parsed = _int32([s.parsed for s in chosen])
        return flat


def _int32(numbers: Sequence[int]) -> np.ndarray:
    return np.array(numbers, dtype=np.int32)

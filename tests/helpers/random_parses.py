"""Random parses of random lines, as flat tensors and as plain lists, for tests of the heads."""

import random
from dataclasses import dataclass

import torch

from fairseq_syntax.corpus.store.flat import LABEL_FIELDS, FlatSyntax
from fairseq_syntax.data.batch import SyntaxBatch

PAD, EOS = 1, 2


@dataclass
class Line:
    """A line of one or more sentences: pieces per word, head of each word (a root is its own), label ids, token ids."""

    pieces: list[int]
    heads: list[int]
    labels: list[tuple[int, int, int]]
    tokens: list[int]

    @property
    def starts(self) -> list[int]:
        """Where each word's first piece stands in the line."""
        return [sum(self.pieces[:w]) for w in range(len(self.pieces))]

    @property
    def word_of_piece(self) -> list[int]:
        return [w for w, n in enumerate(self.pieces) for _ in range(n)]


def random_tree(rng: random.Random, n_words: int, offset: int = 0) -> list[int]:
    order = list(range(n_words))
    rng.shuffle(order)
    heads = [0] * n_words
    for at, word in enumerate(order):
        heads[word] = offset + (word if at == 0 else order[rng.randrange(at)])
    return heads


def random_line(rng: random.Random, max_words: int = 6, max_sentences: int = 3, vocabulary: int = 20) -> Line:
    heads: list[int] = []
    for _ in range(rng.randint(1, max_sentences)):
        heads += random_tree(rng, rng.randint(1, max_words), len(heads))
    pieces = [rng.choice([1, 1, 1, 2, 3]) for _ in heads]
    labels = [(rng.randrange(1, 5), rng.randrange(1, 4), rng.randrange(1, 3)) for _ in heads]
    return Line(pieces, heads, labels, [rng.randrange(4, vocabulary) for _ in range(sum(pieces))] + [EOS])


def flat(lines: list[Line]) -> FlatSyntax[torch.Tensor]:
    """The syntax of a batch of lines; all that the host could know is left to the device."""

    def column(numbers: list[int]) -> torch.Tensor:
        return torch.tensor(numbers, dtype=torch.int32)

    labels = [of_word for l in lines for of_word in l.labels]
    return FlatSyntax(
        n_pieces=column([sum(l.pieces) for l in lines]),
        n_words=column([len(l.pieces) for l in lines]),
        pieces=column([n for l in lines for n in l.pieces]),
        head=column([h for l in lines for h in l.heads]),
        **{name: column([of_word[i] for of_word in labels]) for i, name in enumerate(LABEL_FIELDS)},
        n_tree_arcs=None,
    )


def numbers(flat: FlatSyntax) -> dict:
    """All that it holds, arrays as lists: what can be compared."""
    of_arcs = {} if flat.arcs is None else {f"arcs.{name}": x for name, x in vars(flat.arcs).items()}
    held = {**vars(flat), **of_arcs}
    del held["lengths"], held["heads"], held["arcs"]
    return {name: x.tolist() if hasattr(x, "tolist") else x for name, x in held.items()}


def pad(lines: list[Line], left: bool) -> torch.Tensor:
    width = max(len(l.tokens) for l in lines)
    padding = [[PAD] * (width - len(l.tokens)) for l in lines]
    return torch.tensor([p + l.tokens if left else l.tokens + p for l, p in zip(lines, padding)])


def batch(lines: list[Line], left: bool) -> SyntaxBatch:
    return SyntaxBatch(flat(lines), pad(lines, left), PAD)

"""The plugin against loops over pairs of words, in float64, and in any batch: ``pytest`` in this folder runs it."""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import fairseq_syntax
from fairseq_syntax.corpus.store.flat import FlatSyntax
from fairseq_syntax.data.batch import SyntaxBatch
from fairseq_syntax.model.encoder import ENCODER_SYSTEMS
from fairseq_syntax.model.heads import Step

fairseq_syntax.register(Path(__file__).with_name("tree_alibi"))
PAD, EOS, PIECE = 1, 2, 5
# 0-based heads of the words of a line (a root is its own head), and the number of pieces of each word.
Line = tuple[list[int], list[int]]
TREE: Line = ([1, 1, 4, 4, 1], [1, 2, 1, 1, 3])
TWO_SENTENCES: Line = ([0, 0, 3, 3], [1, 1, 2, 1])


def batch(lines: Sequence[Line]) -> SyntaxBatch:
    """The syntax of a batch with padding on the left, as fairseq pads sources."""
    rows = [[PIECE] * sum(pieces) + [EOS] for _, pieces in lines]
    width = max(map(len, rows))
    tokens = torch.tensor([[PAD] * (width - len(row)) + row for row in rows])
    words = [word for heads, pieces in lines for word in zip(heads, pieces)]
    head, pieces = (torch.tensor(column) for column in zip(*words))
    syntax = FlatSyntax(
        n_pieces=torch.tensor([sum(pieces) for _, pieces in lines]),
        n_words=torch.tensor([len(heads) for heads, _ in lines]),
        pieces=pieces,
        head=head,
        deprel=torch.zeros_like(head),
        upos=torch.zeros_like(head),
        xpos=torch.zeros_like(head),
        n_tree_arcs=None,
    )
    return SyntaxBatch(syntax, tokens, PAD)


def system(name: str, **options: float) -> Any:
    """A system of an encoder with two layers of four heads."""
    registered = ENCODER_SYSTEMS[name]
    args = Namespace(encoder_layers=2, encoder_attention_heads=4)
    return registered(registered.config(**options), args, None)  # type: ignore[arg-type]


def word_of(line: Line) -> list[int | None]:
    """The word of each piece, and None for ``</s>``."""
    return [word for word, pieces in enumerate(line[1]) for _ in range(pieces)] + [None]


def path_up(line: Line, word: int) -> list[int]:
    """The word and its ancestors."""
    head = line[0][word]
    return [word] if head == word else [word, *path_up(line, head)]


def distance(line: Line, one: int | None, other: int | None) -> int:
    """The number of edges between two words; 0 where no path connects them."""
    if one is None or other is None:
        return 0
    up, down = path_up(line, one), path_up(line, other)
    common = [word for word in up if word in down]
    return up.index(common[0]) + down.index(common[0]) if common else 0


def test_biases_by_loops() -> None:
    lines = [TREE, TWO_SENTENCES]
    alibi = system("tree_alibi", alibi_steepness=4.0)
    step = Step.of(batch(lines))
    width = step.tokens.size(1)
    scores = torch.randn(2, 4, width, width, dtype=torch.float64)
    changed = alibi.term(step, 0).scores(scores, None)
    for row, line in enumerate(lines):
        words, start = word_of(line), width - len(word_of(line))
        for head in range(4):
            for i, one in enumerate(words):
                for j, other in enumerate(words):
                    bias = -(2.0 ** (-4.0 * (head + 1) / 4)) * distance(line, one, other)
                    place = row, head, start + i, start + j
                    assert math.isclose(changed[place], scores[place] + bias, abs_tol=1e-6)


def test_the_loss_by_loops() -> None:
    lines = [TREE, TWO_SENTENCES]
    supervised = system("grandparent_head", grandparent_weight=0.25)
    step = Step.of(batch(lines))
    width = step.tokens.size(1)
    scores = torch.randn(2, width, width, dtype=torch.float64)
    expected, pieces = 0.0, 0
    for row, line in enumerate(lines):
        words, start = word_of(line), width - len(word_of(line))
        for i, word in enumerate(words[:-1]):
            assert word is not None
            wanted = words.index(([*path_up(line, word), *path_up(line, word)[-1:] * 2])[2])
            total = math.log(sum(math.exp(scores[row, start + i, start + j]) for j in range(len(words))))
            expected += total - scores[row, start + i, start + wanted].item()
            pieces += 1
    loss = supervised.loss("grandparent", scores, step)
    assert math.isclose(loss.nll, expected, rel_tol=1e-5) and math.isclose(loss.loss, expected / 4, rel_tol=1e-5)
    assert loss.tokens == pieces


def test_a_line_does_not_depend_on_its_batch() -> None:
    alibi = system("tree_alibi")
    together = alibi.term(Step.of(batch([TREE, TWO_SENTENCES])), 0).factor
    for row, line in enumerate((TREE, TWO_SENTENCES)):
        alone = alibi.term(Step.of(batch([line])), 0).factor[0]
        length = alone.size(1)
        assert together[row, :, -length:, -length:].equal(alone)

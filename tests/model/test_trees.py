"""Depths, subtrees, traversals and levels of the trees of a batch, against recursion."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matrix_part import examples
from random_parses import EOS, PAD, Line, batch, pad, random_line

from fairseq_syntax.corpus.store.flat import FlatSyntax
from fairseq_syntax.data.batch import SyntaxBatch
from fairseq_syntax.data.packing import pack
from fairseq_syntax.model.trees import UNCONNECTED, Forest, piece_depth, piece_distance


def children(heads: list[int], word: int) -> list[int]:
    return [w for w, head in enumerate(heads) if head == word and w != word]


def preorder(heads: list[int], word: int) -> list[int]:
    return [word] + [w for child in children(heads, word) for w in preorder(heads, child)]


def postorder(heads: list[int], word: int) -> list[int]:
    return [w for child in children(heads, word) for w in postorder(heads, child)] + [word]


def depth(heads: list[int], word: int) -> int:
    return 0 if heads[word] == word else 1 + depth(heads, heads[word])


def edges(heads: list[int], word: int) -> list[int]:
    """The number of edges from a word to each other word of the line, by a search in breadth."""
    steps = [UNCONNECTED] * len(heads)
    steps[word] = 0
    actual = [word]
    for at in actual:
        for other in {heads[at], *children(heads, at)}:
            if steps[other] == UNCONNECTED:
                steps[other] = steps[at] + 1
                actual.append(other)
    return steps


def check(lines: list[Line], heads: list[list[int]], left: bool) -> None:
    forest = Forest(batch(lines, left))
    at = 0
    levels: dict[int, list[int]] = {}
    for row, tree in enumerate(heads):
        n = len(tree)
        assert forest.distance[row, :n, :n].tolist() == [edges(tree, w) for w in range(n)]
        assert forest.distance[row, n:].eq(UNCONNECTED).all() and forest.distance[row, :, n:].eq(UNCONNECTED).all()
        assert forest.dominates[row, :n, :n].tolist() == [[w in preorder(tree, a) for w in range(n)] for a in range(n)]
        roots = [w for w in range(n) if tree[w] == w]
        here = slice(at, at + n)
        assert forest.parent[here].tolist() == [at + h for h in tree]
        assert forest.depth[here].tolist() == [depth(tree, w) for w in range(n)]
        assert forest.subtree_size[here].tolist() == [len(preorder(tree, w)) for w in range(n)]
        for order, place in ((preorder, forest.preorder), (postorder, forest.postorder)):
            expected = [w for root in roots for w in order(tree, root)]
            assert place[here].argsort().tolist() == expected
            assert sorted(place[here].tolist()) == list(range(n))
        for w in range(n):
            levels.setdefault(depth(tree, w), []).append(at + w)
        at += n
    assert forest.level_sizes == [len(levels[d]) for d in sorted(levels)]
    assert forest.by_level.tolist() == [w for d in sorted(levels) for w in levels[d]]
    for d, place in enumerate(forest.parent_in_level):
        if d:
            parents = forest.parent[torch.tensor(levels[d])].tolist()
            assert [levels[d - 1][p] for p in place.tolist()] == parents


@settings(max_examples=examples(40))
@given(st.integers(0, 10**6), st.booleans())
def test_against_recursion(seed, left):
    rng = random.Random(seed)
    lines = [random_line(rng, max_words=9) for _ in range(4)]
    lines.insert(rng.randrange(5), Line([], [], [], [EOS]))
    n = rng.randrange(1, 18)
    chain = Line([1] * n, [max(0, w - 1) for w in range(n)], [(1, 1, 1)] * n, [4] * n + [EOS])
    lines.insert(rng.randrange(6), chain)
    check(lines, [line.heads for line in lines], left)


@pytest.mark.parametrize("left", [True, False])
def test_depths_and_distances_between_pieces(left):
    lines = [random_line(random.Random(seed), max_words=9) for seed in range(5)]
    syntax = batch(lines, left)
    for line, depths, distances in zip(lines, piece_depth(syntax).tolist(), piece_distance(syntax)):
        start, words = (len(depths) - len(line.tokens)) * left, line.word_of_piece
        end = start + len(words)
        between = [[edges(line.heads, w)[v] for v in words] + [UNCONNECTED] for w in words]
        between.append([UNCONNECTED] * len(words) + [0])  # </s>
        assert depths[start : end + 1] == [depth(line.heads, w) for w in words] + [0]
        assert distances[start : end + 1, start : end + 1].tolist() == between


def test_a_batch_without_words():
    forest = Forest(batch([Line([], [], [], [EOS])] * 2, True))
    assert forest.preorder.numel() == forest.postorder.numel() == forest.by_level.numel() == 0
    assert forest.level_sizes == [0] and len(forest.parent_in_level) == 1


@pytest.mark.parametrize("other", [0, 40])
def test_the_first_word_of_a_cycle_is_a_root(other):
    """Whatever the length of the other lines."""
    lines = [Line([1] * n, heads, [(1, 1, 1)] * n, [4] * n + [EOS]) for n, heads in ((5, [0, 3, 1, 2, 3]), (2, [1, 0]))]
    long = Line([1] * other, [0] * other, [(1, 1, 1)] * other, [4] * other + [EOS])
    check([*lines, long], [[0, 1, 1, 2, 3], [0, 0], long.heads], True)


@pytest.mark.parametrize("left", [True, False])
def test_levels_are_counted_on_the_host_where_the_heads_stayed_there(left):
    """As a GPU has them: the batch lies elsewhere; a cycle of a range's words counts as on the device."""
    lines = [random_line(random.Random(seed)) for seed in range(5)]
    lines.append(Line([1, 1, 1], [1, 0, 1], [(1, 1, 1)] * 3, [4, 5, 6, EOS]))
    expected = Forest(batch(lines, left)).level_sizes
    known = batch(lines, left).flat
    packed = pack(FlatSyntax(**{name: x.numpy() if torch.is_tensor(x) else x for name, x in vars(known).items()}))
    elsewhere = SyntaxBatch({**packed, "packed": packed["packed"].to("meta")}, pad(lines, left).to("meta"), PAD)
    assert Forest(elsewhere).level_sizes == expected and sum(expected) == sum(len(line.heads) for line in lines)

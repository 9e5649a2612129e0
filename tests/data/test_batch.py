"""Every view of a batch's syntax against loops over the sentences, whatever else is in the batch and on either side."""

import pickle
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from fairseq.data import Dictionary
from fairseq.utils import apply_to_sample
from hypothesis import given, settings
from hypothesis import strategies as st
from matrix_part import examples
from random_parses import EOS, PAD, Line, numbers, pad, random_line

from fairseq_syntax.corpus.store.memory import MemoryStore
from fairseq_syntax.corpus.store.store_format import StoredSentence
from fairseq_syntax.data.batch import SyntaxBatch, places_of
from fairseq_syntax.data.dataset import SyntaxPairDataset
from fairseq_syntax.data.packing import pack, unpack

EMPTY = Line([], [], [], [EOS])
VIEWS = (
    *("real", "word_of_piece", "begins_word", "first_piece", "parent_middle", "parent_first"),
    *("deprel", "upos", "xpos"),
)
Arc = tuple[int, int, int, float]


def random_arcs(rng: random.Random, line: Line) -> list[Arc]:
    """A few arcs per word, some words without; a root arc has the word as its own head."""
    arcs = {}
    for dependent in range(len(line.heads)):
        for _ in range(rng.choice([0, 1, 1, 2, 3])):
            arcs[dependent, rng.randrange(len(line.heads)), rng.randrange(5)] = rng.random()
    return [(*key, p) for key, p in sorted(arcs.items())]


def collate(lines: list[Line], left: bool, arcs: list[list[Arc]] | None = None, extra: int = 0) -> SyntaxBatch:
    """The batch as the loader and the model make it; ``extra`` columns of padding, as --required-seq-len-multiple."""
    stored = [
        StoredSentence(l.pieces, l.heads, *([labels[c] for labels in l.labels] for c in range(3)), arcs=a)
        for l, a in zip(lines, arcs or [None] * len(lines))
    ]
    flat = MemoryStore(stored).fetch(np.arange(len(lines)), arcs=arcs is not None)
    tokens = pad(lines, left)
    if extra:
        padding = torch.full((len(lines), extra), PAD)
        tokens = torch.cat([padding, tokens] if left else [tokens, padding], dim=1)
    return SyntaxBatch(unpack(pack(flat)), tokens, PAD)


def views_by_loops(lines: list[Line], left: bool, width: int) -> dict[str, list[list[float]]]:
    """Each [B, T] view, filled place by place from the definition."""
    views: dict[str, list[list[float]]] = {name: [] for name in VIEWS}
    words_before = 0
    for line in lines:
        start = width - len(line.tokens) if left else 0
        columns_of = []  # the columns of each word's pieces
        at = start
        for n in line.pieces:
            columns_of.append(list(range(at, at + n)))
            at += n
        word_at = {column: w for w, columns in enumerate(columns_of) for column in columns}
        row: dict[str, list[float]] = {name: [] for name in views}
        for column in range(width):
            w = word_at.get(column)
            row["real"].append(w is not None)
            row["word_of_piece"].append(-1 if w is None else words_before + w)
            parent = [column] if w is None else columns_of[line.heads[w]]
            row["parent_middle"].append(sum(parent) / len(parent))
            row["parent_first"].append(parent[0])
            row["first_piece"].append(column if w is None else columns_of[w][0])
            row["begins_word"].append(w is not None and column == columns_of[w][0])
            for c, name in enumerate(("deprel", "upos", "xpos")):
                row[name].append(0 if w is None else line.labels[w][c])
        for name in views:
            views[name].append(row[name])
        words_before += len(line.pieces)
    return views


def arcs_by_loops(lines: list[Line], left: bool, width: int, arcs: list[list[Arc]]) -> list[tuple]:
    """(row, column of the dependent piece, column of the head piece, label, probability), all pairs of pieces."""
    actual = []
    for b, (line, of_line) in enumerate(zip(lines, arcs)):
        start = width - len(line.tokens) if left else 0
        for dependent, head, label, p in of_line:
            for i in range(line.pieces[dependent]):
                for j in range(line.pieces[head]):
                    actual.append((b, start + line.starts[dependent] + i, start + line.starts[head] + j, label, p))
    return sorted(actual)


def as_list(arcs) -> list[tuple]:
    return sorted(zip(*(part.tolist() for part in arcs)))


@st.composite
def batches(draw) -> tuple[list[Line], random.Random]:
    rng = random.Random(draw(st.integers(0, 2**32)))
    kinds = draw(st.lists(st.booleans(), min_size=1, max_size=5))
    return [random_line(rng) if full else EMPTY for full in kinds], rng


@pytest.mark.parametrize("left", [True, False])
@settings(max_examples=examples(60))
@given(drawn=batches(), extra=st.integers(0, 2))
def test_views_against_loops(left, drawn, extra):
    lines, _ = drawn
    syntax = collate(lines, left, extra=extra)
    for name, expected in views_by_loops(lines, left, syntax.size[1]).items():
        assert getattr(syntax, name).tolist() == expected, name
    for name in ("parent_first", "first_piece", "word_of_piece", "deprel", "upos", "xpos"):
        assert getattr(syntax, name).dtype == torch.int64
    assert syntax.real.dtype == torch.bool and syntax.parent_middle.dtype == torch.float32


@pytest.mark.parametrize("left", [True, False])
@settings(max_examples=examples(60))
@given(drawn=batches(), extra=st.integers(0, 2))
def test_arcs_against_loops(left, drawn, extra):
    lines, rng = drawn
    arcs = [random_arcs(rng, line) for line in lines]
    syntax = collate(lines, left, arcs, extra)
    width = syntax.size[1]
    expected = arcs_by_loops(lines, left, width, arcs)
    actual = as_list(syntax.piece_arcs)
    assert [a[:4] for a in actual] == [a[:4] for a in expected]
    assert [a[4] for a in actual] == pytest.approx([a[4] for a in expected])
    trees = [[(w, h, labels[0], 1.0) for w, (h, labels) in enumerate(zip(l.heads, l.labels))] for l in lines]
    assert as_list(syntax.tree_arcs) == arcs_by_loops(lines, left, width, trees)
    # The totals that the host ships must be what the device would have counted.
    assert syntax.flat.n_tree_arcs == len(syntax.tree_arcs.prob)
    assert syntax.arcs.n_piece_arcs == len(syntax.piece_arcs.prob)
    uncounted = replace(syntax.flat, n_tree_arcs=None, lengths=None, arcs=replace(syntax.arcs, n_piece_arcs=None))
    counted = SyntaxBatch(uncounted, syntax.tokens, PAD)
    assert [of_rows.tolist() for of_rows in counted.lengths] == [of_rows.tolist() for of_rows in syntax.lengths]
    assert as_list(counted.piece_arcs) == actual
    assert as_list(counted.tree_arcs) == as_list(syntax.tree_arcs)


@settings(max_examples=examples(30))
@given(drawn=batches(), with_arcs=st.booleans(), unparsed=st.booleans())
def test_packed_and_unpacked(drawn, with_arcs, unparsed):
    """What fairseq does to a batch on its way moves one tensor, and every byte of every array comes back."""
    lines, rng = drawn
    stored = [StoredSentence(l.pieces, l.heads, *([word[c] for word in l.labels] for c in range(3))) for l in lines]
    for sentence, line in zip(stored, lines):
        sentence.arcs, sentence.parsed = random_arcs(rng, line), not unparsed
    flat = MemoryStore(stored).fetch(np.arange(len(lines)), arcs=with_arcs)
    moved = []

    def move(tensor: torch.Tensor) -> torch.Tensor:
        moved.append(tensor.dtype)
        return tensor.half() if tensor.dtype is torch.float32 else tensor.clone()

    sample = {"net_input": {"src_syntax": pack(flat)}}
    sample = apply_to_sample(move, pickle.loads(pickle.dumps(sample)))
    assert moved == [torch.int32]
    actual = unpack(sample["net_input"]["src_syntax"])
    assert numbers(actual) == numbers(flat)
    assert actual.parsed is None or not actual.parsed.any()
    assert [of_rows.tolist() for of_rows in actual.lengths] == [flat.n_pieces.tolist(), flat.n_words.tolist()]
    assert actual.heads.tolist() == flat.head.tolist()
    assert unpack(actual) is actual
    assert numbers(unpack(pack(replace(flat, pieces=flat.pieces.astype(np.int64))))) == numbers(flat)


@given(st.lists(st.booleans(), max_size=20))
def test_places_of_a_mask(values):
    mask = torch.tensor(values, dtype=torch.bool)
    assert places_of(mask, sum(values)).tolist() == mask.nonzero().flatten().tolist()


def test_a_known_batch():
    """Worked by hand: split words, two sentences in one line, a root each, and the middle between two pieces."""
    #          The   tele##scope   works .  |  Yes !      heads: 1, 2, root, 2 | root, 4
    line = Line(
        [1, 2, 1, 1, 3, 1],
        [1, 2, 2, 2, 4, 4],
        [(1, 1, 1), (2, 2, 2), (3, 3, 1), (4, 1, 1), (1, 2, 2), (2, 1, 1)],
        [*range(4, 13), EOS],
    )
    other = Line([1], [0], [(1, 1, 1)], [4, EOS])
    right, left = collate([line, other], False), collate([line, other], True)
    #       The  tele scope works .  Y   e   s   !   </s>
    middle = [1.5, 3, 3, 3, 3, 6, 6, 6, 6, 9]
    assert right.parent_middle[0].tolist() == left.parent_middle[0].tolist() == middle
    assert right.parent_first[0].tolist() == [1, 3, 3, 3, 3, 5, 5, 5, 5, 9]
    assert right.parent_middle[1].tolist() == list(range(10))
    assert left.parent_middle[1].tolist() == list(range(10))
    assert left.real[1].tolist() == [False] * 8 + [True, False]
    assert right.real[1].tolist() == [True] + [False] * 9


@pytest.mark.parametrize("left", [True, False])
def test_a_batch_of_empty_lines_only(left):
    syntax = collate([EMPTY, EMPTY], left, [[], []])
    assert not syntax.real.any()
    assert syntax.parent_middle.tolist() == [[0.0], [0.0]]
    assert syntax.deprel.tolist() == [[0], [0]]
    assert len(syntax.piece_arcs.prob) == len(syntax.tree_arcs.prob) == 0


@settings(max_examples=examples(40))
@given(drawn=batches(), seed=st.integers(0, 999))
def test_a_sentence_is_the_same_in_any_batch(drawn, seed):
    """Counted from its first piece, no view depends on the other sentences, their order or the padding."""
    lines, rng = drawn
    arcs = [random_arcs(rng, line) for line in lines]
    order = list(range(len(lines)))
    random.Random(seed).shuffle(order)
    for left in (True, False):
        shuffled = collate([lines[i] for i in order], left, [arcs[i] for i in order])
        for row, i in enumerate(order):
            alone = collate([lines[i]], False, [arcs[i]])
            start, length = int(shuffled.start[row]), len(lines[i].tokens)
            place = slice(start, start + length)
            for name in ("parent_middle", "parent_first", "first_piece"):
                assert torch.equal(getattr(shuffled, name)[row, place] - start, getattr(alone, name)[0]), name
            for name in ("real", "deprel", "upos", "xpos"):
                assert torch.equal(getattr(shuffled, name)[row, place], getattr(alone, name)[0]), name
            of_row = [(q - start, k - start, l, p) for b, q, k, l, p in as_list(shuffled.piece_arcs) if b == row]
            assert of_row == [a[1:] for a in as_list(alone.piece_arcs)]


def test_batches_are_filled_up_to_max_tokens():
    """Both sides vary in length; fairseq's batches have sentences alike in the source, and 8, 16, … of them."""
    generator = np.random.default_rng(1)
    source = generator.integers(5, 60, 3000)
    target = np.clip(source + generator.integers(-4, 12, 3000), 2, None)
    words = Dictionary()
    sides = [([torch.full((n,), 4) for n in sizes], sizes, words) for sizes in (source, target)]
    filled = []
    for fills in (False, True):
        dataset = SyntaxPairDataset(*sides[0], *sides[1])
        dataset.fills_batches = fills
        batches = dataset.batch_by_size(dataset.ordered_indices(), max_tokens=1000, required_batch_size_multiple=8)
        assert sorted(np.concatenate(batches)) == list(range(3000))
        assert max(len(b) * max(source[b].max(), target[b].max()) for b in batches) <= 1000
        filled.append(target.sum() / len(batches))
    assert filled[1] > 1.15 * filled[0] and filled[1] > 940, filled

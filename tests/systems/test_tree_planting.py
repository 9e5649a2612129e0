"""Tree planting: targets and losses against loops over paths in the tree."""

import math
import random
from argparse import Namespace

import pytest
import torch
from random_parses import Line, batch, random_line

from fairseq_syntax.model.heads import Step
from fairseq_syntax.systems.tree_planting import TreePlanting, TreePlantingConfig, divergence, supervision


def steps_between(line: Line, start: int, end: int) -> int | None:
    """The number of edges between two words, by a search over neighbours; None if they are not connected."""
    reached, steps = {start}, 0
    while end not in reached:
        near = {w for w in range(len(line.heads)) if line.heads[w] in reached} | {line.heads[w] for w in reached}
        if near <= reached:
            return None
        reached, steps = reached | near, steps + 1
    return steps


def by_loops(line: Line) -> list[dict[int, float]]:
    """Of each piece, the pieces that it is to attend to, with their weights."""
    rows: list[dict[int, float]] = []
    for word, (start, pieces) in enumerate(zip(line.starts, line.pieces)):
        steps = {other: steps_between(line, word, other) for other in range(len(line.heads)) if other != word}
        weights = {line.starts[other]: math.exp(-n) for other, n in steps.items() if n is not None}
        rows.append({column: weight / sum(weights.values()) for column, weight in weights.items()})
        rows += [{start: 1.0}] * (pieces - 1)
    return rows


def loss_by_loops(line: Line, scores: list[list[float]], elsewhere: bool) -> tuple[float, int]:
    """The sum of the rows' divergences and their number; the last row and column are those of ``</s>``."""
    total, count, sentence = 0.0, 0, []
    for word in range(len(line.heads)):
        sentence.append([o for o in range(len(line.heads)) if steps_between(line, word, o) is not None])
    for i, row in enumerate(by_loops(line)):
        words = sentence[line.word_of_piece[i]]
        keys = range(len(line.tokens)) if elsewhere else [line.starts[o] for o in words if line.starts[o] != i]
        norm = sum(math.exp(scores[i][j]) for j in keys)
        total += sum(s * (math.log(s) - math.log(math.exp(scores[i][j]) / norm)) for j, s in row.items())
        count += bool(row)
    return total, count


LINES = [[random_line(random.Random(seed * 10 + i)) for i in range(seed % 4 + 1)] for seed in range(8)]
# a word alone, in one piece and in three; two sentences of a word
LINES += [
    [Line([n], [0], [(1, 1, 1)], [5] * n + [2]) for n in (1, 3)],
    [Line([2, 1], [0, 1], [(1, 1, 1)] * 2, [5] * 4)],
]


@pytest.mark.parametrize("left", [True, False])
def test_targets_and_divergences_by_loops(left):
    torch.manual_seed(0)
    for lines in LINES:
        syntax = batch(lines, left)
        width = syntax.size[1]
        scores = 3 * torch.randn(len(lines), width, width, dtype=torch.float64)
        offsets = [width - len(line.tokens) if left else 0 for line in lines]
        expected = torch.zeros(len(lines), width, width)
        for b, (line, o) in enumerate(zip(lines, offsets)):
            for i, row in enumerate(by_loops(line)):
                for j, weight in row.items():
                    expected[b, i + o, j + o] = weight
        torch.testing.assert_close(supervision(syntax), expected)
        for elsewhere in (False, True):
            one = [
                loss_by_loops(l, scores[b, o:, o:].tolist(), elsewhere) for b, (l, o) in enumerate(zip(lines, offsets))
            ]
            actual, count = divergence(scores, syntax, elsewhere)
            assert actual.item() == pytest.approx(sum(loss for loss, _ in one), rel=1e-5, abs=1e-5)
            assert count.item() == sum(rows for _, rows in one)


def test_the_gradient_is_attention_minus_target_on_what_is_compared():
    syntax = batch(LINES[3], True)
    scores = torch.randn(len(LINES[3]), *[syntax.size[1]] * 2).requires_grad_()
    target = supervision(syntax)
    (everywhere,) = torch.autograd.grad(divergence(scores, syntax, elsewhere=True)[0], scores)
    weights = scores.masked_fill(syntax.padding[:, None, :], -math.inf).softmax(-1)
    torch.testing.assert_close(everywhere, (weights - target) * target.any(-1, keepdim=True))
    (among_words,) = torch.autograd.grad(divergence(scores, syntax)[0], scores)
    assert among_words.isfinite().all(), "rows without words to attend to, such as those of padding, have no gradient"
    assert not among_words[:, :, ~syntax.begins_word[0]][0].any() and among_words.any()
    torch.testing.assert_close(among_words.sum(-1), torch.zeros(syntax.size))


def test_only_attention_to_the_tree_has_no_loss():
    syntax = batch([random_line(random.Random(3), max_words=5)], True)
    scores = supervision(syntax).log()
    assert divergence(scores, syntax)[0].item() == pytest.approx(0, abs=1e-5)
    everywhere = (supervision(syntax) + 0.1).log()
    assert divergence(everywhere, syntax, elsewhere=True)[0] > divergence(everywhere, syntax)[0] > 0


def test_weight_and_place():
    syntax, args = batch(LINES[1], True), Namespace(encoder_layers=3)
    scores = torch.randn(len(LINES[1]), *[syntax.size[1]] * 2)
    system = TreePlanting(TreePlantingConfig(planted_weight=0.25, planted_head=2), args, None)
    assert system.supervises() == {"planted": (2, 2)} and list(system.layers()) == [2]
    loss = system.loss("planted", scores, Step.of(syntax))
    torch.testing.assert_close(loss.loss, 0.25 * divergence(scores, syntax)[0])
    off = TreePlanting(TreePlantingConfig(planted_weight=0.0), args, None)
    assert not off.supervises() and not off.layers() and not off.training_needs

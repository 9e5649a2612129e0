"""The trees of control parses: chains, random trees, and trees with a given number of wrong arcs.

A tree of n words is represented by the 0-based heads of its words; the root is its own head.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from random import Random

from fairseq_syntax.corpus.parsed_line import is_tree

STRUCTURES = ("linear", "right", "flat", "random", "random-projective")


def root_of(heads: Sequence[int]) -> int:
    """The root: the word that is its own head."""
    return next(word for word, head in enumerate(heads) if head == word)


def control_heads(name: str, heads: Sequence[int], rng: Random) -> list[int]:
    """The heads by which a control in :data:`STRUCTURES` replaces the given ones."""
    n = len(heads)
    if name == "linear":
        return [max(0, word - 1) for word in range(n)]
    if name == "right":
        return [min(n - 1, word + 1) for word in range(n)]
    if name == "flat":
        return [root_of(heads)] * n
    return random_tree(n, rng) if name == "random" else random_projective_tree(n, rng)


def with_wrong_arcs(heads: Sequence[int], wanted: int, rng: Random) -> list[int]:
    """A random tree that differs from a given tree in the heads of a given number of words.

    Args:
        heads: the given tree
        wanted: the number of heads to change. Fewer are changed if there is no tree for the words drawn; for example,
            if a single word is drawn and all other words except its head are below it.
    """
    for count in range(wanted, 0, -1):
        # Whether such a tree exists depends on the words drawn, so try others.
        for _ in range(20):
            changed = with_other_heads(heads, rng.sample(range(len(heads)), count), rng)
            if changed is not None:
                return changed
    return list(heads)


def with_other_heads(heads: Sequence[int], drawn: Sequence[int], rng: Random) -> list[int] | None:
    """A uniformly random tree in which exactly the drawn words have other heads; None if there is none.

    This is rejection sampling: every drawn word gets another head at random until the result is a tree. If trees exist,
    about one in n results is a tree, so if none of 100 n is, we conclude that there is none.
    """
    n = len(heads)
    # Another word can only become the root if the old root is drawn.
    root_is_drawn = any(heads[word] == word for word in drawn)
    choices = {word: [at for at in range(n) if at != heads[word] and (at != word or root_is_drawn)] for word in drawn}
    if not all(choices.values()):
        return None
    changed = list(heads)
    for _ in range(100 * n):
        for word, others in choices.items():
            changed[word] = rng.choice(others)
        if is_tree(changed):
            return changed
    return None


def random_tree(n: int, rng: Random) -> list[int]:
    """Heads of a uniformly random rooted labelled tree, of which there are n^(n-1).

    Prüfer sequences (n - 2 numbers below n) correspond one to one to trees (Prüfer 1918). A uniform sequence thus gives
    a uniform tree; its root is drawn uniformly from the n words.
    """
    if n == 1:
        return [0]
    code = [rng.randrange(n) for _ in range(n - 2)]
    to_come = Counter(code)
    leaves = [word for word in range(n) if not to_come[word]]  # ascending, therefore a heap
    heads = list(range(n))
    for word in code:
        heads[heapq.heappop(leaves)] = word
        to_come[word] -= 1
        if not to_come[word]:
            heapq.heappush(leaves, word)
    heads[leaves[0]] = leaves[1]  # the last two, of which the second is the root so far
    word = below = rng.randrange(n)
    while heads[word] != word:  # turn the arcs between the drawn root and the old one
        heads[word], below, word = below, word, heads[word]
    heads[word] = below
    return heads


def random_projective_tree(n: int, rng: Random) -> list[int]:
    """Heads of a uniformly random projective tree with one root, of binom(3n - 2, n - 1) / n, in O(n).

    A projective tree is a root between two forests of left and right dependents. A forest is empty, or a tree (again a
    root between two forests) followed by a forest. A forest is thus a ternary tree, and a projective tree is a pair of
    ternary trees with n - 1 nodes in total. In preorder, a pair is a sequence of n - 1 nodes and 2n leaves. By the
    cycle lemma (Dvoretzky and Motzkin 1947), exactly two rotations of any such sequence encode a pair. A uniform
    sequence and a uniform choice of one of these two rotations give a uniform pair.
    """
    nodes = n - 1
    code = [True] * nodes + [False] * (2 * nodes + 2)  # True: a node, followed by three forests; False: a leaf
    rng.shuffle(code)
    level = lowest = 0
    starts = [0, 0]  # the positions after the first steps to the second lowest and to the lowest level
    for place, is_node in enumerate(code, 1):
        level += 2 if is_node else -1
        if level < lowest:
            starts, lowest = [starts[-1], place], level
    # The position after the last step is the one before the first.
    start = starts[rng.randrange(2)] % len(code)
    preorder = iter(code[start:] + code[:start])
    heads: list[int] = [-1] * n
    order: list[int] = []  # the nodes in word order
    governor: list[int] = [-1]  # the governor of each node; node 0 is the root
    # A stack: first the forest to the left, then the word, then the forest to the right.
    todo: list[tuple[bool, int]] = [(True, 0), (False, 0), (True, 0)]  # (whether it is a forest or the word, node)
    while todo:
        forest, of = todo.pop()
        if not forest:
            order.append(of)
        elif next(preorder):
            node = len(governor)
            governor.append(of)
            # The node's two forests and its word, then the trees that follow it in the forest.
            todo += [(True, of), (True, node), (False, node), (True, node)]
    word_of = {at: word for word, at in enumerate(order)}
    for at, above in enumerate(governor):
        # Node 0, whose governor is -1, is its own head.
        heads[word_of[at]] = word_of[max(above, 0)]
    return heads


def sattolo(items: Sequence[int], rng: Random) -> list[int]:
    """The items in a uniformly random cyclic permutation, which moves every item (Sattolo 1986)."""
    items = list(items)
    for last in range(len(items) - 1, 0, -1):
        other = rng.randrange(last)  # never the item itself, so the permutation is a single cycle
        items[last], items[other] = items[other], items[last]
    return items

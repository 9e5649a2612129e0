"""The trees of control parses: chains, random trees, and trees with a given number of wrong arcs.

A tree of n words is its heads: the word, from 0, that each word attaches to; the root is its own head.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from random import Random

from fairseq_syntax.corpus.parsed_line import is_tree

STRUCTURES = ("linear", "right", "flat", "random", "random-projective")


def root_of(heads: Sequence[int]) -> int:
    """The word that is its own head."""
    return next(word for word, head in enumerate(heads) if head == word)


def control_heads(name: str, heads: Sequence[int], rng: Random) -> list[int]:
    """The heads with which a control of :data:`STRUCTURES` replaces these."""
    n = len(heads)
    if name == "linear":
        return [max(0, word - 1) for word in range(n)]
    if name == "right":
        return [min(n - 1, word + 1) for word in range(n)]
    if name == "flat":
        return [root_of(heads)] * n
    return random_tree(n, rng) if name == "random" else random_projective_tree(n, rng)


def with_wrong_arcs(heads: Sequence[int], wanted: int, rng: Random) -> list[int]:
    """The heads of a random tree that differs from another in the heads of a given number of words.

    Args:
        heads: of the other tree
        wanted: how many heads are to be others; fewer are where no tree can be had for the words drawn, as where all
            words but its head are below the one word drawn
    """
    for count in range(wanted, 0, -1):
        # Whether there is such a tree depends on the words: others may have one.
        for _ in range(20):
            changed = with_other_heads(heads, rng.sample(range(len(heads)), count), rng)
            if changed is not None:
                return changed
    return list(heads)


def with_other_heads(heads: Sequence[int], drawn: Sequence[int], rng: Random) -> list[int] | None:
    """A uniformly random tree in which exactly the drawn words have other heads; None if there is none.

    Every word drawn gets one of its other heads, and what is no tree is drawn again. Of the ways to join the parts of
    a tree at n words about one in n is a tree, so that none in 100 n means that there is none.
    """
    n = len(heads)
    # There is one root, so another word becomes it only where the old one gets a head.
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

    A Prüfer sequence, n - 2 numbers below n, stands for one tree and one only (Prüfer 1918); so a uniform sequence
    is a uniform tree, and its root is drawn from the n words.
    """
    if n == 1:
        return [0]
    code = [rng.randrange(n) for _ in range(n - 2)]
    neighbours: list[list[int]] = [[] for _ in range(n)]

    def join(word: int, other: int) -> None:
        neighbours[word].append(other)
        neighbours[other].append(word)

    to_come = Counter(code)
    leaves = [word for word in range(n) if not to_come[word]]  # ascending, and so a heap
    for word in code:
        join(heapq.heappop(leaves), word)
        to_come[word] -= 1
        if not to_come[word]:
            heapq.heappush(leaves, word)
    join(*leaves)  # two are left
    heads = [-1] * n
    root = rng.randrange(n)
    heads[root] = root
    todo = [root]
    while todo:
        word = todo.pop()
        below = [neighbour for neighbour in neighbours[word] if heads[neighbour] < 0]
        for neighbour in below:
            heads[neighbour] = word
        todo += below
    return heads


def random_projective_tree(n: int, rng: Random) -> list[int]:
    """Heads of a uniformly random projective tree with one root, of binom(3n - 2, n - 1) / n, in O(n).

    A projective tree is a root between two forests, one of its left and one of its right dependents; a forest is
    empty, or a first tree (again a root between two forests) and the forest that follows. So a forest is a ternary
    tree, and a projective tree two ternary trees with n - 1 nodes in all. These are written in preorder as n - 1
    nodes and 2n leaves; by the cycle lemma (Dvoretzky and Motzkin 1947) exactly two rotations of any arrangement
    of so many nodes and leaves are such a pair. A uniform arrangement and one of its two rotations, drawn fairly, are
    a uniform pair.
    """
    nodes = n - 1
    code = [True] * nodes + [False] * (2 * nodes + 2)  # True: a node, with three forests to come; False: a leaf
    rng.shuffle(code)
    level = lowest = 0
    starts = [0, 0]  # behind the steps that first lead to the second lowest level, and to the lowest
    for place, is_node in enumerate(code, 1):
        level += 2 if is_node else -1
        if level < lowest:
            starts, lowest = [starts[-1], place], level
    # Behind the last step is before the first one.
    start = starts[rng.randrange(2)] % len(code)
    preorder = iter(code[start:] + code[:start])
    heads: list[int] = [-1] * n
    order: list[int] = []  # the nodes, in the order of their words
    governor: list[int] = [-1]  # of each node; node 0 is the root
    # Taken from the end: the forest to the left, the word, the forest to the right.
    todo: list[tuple[bool, int]] = [(True, 0), (False, 0), (True, 0)]  # a forest below a node, or the word of a node
    while todo:
        forest, of = todo.pop()
        if not forest:
            order.append(of)
        elif next(preorder):
            node = len(governor)
            governor.append(of)
            # The node's own three, and then the trees that follow it in the forest.
            todo += [(True, of), (True, node), (False, node), (True, node)]
    word_of = {at: word for word, at in enumerate(order)}
    for at, above in enumerate(governor):
        # Node 0, whose governor is -1, is its own head.
        heads[word_of[at]] = word_of[max(above, 0)]
    return heads


def sattolo(items: Sequence[tuple[int, int]], rng: Random) -> list[tuple[int, int]]:
    """The items in a uniformly random cyclic permutation, which leaves none in its place (Sattolo 1986)."""
    items = list(items)
    for last in range(len(items) - 1, 0, -1):
        other = rng.randrange(last)  # never itself: so the permutation is one cycle
        items[last], items[other] = items[other], items[last]
    return items

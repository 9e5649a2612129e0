"""Text drawings of dependency trees: one word per row, connected to its dependents by lines."""

from __future__ import annotations

from collections.abc import Sequence

from fairseq_syntax.corpus.parsed_line import cycle_through, depths


def without_cycles(heads: Sequence[int]) -> list[int]:
    """The 0-based heads with the first word of each cycle as a root, its own head, as models treat them.

    Tokens of several words can cause cycles if their words have heads on both sides.
    """
    trees = list(heads)
    while (first := cycle_through(trees)) is not None:
        trees[first] = first
    return trees


def draw_tree(rows: Sequence[str], heads: Sequence[int]) -> str:
    """Draw one or several trees, of the text for each word, and 0-based heads, where a root is its own head.

    The first word of a cycle is drawn as a root.

    .. code-block:: text

           ╭─ A det
        ╭─ man nsubj
        runs root
        ╰─ fast advmod
    """
    heads = without_cycles(heads)
    level = depths(heads)
    grid = [[" "] * (3 * depth) for depth in level]
    dependents: dict[int, set[int]] = {}
    for word, head in enumerate(heads):
        if word != head:
            dependents.setdefault(head, set()).add(word)
    for head, children in dependents.items():
        column = 3 * level[head]
        first, last = min(*children, head), max(*children, head)
        for row in range(first, last + 1):
            if row == head or column >= len(grid[row]):
                continue  # in a non-projective tree, a word may lie on the line
            if row in children:
                corner = "╭" if row == first else "╰" if row == last else "├"
                grid[row][column : column + 3] = [corner, "─", " "]
            else:
                grid[row][column] = "│"
    return "\n".join(("".join(cells) + row).rstrip() for cells, row in zip(grid, rows))

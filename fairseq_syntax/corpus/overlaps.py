"""Texts that occur where they should not: pairs of one split in another, and sides that are the same text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from fairseq_syntax.corpus.parallel_text import Row

SAME_SIDES = 0.5  # the share of equal pairs from which on a corpus is no ordinary translation


def remarks_on(splits: Mapping[str, Callable[[], Iterable[Row]]]) -> list[str]:
    """What is odd about the splits of a corpus, a line each: overlaps, and sides that are the same text.

    Args:
        splits: by name, functions that read the rows. The first, usually ``train``, is read as a stream; of the others,
            one hash per pair is kept in memory.
    """
    remarks: list[str] = []
    names = list(splits)
    pairs: dict[str, set[int]] = {}

    def read(name: str) -> Iterable[int]:
        """The hashes of the pairs of a split; counts its pairs with equal sides."""
        total = equal = 0
        for row in splits[name]():
            total, equal = total + 1, equal + (row[0] == row[1])
            yield hash(row[:2])
        if equal > SAME_SIDES * total:
            remarks.append(f"{name}: source and target are the same text in {equal:,} of {total:,} pairs")

    for name in names[1:]:
        pairs[name] = set(read(name))
    shared: dict[str, set[int]] = {name: set() for name in pairs}
    for pair in read(names[0]) if names else ():
        for name, others in pairs.items():
            if pair in others:
                shared[name].add(pair)
    found = [(names[0], name, len(shared[name])) for name in pairs]
    found += [(a, b, len(pairs[a] & pairs[b])) for i, a in enumerate(pairs) for b in list(pairs)[i + 1 :]]
    for first, second, count in found:
        if count:
            remarks.append(f"{count:,} of {len(pairs[second]):,} different pairs of {second} are also in {first}")
    return remarks

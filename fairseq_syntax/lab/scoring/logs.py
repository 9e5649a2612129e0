"""Training logs of fairseq-train: its ``json``, ``simple`` and ``tqdm`` formats, from ``--log-file`` or stdout."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Iterator
from typing import Any

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.files import read_lines

_EPOCH = re.compile(r"epoch \d+ \| (?:valid on '([^']+)' subset \| )?(.*)")
_WITHIN = re.compile(r"epoch \d+:\s+\d+ / \d+ (.*)")

Curves = dict[str, dict[str, list[tuple[int, float]]]]


def read_curves(path: str | os.PathLike[str]) -> Curves:
    """Read the curves of a training log.

    Returns:
        by subset (``train``: means over epochs; ``train_inner``: means over a few updates; ``valid`` and other subsets)
        and name (``loss``, ``ppl``, ``bleu``, …): ``[(updates, value)]``, in order. If there are several values for the
        same update, as after a resumed run, the last one is taken.

    Raises:
        SyntaxDataError: the file contains no log of fairseq-train
    """
    values: dict[str, dict[str, dict[int, float]]] = {}
    for line in read_lines(path):
        for kind, pairs in _entries(line):
            numbers = dict(_numbers(pairs))
            update = numbers.pop("num_updates", math.nan)
            if math.isfinite(update):
                for name, value in numbers.items():
                    values.setdefault(kind, {}).setdefault(name, {})[int(update)] = value
    if not values:
        raise SyntaxDataError("no line of a fairseq-train log", path=path, hint="fairseq-train --log-file FILE")
    return {kind: {name: sorted(of.items()) for name, of in names.items()} for kind, names in values.items()}


def _entries(line: str) -> Iterator[tuple[str, Iterable[tuple[str, Any]]]]:
    """The subset of a log line, and its values by name; nothing for other lines."""
    # Skip the logger's prefix: date, level and name.
    start = line.find('{"epoch"')
    if start >= 0:
        try:
            raw = json.loads(line[start:])
        except ValueError:
            return
        # Names are prefixed by the subset, as in "valid_ppl", except within an epoch.
        for counter in (key for key in raw if key.endswith("num_updates")):
            prefix = counter.removesuffix("num_updates")
            of_subset = {key.removeprefix(prefix): value for key, value in raw.items() if key.startswith(prefix)}
            yield prefix.removesuffix("_") or "train_inner", of_subset.items()
            return
    elif match := _EPOCH.search(line):
        yield match[1] or "train", (part.strip().rpartition(" ")[::2] for part in match[2].split("|"))
    elif match := _WITHIN.search(line):
        yield "train_inner", (part.strip().partition("=")[::2] for part in match[1].split(","))


def _numbers(pairs: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, float]]:
    for name, value in pairs:
        try:
            yield name, float(value)
        except (TypeError, ValueError):
            continue

"""Training logs of fairseq-train: its ``json``, ``simple`` and ``tqdm`` formats, from ``--log-file`` or stdout."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.files import read_lines

_EPOCH = re.compile(r"epoch (\d+) \| (?:valid on '([^']+)' subset \| )?(.*)")
_WITHIN = re.compile(r"epoch (\d+):\s+\d+ / \d+ (.*)")

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
        for kind, numbers in _entries(line):
            update = numbers.get("num_updates")
            if update is None or not math.isfinite(update):
                continue
            for name, value in numbers.items():
                values.setdefault(kind, {}).setdefault(name, {})[int(update)] = value
    if not values:
        raise SyntaxDataError("no line of a fairseq-train log", path=path, hint="fairseq-train --log-file FILE")
    return {
        kind: {name: sorted(points.items()) for name, points in names.items() if name != "num_updates"}
        for kind, names in values.items()
    }


def _entries(line: str) -> Iterator[tuple[str, dict[str, float]]]:
    """The subset of a log line and its numbers by name; nothing for other lines."""
    # Skip the logger's prefix: date, level and name.
    start = line.find('{"epoch"')
    if start >= 0:
        try:
            raw = json.loads(line[start:])
        except ValueError:
            return
        # Names are prefixed by the subset, as in "valid_ppl", except within an epoch.
        counter = next((key for key in raw if key.endswith("num_updates")), None)
        if counter is not None:
            prefix = counter.removesuffix("num_updates")
            kind = prefix.removesuffix("_") or "train_inner"
            yield kind, _numbers((key[len(prefix) :], item) for key, item in raw.items() if key.startswith(prefix))
        return
    match = _EPOCH.search(line)
    if match:
        pairs = (part.strip().rpartition(" ") for part in match[3].split("|"))
        yield match[2] or "train", _numbers((name, value) for name, _, value in pairs)
        return
    match = _WITHIN.search(line)
    if match:
        pairs = (part.strip().partition("=") for part in match[2].split(","))
        yield "train_inner", _numbers((name, value) for name, _, value in pairs)


def _numbers(pairs) -> dict[str, float]:
    numbers = {}
    for name, value in pairs:
        try:
            numbers[name] = float(value)
        except (TypeError, ValueError):
            continue
    return numbers

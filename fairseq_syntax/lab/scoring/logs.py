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
        by what was measured (``train``: an epoch's mean; ``train_inner``: the mean of a few updates; ``valid`` and
        other subsets) and by name (``loss``, ``ppl``, ``bleu``, …): ``[(updates, value)]``, in order. Of several
        values at one update, as after a run that was resumed, the last counts.

    Raises:
        SyntaxDataError: nothing of fairseq-train's in the file
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
    """What a line measures, and its numbers by name; nothing of a line that has none."""
    # Behind what a logger puts before it: date, level and name.
    start = line.find('{"epoch"')
    if start >= 0:
        try:
            raw = json.loads(line[start:])
        except ValueError:
            return
        # Names have the subset before them, "valid_ppl", but within an epoch nothing.
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

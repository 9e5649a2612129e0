"""Generation in parts: which part of the data a process of fairseq-generate translates, and where it writes."""

from __future__ import annotations

import functools
import os
from argparse import Namespace
from typing import Any

from fairseq import options


def generation_shard(cfg: Any, given: tuple[int, int]) -> tuple[int, int]:
    """The number of parts into which fairseq-generate divides the data, and the 0-based part of this process.

    They are given by ``--num-shards`` and ``--shard-id``, otherwise by ``torchrun``.

    Args:
        cfg: has ``num_shards`` and ``shard_id``
        given: those of ``--distributed-world-size`` and ``--distributed-rank``, which apply otherwise
    """
    if isinstance(cfg.num_shards, int) and cfg.num_shards > 1:
        return cfg.num_shards, cfg.shard_id
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    return (processes, int(os.environ.get("RANK", "0"))) if processes > 1 else given


def install() -> None:
    """Let each part of fairseq-generate write to its own folder in ``--results-path``: ``shard-0-of-2``, ….

    All parts have the same file name, so each would overwrite the one before.
    """
    original = options.parse_args_and_arch

    @functools.wraps(original)
    def parse_args_and_arch(*args: Any, **kwargs: Any) -> Namespace:
        # With parse_known=True it returns the unknown arguments too, as no command of generation does.
        parsed: Any = original(*args, **kwargs)
        if getattr(parsed, "results_path", None) and getattr(parsed, "task", None) == "syntax_translation":
            given = parsed.distributed_world_size, parsed.distributed_rank
            shards, shard = generation_shard(parsed, given)
            if shards > 1:
                parsed.results_path = os.path.join(parsed.results_path, f"shard-{shard}-of-{shards}")
        return parsed

    options.parse_args_and_arch = parse_args_and_arch

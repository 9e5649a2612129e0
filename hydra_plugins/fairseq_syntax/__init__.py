"""Imports ``common.user_dir`` at the start of fairseq-hydra-train, as fairseq-train does with its ``--user-dir``.

fairseq imports it only in the processes that it has started, so what a user directory changes in starting them, such as
several processes without a GPU, would come too late. Hydra imports all of ``hydra_plugins`` before its program begins.
"""

import functools
import sys
from typing import Any


def _import_user_dir_first(utils: Any) -> None:
    """Make ``fairseq.distributed.utils`` import the user directory before it starts processes."""
    original = utils.call_main

    @functools.wraps(original)
    def call_main(cfg: Any, main: Any, **kwargs: Any) -> None:
        if utils.call_main is not call_main:  # replaced by a user directory that is imported by now
            return original(cfg, main, **kwargs)
        from fairseq.utils import import_user_module

        utils.call_main = original
        import_user_module(cfg.common)
        return utils.call_main(cfg, main, **kwargs)

    utils.call_main = call_main


# A program of fairseq's that Hydra starts; the others import the user directory before they ask Hydra for anything.
if "fairseq.distributed.utils" in sys.modules and "fairseq_syntax" not in sys.modules:
    _import_user_dir_first(sys.modules["fairseq.distributed.utils"])

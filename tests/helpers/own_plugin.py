"""A plugin of a user in this process, forgotten afterwards."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fairseq import models, utils

from fairseq_syntax import plugins
from fairseq_syntax.model.decoder import DECODER_SYSTEMS
from fairseq_syntax.model.encoder import ENCODER_SYSTEMS
from fairseq_syntax.model.transformer import PRESETS

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "own_system"
REGISTRIES: list[dict[str, Any]] = [
    *(ENCODER_SYSTEMS, DECODER_SYSTEMS, PRESETS, plugins._digests),
    *(models.ARCH_MODEL_REGISTRY, models.ARCH_CONFIG_REGISTRY, models.ARCH_MODEL_NAME_REGISTRY),
]


@contextmanager
def own_plugin(folder: Path = EXAMPLE / "tree_alibi") -> Iterator[Path]:
    """A folder, loaded as by ``--user-dir``."""
    names, saved = set(sys.modules), [dict(registry) for registry in REGISTRIES]
    architectures = {model: list(names) for model, names in models.ARCH_MODEL_INV_REGISTRY.items()}
    path, memo = list(sys.path), set(getattr(utils.import_user_module, "memo", ()))
    try:
        plugins.load_folders([folder])
        yield folder
    finally:
        for registry, before in zip(REGISTRIES, saved, strict=True):
            registry.clear()
            registry.update(before)
        models.ARCH_MODEL_INV_REGISTRY.clear()
        models.ARCH_MODEL_INV_REGISTRY.update(architectures)
        for name in set(sys.modules) - names:
            if name.partition(".")[0] == folder.name:
                del sys.modules[name]
        sys.path[:] = path
        utils.import_user_module.memo = memo

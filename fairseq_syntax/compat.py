"""Working around fairseq: the types its checkpoints hold, for ``weights_only`` loading, logging left as it was, and its
own models in an ensemble with ours.
"""

from __future__ import annotations

import argparse
import collections
import inspect
import logging
import typing
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn


@contextmanager
def unchanged_logging() -> Iterator[None]:
    """Leave logging as it was: importing fairseq's speech tasks and models configures it, down to DEBUG."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    # Notices about optional packages that nothing here uses.
    logging.getLogger("fairseq.tasks.text_to_speech").setLevel(logging.WARNING)
    try:
        yield
    finally:
        root.setLevel(level)
        root.handlers[:] = handlers


def allow_checkpoint_types() -> None:
    """Let ``torch.load(weights_only=True)`` rebuild the types that fairseq saves: options, metrics, optimizer state.

    Each entry was found necessary: options are a Namespace or an omegaconf tree; ``--eval-bleu`` logs numpy counts;
    a resume on a rank above 0 receives placeholders. None of them runs code when it is loaded.
    """
    from fairseq.distributed.utils import _TensorPlaceholder
    from omegaconf import DictConfig, ListConfig
    from omegaconf.base import ContainerMetadata, Metadata
    from omegaconf.nodes import AnyNode

    _multiarray: typing.Any = getattr(np, "_core", np.core).multiarray  # its name before and since NumPy 2

    torch.serialization.add_safe_globals(
        [
            argparse.Namespace,
            np.ndarray,
            np.dtype,
            _multiarray._reconstruct,
            _multiarray.scalar,
            np.dtypes.Int64DType,
            np.dtypes.Float64DType,
            DictConfig,
            ListConfig,
            ContainerMetadata,
            Metadata,
            AnyNode,
            typing.Any,
            dict,
            list,
            int,
            collections.defaultdict,
            _TensorPlaceholder,
        ]
    )


def ignore_syntax(model: nn.Module) -> None:
    """Let a model of fairseq's own be in an ensemble with one of ours.

    The search gives all encoders the same batch; one that knows no ``src_syntax`` is to go without it.
    """
    encoder = getattr(model, "encoder", None)
    if encoder is None or "src_syntax" in inspect.signature(encoder.forward).parameters:
        return
    forward = encoder.forward_non_torchscript

    def without_syntax(net_input: Mapping[str, Tensor]) -> typing.Any:
        return forward({name: value for name, value in net_input.items() if name != "src_syntax"})

    encoder.forward_non_torchscript = without_syntax

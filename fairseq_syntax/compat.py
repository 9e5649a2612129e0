"""What fairseq's checkpoints hold besides tensors, allowed by name, so that ``weights_only`` loading stays on."""

from __future__ import annotations

import argparse
import collections
import logging
import typing

import numpy as np
import torch


def quieten() -> None:
    """Still the notices about optional packages that fairseq's speech tasks give whenever a task is imported."""
    logging.getLogger("fairseq.tasks.text_to_speech").setLevel(logging.WARNING)


def allow_checkpoint_types() -> None:
    """Let ``torch.load(weights_only=True)`` rebuild the types that fairseq saves: options, metrics, optimizer state.

    Each entry was found necessary: options are a Namespace or an omegaconf tree; ``--eval-bleu`` logs numpy counts;
    a resume on a rank above 0 receives placeholders. None of them runs code when it is loaded.
    """
    from fairseq.distributed.utils import _TensorPlaceholder
    from omegaconf import DictConfig, ListConfig
    from omegaconf.base import ContainerMetadata, Metadata
    from omegaconf.nodes import AnyNode

    torch.serialization.add_safe_globals(
        [
            argparse.Namespace,
            np.ndarray,
            np.dtype,
            np._core.multiarray._reconstruct,
            np._core.multiarray.scalar,
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

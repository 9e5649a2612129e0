"""Whether the installed fairseq is one that this package can build on, checked before anything is patched.

The official release 0.12.2 is not: in translation its encoder layer calls PyTorch's fused layer, past the systems'
attention, so a model would translate without the parse; and it lacks parameters that this package uses.
"""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable, Iterator
from typing import Any

import fairseq
from fairseq import checkpoint_utils, hub_utils, search
from fairseq.criterions import build_criterion
from fairseq.data.iterators import EpochBatchIterator
from fairseq.distributed import utils
from fairseq.logging import progress_bar
from fairseq.models.transformer import TransformerEncoderBase
from fairseq.modules.transformer_layer import TransformerDecoderLayerBase, TransformerEncoderLayerBase
from fairseq.tasks.fairseq_task import FairseqTask
from fairseq.tasks.translation import TranslationTask
from fairseq.trainer import Trainer

from fairseq_syntax.compat.owners import OWNERS, installed, remedy
from fairseq_syntax.errors import SyntaxDataError

logger = logging.getLogger(__name__)

FUSED = "_transformer_encoder_layer_fwd"  # PyTorch's encoder layer in one operation

# Parameters that this package passes to, or overrides in, what it wraps and builds on.
PARAMETERS: dict[Callable[..., Any], str] = {
    checkpoint_utils.load_checkpoint_to_cpu: "path arg_overrides",
    checkpoint_utils._torch_persistent_save: "obj f",
    checkpoint_utils.verify_checkpoint_directory: "save_dir",
    Trainer.save_checkpoint: "filename extra_state",
    Trainer.load_checkpoint: "filename reset_optimizer reset_meters",
    utils.call_main: "cfg main",
    utils.distributed_main: "i main cfg kwargs",
    progress_bar.progress_bar: "log_file",
    search.DiverseBeamSearch.step: "step lprobs scores",
    hub_utils.GeneratorHubInterface.__init__: "cfg task models",
    EpochBatchIterator.__init__: "disable_shuffling skip_remainder_batch grouped_shuffling persistent_workers",
    FairseqTask.get_batch_iterator: "grouped_shuffling update_epoch_batch_itr disable_iterator_cache",
    FairseqTask.build_model: "cfg from_checkpoint",
    TranslationTask.build_model: "cfg from_checkpoint",
    build_criterion: "from_checkpoint",
    TransformerEncoderBase.build_encoder_layer: "cfg",
    TransformerEncoderLayerBase.forward: "x encoder_padding_mask attn_mask",
    TransformerDecoderLayerBase.forward: "x encoder_out incremental_state need_attn",
}


def check() -> None:
    """Raise SyntaxDataError, with what to install, if this package cannot build on the installed fairseq.

    Two distributions that own its files are warned about where the one that was installed last fits.
    """
    problem = next(_problems(), None)
    if problem is not None:
        version = getattr(fairseq, "__version__", "of unknown version")
        message = f"fairseq {version} does not fit this package: {problem}"
        raise SyntaxDataError(message, path=os.path.dirname(fairseq.__file__), hint=remedy())
    if len(installed()) == 2:
        message = "%s are both installed and own the same files, so the later one is used; to keep one: %s"
        logger.warning(message, " and ".join(OWNERS), remedy())


def _problems() -> Iterator[str]:
    layer = TransformerEncoderLayerBase.forward
    if FUSED in inspect.unwrap(layer).__code__.co_names:
        yield "its encoder layer takes PyTorch's fast path, past the systems' attention, so the parse would not be read"
    for function, names in PARAMETERS.items():
        # by its name, since fairseq's modules may have it wrapped meanwhile
        missing = set(names.split()) - inspect.signature(function).parameters.keys()
        if missing:
            yield f"{function.__qualname__} has no parameter {', '.join(sorted(missing))}"

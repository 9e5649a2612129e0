"""Checks that a checkpoint fits the data: its ids must mean the same words, pieces and labels."""

from __future__ import annotations

import logging
import os
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fairseq.data import Dictionary
from fairseq.models import ARCH_MODEL_REGISTRY

from fairseq_syntax.data.directory import (
    DataDirectory,
    check_same_segmentation,
    dictionary_path,
    segmentation_path,
)
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.model.options import REMEMBERED_NAMES, REMEMBERED_TEXTS, SystemConfig, option_name, stored_value
from fairseq_syntax.model.pretrained import OF_ARCHITECTURE, OF_LANGUAGES
from fairseq_syntax.model.transformer import SYSTEMS
from fairseq_syntax.plugins import named_by
from fairseq_syntax.runtime.digests import fingerprint

if TYPE_CHECKING:
    from fairseq_syntax.corpus.segmentation import Segmenter

logger = logging.getLogger(__name__)

SEGMENTATION_HINT = "put segmentation.LANG.json and .model of the training data there"

# fairseq's options that determine a model's parameters or its function. With other values, loading fails or, as with
# another number of heads, gives another function.
_OF_A_SIDE = "attention_heads", "embed_dim", "ffn_embed_dim", "hidden_size", "layers", "learned_pos", "normalize_before"
ARCHITECTURE = (
    *(f"{side}_{name}" for side in ("encoder", "decoder") for name in _OF_A_SIDE),
    "activation_fn",
    "adaptive_input",
    "cross_self_attention",
    "decoder_out_embed_dim",
    "encoder_bidirectional",
    "layernorm_embedding",
    "no_cross_attention",
    "no_scale_embedding",
    "no_token_positional_embeddings",
    *OF_ARCHITECTURE,
)
# Options that make several parameters one, into which fairseq loads one of them after the other. Without such an
# option, a model that was trained with it is the same function.
SHARING = "share_all_embeddings", "share_decoder_input_output_embed", "tie_adaptive_proj", "tie_adaptive_weights"


class Vocabularies:
    """Fingerprints of a data directory's dictionaries and segmentations, as recorded in checkpoints.

    Args:
        directory: the data directory
        source, target: its fairseq dictionaries
    """

    def __init__(self, directory: DataDirectory, source: Any, target: Any) -> None:
        self._directory = directory
        self._dictionaries = {"source": fingerprint(source.symbols), "target": fingerprint(target.symbols)}
        self._trained: set[str] = set()  # sides on which a loaded model was trained with a segmentation

    @cached_property
    def recorded(self) -> dict[str, Mapping[str, str | None]]:
        """The fingerprints by side (``source``, ``target``), as in checkpoints; None without a segmentation."""
        segmenters = {side: self._directory.segmenter(side) for side in ("source", "target")}
        segmentations = {side: None if s is None else fingerprint(s.note) for side, s in segmenters.items()}
        return {"dictionaries": self._dictionaries, "segmentations": segmentations}

    def check(self, recorded: Mapping[str, Any], hint: str) -> None:
        """Check that a model was trained with these dictionaries and segmentations.

        Args:
            recorded: what its checkpoint records; what is missing is not checked
            hint: what to do if the dictionaries differ

        Raises:
            SyntaxDataError: a dictionary or segmentation differs
        """
        for kind, what in (("dictionaries", "dictionary"), ("segmentations", "segmentation")):
            for side, trained in recorded.get(kind, {}).items():
                if trained is not None and self.recorded[kind][side] not in (None, trained):
                    raise SyntaxDataError(
                        f"the model was trained with another {side} {what} than that of these data",
                        path=self._directory.path if what == "dictionary" else self._segmentation_path(side),
                        hint=hint if what == "dictionary" else SEGMENTATION_HINT,
                    )

    def add_model(self, recorded: Mapping[str, Any], hint: str) -> None:
        """:meth:`check` a loaded model, and remember on which sides it was trained with a segmentation."""
        self.check(recorded, hint)
        self._trained |= {side for side, value in recorded.get("segmentations", {}).items() if value is not None}

    def check_directory(self, directory: DataDirectory) -> None:
        """Check that another directory of training data has the same dictionaries and segmentations, if it has any.

        Raises:
            SyntaxDataError: a dictionary or segmentation differs
        """
        for side, lang in directory.langs.items():
            path = dictionary_path(directory.path, lang)
            if os.path.exists(path) and fingerprint(Dictionary.load(path).symbols) != self._dictionaries[side]:
                raise SyntaxDataError(
                    "differs from the dictionary of the first directory: its ids would stand for other pieces",
                    path=path,
                    hint="give fairseq-preprocess --srcdict and --tgtdict, those of the first directory",
                )
            check_same_segmentation(directory.path, self._directory.path, lang)

    def segmenter(self, side: str) -> Segmenter | None:
        """The segmentation of a side; None if there is none, an error if a loaded model was trained on its pieces."""
        segmenter = self._directory.segmenter(side)
        if segmenter is None and side in self._trained:
            message = f"is missing: the model was trained on pieces of a {side} segmentation"
            raise SyntaxDataError(message, path=self._segmentation_path(side), hint=SEGMENTATION_HINT)
        return segmenter

    def _segmentation_path(self, side: str) -> str:
        return segmentation_path(self._directory.path, self._directory.langs[side])


def check_trained(state: Mapping[str, Any], model: Any, path: str) -> frozenset[str]:
    """Check that a checkpoint has the architecture of a model (its options), and the labels and tags of the data.

    Systems that are left out, and other values of the systems' own options, are reported, since they may be intended.

    Returns:
        the systems that the checkpoint's model does not have

    Raises:
        SyntaxDataError: they differ; ``path`` is the checkpoint's
    """
    # Checkpoints contain fairseq's configuration, older ones the parsed arguments.
    before = (state.get("cfg") or {}).get("model") or state.get("args") or {}
    before, now = (vars(options) if isinstance(options, Namespace) else dict(options) for options in (before, model))

    def differs(name: str) -> bool:
        """Whether an option has another value now; options that only one side has are not compared."""
        trained, here = before.get(name), now.get(name)
        if name in OF_ARCHITECTURE:  # only this package's Transformer has them, and others compute as without them
            return bool(trained or here) and trained != here
        return trained is not None and here is not None and trained != here

    shared = (name for name in SHARING if now.get(name) and differs(name))
    if changed := [*filter(differs, ARCHITECTURE), *shared]:
        raise SyntaxDataError(
            "this model was trained with another architecture than this command has",
            path=path,
            hint="it was trained with " + ", ".join(f"{option_name(name)} {before.get(name)}" for name in changed),
        )
    for name in filter(differs, REMEMBERED_TEXTS):
        message = f"this model was trained with other {REMEMBERED_TEXTS[name]}"
        raise SyntaxDataError(message, path=path, hint="give the same file")
    for name in filter(differs, REMEMBERED_NAMES):
        side = REMEMBERED_NAMES[name]
        raise SyntaxDataError(
            f"this model was trained with {len(before[name])} names of labels or tags of the {side} that are not "
            f"the {len(now[name])} of these data",
            path=path,
            hint=f"binarize the data with the labels of the first training (--{side}-labels)",
        )
    for name in SYSTEMS:
        # PASCAL and others have a plain model's parameters, which fairseq loads into a model without the system.
        if _systems(before, name) - _systems(now, name):
            message = "%s: %s was %s when it was trained, and is %s now"
            logger.warning(message, path, option_name(name), before[name], now.get(name) or "none")
    for config in _configs(before) & _configs(now):
        for f in fields(config):
            values = (stored_value(f, options) for options in (before, now))
            trained, here = (f.default if value is None else value for value in values)
            if str(trained) != str(here):
                names = ("its default" if value is None else value for value in (trained, here))
                logger.warning("%s: %s was %s when it was trained, and is %s now", path, option_name(f.name), *names)
    for name in OF_LANGUAGES:
        trained, here = before.get(name), now.get(name)
        if (trained or here) and trained != here:
            names = ("not set" if value in (None, "") else value for value in (trained, here))
            logger.warning("%s: %s was %s when it was trained, and is %s now", path, option_name(name), *names)
    return frozenset().union(*(_systems(now, name) - _systems(before, name) for name in SYSTEMS))


def _configs(options: Mapping[str, Any]) -> set[type[SystemConfig]]:
    """The configurations of the systems of a model with these options."""
    architecture = ARCH_MODEL_REGISTRY.get(options.get("arch"))
    found = {architecture.config} if hasattr(architecture, "config") else set()  # an LSTM's one system
    for option, registered in SYSTEMS.items():
        found |= {registered[name].config for name in _systems(options, option)}
    return found


def _systems(options: Mapping[str, Any], option: str) -> set[str]:
    """The names of a Transformer's systems in an option."""
    return set(named_by(options.get(option))) & SYSTEMS[option].keys()

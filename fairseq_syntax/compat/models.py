"""Changes to fairseq's models: mixed ensembles, names of dropout modules, embedding files, and an activation."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from fairseq import utils
from fairseq.dataclass import ChoiceEnum
from fairseq.models import BaseFairseqModel, FairseqEncoder
from fairseq.models.transformer import TransformerConfig, transformer_decoder, transformer_encoder
from fairseq.modules import FairseqDropout
from omegaconf import OmegaConf, open_dict
from torch import Tensor, nn

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.files import read_lines


def install() -> None:
    """Let three options read what fairseq's documentation gives them, and models without syntax encode in search.

    fairseq would skip the first word of ``--encoder-embed-path`` without a header, and retain no dropout by most names
    of ``--retain-dropout-modules``. With ``--activation-fn swish`` it would fail.
    """
    _compute_swish()
    utils.parse_embedding = parse_embedding
    prepare = BaseFairseqModel.make_generation_fast_

    @functools.wraps(prepare)
    def make_generation_fast_(self: nn.Module, **kwargs: Any) -> Any:
        if kwargs.get("retain_dropout") and (names := kwargs.get("retain_dropout_modules")):
            kwargs["retain_dropout_modules"] = retained_modules(names, self)
        return prepare(self, **kwargs)

    BaseFairseqModel.make_generation_fast_ = make_generation_fast_
    encode = FairseqEncoder.forward_non_torchscript

    @functools.wraps(encode)
    def forward_non_torchscript(self: FairseqEncoder, net_input: Mapping[str, Tensor]) -> Any:
        return encode(self, net_input if _takes_syntax(self) else _without_syntax(net_input))

    FairseqEncoder.forward_non_torchscript = forward_non_torchscript


def _compute_swish() -> None:
    """Make ``--activation-fn swish`` a value of the option, and an activation function."""
    activation_fn = utils.get_activation_fn

    @functools.wraps(activation_fn)
    def get_activation_fn(activation: str) -> Callable[[Tensor], Tensor]:
        """fairseq's; for ``swish`` it gives the class of a module, which a layer would create instead of applying."""
        chosen: Callable[[Tensor], Tensor] = activation_fn(activation)
        return nn.functional.silu if chosen is nn.SiLU else chosen

    utils.get_activation_fn = get_activation_fn
    # The option's values are those of the field's type.
    known = TransformerConfig.__dataclass_fields__["activation_fn"]
    if (names := [str(choice.value) for choice in known.type]) and "swish" not in names:
        known.type = ChoiceEnum([*names, "swish"])


def retained_modules(names: str | Sequence[str], model: nn.Module) -> list[str]:
    """The modules of ``--retain-dropout-modules`` by the names that a model's dropout has.

    fairseq has renamed its classes (``TransformerEncoderLayerBase``), and looks for names in the option's text, such as
    ``TransformerEncoder`` in ``TransformerEncoderLayer``.

    Raises:
        SyntaxDataError: the model has no dropout in any of them
    """
    wanted = {n.removesuffix("Base") for n in (re.findall(r"\w+", names) if isinstance(names, str) else names)}
    known = {m.module_name for m in model.modules() if isinstance(m, FairseqDropout) and m.module_name}
    if retained := sorted(name for name in known if name.removesuffix("Base") in wanted):
        return retained
    message, hint = "the model has no dropout in such modules", f"it has dropout in {', '.join(sorted(known))}"
    raise SyntaxDataError(message, option="--retain-dropout-modules", hint=hint)


def parse_embedding(embed_path: str) -> dict[str, Tensor]:
    """Read word vectors from a file, whose first line may be a header with their number and size.

    Raises:
        SyntaxDataError: a line is not a word followed by a vector, or the sizes of vectors differ
    """
    vectors: dict[str, Tensor] = {}
    size = None
    for number, line in enumerate(read_lines(embed_path), start=1):
        word, *numbers = line.rstrip().split(" ")
        if number == 1 and len(numbers) == 1 and (word + numbers[0]).isdigit():
            continue
        try:
            vectors[word] = torch.tensor([float(value) for value in numbers])
        except ValueError as error:
            raise SyntaxDataError(f"not a word and its vector: {error}", path=embed_path, line=number) from None
        size = len(numbers) if size is None else size
        if len(numbers) != size:
            message = f"a vector of {len(numbers)} numbers, but the first word's has {size}"
            raise SyntaxDataError(message, path=embed_path, line=number)
    return vectors


def forget_embedding_files(options: Any) -> None:
    """Load checkpoints without the files of ``--encoder-embed-path``, since checkpoints contain the vectors.

    fairseq's LSTM freezes (``--encoder-freeze-embed``) only vectors of a file; a loaded model is not trained.
    """
    for side in ("encoder", "decoder"):
        if getattr(options, f"{side}_embed_path", None):
            with open_dict(options) if OmegaConf.is_config(options) else nullcontext():
                setattr(options, f"{side}_embed_path", None)
                setattr(options, f"{side}_freeze_embed", False)


def ignore_syntax(model: nn.Module) -> None:
    """Allow ensembles of fairseq's own models with those of this package.

    Search and scoring give all models the same batch; models without the argument ``src_syntax`` do not get it.
    """
    if hasattr(model, "encoder") and not _takes_syntax(model.encoder):
        model.register_forward_pre_hook(_drop_syntax, with_kwargs=True)


def _drop_syntax(model: nn.Module, arguments: Any, inputs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """A hook that refers to no model, so that a model that has it can be copied and pickled."""
    return arguments, _without_syntax(inputs)


def _takes_syntax(encoder: Any) -> bool:
    return "src_syntax" in inspect.signature(encoder.forward).parameters


def _without_syntax(inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in inputs.items() if name != "src_syntax"}


def name_dropouts(model: nn.Module) -> None:
    """Make ``--retain-dropout-modules`` find dropout in this package's modules under the names of fairseq's classes.

    fairseq compares the name of the class that created a dropout module, such as ``TransformerEncoder``, with the
    option.
    """
    for module in model.modules():
        base = next((c for c in type(module).__mro__ if c.__module__.startswith("fairseq.")), None)
        for child in module.children():
            if base not in (None, type(module)) and isinstance(child, FairseqDropout):
                name = transformer_encoder.module_name_fordropout(base.__name__)
                child.module_name = transformer_decoder.module_name_fordropout(name)

"""Folders of Hugging Face's transformers, read without it: configuration, weights and vocabularies.

Nothing in a folder is run, and nothing is downloaded: configurations are JSON, and weights are safetensors or pickles
of tensors alone (``weights_only``).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from fairseq_syntax.errors import SyntaxDataError, imports_of
from fairseq_syntax.runtime.files import read_bytes

SAFETENSORS, PICKLED = "model.safetensors", "pytorch_model.bin"
_INCOMPLETE = "copy the folder again, as save_pretrained writes it"


def import_transformers() -> ModuleType:
    """Import transformers, also beside a torchaudio that was built for another PyTorch.

    Raises:
        SyntaxDataError: it is not installed
    """
    if (spec := find_spec("torchaudio")) is not None and "torchaudio" not in sys.modules:
        try:
            import torchaudio  # noqa: F401
        except (ImportError, OSError):
            # Replaced by an empty module, since transformers' translation models read no audio.
            sys.modules["torchaudio"] = module_from_spec(spec)
    with imports_of("transformers"):
        import transformers

        transformers.AutoModelForSeq2SeqLM  # noqa: B018  (loaded when it is first used)
        transformers.utils.logging.disable_progress_bar()
    return transformers


class PretrainedFolder:
    """A folder as ``save_pretrained`` writes it.

    Attributes:
        path: the folder
        config: its ``config.json``
        generation: its ``generation_config.json``, over what ``config.json`` says of it
        tokenizer: its ``tokenizer_config.json``; empty if there is none

    Raises:
        SyntaxDataError: there is no such folder or ``config.json``, or one of these files is not JSON
    """

    def __init__(self, path: Path) -> None:
        if not path.is_dir():
            hint = "give a folder on this machine; nothing is downloaded"
            raise SyntaxDataError("no such folder", path=path, hint=hint)
        self.path = path
        if not (path / "config.json").is_file():
            hint = "give the folder of a model as transformers saves it"
            raise SyntaxDataError("has no config.json, so it is not a model of transformers", path=path, hint=hint)
        self.config = self.json("config.json")
        self.generation = {**self.config, **self.json("generation_config.json")}
        self.tokenizer = self.json("tokenizer_config.json")

    def json(self, name: str, *, needed: bool = False) -> dict[str, Any]:
        """The content of a JSON file; empty if the file is missing and not needed."""
        path = self.path / name
        if path.is_file():
            return _json(path)
        if needed:
            raise SyntaxDataError("no such file", path=path, hint=_INCOMPLETE)
        return {}

    def bytes(self, name: str) -> bytes:
        """The content of a needed file."""
        if not (self.path / name).is_file():
            raise SyntaxDataError("no such file", path=self.path / name, hint=_INCOMPLETE)
        return read_bytes(self.path / name)

    def value(self, name: str, default: Any = None) -> Any:
        """An entry of ``config.json``. Raises SyntaxDataError if it is missing and has no default."""
        value = self.config.get(name)
        if value is None and default is None:
            raise SyntaxDataError(f"has no {name}", path=self.path / "config.json", hint=_INCOMPLETE)
        return default if value is None else value

    def vocabulary(self, name: str) -> dict[str, int]:
        """The ids of symbols in a JSON file. Raises SyntaxDataError if it is not such a file, or two have one id."""
        return self.checked_ids(self.json(name, needed=True), name)

    def checked_ids(self, symbols: dict[str, Any], name: str) -> dict[str, int]:
        """The ids of symbols that a file has. Raises SyntaxDataError if one is no id, or two symbols have one id."""
        if not all(isinstance(i, int) and i >= 0 for i in symbols.values()):
            raise SyntaxDataError("not a vocabulary: {symbol: id}", path=self.path / name)
        if len(set(symbols.values())) < len(symbols):
            raise SyntaxDataError("two symbols have the same id", path=self.path / name)
        return symbols

    def language(self, side: str) -> str | None:
        """The language of a side (``source``, ``target``) by its configuration; None if it does not say it."""
        langs = self.config.get("langs")  # FSMT
        of_pair = dict(zip(("source", "target"), langs)) if isinstance(langs, list) else {}
        names = {"source": ("source_lang", "src_lang"), "target": ("target_lang", "tgt_lang")}[side]
        lang = self.tokenizer.get(names[0]) or self.tokenizer.get(names[1]) or of_pair.get(side)
        return lang if isinstance(lang, str) and lang else None

    def reference(self) -> Any:
        """transformers' model in float32; None if it is not installed.

        Raises:
            SyntaxDataError: transformers does not load it
        """
        try:
            load = import_transformers().AutoModelForSeq2SeqLM.from_pretrained
        except SyntaxDataError:
            return None
        try:
            return load(self.path, dtype=torch.float32, local_files_only=True).eval()
        except Exception as error:  # whatever its own checks find
            reason = str(error).strip().partition("\n")[0]
            raise SyntaxDataError(f"transformers does not load it: {reason}"[:300], path=self.path) from error

    @cached_property
    def weights(self) -> Weights:
        """The parameters."""
        return Weights(dict(self._files()))

    def _files(self) -> Iterator[tuple[str, ParameterFile]]:
        """Each parameter's name, with the file that contains it."""
        for name, reader in ((SAFETENSORS, _Safetensors), (PICKLED, _Pickled)):
            path, index = self.path / name, self.path / f"{name}.index.json"
            paths = [path] if path.is_file() else []
            if not paths and index.is_file():
                places = _json(index).get("weight_map")
                if not isinstance(places, dict):
                    raise SyntaxDataError("has no weight_map", path=index, hint=_INCOMPLETE)
                paths = [self.path / Path(str(part)).name for part in sorted(set(places.values()))]
            for part in paths:
                if not part.is_file():
                    raise SyntaxDataError("no such file", path=part, hint=_INCOMPLETE)
                file = reader(part)
                yield from ((parameter, file) for parameter in file.names)
            if paths:
                return
        raise SyntaxDataError(f"has neither {SAFETENSORS} nor {PICKLED}", path=self.path, hint=_INCOMPLETE)


def _json(path: Path) -> dict[str, Any]:
    """A JSON object. Raises SyntaxDataError if the file contains something else."""
    try:
        value = json.loads(path.read_bytes())
    except ValueError as error:  # of JSON or of Unicode
        raise SyntaxDataError(f"not JSON: {error}", path=path, hint=_INCOMPLETE) from error
    if not isinstance(value, dict):
        raise SyntaxDataError("not a JSON object", path=path, hint=_INCOMPLETE)
    return value


class ParameterFile:
    """A file of parameters: their names, and each tensor by its name."""

    names: list[str]

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, name: str) -> Any:
        raise NotImplementedError


class _Safetensors(ParameterFile):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        with imports_of("transformers"):
            import safetensors
        try:
            self._file = safetensors.safe_open(path, framework="pt", device="cpu")
            self.names = list(self._file.keys())
        except Exception as error:  # of a class that has changed between versions
            raise SyntaxDataError(f"not a file of safetensors: {error}", path=path, hint=_INCOMPLETE) from error

    def read(self, name: str) -> Any:
        return self._file.get_tensor(name)


class _Pickled(ParameterFile):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        try:
            try:
                loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
            except RuntimeError:  # files of PyTorch before 1.6 cannot be memory-mapped
                loaded = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # unpickling can raise anything
            reason = str(error).strip().partition("\n")[0].partition(". ")[0]
            if "nsupported" in str(error) or "eights only" in str(error):
                reason = "it contains more than tensors, which could run code"
            raise SyntaxDataError(f"is not loaded: {reason}", path=path, hint="save it as safetensors") from error
        if not isinstance(loaded, Mapping):
            raise SyntaxDataError("is not a mapping of names to tensors", path=path, hint=_INCOMPLETE)
        self._loaded, self.names = loaded, [str(name) for name in loaded]

    def read(self, name: str) -> Any:
        return self._loaded[name]


class Weights:
    """The parameters of a folder; remembers which have been read.

    Args:
        files: the file of each parameter, by the parameter's name
    """

    def __init__(self, files: Mapping[str, ParameterFile]) -> None:
        self._files, self._left = files, dict(files)

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def path(self, name: str) -> Path:
        """The file of a parameter, or of the first one."""
        return (self._files.get(name) or next(iter(self._files.values()))).path

    def take(self, name: str, shape: tuple[int, ...] | None = None) -> Tensor:
        """A parameter, in float32.

        Raises:
            SyntaxDataError: it is missing, not a tensor of floating-point numbers, or has another shape
        """
        if name not in self._files:
            raise SyntaxDataError(f"the parameter {name} is missing", path=self.path(name), hint=_INCOMPLETE)
        tensor = self._files[name].read(name)
        self._left.pop(name, None)
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            kind = str(tensor.dtype) if isinstance(tensor, Tensor) else type(tensor).__name__
            raise SyntaxDataError(f"the parameter {name} is of type {kind}", path=self.path(name))
        if shape is not None and tuple(tensor.shape) != shape:
            message = f"the parameter {name} has the shape {list(tensor.shape)}, and config.json asks for {list(shape)}"
            raise SyntaxDataError(message, path=self.path(name), hint="are both files of the same model?")
        return tensor.float()

    def ignore(self, name: str) -> None:
        """Count a parameter as read."""
        self._left.pop(name, None)

    def check_all_read(self) -> None:
        """Raise SyntaxDataError if a parameter has not been read, so that the model is of another kind."""
        if self._left:
            name, *others = self._left
            more = f" and {len(others)} more" if others else ""
            message = f"the parameter {name}{more} has no counterpart in a model with this config.json"
            raise SyntaxDataError(message, path=self.path(name), hint="are both files of the same model?")

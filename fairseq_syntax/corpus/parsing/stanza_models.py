"""The location of Stanza's models, without importing Stanza, so that commands can check early that they exist."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.files import read_json

# Names of a corpus's sides that are no languages, as in the demo, or of languages for which Stanza has no models.
_SIDES = frozenset({"src", "tgt", "trg", "source", "target"})


def resources(model_dir: str | None) -> Path:
    """The resources folder, which contains a folder of models for each language: ``model_dir``, or Stanza's own."""
    if model_dir is not None:
        return Path(model_dir)
    return Path(os.environ.get("STANZA_RESOURCES_DIR", Path.home() / "stanza_resources"))


def language(lang: str, model_dir: str | None) -> str:
    """The name of a language's folder of models: that of its alias in the index of a resources folder, if it has one.

    Stanza downloads ``zh`` into the folder ``zh-hans``, for example.
    """
    entry = read_json(resources(model_dir) / "resources.json").get(lang)
    return str(entry["alias"]) if isinstance(entry, dict) and "alias" in entry else lang


def configured_languages(lang: str, model_dir: str | None) -> set[str]:
    """The languages in the configuration of the models in a folder; in a resources folder, the path is the language."""
    import torch  # here, for commands that name no models

    found: set[str] = set()
    if (folder := model_folder(lang, model_dir)) is not None:
        for name in ("pos.pt", "depparse.pt"):
            with suppress(Exception):  # a damaged file is reported when it is loaded
                config = torch.load(folder / name, map_location="cpu", weights_only=True)["config"]
                found.add(str(config.get("lang") or ""))
    return found


def uses_tokenizer(tokenizer: str, lang: str, model_dir: str | None) -> bool:
    """Whether ``--tokenizer`` selects Stanza's tokenizer. Raises SyntaxDataError as :func:`model_folder`."""
    folder = model_folder(lang, model_dir)
    return tokenizer == "stanza" or (tokenizer == "auto" and (folder is None or (folder / "tokenize.pt").exists()))


def model_folder(lang: str, model_dir: str | None) -> Path | None:
    """The folder with pos.pt and depparse.pt, or None if the models are in a resources folder.

    Raises:
        SyntaxDataError: there are no models for the language
    """
    if model_dir is not None and all(Path(model_dir, name).exists() for name in ("depparse.pt", "pos.pt")):
        return Path(model_dir)
    if (resources(model_dir) / language(lang, model_dir) / "depparse").is_dir():
        return None
    hint = f"give --model-dir (in a recipe: models), or run: python -c \"import stanza; stanza.download('{lang}')\""
    if lang in _SIDES:
        hint = "that is not a language: give it, such as --lang en"
    message = f"no Stanza models for {lang!r}: neither pos.pt and depparse.pt nor {lang}/depparse/"
    raise SyntaxDataError(message, path=resources(model_dir), hint=hint)

"""Opening of trained models: with CTranslate2 alone where it runs them, otherwise with PyTorch and fairseq."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any

from fairseq_syntax.plugins import VARIABLE
from fairseq_syntax.use.base_translator import BaseTranslator, LoadOptions
from fairseq_syntax.use.exported import ctranslate2_folder


def open_translator(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    data: str | os.PathLike[str] | None = None,
    **options: Any,
) -> BaseTranslator:
    """A translator; the arguments and errors are those of :meth:`.translator.Translator.load`.

    Neither PyTorch nor fairseq is imported for a folder of ``fairseq-syntax export --to ctranslate2``, unless its
    parser needs them.
    """
    if (folder := ctranslate2_folder(path)) is not None:
        from fairseq_syntax.use.ctranslate2_translator import CTranslate2Translator

        names = options.keys() & {field.name for field in fields(LoadOptions)}
        how = LoadOptions(data=data, **{name: options.pop(name) for name in names})
        return CTranslate2Translator.load(folder, how, **options)
    from fairseq_syntax.use.translator import Translator

    return Translator.load(path, data, **options)


def need_fairseq(models: Iterable[Sequence[str]], user_dir: Sequence[str]) -> bool:
    """Whether any of the models, each a list of paths, is not run by CTranslate2 alone, or plugins are to be loaded."""
    return bool(user_dir or os.environ.get(VARIABLE)) or not all(map(ctranslate2_folder, models))

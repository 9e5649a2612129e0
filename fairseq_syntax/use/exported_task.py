"""The task of an exported folder that another library runs: its data, without PyTorch and fairseq."""

from __future__ import annotations

import os
from functools import cached_property
from types import SimpleNamespace
from typing import Any

from fairseq_syntax.data.dictionary import PieceDictionary
from fairseq_syntax.data.directory import DataDirectory, dictionary_path
from fairseq_syntax.data.parse_origins import ParseOrigins
from fairseq_syntax.use.exported import Exported


class ExportedTask:
    """The dictionaries, labels and segmentations of an exported folder (:class:`.model.task.SyntaxTask`).

    Args:
        folder, exported: the folder and its description
        options: values of the task's options, such as ``syntax_parser``
    """

    def __init__(self, folder: str | os.PathLike[str], exported: Exported, **options: Any) -> None:
        self.data_dir = os.fspath(folder)
        source, target = exported.source_lang, exported.target_lang
        # The options that the input of a translation reads, with their defaults.
        defaults: dict[str, Any] = {
            "syntax_input": "auto",
            "syntax_parser": "",
            "syntax_parser_lang": "",
            "syntax_parser_dir": "",
            "missing_parse": "error",
        }
        of_folder = {"data": self.data_dir, "source_lang": source, "target_lang": target}
        self.cfg = SimpleNamespace(**{**defaults, **options}, **of_folder)
        self.directory = DataDirectory(self.data_dir, source, target)
        self.source_dictionary, self.target_dictionary = (
            PieceDictionary(dictionary_path(self.data_dir, lang)) for lang in (source, target)
        )
        self.datasets: dict[str, Any] = {}
        self._needs = frozenset({"tree"}) if exported.factors else frozenset()

    @cached_property
    def parse_origins(self) -> ParseOrigins:
        """How the training text of the model was parsed."""
        return ParseOrigins(self.directory.parsed_with("source"))

    def labels(self, side: str) -> dict[str, list[str]]:
        """Label names of a side by column, in the order of their ids."""
        return self.directory.inventory(side).labels

    def segmenter(self, side: str) -> Any:
        """The segmentation of a side; None if the folder has none."""
        return self.directory.segmenter(side)

    def needs(self, side: str) -> frozenset[str] | None:
        """What the model needs of the syntax of a side."""
        return self._needs if side == "source" else frozenset()

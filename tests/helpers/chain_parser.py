"""The smallest parser: every word attaches to the one before it.

A file named ``die`` kills it at the word KILL; the word SLOW takes a fiftieth of a second.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from fairseq_syntax.corpus.parsing.parser import Parser, ParserOptions, SentenceParse


class ChainParser(Parser):
    def parse_sentences(self, sentences: list[list[str]]) -> list[SentenceParse]:
        deadly = self.options.model_dir is not None and (Path(self.options.model_dir) / "die").exists()
        if deadly and any("KILL" in words for words in sentences):
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.02 * sum("SLOW" in words for words in sentences))
        return [self.chain(words) for words in sentences]

    def chain(self, words: list[str]) -> SentenceParse:
        n = len(words)
        heads = list(range(n)) if "TWOROOTS" not in words else [0] * n
        labels = ["root"] + ["dep"] * (n - 1)
        arcs = [(i + 1, head, label, 0.9) for i, (head, label) in enumerate(zip(heads, labels))]
        return SentenceParse(heads, labels, ["X"] * n, ["_"] * n, arcs if self.options.distributions else None)


def fingerprint(options: ParserOptions) -> str:
    """It has no model, whatever lies in the folder."""
    return ""


def load(options: ParserOptions) -> Parser:
    return ChainParser(options)

"""A parser without a model: each word is attached to the one before it. For trying things out, and for smoke tests."""

from __future__ import annotations

from fairseq_syntax.corpus.parsing.base import Parser, ParserOptions, SentenceParse


class ChainParser(Parser):
    """Chains: the first word is the root, and every other word's head is the word before it."""

    def parse_sentences(self, sentences: list[list[str]]) -> list[SentenceParse]:
        """Parses sentences of at least one word each, in order."""
        return [self._chain(len(words)) for words in sentences]

    def _chain(self, words: int) -> SentenceParse:
        heads, labels = list(range(words)), ["root", *["dep"] * (words - 1)]
        tags = ["X"] * words
        arcs = [(word, word - 1, labels[word - 1], 1.0) for word in range(1, words + 1)]
        return SentenceParse(heads, labels, tags, tags, arcs if self.options.distributions else None)


def load(options: ParserOptions) -> Parser:
    """The parser."""
    return ChainParser(options)


def fingerprint(options: ParserOptions) -> str:
    """It has no models."""
    return "chain"

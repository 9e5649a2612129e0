"""A parser without a model, for trials and smoke tests: each word attaches to the preceding one."""

from __future__ import annotations

from fairseq_syntax.corpus.parsing.parser import Parser, ParserOptions, SentenceParse


class ChainParser(Parser):
    """Produces chains: the first word is the root, and the head of every other word is the preceding word."""

    def parse_sentences(self, sentences: list[list[str]]) -> list[SentenceParse]:
        return [self._chain(len(words)) for words in sentences]

    def _chain(self, words: int) -> SentenceParse:
        heads, labels = list(range(words)), ["root", *["dep"] * (words - 1)]
        tags = ["X"] * words
        arcs = [(word, word - 1, labels[word - 1], 1.0) for word in range(1, words + 1)]
        return SentenceParse(heads, labels, tags, tags, arcs if self.options.distributions else None)


def load(options: ParserOptions) -> Parser:
    """Load the parser."""
    return ChainParser(options)


def fingerprint(options: ParserOptions) -> str:
    """The fingerprint of its models, of which there are none."""
    return "chain"

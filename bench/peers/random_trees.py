"""A parser that needs no model: any word may have any head. No time that is measured here depends on the tree."""

from __future__ import annotations

import random

from fairseq_syntax.corpus.parsing.parser import Parser, ParserOptions, SentenceParse


class RandomTrees(Parser):
    """Random trees, the same for the same sentence."""

    def parse_sentences(self, sentences: list[list[str]]) -> list[SentenceParse]:
        return [self.tree(words) for words in sentences]

    @staticmethod
    def tree(words: list[str]) -> SentenceParse:
        """Each word of a random order attaches to one before it; the first is the root."""
        rng = random.Random(" ".join(words))
        order = rng.sample(range(len(words)), len(words))
        heads = [0] * len(words)
        for place, word in enumerate(order[1:], 1):
            heads[word] = order[rng.randrange(place)] + 1
        labels = ["dep" if head else "root" for head in heads]
        return SentenceParse(heads, labels, ["X"] * len(words), ["_"] * len(words), None)


def fingerprint(options: ParserOptions) -> str:
    """It has no model."""
    return ""


def load(options: ParserOptions) -> Parser:
    return RandomTrees(options)

"""Translations with varied tag sequences, and their BLEU and distinct-1 by edit distance (LaSyn, Table 5)."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from fairseq import utils

from fairseq_syntax.corpus.store.reader import SyntaxStore
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.inference.spelling import reference_of_tokens, text_of_tokens
from fairseq_syntax.lab.scoring.metrics import Scorer, distinct_1
from fairseq_syntax.lab.scoring.tables import Table, number
from fairseq_syntax.runtime.console import progress
from fairseq_syntax.systems.lasyn.edits import TagBigrams, random_variation
from fairseq_syntax.systems.lasyn.generator import LatentGenerator
from fairseq_syntax.systems.lasyn.model import check_tags, is_latent
from fairseq_syntax.systems.lasyn.templates import Template
from fairseq_syntax.use import BEAM

SENTENCES_AT_A_TIME = 10_000  # of the training data, so that not all tags are in memory at once


class Variation(NamedTuple):
    """A translation of a sentence (0-based) with tags of its pieces, at an edit distance from the most likely tags."""

    sentence: int
    distance: int
    tags: Template
    text: str


def training_bigrams(task: Any, column: str) -> TagBigrams:
    """The pairs of adjacent tags in the target's parse of the training data.

    Args:
        task: a ``syntax_translation`` task
        column: ``upos`` or ``xpos``
    """
    store = SyntaxStore(task.directory.store_path("train", "target"))
    pairs: set[tuple[int, int]] = set()
    for start in range(0, len(store), SENTENCES_AT_A_TIME):
        flat = store.fetch(np.arange(start, min(start + SENTENCES_AT_A_TIME, len(store))))
        pairs |= TagBigrams.pairs_of_words(getattr(flat, column), flat.pieces, flat.n_words)
    return TagBigrams(pairs)


class Diversifier:
    """Translates the sentences of a dataset with the most likely tags, and with variations of them.

    Args:
        models: LaSyn models with tags
        task: their task
        dataset: the sentences
        batch_size: the maximum number of sentences in a batch

    Raises:
        SyntaxDataError: a model is not a LaSyn model with the tags of the data
    """

    def __init__(self, models: list[Any], task: Any, dataset: Any, beam: int = BEAM, batch_size: int = 64) -> None:
        if not all(map(is_latent, models)):
            raise SyntaxDataError("only LaSyn models accept tag sequences", hint="train with --decoder-syntax lasyn")
        decoder = models[0].decoder
        check_tags(decoder, task)
        self.models, self.task, self.dataset = models, task, dataset
        self.beam, self.batch_size = beam, batch_size
        self.names: list[str] = decoder.latent_names
        self.bigrams = training_bigrams(task, decoder.tags)

    def most_likely(self, sentences: Sequence[int]) -> dict[int, Template]:
        """The tags of the most probable pair of translation and tags of each sentence."""
        return {i: h["tags"][:-1].tolist() for i, h in self._search(sentences, mode="joint")}

    def translate(self, templates: Mapping[int, Template]) -> dict[int, str]:
        """The best translation of each sentence with its given tags."""
        longest = max(map(len, templates.values()), default=1)  # edits may make it longer than any translation

        def of_batch(batch: Mapping[str, Any]) -> list[Template]:
            return [templates[i] for i in batch["id"].tolist()]

        hypotheses = self._search(list(templates), mode="template", templates=of_batch, max_len_b=longest)
        return {i: self.text(h["tokens"]) for i, h in hypotheses}

    def vary(
        self, sentences: Sequence[int], distances: Sequence[int], samples: int, rng: random.Random
    ) -> list[Variation]:
        """Generate ``samples`` translations per sentence and distance, or fewer if there are not enough tag sequences.

        The single translation at distance 0 is repeated ``samples`` times, so that the distances are comparable.
        """
        best = self.most_likely(sentences)
        out: list[Variation] = []
        rounds = [distance for distance in distances for _ in range(1 if distance == 0 else samples)]
        with progress(total=len(rounds) * len(sentences), of="translating", unit="sentences") as bar:
            for distance in rounds:
                drawn = {i: random_variation(t, distance, self.bigrams, rng) for i, t in best.items()}
                templates = {i: t for i, t in drawn.items() if t is not None}
                texts = self.translate(templates)
                made = [Variation(i, distance, t, texts[i]) for i, t in templates.items()]
                out += made * (samples if distance == 0 else 1)
                bar.update(len(sentences))
        return out

    def reference(self, sentence: int) -> str:
        """The text of a reference translation."""
        decode = self.task.segmenter("target"), self.task.cfg.target_lang or ""
        return reference_of_tokens(self.dataset[sentence]["target"], self.task.target_dictionary, *decode)

    def text(self, tokens: Any) -> str:
        """Tokens [T] as text."""
        decode = self.task.segmenter("target"), self.task.cfg.target_lang or ""
        return text_of_tokens(tokens, self.task.target_dictionary, *decode)

    def _search(self, sentences: Sequence[int], **options: Any) -> Iterator[tuple[int, dict[str, Any]]]:
        if not sentences:
            return
        dictionary = self.task.target_dictionary
        generator = LatentGenerator(self.models, dictionary, beam_size=self.beam, **options)
        device = next(self.models[0].parameters()).device
        ordered = sorted(sentences, key=self.dataset.size)  # to reduce padding
        for start in range(0, len(ordered), self.batch_size):
            batch = self.dataset.collater([self.dataset[i] for i in ordered[start : start + self.batch_size]])
            if device.type == "cuda":
                batch = utils.move_to_cuda(batch)
            for i, hypotheses in zip(batch["id"].tolist(), generator.generate(self.models, batch)):
                yield i, hypotheses[0]


def measure_diversity(
    variations: Sequence[Variation], references: Mapping[int, str], tokenize: str = "13a"
) -> list[dict]:
    """``bleu``, its ``signature``, and ``distinct1`` of the ``translations`` at each ``distance``."""
    rows = []
    for distance in sorted({v.distance for v in variations}):
        group = [v for v in variations if v.distance == distance]
        texts = [v.text for v in group]
        scorer = Scorer("bleu", [[references[v.sentence] for v in group]], tokenize=tokenize)
        row = {"distance": distance, "translations": len(group), "bleu": scorer.corpus(texts)}
        rows.append(row | {"distinct1": distinct_1(texts, tokenize), "signature": scorer.signature})
    return rows


def table(rows: Sequence[Mapping[str, Any]], samples: int) -> Table:
    """The results of :func:`measure_diversity` as a table."""
    return Table(
        f"Translations by varied tag sequences, {samples} of each sentence at each distance",
        ["edit distance", "translations", "BLEU", "distinct-1"],
        [[str(r["distance"]), str(r["translations"]), number(r["bleu"]), number(r["distinct1"], 3)] for r in rows],
        [rows[0]["signature"]] if rows else [],
    )

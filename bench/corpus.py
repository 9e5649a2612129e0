"""A random corpus to measure on: sentences as long as image captions, random trees, temporary files only."""

from __future__ import annotations

import os
import random
from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import torch
from fairseq import options, tasks
from fairseq.data import Dictionary

import fairseq_syntax
from bench.harness import temporary_folder
from fairseq_syntax.corpus.store.store_format import StoredSentence, store_path
from fairseq_syntax.corpus.store.writer import write_sentences
from fairseq_syntax.data.labels import LabelInventory, labels_path
from fairseq_syntax.tasks.syntax_translation import SyntaxTranslationTask

fairseq_syntax.register()

LABELS = ("root", "nsubj", "obj", "obl", "nmod", "det", "amod", "case", "advmod", "punct", "conj", "cc")


@lru_cache
def corpus(
    sentences: int = 4000,
    words: int = 13,
    vocabulary: int = 6000,
    arcs_per_word: float = 2.07,
    tags: int = 6,
    chunks: int = 1,
) -> str:
    """Write a binarized corpus with trees and distributions into a temporary directory; returns its path."""
    from fairseq.data import indexed_dataset

    directory = str(temporary_folder())
    rng = random.Random(1)
    dictionary = Dictionary()
    for i in range(vocabulary):
        dictionary.add_symbol(f"w{i}")
    labels = LabelInventory()
    for label in LABELS:
        labels.id("deprel", label)
    for i in range(tags):
        labels.id("upos", f"T{i}")
        labels.id("xpos", f"T{i}")
    labels.save(labels_path(directory, "en"))
    labels.save(labels_path(directory, "de"))
    for lang in ("en", "de"):
        dictionary.save(os.path.join(directory, f"dict.{lang}.txt"))
    for split, count in (("train", sentences), ("valid", 200), ("test", 400)):
        for lang in ("en", "de"):
            path = store_path(directory, split, "en", "de", lang)
            prefix = path.removesuffix(".syntax.arrow")
            builder = indexed_dataset.make_builder(prefix + ".bin", "mmap", vocabulary)

            def random_sentences(count: int = count, builder: Any = builder) -> Iterator[StoredSentence]:
                for _ in range(count):
                    sentence = random_sentence(rng, max(1, round(rng.gauss(words, words / 4))), arcs_per_word)
                    tokens = [rng.randrange(4, len(dictionary)) for _ in range(sum(sentence.pieces))]
                    builder.add_item(torch.IntTensor([*tokens, dictionary.eos()]))
                    yield sentence

            metadata = {"labels": labels.labels, "mass": 0.0}
            write_sentences(path, random_sentences(), metadata, with_arcs=True, chunk=-(-count // chunks))
            builder.finalize(prefix + ".idx")
    return directory


def random_sentence(rng: random.Random, words: int, arcs_per_word: float = 2.07) -> StoredSentence:
    """A random tree over words of one to three pieces, and arcs of random probability."""
    root = rng.randrange(words)
    order = [root, *(w for w in rng.sample(range(words), words) if w != root)]
    head = [0] * words
    for at, word in enumerate(order):
        head[word] = order[rng.randrange(at)] if at else root
    arcs = []
    for word in range(words):
        heads = {head[word], *(rng.randrange(words) for _ in range(round(arcs_per_word - 1 + rng.random() - 0.5)))}
        weights = [rng.random() + 3 * (h == head[word]) for h in heads]
        for h, weight in zip(heads, weights):
            arcs.append((word, h, 1 if h == word else rng.randrange(2, len(LABELS)), 0.99 * weight / sum(weights)))
    return StoredSentence(
        pieces=[rng.choice((1, 1, 1, 2, 3)) if words > 1 else 1 for _ in range(words)],
        head=head,
        deprel=[1 if w == root else rng.randrange(2, len(LABELS)) for w in range(words)],
        upos=[rng.randrange(1, 7) for _ in range(words)],
        xpos=[rng.randrange(1, 7) for _ in range(words)],
        arcs=arcs,
    )


def task(directory: str | None = None) -> SyntaxTranslationTask:
    """The task over a binarized corpus, the random one unless named."""
    words = ["--task", "syntax_translation", "-s", "en", "-t", "de", "--arch", "transformer", "--no-save"]
    args = options.parse_args_and_arch(options.get_training_parser(), [directory or corpus(), *words])
    return tasks.setup_task(args)


def model(task: SyntaxTranslationTask, arch: str, *arguments: str) -> tuple[torch.nn.Module, Namespace]:
    """A model of an architecture, with command-line arguments, built for the task; and its options."""
    parser = options.get_training_parser()
    args = options.parse_args_and_arch(
        parser, [task.cfg.data, "--task", "syntax_translation", "--arch", arch, *arguments]
    )
    torch.manual_seed(1)
    return task.build_model(args), args


def loader_epoch(needs: set[str], directory: str | None = None) -> Callable[[], None]:
    """A function that goes through an epoch of the training data, whose batches bring what is needed of the source."""
    loading = task(directory)
    loading._needs = {"source": frozenset(needs), "target": frozenset()}
    loading.load_dataset("train")
    batches = loading.get_batch_iterator(loading.dataset("train"), max_tokens=4000, seed=1)

    def run() -> None:
        for _ in batches.next_epoch_itr(shuffle=True):
            pass

    return run

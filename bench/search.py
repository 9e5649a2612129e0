"""Beam search: fairseq's own model by our search and by fairseq's, and systems against models of the same size."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from fairseq.sequence_generator import SequenceGenerator
from fairseq.utils import move_to_cuda

from bench import corpus
from bench.harness import compare, device, measure
from bench.training import PLAIN, TRAINED, batches, build
from fairseq_syntax.compat.search import BeamSearch, EnsembleModel

LENGTHS = (50, 80)  # words; there are more pieces


def searching(system: str, directory: str | None = None, *, beam: int, length: int) -> tuple[Callable[[], None], dict]:
    """A function that translates a batch with an untrained model, to a length that all models share; and its size."""
    task, model, _ = build(system, directory)
    (sample,) = batches(task, "test", 1, 1500)
    model.eval().make_generation_fast_(need_attn=False)
    generator = SequenceGenerator([model], task.target_dictionary, beam_size=beam, max_len_b=length, min_len=length)

    def run() -> None:
        with torch.no_grad():
            generator.generate([model], sample)

    sentences, columns = sample["net_input"]["src_tokens"].size()
    return run, {"sentences": sentences, "source_pieces": columns, "beam": beam}


def search_as_fairseq(generator: SequenceGenerator, model: Any, dictionary: Any) -> None:
    """Give a generator of one model the classes of fairseq that ours replace."""
    generator.model = EnsembleModel.__mro__[1]([model]).eval()
    generator.search = BeamSearch.__mro__[1](dictionary)


@measure(*(f"generate/dlaa_lstm@{words}" for words in LENGTHS))
def generate_long() -> None:
    """Long sentences."""
    for words in LENGTHS:
        directory = corpus.corpus(sentences=1500, words=words, vocabulary=10000)
        ours, detail = searching(TRAINED["dlaa_lstm"], directory, beam=5, length=words)
        plain, _ = searching(PLAIN["lstm"], directory, beam=5, length=words)
        compare(f"generate/dlaa_lstm@{words}", ours, plain, detail=detail)


@measure("generate/supervised_head_transformer")
def generate() -> None:
    """Sentences as long as image captions."""
    ours, detail = searching(TRAINED["supervised_head_transformer"], beam=4, length=20)
    plain, _ = searching(PLAIN["transformer"], beam=4, length=20)
    compare("generate/supervised_head_transformer", ours, plain, pairs=9, detail=detail)


@measure("generate/transformer@1", "generate/transformer@64")
def generate_plain() -> None:
    """fairseq's own Transformer by the search of ``translate`` and by fairseq's, one sentence and 64 at a time."""
    task, model, _ = build(PLAIN["transformer"])
    task.load_dataset("test")
    dataset, beam, length = task.dataset("test"), 5, 20
    options = Namespace(beam=beam, max_len_a=0, max_len_b=length, min_len=length)
    model.prepare_for_inference_(Namespace(generation=options))
    ours, theirs = (task.build_generator([model], options) for _ in range(2))
    ours.model.keeps_attention = False  # as in translate
    search_as_fairseq(theirs, model, task.target_dictionary)
    for sentences in (1, 64):
        sample = dataset.collater([dataset[i] for i in range(sentences)])
        sample = move_to_cuda(sample) if device() == "cuda" else sample
        found = [generator.generate([model], sample) for generator in (ours, theirs)]
        tokens = [[h["tokens"].tolist() for best in each for h in best] for each in found]
        assert tokens[0] == tokens[1], "the searches do not find the same"
        compare(
            f"generate/transformer@{sentences}",
            partial(ours.generate, [model], sample),
            partial(theirs.generate, [model], sample),
            unit="speed, our search over fairseq's",
            pairs=9,
            repeat=max(1, 8 // sentences),
            detail={"sentences": sentences, "beam": beam, "steps": length + 1},
        )

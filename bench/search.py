"""Beam search of the LSTM family and of supervised heads against fairseq's own models of the same size."""

from __future__ import annotations

from collections.abc import Callable

import torch
from fairseq.sequence_generator import SequenceGenerator

from bench import corpus
from bench.harness import compare, measure
from bench.training import PLAIN, TRAINED, batches, build

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

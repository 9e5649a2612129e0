"""The LSTM family against fairseq's ``lstm`` of the same size: training steps, and beam search on long sentences."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.sequence_generator import SequenceGenerator
from fairseq.utils import move_to_cuda

from bench import corpus
from bench.harness import compare, device, measure

VOCABULARY = 10000
# fairseq's own sizes, 512 everywhere, with its bidirectional encoder
SIZE = ["--encoder-bidirectional", "--encoder-hidden-size", "256"]
TRAINED = (
    "dlaa_lstm",
    "local_attention_lstm",
    "sdrnmt1_lstm",
    "sdrnmt2_lstm",
    "senmt_lstm",
    "tree2seq_lstm",
    "gcn_lstm",
)
LENGTHS = (50, 80)  # words; there are more pieces


@lru_cache
def samples(words: int, split: str, max_tokens: int, count: int):
    """The task, and the first batches of a split of a random corpus, with the parse and without."""
    task = corpus.task(corpus.corpus(sentences=1500, words=words, vocabulary=VOCABULARY))
    task._needs["source"] = frozenset({"tree"})
    task.load_dataset(split)
    batches = task.get_batch_iterator(task.dataset(split), max_tokens=max_tokens, seed=1).next_epoch_itr(shuffle=True)
    with_parse = [next(batches) for _ in range(count)]
    if device() == "cuda":
        with_parse = [move_to_cuda(s) for s in with_parse]
    plain = [{**s, "net_input": {k: v for k, v in s["net_input"].items() if k != "src_syntax"}} for s in with_parse]
    return task, with_parse, plain


def training(arch: str):
    """A function that makes training steps with an architecture."""
    task, with_parse, plain = samples(13, "train", 2000, 2)
    model, _ = corpus.model(task, arch, *SIZE)
    model = model.to(device()).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

    def run() -> None:
        for sample in plain if arch == "lstm" else with_parse:
            optimizer.zero_grad()
            logits, _ = model(**sample["net_input"])
            F.cross_entropy(logits.flatten(0, 1), sample["target"].flatten(), ignore_index=1).backward()
            optimizer.step()

    return run, sum(s["ntokens"] for s in with_parse)


def train(arch: str) -> None:
    """Training steps on sentences as long as image captions."""
    plain, tokens = training("lstm")
    compare(f"train/{arch}", training(arch)[0], plain, pairs=5, detail={"target_tokens": tokens})


for arch in TRAINED:
    measure(f"train/{arch}")(partial(train, arch))


def searching(arch: str, words: int):
    """A function that translates long sentences with an untrained model, to a length that all models share."""
    task, with_parse, plain = samples(words, "test", 1500, 1)
    model: Any = corpus.model(task, arch, *SIZE)[0]
    model = model.to(device()).eval()
    model.make_generation_fast_(need_attn=False)
    generator = SequenceGenerator([model], task.target_dictionary, beam_size=5, max_len_b=words, min_len=words)

    def run() -> None:
        for sample in plain if arch == "lstm" else with_parse:
            with torch.no_grad():
                generator.generate([model], sample)

    return run, with_parse[0]["net_input"]["src_tokens"].size()


@measure(*(f"generate/dlaa_lstm@{words}" for words in LENGTHS))
def generate() -> None:
    """Beam search."""
    for words in LENGTHS:
        ours, (sentences, columns) = searching("dlaa_lstm", words)
        detail = {"sentences": sentences, "source_pieces": columns, "beam": 5}
        compare(f"generate/dlaa_lstm@{words}", ours, searching("lstm", words)[0], detail=detail)

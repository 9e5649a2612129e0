"""LDD: its layer against plain attention and the dense form, training, the store's arcs and the loader with arcs."""

from __future__ import annotations

import os
import random
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.autograd.profiler import profile

from bench import corpus
from bench.harness import compare, device, measure, record
from fairseq_syntax.corpus.store.memory import MemoryStore
from fairseq_syntax.corpus.store.reader import SyntaxStore
from fairseq_syntax.corpus.store.writer import write_sentences
from fairseq_syntax.data.batch import SyntaxBatch
from fairseq_syntax.data.packing import PackedSyntax, pack
from fairseq_syntax.model.attention import HeadInputs, SyntaxSelfAttention
from fairseq_syntax.model.heads import Step
from fairseq_syntax.systems.ldd import Ldd, LddConfig, LddTerm

LENGTHS = (32, 64, 128, 256, 512, 1024, 2048)
HEADS, HEAD_DIM = 16, 32
TOKENS = 4096  # pieces of a batch, </s> included
LABELS = ["<unk>", *corpus.LABELS]


def packed_syntax(length: int) -> PackedSyntax:
    """What the loader ships for sentences of `length` tokens each, with the arcs above 0.01 of captions."""
    rng = random.Random(length)
    sentences = []
    for _ in range(max(1, TOKENS // length)):
        sentence = corpus.random_sentence(rng, round(length / 1.3))
        while sum(sentence.pieces) != length - 1:  # from 1.6 pieces a word to 1.3, as subwords have it
            at = rng.randrange(len(sentence.pieces))
            change = 1 if sum(sentence.pieces) < length - 1 else -1
            sentence.pieces[at] = max(1, sentence.pieces[at] + change)
        sentences.append(sentence)
    return pack(MemoryStore(sentences).fetch(np.arange(len(sentences)), arcs=True))


def syntax_of(length: int) -> SyntaxBatch:
    """The same on the device."""
    packed = packed_syntax(length)
    sentences = len(packed["layout"].lengths.words)
    on_device: PackedSyntax = {**packed, "packed": packed["packed"].to(device())}
    return SyntaxBatch(on_device, torch.full((sentences, length), 4, device=device()), pad=1)


def linear_system(variant: str = "LDD") -> Ldd:
    """The system with the groups ``ud``, on the device."""
    args = Namespace(encoder_layers=1, encoder_embed_dim=HEADS * HEAD_DIM)
    task: Any = SimpleNamespace(labels=lambda side: {"deprel": LABELS})
    return Ldd(LddConfig(ldd_variant=variant, ldd_form="linear"), args, task).to(device())


def layer(length: int, variant: str = "LDD") -> tuple[dict[str, Callable[[], None]], dict]:
    """One attention step forward and backward, without its projections: linear and dense LDD, and plain."""
    batch = max(1, TOKENS // length)
    # As projections make them: [T, B, H * d].
    q, k, v = (
        torch.randn(length, batch, HEADS, HEAD_DIM, device=device()).permute(1, 2, 0, 3).requires_grad_()
        for _ in range(3)
    )
    gradient = torch.randn_like(q)
    source = syntax_of(length)
    system = linear_system(variant)

    def term() -> LddTerm:
        # Views are cached per batch: a new object per step, as in training.
        made = system.term(Step.of(SyntaxBatch(source.flat, source.tokens, 1)), 0)
        assert isinstance(made, LddTerm)
        return made

    def backward(out: torch.Tensor | None) -> None:
        assert out is not None
        torch.autograd.grad(out, (q, k, v), gradient)

    functions = {
        "linear": lambda: backward(term().attend(HeadInputs(q, q, q, k, v), None)),
        "dense": lambda: backward(term().scores(q @ k.transpose(2, 3), None).softmax(-1) @ v),
        "plain": lambda: backward(F.scaled_dot_product_attention(q, k, v)),
    }
    entries = term()._factors.factor.numel()
    return functions, {"batch": batch, "heads": HEADS, "head_dim": HEAD_DIM, "entries": entries}


@measure(*(f"layer/ldd@{t}" for t in LENGTHS))
def against_plain() -> None:
    """The linear form, factors made from the batch's word arcs included, against PyTorch's attention."""
    for length in LENGTHS:
        functions, detail = layer(length)
        compare(f"layer/ldd@{length}", functions["linear"], functions["plain"], repeat=3, warmup=2, detail=detail)


@measure(*(f"layer/ldd_dense@{t}" for t in LENGTHS[:-1]))
def against_dense() -> None:
    """The linear form against the dense one."""
    for length in LENGTHS[:-1]:
        functions, detail = layer(length)
        name = f"layer/ldd_dense@{length}"
        compare(name, functions["linear"], functions["dense"], unit="speed, linear over dense", detail=detail)


@measure(*(f"layer/ldd_projected@{t}" for t in LENGTHS))
def with_projections() -> None:
    """The whole attention module, with its four projections, against the plain one."""
    for length in LENGTHS:
        batch, channels = max(1, TOKENS // length), HEADS * HEAD_DIM
        attention = SyntaxSelfAttention(channels, HEADS).to(device())
        x = torch.randn(length, batch, channels, device=device(), requires_grad=True)
        source = syntax_of(length)
        system = linear_system()

        def ours(attention=attention, x=x, source=source, system=system) -> None:
            term = system.term(Step.of(SyntaxBatch(source.flat, source.tokens, 1)), 0)
            attention(x, terms=[term])[0].sum().backward()

        def plain(attention=attention, x=x) -> None:
            attention(x)[0].sum().backward()

        compare(f"layer/ldd_projected@{length}", ours, plain, detail={"batch": batch})


@measure(*(f"memory/ldd@{t}" for t in LENGTHS))
def peak_memory() -> None:
    """The most memory held at once, above what was there before."""
    for length in LENGTHS:
        functions, detail = layer(length)
        if length > 1024:
            del functions["dense"]
        for function in functions.values():
            function()
        peak = {name: peak_bytes(function) for name, function in functions.items()}
        detail |= {f"{name}_bytes": size for name, size in peak.items()}
        unit = "peak memory, plain over ours"
        record(f"memory/ldd@{length}", [peak["plain"] / peak["linear"]], unit=unit, detail=detail)
        if "dense" in peak:
            ratio = peak["dense"] / peak["linear"]
            record(f"memory/ldd_dense@{length}", [ratio], unit="peak memory, dense over linear", detail=detail)


def peak_bytes(function: Callable[[], None]) -> int:
    """The most bytes of tensors alive at once while a function runs, without those alive before."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        function()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with profile(profile_memory=True) as events:
        function()
    changes = [(e.start_ns(), e.nbytes()) for e in events.kineto_results.events() if e.name() == "[memory]"]
    return int(max(np.cumsum([size for _, size in sorted(changes)]).tolist()))


@measure(*(f"layer/ldd_{variant.lower()}@{t}" for variant in ("LDP", "UDP", "UDD") for t in LENGTHS[:5]))
def variants() -> None:
    """The linear form of other variants against the dense one: where each is chosen."""
    for variant in ("LDP", "UDP", "UDD"):
        for length in LENGTHS[:5]:
            functions, detail = layer(length, variant)
            scores = detail["batch"] * HEADS * length**2
            detail["scores_per_entry"] = round(scores / detail["entries"], 1)
            name = f"layer/ldd_{variant.lower()}@{length}"
            compare(name, functions["linear"], functions["dense"], unit="speed, linear over dense", detail=detail)


@measure("loader/arcs")
def loader() -> None:
    """An epoch over the loader with distributions, against tokens only."""

    compare("loader/arcs", corpus.loader_epoch({"arcs"}), corpus.loader_epoch(set()), pairs=31)


@measure("store/bytes_per_arc", "store/dense_bytes", "batch/dense_bytes")
def sizes() -> None:
    """Bytes of an arc in the store, and of a sentence and a batch against the dense tensor [L, W, W] of float32."""
    rng = random.Random(1)
    sentences = [corpus.random_sentence(rng, max(1, round(rng.gauss(13, 3)))) for _ in range(4000)]
    size = {}
    for with_arcs in (False, True):
        path = os.path.join(corpus.corpus(), f"arcs-{with_arcs}.syntax.arrow")
        stored = sentences if with_arcs else [replace(sentence, arcs=None) for sentence in sentences]
        write_sentences(path, stored, {"labels": {}}, with_arcs=with_arcs)
        size[with_arcs] = os.path.getsize(path)
    arcs = SyntaxStore(path).metadata["arcs"]
    per_arc = (size[True] - size[False]) / arcs
    detail = {"arcs": arcs, "bytes": size[True], "bytes_without_arcs": size[False]}
    record("store/bytes_per_arc", [per_arc], unit="bytes per arc, beyond the store without arcs", detail=detail)
    dense = sum(4 * HEADS * len(s.pieces) ** 2 for s in sentences)
    per_sentence = {"bytes_per_sentence": size[True] / len(sentences), "dense_per_sentence": dense / len(sentences)}
    record("store/dense_bytes", [dense / size[True]], unit="bytes of dense tensors over the store", detail=per_sentence)
    batch = syntax_of(32)
    moved = packed_syntax(32)["packed"].nbytes
    padded = 4 * HEADS * batch.size[0] * batch.size[1] ** 2
    record(
        "batch/dense_bytes",
        [padded / moved],
        unit="bytes moved to the device, dense tensor over flat arcs",
        detail={"flat": moved, "dense": padded, "tokens": TOKENS, "length": 32},
    )

"""PASCAL's attention against plain attention, and the loader with syntax against the one without."""

from __future__ import annotations

import os

import torch
import torch.nn.functional as F

from bench import corpus
from bench.harness import compare, device, measure, record
from fairseq_syntax.corpus.store.reader import SyntaxStore
from fairseq_syntax.model.attention import HeadInputs
from fairseq_syntax.model.dense_factors import FactorTerm
from fairseq_syntax.model.window_factors import SHORTEST
from fairseq_syntax.systems.pascal import gaussian


@measure("loader/syntax", "loader/syntax@153", "loader/arcs@153")
def loader() -> None:
    """An epoch over the loader with trees, against tokens only; and from a store of 153 chunks, with arcs too.

    Ten million sentences of a store whose chunks have 65,536 are 153 chunks; batches are sorted by length, so that each
    touches most of them.
    """
    compare("loader/syntax", corpus.loader_epoch({"tree"}), corpus.loader_epoch(set()), pairs=31)
    many = corpus.corpus(sentences=153 * 27, chunks=153)
    plain = corpus.loader_epoch(set(), many)
    compare("loader/syntax@153", corpus.loader_epoch({"tree"}, many), plain, pairs=31)
    compare("loader/arcs@153", corpus.loader_epoch({"tree", "arcs"}, many), plain, pairs=31)


@measure("store/bytes_per_token")
def store_size() -> None:
    """Bytes of a store without arcs over its tokens."""
    import random

    from fairseq_syntax.corpus.store.writer import write_sentences

    path = os.path.join(corpus.corpus(), "no-arcs.syntax.arrow")
    rng = random.Random(1)
    sentences = [corpus.random_sentence(rng, 13) for _ in range(4000)]
    for sentence in sentences:
        sentence.arcs = None
    write_sentences(path, sentences, {"labels": {}}, with_arcs=False)
    store = SyntaxStore(path)
    record("store/bytes_per_token", [os.path.getsize(path) / store.metadata["pieces"]], unit="bytes per source piece")


@measure(*(f"layer/pascal@{t}" for t in (16, 64, 256, 1024)))
def layer() -> None:
    """The scaled attention, forward and backward, all heads scaled, against PyTorch's attention.

    Both get queries that are divided already, as projections make them in ``[T, B, H, d]``, and a gradient of numbers:
    that of a sum has stride 0, as no model's has, and matrix products with it take another path. Up to 256 tokens all
    scores are computed, of longer sentences those in the windows of the factor.
    """
    for length in (16, 64, 256, 1024):
        batch = max(1, 2048 // length)
        q, k, v, gradient = (torch.randn(length, batch, 4, 64, device=device()).permute(1, 2, 0, 3) for _ in range(4))
        q, k, v = (x.requires_grad_() for x in (q / 8, k, v))
        position = torch.arange(length, device=device()).expand(batch, length)
        parent = torch.randint(0, length, (batch, length), device=device()).float()

        def ours(q=q, k=k, v=v, parent=parent, position=position, gradient=gradient) -> None:
            factor = gaussian(parent[:, :, None], position[:, None, :], 1.0)
            attended = FactorTerm(factor[:, None]).attend(HeadInputs(q, q, q, k, v), None)
            assert attended is not None
            torch.autograd.grad(attended, (q, k, v), gradient)

        def plain(q=q, k=k, v=v, gradient=gradient) -> None:
            torch.autograd.grad(F.scaled_dot_product_attention(q, k, v, scale=1.0), (q, k, v), gradient)

        detail = {"batch": batch, "form": "windows" if length >= SHORTEST else "one operation"}
        compare(f"layer/pascal@{length}", ours, plain, pairs=31, repeat=3, detail=detail)

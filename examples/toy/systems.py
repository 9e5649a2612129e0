"""The corpora and the systems of the toy table: one line per row."""

from __future__ import annotations

from dataclasses import dataclass

# Options of generate.py, by the name of the corpus.
CORPORA: dict[str, list[str]] = {
    "attachment": [],
    "uncertain": ["--lexical", "0.5", "--parser-accuracy", "0.8"],
    "lexical": ["--mode", "lexical", "--train", "4000"],
    "homograph": ["--mode", "homograph"],
}

# What all systems are trained with; a system's own options come after, and win.
TRAINING = (
    "--encoder-layers 2 --decoder-layers 2 --encoder-attention-heads 4 --decoder-attention-heads 4 "
    "--encoder-embed-dim 128 --decoder-embed-dim 128 --encoder-ffn-embed-dim 256 --decoder-ffn-embed-dim 256 "
    "--dropout 0 --share-decoder-input-output-embed --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 1.0 "
    "--encoder-normalize-before --decoder-normalize-before --lr 5e-3 --lr-scheduler polynomial_decay "
    "--warmup-updates 100 --total-num-update 900 --max-tokens 1024 --max-epoch 4"
)
GENERATION = "--beam 1 --max-tokens 8000"


@dataclass(frozen=True)
class System:
    """A row of the table.

    Attributes:
        name: of the row
        arch: ``--arch``
        knows: what it can know of a test sentence, and so how well it can do: ``text`` alone, or with it the best
            ``tree``, the parser's probabilities (``arcs``), the ``labels`` of the true parse, or all of the true
            ``parse``
        corpus: a key of ``CORPORA``
        options: more of ``fairseq-train``
        generation: more of ``fairseq-generate``
    """

    name: str
    arch: str
    knows: str
    corpus: str = "attachment"
    options: str = ""
    generation: str = ""


# What `make demo` runs.
DEMO = [
    System("plain Transformer", "transformer", "text"),
    System("PASCAL", "pascal_transformer", "parse"),
]
SYSTEMS = [
    *DEMO,
]

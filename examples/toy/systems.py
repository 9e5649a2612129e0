"""The corpora and the systems of the toy table: one line per row."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

# The corpora with a parser that errs, by its accuracy.
UNCERTAIN = {accuracy: f"uncertain-{accuracy}" for accuracy in (0.6, 0.8, 0.95)}

# Options of generate.py, by the name of the corpus.
CORPORA: dict[str, list[str]] = {
    "attachment": [],
    **{name: ["--lexical", "0.5", "--parser-accuracy", str(accuracy)] for accuracy, name in UNCERTAIN.items()},
    "lexical": ["--mode", "lexical", "--train", "1000"],
    "lexical-both": ["--mode", "lexical", "--train", "1000", "--target-parse"],  # the target is segmented word by word
    "homograph": ["--mode", "homograph"],
}

# The same corpora with control parses (fairseq-syntax control), in training and in test: corpus and control. These
# controls say nothing of where a phrase attaches, so that a system can do with them what the text alone allows.
CONTROLS: dict[str, tuple[str, str]] = {
    f"{corpus}.{control}": (corpus, control)
    for corpus in ("attachment", UNCERTAIN[0.8])
    for control in ("linear", "random", "shuffled")
}

# What all systems are trained with. What the corpus asks for comes after, then what the system does; the last one wins.
TRAINING = (
    "--dropout 0 --share-decoder-input-output-embed --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 1.0 "
    "--lr 3e-3 --lr-scheduler polynomial_decay --warmup-updates 200 --total-num-update 1100 "
    "--max-tokens 1024 --max-epoch 5"
)
CORPUS_TRAINING: dict[str, str] = {
    **{
        name: "--max-epoch 10 --total-num-update 2200"
        for name in (*UNCERTAIN.values(), *CONTROLS)
        if name.startswith("uncertain")
    },
    **dict.fromkeys(("lexical", "lexical-both"), "--max-epoch 48 --total-num-update 870 --warmup-updates 100"),
}
GENERATION = "--beam 1 --max-tokens 8000"

TRANSFORMER = (
    "--encoder-layers 2 --decoder-layers 2 --encoder-attention-heads 4 --decoder-attention-heads 4 "
    "--encoder-embed-dim 128 --decoder-embed-dim 128 --encoder-ffn-embed-dim 256 --decoder-ffn-embed-dim 256"
)
# With one encoder layer more, for a parent head that has a layer below it and one above.
THREE_LAYERS = TRANSFORMER.replace("--encoder-layers 2", "--encoder-layers 3")
LSTM = (
    "--encoder-embed-dim 128 --decoder-embed-dim 128 --encoder-hidden-size 128 --decoder-hidden-size 128 "
    "--decoder-out-embed-dim 128 --encoder-bidirectional"
)


@dataclass(frozen=True)
class System:
    """A row of the table.

    Attributes:
        name: of the row
        arch: ``--arch``
        knows: what it can know of a test sentence, and so how well it can do: ``text`` alone, or with it the best
            ``tree``, the parser's probabilities (``arcs``), the ``labels`` or the ``depth`` of the words in the true
            parse, or all of the true ``parse`` (of homographs: the tags of the translation)
        corpus: a key of ``CORPORA`` or of ``CONTROLS``
        options: more of ``fairseq-train``
        generation: more of ``fairseq-generate``
        model: the sizes of the model
        tree: it has a parent head, whose trees are to be scored too
        heads: names of its parents' losses, whose heads are to be scored over the given text, the target's too
    """

    name: str
    arch: str
    knows: str
    corpus: str = "attachment"
    options: str = ""
    generation: str = ""
    model: str = TRANSFORMER
    tree: bool = False
    heads: tuple[str, ...] = ()


# The tags observed at first: EM alone may exchange the tags of two words between which the target alone decides.
LASYN = "--criterion lasyn_em --observed-updates 300"

# Positions in the tree are read by all heads of all layers, and soon.
SHORTER = "--max-epoch 3 --total-num-update 660"

# LSTMs learn more slowly than Transformers, and where to look is the last thing that DLAA learns. A block of ten words
# would hold most of a toy sentence; one of three has the word, its parent and its first child.
LONGER = "--max-epoch 12 --total-num-update 2640"
LONGEST = "--max-epoch 20 --total-num-update 4400"
DLAA = f"{LONGEST} --dlaa-block-size 3"
# Encoders that read the states of an LSTM, or stand beside one, know the training sentences by heart before long.
DROPOUT = "--dropout 0.1"

# What `make demo` runs.
DEMO = [
    System("plain Transformer", "transformer", "text"),
    System("PASCAL", "pascal_transformer", "parse"),
]
PSH = "--criterion supervised_head --child-weight 0"
PARSER_FREE = "--criterion supervised_head"


def ldd(variant: str, knows: str, accuracy: float) -> System:
    """A row of LDD. The toy grammar has ten labels, and its own file of groups for them."""
    groups = Path(__file__).resolve().parent / "label_groups.txt"
    options = f"--ldd-variant {variant} --ldd-label-groups '{groups}'"
    return System(f"{variant} ({accuracy})", "ldd_transformer", knows, UNCERTAIN[accuracy], options)


def uncertain(accuracy: float) -> list[System]:
    """The rows of one accuracy of the parser: with its best tree, and with its probabilities."""
    rows = [ldd("UDP", "tree", accuracy), ldd("LDP", "tree", accuracy), ldd("UDD", "arcs", accuracy)]
    rows.append(ldd("LDD", "arcs", accuracy))
    if accuracy == 0.8:
        plain = System(f"plain ({accuracy})", "transformer", "text", UNCERTAIN[accuracy])
        pascal = System(f"PASCAL ({accuracy})", "pascal_transformer", "tree", UNCERTAIN[accuracy])
        rows = [plain, pascal, *rows, ldd("ULDD", "text", accuracy), ldd("UUDD", "text", accuracy)]
    return rows


SYSTEMS = [
    *DEMO,
    System("label embeddings (S&H)", "sennrich_haddow_transformer", "labels"),
    System("GCN", "gcn_transformer", "parse"),
    System("relative depth", "relative_depth_transformer", "depth", options=SHORTER),
    System("structural positions", "structural_positions_transformer", "parse", options=SHORTER),
    *[
        System(f"PASCAL ({control})", "pascal_transformer", "text", f"attachment.{control}")
        for control in ("linear", "random", "shuffled")
    ],
    System("CSH+PSH (no parse)", "supervised_head_transformer", "text", options="--criterion supervised_head"),
    System("LISA (no parse)", "lisa_transformer", "text", options="--criterion lisa"),
    *[row for accuracy in UNCERTAIN for row in uncertain(accuracy)],
    replace(ldd("UDD", "text", 0.8), name="UDD (0.8, random)", corpus=f"{UNCERTAIN[0.8]}.random"),
    System("plain (lexical)", "transformer", "text", "lexical"),
    System("PSH", "supervised_head_transformer", "text", "lexical", PSH, tree=True),
    System("CSH+PSH", "supervised_head_transformer", "text", "lexical", "--criterion supervised_head", tree=True),
    System("LISA", "lisa_transformer", "text", "lexical", "--criterion lisa", tree=True),
    *[
        System(name, arch, "text", "lexical", options, model=THREE_LAYERS, tree=bool(options))
        for name, arch, options in (
            ("plain (3 layers)", "transformer", ""),
            ("PSH (3 layers)", "supervised_head_transformer", PSH),
            ("PASCAL (no parser)", "parser_free_pascal_transformer", PARSER_FREE),
            ("LDD (no parser)", "parser_free_ldd_transformer", PARSER_FREE),
        )
    ],
    System("plain (both parsed)", "transformer", "text", "lexical-both"),
    System("DBSA", "dbsa_transformer", "text", "lexical-both", PARSER_FREE, heads=("dbsa", "dbsa_decoder")),
    System("plain (homographs)", "transformer", "text", "homograph"),
    System("LaSyn", "lasyn_transformer", "text", "homograph", LASYN),
    System(
        "LaSyn (true tags)",
        "lasyn_transformer",
        "parse",
        "homograph",
        LASYN,
        "--tag-search template --tag-templates reference",
    ),
    System("LSTM", "lstm", "text", options=LONGER, model=LSTM),
    System("local-p (LSTM)", "local_attention_lstm", "text", options=LONGER, model=LSTM),
    System("DLAA", "dlaa_lstm", "parse", options=DLAA, model=LSTM),
    System("DLAA (random)", "dlaa_lstm", "text", "attachment.random", DLAA, model=LSTM),
    System("SDRNMT-1", "sdrnmt1_lstm", "parse", options=LONGER, model=LSTM),
    System("SDRNMT-2", "sdrnmt2_lstm", "parse", options=LONGER, model=LSTM),
    System("SE-NMT", "senmt_lstm", "parse", options=f"{LONGEST} {DROPOUT}", model=LSTM),
    System("Tree2Seq", "tree2seq_lstm", "parse", options=LONGEST, model=LSTM),
    System("GCN (LSTM)", "gcn_lstm", "parse", options=f"{LONGEST} {DROPOUT}", model=LSTM),
    System("GCN (LSTM, emb)", "gcn_lstm", "parse", options=f"{LONGER} --gcn-after embeddings", model=LSTM),
]

"""Arguments shared by several subcommands."""

import argparse
from typing import Any

from fairseq_syntax.cli.command import Choice, Option
from fairseq_syntax.runtime.bounds import real, whole
from fairseq_syntax.use import BEAM as USUAL_BEAM


def _name_and_value(text: str) -> tuple[str, str]:
    """The parts of ``NAME=VALUE``."""
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"NAME=VALUE is wanted, not {text}")
    return name, value


# For ``type=``; ``--help`` shows their ranges.
positive = whole(1)
natural = whole(0)
probability = real(1e-9, 1.0)
temperature = real(0.01, 100.0)
seconds = real(0.001, 1e6)


def _number_or_range(text: str) -> range:
    """The numbers of ``N`` or ``N-M``."""
    first, dash, last = text.partition("-")
    numbers = range(int(positive(first)), int(positive(last if dash else first)) + 1)
    if not numbers:
        raise argparse.ArgumentTypeError(f"a range without a number in it: {text!r}")
    return numbers


# An option with several values, which accumulate if it is repeated.
SEVERAL: dict[str, Any] = {"nargs": "+", "action": "extend"}
PAIRS: dict[str, Any] = {**SEVERAL, "type": _name_and_value, "default": []}

SEED = Option("--seed", "random seed", type=natural, default=1)
OUTPUT_FOLDER = Option("--output DIR", "output folder", required=True)
MODEL_DIR = Option("--model-dir DIR", "the parser's models: a folder, a file, or the name of a pipeline")
DATA = Option("--data DIR", "the binarized data (default: what the model was trained on)")
DEVICE = Option("--device", "device of the model (default: cuda if available)", choices=("cpu", "cuda"))
USER_DIR = Option(
    "--user-dir FOLDER",
    "import your own plugin from this folder first; may be repeated",
    action="append",
    default=[],
)
BASELINE = Option("--baseline NAME", "baseline system (default: the first)")
BEAM = Option("--beam", "beam size", type=positive, default=USUAL_BEAM)
TOKENIZE = Option(
    "--tokenize NAME",
    "sacrebleu's tokenizer (default: 13a; zh, ja-mecab or char for references in scripts without spaces)",
)
# For :func:`.named_files.files_of`.
MODEL = Option("model MODEL[,MODEL…]", "checkpoint or exported folder; commas join an ensemble")
CHECKPOINT = Option("model MODEL", "checkpoint")
# Languages as in fairseq-preprocess, and the one in the names of files.
LANGUAGES = (
    Option("-s --source-lang LANG", "the source language", required=True),
    Option("-t --target-lang LANG", "the target language", required=True),
)
FILE_LANGUAGE = Option("--lang LANG", "language code, as in the file names", required=True)
# For :func:`.ray_workers.chosen_workers`.
RAY = Option(
    "--ray ADDRESS",
    "run workers on the Ray cluster with this head (HOST:PORT; local starts one). Without ADDRESS: the cluster of "
    "RAY_ADDRESS, one that runs here, or one started for this command",
    nargs="?",
    const="",
)
GPUS_PER_WORKER = Option(
    "--gpus-per-worker G",
    "with --ray: GPUs per worker, such as 1 or 0.5 (default: 1 if the device is cuda, otherwise none)",
    type=real(0.0, 1e3),
)
PROCESSES = Option("--workers", "number of processes", type=positive, default=1)
WORKERS = Option("--workers", "number of processes (default: 1; with --ray, as many as fit the cluster)", type=positive)
# For :func:`.common.print_report`.
REPORT = (
    Choice("--format", "format of the printed tables", "text", "markdown"),
    Option("--json FILE", "also write the report as JSON (- prints it instead of the tables)"),
)
# For :func:`.common.read_scored_systems`: references and translations of several systems.
TRANSLATIONS = (
    Option("--ref FILE", "reference translations, plain text", **SEVERAL, required=True),
    Option(
        "--sys [NAME=]FILE[,FILE…]",
        "translations: plain text or the output of fairseq-generate; several files after a name are seeds",
        **SEVERAL,
        required=True,
    ),
    TOKENIZE,
)


def models(
    more: str = "", *, required: bool = True, several: bool = True, kinds: str = "checkpoints or exported folders"
) -> Option:
    """The arguments ``MODEL …``, for :func:`.named_files.systems_by_name`.

    Args:
        more: appended to the help text
        several: whether each may be an ensemble
        kinds: what they may be
    """
    metavar = "[NAME=]MODEL[,MODEL…]" if several else "[NAME=]MODEL"
    ensemble = "commas join an ensemble" if several else ""
    help = [f"{kinds}, named after their folders by default", ensemble, more]
    count = {**SEVERAL, "nargs": "+" if required else "*"}
    return Option("model", "; ".join(filter(None, help)), **count, metavar=metavar)


def sentences(default: str) -> Option:
    """``--sentences``, for :func:`.common.sentence_numbers`."""
    help = f"sentence numbers from 1 (default: {default})"
    return Option("--sentences N[-M]", help, **SEVERAL, type=_number_or_range)


def batch_size(sentences: int = 32) -> Option:
    """``--batch-size``."""
    return Option("--batch-size", "sentences per batch", type=positive, default=sentences)


def source_parser(help: str = "parser for raw text") -> tuple[Option, ...]:
    """The options of the parser for raw text: ``--parser``, ``--lang`` and ``--model-dir``."""
    help = f"{help} (default: that of the training text, with its options)"
    return (
        Option("--parser NAME", help, default=""),
        Option("--lang", "language of the parser's models (default: the model's source)", default=""),
        MODEL_DIR,
    )


MISSING_PARSE = Choice(
    "--missing-parse", "text that cannot be parsed: an error, or translated without a parse", "error", "neutral"
)
# For :func:`.common.translator_options`.
TRANSLATOR = (DATA, *source_parser("parser for raw text, or none"), batch_size(), DEVICE, USER_DIR)

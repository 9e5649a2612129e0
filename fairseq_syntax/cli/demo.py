"""``fairseq-syntax demo``: train two systems on the toy corpus and compare them on an ambiguous sentence."""

from __future__ import annotations

import argparse
from pathlib import Path

from fairseq_syntax.cli.command import Command
from fairseq_syntax.cli.options import positive
from fairseq_syntax.errors import SyntaxDataError

COMMAND = Command(
    group="start",
    summary="train the plain Transformer and PASCAL on a toy corpus, and compare them",
    description="Run the recipe of a toy corpus whose translation depends on the parse, with two systems. Takes "
    "about 3 minutes on two cores. Finished steps are not repeated.",
    example="fairseq-syntax demo --output runs/toy/demo",
    resumes=True,
)
SYSTEMS = ("transformer", "PASCAL")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", default="runs/toy/demo", metavar="DIR", help="result folder")
    parser.add_argument(
        "--workers", type=positive, help="number of models trained at the same time (default: one per core)"
    )


def toy_folder() -> Path:
    """The folder of the toy programs, in the installed package or in a checkout.

    Raises:
        SyntaxDataError: there is none
    """
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "toy", package.parent / "examples" / "toy"):
        if (folder / "toy.yaml").exists():
            return folder
    raise SyntaxDataError("the toy programs are missing", path=package / "toy", hint="install the package again")


def main(args: argparse.Namespace) -> int:
    from fairseq_syntax.cli import main as command

    recipe = str(toy_folder() / "toy.yaml")
    workers = ["--workers", str(args.workers)] if args.workers else []
    status = command(["run", recipe, "--output", args.output, "--only", *SYSTEMS, "--seeds", "1", *workers])
    if not status:
        print(_comparison(Path(args.output)))
    return status


def _comparison(folder: Path) -> str:
    """The first ambiguous sentence that the models translate differently, and a command to try next."""
    from fairseq_syntax.lab.scoring.outputs import read_text, read_translations

    source, reference, choices = (read_text(folder / "toy" / f"test.{end}") for end in ("src", "tgt", "open"))
    said = [read_translations(folder / "outputs" / "test" / f"{name}.1.out").lines for name in SYSTEMS]
    lines = [number for number, choice in enumerate(choices) if choice and said[0][number] != said[1][number]]
    lines = [number for number in lines if said[1][number] == reference[number]] or lines or [0]
    number = lines[0]
    rows = [("source", source[number]), ("reference", reference[number])]
    rows += [(name, of[number]) for name, of in zip(SYSTEMS, said)]
    shown = "\n".join(f"  {name:<12} {text}" for name, text in rows)
    model = folder / "models" / SYSTEMS[1] / "1" / "checkpoint_last.pt"
    parse = folder / "toy" / "test.src.conllu"
    then = f"fairseq-syntax translate {model} --input {parse} --device cpu --output {folder / 'PASCAL.txt'}"
    told = "The words of this sentence do not tell what its phrases belong to; its parse does:"
    return f"\n{told}\n\n{shown}\n\nnext: {then}"

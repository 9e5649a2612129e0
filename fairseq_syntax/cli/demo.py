"""Train the plain Transformer and PASCAL on a toy corpus, and compare them.

The translation of this corpus depends on the parse. Takes about 3 minutes on two cores; finished steps are not
repeated.

    fairseq-syntax demo --output runs/toy/demo
"""

import shlex
from argparse import Namespace
from pathlib import Path

from fairseq_syntax.cli.arguments import positive
from fairseq_syntax.cli.command import Command, Option

SYSTEMS = ("transformer", "PASCAL")

ARGUMENTS = [
    Option("--output DIR", "result folder", default="runs/toy/demo"),
    Option("--workers", "number of models trained at the same time (default: one per core)", type=positive),
]
COMMAND = Command(__doc__, "start", ARGUMENTS, resumes=True)


def toy_folder() -> Path:
    """The folder of the toy programs, in the installed package or in a checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "toy"
    return installed if installed.exists() else package.parent / "examples" / "toy"


def main(args: Namespace) -> int:
    from fairseq_syntax.cli import main as command

    recipe = str(toy_folder() / "toy.yaml")
    workers = ["--workers", str(args.workers)] if args.workers else []
    status = command(["run", recipe, "--output", args.output, "--only", *SYSTEMS, "--seeds", "1", *workers])
    if not status:
        print(_comparison(Path(args.output)))
    return status


def _comparison(folder: Path) -> str:
    """The first ambiguous sentence that only PASCAL gets right, if there is one, and a command to try next."""
    from fairseq_syntax.lab.scoring.outputs import read_text, read_translations

    source, reference, choices = (read_text(folder / "toy" / f"test.{end}") for end in ("src", "tgt", "open"))
    outputs = [read_translations(folder / "outputs" / "test" / f"{name}.1.out").lines for name in SYSTEMS]
    plain, pascal = outputs
    differ = [number for number, choice in enumerate(choices) if choice and plain[number] != pascal[number]]
    right = [number for number in differ if pascal[number] == reference[number]]
    ambiguous = [number for number, choice in enumerate(choices) if choice]
    number = (right or differ or ambiguous)[0]
    rows = {"source": source, "reference": reference, **dict(zip(SYSTEMS, outputs))}
    shown = "\n".join(f"  {name:<12} {lines[number]}" for name, lines in rows.items())
    model = folder / "models" / SYSTEMS[1] / "1" / "checkpoint_last.pt"
    parse = folder / "toy" / "test.src.conllu"
    then = [
        "fairseq-syntax",
        "translate",
        model,
        "--input",
        parse,
        "--device",
        "cpu",
        "--output",
        folder / "PASCAL.txt",
    ]
    told = "The words of this sentence do not tell what its phrases belong to; its parse does"
    told += ":" if right else ", which no translation of the test set shows:"
    own = f"fairseq-syntax translate {shlex.quote(str(model))} --lang en"
    yours = f"a sentence of your own, of its few words: {own} (with Stanza's English models, or --model-dir)"
    return f"\n{told}\n\n{shown}\n\nnext: {shlex.join(map(str, then))}\n{yours}"

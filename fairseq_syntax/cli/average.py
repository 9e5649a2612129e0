"""Average checkpoints.

Average the parameters of checkpoints: of the files that you name, or of the last or best ones in the folder of a
training. With `--ema`, take the moving average that `fairseq-train --store-ema` keeps.

    fairseq-syntax average checkpoints --last 5 --output checkpoints/checkpoint_average.pt
"""

from argparse import Namespace
from itertools import chain
from pathlib import Path
from shlex import quote

from fairseq_syntax.cli.arguments import SEVERAL, positive
from fairseq_syntax.cli.command import Command, Flag, Option
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.console import finished
from fairseq_syntax.runtime.files import check_outputs

ARGUMENTS = [
    Option("model", "checkpoints, or the folder of a training", **SEVERAL, metavar="MODEL"),
    Option("--last N", "of a folder: the last N checkpoints of epochs, or of updates", type=positive),
    Option("--best N", "of a folder: the best N checkpoints that --keep-best-checkpoints has kept", type=positive),
    Flag("--ema", "average the moving averages (--store-ema); by default, of checkpoint_last.pt in a folder"),
    Option("--output FILE", "the averaged checkpoint", required=True),
]
COMMAND = Command(__doc__, "train", ARGUMENTS, step=2, needs_fairseq=True)


def main(args: Namespace) -> None:
    from fairseq_syntax.use import averaging

    if args.last and args.best:
        raise SyntaxDataError("excludes --last", option="--best", hint="give one of them")
    folders = [path for path in args.model if Path(path).is_dir()]
    if not folders and (args.last or args.best):
        hint = "name the folder of a training"
        raise SyntaxDataError("selects checkpoints of a folder", option="--last" if args.last else "--best", hint=hint)
    if folders and not (args.last or args.best or args.ema):
        raise SyntaxDataError("is a folder", path=folders[0], hint="say which checkpoints, as by --last 5")

    def files_of(path: str) -> list[Path]:
        if path not in folders:
            return [Path(path)]
        if args.last:
            return averaging.last_checkpoints(path, args.last)
        return averaging.best_checkpoints(path, args.best) if args.best else [Path(path) / "checkpoint_last.pt"]

    files = list(chain.from_iterable(map(files_of, args.model)))
    check_outputs([args.output], files)
    averaging.save_checkpoint(averaging.average(files, moving=args.ema), args.output)
    names = ", ".join(path.name for path in files)
    finished(args.output, f"the average of {names}", f"fairseq-syntax translate {quote(args.output)} --input FILE")

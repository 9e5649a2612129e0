"""Print the path for --user-dir.

fairseq-train bin --user-dir "$(fairseq-syntax user-dir)" --task syntax_translation
"""

from argparse import Namespace
from pathlib import Path

from fairseq_syntax.cli.command import Command

COMMAND = Command(__doc__, group="train", step=1)


def main(args: Namespace) -> None:
    print(Path(__file__).absolute().parents[1])

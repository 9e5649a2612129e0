"""``python -m fairseq_syntax``: the same as ``fairseq-syntax``."""

import sys

from fairseq_syntax.cli import main

if __name__ == "__main__":
    sys.exit(main())

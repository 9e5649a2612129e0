"""The scripts of examples/toy as modules."""

import sys
from importlib import import_module
from pathlib import Path

TOY = Path(__file__).resolve().parents[2] / "examples" / "toy"

sys.path.insert(0, str(TOY))
try:
    grammar, generate = map(import_module, ("grammar", "generate"))
finally:
    sys.path.remove(str(TOY))

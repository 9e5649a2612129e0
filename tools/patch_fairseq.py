"""Makes a checkout of the official fairseq installable with current Python and Hydra, in place of fairseq-fixed.

    git clone https://github.com/facebookresearch/fairseq
    python tools/patch_fairseq.py fairseq
    make install FAIRSEQ=./fairseq

fairseq-fixed is fairseq's main branch of January 2024 with the same two changes: 14 defaults in configurations are the
classes of sections instead of objects, which dataclasses refuse since Python 3.11, and Hydra may be 1.3. The patched
checkout has the name and the version of fairseq-fixed, which this package requires.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

NAME, VERSION = "fairseq-fixed", "0.12.3.1"
CONFIGURATIONS = ("fairseq/dataclass/configs.py", "fairseq/models/transformer/transformer_config.py")
_OBJECT = re.compile(r"= (?:field\(default=)?([A-Z]\w*Config)\(\)\)?$", re.M)
_SETUP = {
    r'"hydra-core[^"]*"': '"hydra-core>=1.3,<1.4"',
    r'"omegaconf[^"]*"': '"omegaconf>=2.3,<2.4"',
    r'(?<=name=)"fairseq"': f'"{NAME}"',
}


def classes_as_defaults(text: str) -> tuple[str, int]:
    """A module of configurations with the classes of sections as defaults, and how many there are."""
    return _OBJECT.subn(r"= field(default=\1)", text)


def patch(checkout: Path) -> int:
    """Change the files of a checkout; returns the number of changed defaults."""
    changed = 0
    for name in CONFIGURATIONS:
        text, count = classes_as_defaults((checkout / name).read_text(encoding="utf-8"))
        (checkout / name).write_text(text, encoding="utf-8")
        changed += count
    setup = (checkout / "setup.py").read_text(encoding="utf-8")
    for pattern, wanted in _SETUP.items():
        setup, count = re.subn(pattern, wanted, setup)
        if not count:
            raise SystemExit(f"{checkout}/setup.py: there is no {pattern}; is it fairseq's?")
    (checkout / "setup.py").write_text(setup, encoding="utf-8")
    (checkout / "fairseq" / "version.txt").write_text(f"{VERSION}\n", encoding="utf-8")
    return changed


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python tools/patch_fairseq.py CHECKOUT")
    print(f"{patch(Path(sys.argv[1]))} defaults, Hydra's version, the name and the version")

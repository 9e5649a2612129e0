"""Puts the programs of examples/toy into the package, for `fairseq-syntax demo`; the rest is in pyproject.toml."""

from pathlib import Path
from shutil import copyfile

from setuptools import setup
from setuptools.command.build_py import build_py

TOY = Path(__file__).parent / "examples" / "toy"
FILES = ("*.py", "*.txt", "*.yaml")  # the programs and what they read; not the results beside them


class BuildWithToy(build_py):
    """An editable installation has the checkout, and needs no copy."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            folder = Path(self.build_lib) / "fairseq_syntax" / "toy"
            folder.mkdir(parents=True, exist_ok=True)
            for path in (path for pattern in FILES for path in TOY.glob(pattern)):
                copyfile(path, folder / path.name)


setup(cmdclass={"build_py": BuildWithToy})

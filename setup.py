"""Installs fairseq_syntax; settings of the tools are in pyproject.toml."""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
VERSION = re.search(r'^__version__ = "(.+)"$', (HERE / "fairseq_syntax" / "__init__.py").read_text("utf-8"), re.M)[1]
README = HERE / "README.md"

# Lower bounds are the oldest versions that passed the tests that use them, on Python 3.11.
REQUIREMENTS = [
    "fairseq-fixed==0.12.3.1",  # the base: the plugin wraps some of its functions, so exactly what was tried
    "torch>=2.13",  # tried: 2.13; checkpoints are loaded with weights_only, for which the package lists its types
    "numpy",  # the one that PyTorch and fairseq agree on
    "pyarrow>=17",  # the store: Arrow IPC files, memory-mapped
    "sentencepiece>=0.2",  # segmentation; 0.2 has the delimiter that keeps pieces inside words in training
    "subword-nmt>=0.3.8",  # segmentation
    "stanza>=1.15,<2",  # the parser; its scores are read from inside, which 1.11 has no way to
    "sacrebleu>=2.4",  # BLEU, chrF, TER with signatures, paired bootstrap
    "scipy>=1.14",  # significance tests
    "nltk>=3.10",  # RIBES; 3.9 divides by zero on an empty translation
    "matplotlib>=3.9",  # pictures
    "pyyaml>=6",  # experiment files
    "tqdm",  # progress bars
]
DEVELOPMENT = [
    "pytest>=8",
    "hypothesis>=6.100",  # property tests of everything that reads a file
    "ruff>=0.9",
    "mypy>=1.13",
]

setup(
    name="fairseq-syntax",
    version=VERSION,
    description="Syntax-aware neural machine translation for fairseq",
    long_description=README.read_text("utf-8") if README.exists() else "",
    long_description_content_type="text/markdown",
    author="The fairseq-syntax authors",
    license="MIT",
    license_files=["LICENSE"],
    python_requires=">=3.10",
    packages=find_packages(include=["fairseq_syntax", "fairseq_syntax.*"]),
    package_data={"": ["py.typed", "*.md", "*.txt", "*.json", "*.yaml", "*.html"]},
    install_requires=REQUIREMENTS,
    extras_require={
        "dev": DEVELOPMENT,
        "filter": ["py3langid>=0.4"],  # fairseq-syntax filter --languages
        "supar": ["supar>=1.1.4"],  # fairseq-syntax parse --parser supar
    },
    entry_points={"console_scripts": ["fairseq-syntax = fairseq_syntax.cli:main"]},
    classifiers=[
        "Intended Audience :: Science/Research",
        "Programming Language :: Python :: 3 :: Only",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Text Processing :: Linguistic",
        "Typing :: Typed",
    ],
)

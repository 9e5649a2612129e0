"""A first recipe for a corpus: sizes, training and vocabulary that suit the number of sentence pairs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fairseq_syntax.corpus.gathering import read_split, split_files
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.lab.scoring.names import tokenizer_of

_TEMPLATE = Path(__file__).with_name("first_recipe.txt")
# What a system's line in a recipe is, by the name that --system takes.
SYSTEMS: dict[str, str] = {
    "pascal": "{arch: pascal_transformer}",
    "ldd": "{arch: ldd_transformer}",
    "supervised_heads": "{arch: supervised_head_transformer, train: {criterion: supervised_head}}",
    "lisa": "{arch: lisa_transformer, train: {criterion: lisa}}",
    "gcn": "{arch: gcn_transformer}",
    "relative_depth": "{arch: relative_depth_transformer}",
    "structural_positions": "{arch: structural_positions_transformer}",
    "sennrich_haddow": "{arch: sennrich_haddow_transformer}",
    "pascal_without_parser": "{arch: parser_free_pascal_transformer, train: {criterion: supervised_head}}",
}


@dataclass(frozen=True)
class Scale:
    """What suits a corpus of up to ``pairs`` sentence pairs."""

    pairs: float
    about: str
    layers: int
    width: int
    inner: int
    heads: int
    dropout: float
    max_tokens: int
    rate: float
    pieces: int  # of a language with spaces; others have more characters

    def updates(self, pairs: int) -> int:
        """Of the training: about as many epochs as a small model needs, and rounded."""
        if self.width > 128:
            return 50_000 if self.inner == 1024 else 100_000
        return max(800, min(8000, round(pairs * 0.28) // 100 * 100))


SCALES = (
    Scale(6_000, "a small model: minutes on a CPU", 3, 128, 256, 4, 0.2, 1600, 0.004, 1000),
    Scale(60_000, "a small model: an hour on a CPU", 3, 128, 256, 4, 0.2, 1600, 0.004, 4000),
    Scale(1_000_000, "as for IWSLT: for a GPU", 6, 512, 1024, 4, 0.3, 4096, 0.0005, 10_000),
    Scale(float("inf"), "the base Transformer: for a GPU", 6, 512, 2048, 8, 0.1, 8000, 0.0007, 32_000),
)


def first_recipe(
    path: Path,
    source: str,
    target: str,
    train: Sequence[str],
    valid: Sequence[str],
    tests: Mapping[str, Sequence[str]],
    systems: Sequence[str],
    models: str | None = None,
) -> str:
    """The text of a commented recipe.

    Args:
        path: where it will be: files are named as seen from there
        train, valid, tests: splits, as :func:`.gathering.split_files` takes them
        systems: of :data:`SYSTEMS`
        models: of the source's parser

    Raises:
        SyntaxDataError: a file is missing, or its two sides differ in length
    """
    langs = (source, target)
    counts = {name: _pairs(texts, langs) for name, texts in {"train": train, "valid": valid, **tests}.items()}
    pairs = counts["train"]
    scale = next(one for one in SCALES if pairs < one.pairs)
    base = path.absolute().parent
    folder = None if models is None else _seen(models, base)
    spaceless = tokenizer_of(source) != "13a" or tokenizer_of(target) != "13a"
    coverage = [lang for lang in langs if tokenizer_of(lang) != "13a"]
    covered = ", ".join(f"{lang}: 0.9995" for lang in coverage)
    lines = [f"\n    {name}: {_named(texts, base)}    # {counts[name]} pairs" for name, texts in tests.items()]
    updates = scale.updates(pairs)
    return _TEMPLATE.read_text(encoding="utf-8").format(
        pairs=pairs,
        file=path.name,
        source=source,
        target=target,
        train=_named(train, base),
        valid=_named(valid, base),
        tests="".join(lines),
        filter="{max_length: 500, characters: true}" if spaceless else "{max_length: 100, max_ratio: 3}",
        models=f"models: {folder}"
        if folder
        else "# models: DIR             # default: those that Stanza has downloaded",
        distributions="\n    distributions: true         # the parser's probabilities" if "ldd" in systems else "",
        pieces="{" + ", ".join(f"{lang}: {max(scale.pieces, 4000 * (lang in coverage))}" for lang in langs) + "}",
        coverage=f", character_coverage: {{{covered}}}" if covered else "",
        about=scale.about[0].upper() + scale.about[1:],
        layers=scale.layers,
        width=scale.width,
        inner=scale.inner,
        heads=scale.heads,
        # At a small model's learning rate, layers that normalize their outputs hardly learn a distant language.
        normalize="\n  encoder-normalize-before: true\n  decoder-normalize-before: true" if scale.width == 128 else "",
        dropout=scale.dropout,
        max_tokens=scale.max_tokens,
        updates=updates,
        warmup=min(4000, updates // 8),
        rate=scale.rate,
        systems="".join(f"  {name}: {SYSTEMS[name]}\n" for name in systems),
        tokenize=tokenizer_of(target),
        device="cpu" if scale.width == 128 else "cuda",
    )


def _pairs(texts: Sequence[str], langs: Sequence[str]) -> int:
    files = split_files(texts, langs)
    for file in files:
        if not file.is_file():
            raise SyntaxDataError(
                "there is no such file", path=file, hint="--train PREFIX is PREFIX.LANG, for two LANGs"
            )
    return sum(1 for _ in read_split(files))


def _named(texts: Sequence[str], base: Path) -> str:
    names = [_seen(text, base) for text in texts]
    return names[0] if len(names) == 1 else f"[{', '.join(names)}]"


def _seen(text: str, base: Path) -> str:
    """A path as seen from the recipe; from the root where it is far away."""
    relative = os.path.relpath(text, base)
    return os.path.abspath(text) if relative.startswith(os.path.join("..", "..")) else relative

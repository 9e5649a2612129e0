"""A small binarized corpus with trees and arcs, made by the package's own commands."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

from fairseq import options
from fairseq_cli import preprocess

from fairseq_syntax.cli import main as command

NOUNS = ["man", "dog", "woman", "bicycle", "river", "children"]
VERBS = ["sees", "follows", "remembers"]
DE = {"the": "der", "man": "Mann", "dog": "Hund", "woman": "Frau", "bicycle": "Fahrrad", "river": "Fluss"}
DE |= {"children": "Kinder", "sees": "sieht", "follows": "folgt", "remembers": "erinnert", ".": "."}


def sentences(count: int, seed: int = 0) -> list[str]:
    draw = random.Random(seed)
    nouns = [(draw.choice(NOUNS), draw.choice(NOUNS)) for _ in range(count)]
    return [f"the {first} {draw.choice(VERBS)} the {second} ." for first, second in nouns]


def conllu(lines: list[str], arcs: bool = True) -> str:
    """Their parse: the verb is the root; the object is a little unsure; a full stop has no space before it."""
    heads = [(2, "det"), (3, "nsubj"), (0, "root"), (5, "det"), (3, "obj"), (3, "punct")]
    tags = ["DET", "NOUN", "VERB", "DET", "NOUN", "PUNCT"]
    rows = [f"# lines = {len(lines)}"]
    for number, line in enumerate(lines, 1):
        rows.append(f"# line = {number}")
        for i, (word, (head, label), tag) in enumerate(zip(line.split(), heads, tags), 1):
            misc = [f"Arcs={head}:{label}:0.75,{2 if i == 5 else 1 if i > 1 else 3}:nmod:0.13"] if arcs else []
            misc += ["SpaceAfter=No"] if i == 5 else []
            rows.append(f"{i}\t{word}\t_\t{tag}\t_\t_\t{head}\t{label}\t_\t{'|'.join(misc) or '_'}")
        rows.append("")
    return "\n".join(rows) + "\n"


def make(
    folder: Path,
    *,
    kind: str = "sentencepiece",
    arcs: bool = True,
    train: int = 60,
    valid: int = 12,
    parsed: bool = True,
    target: str = "de",
    words: dict[str, str] = DE,
) -> Path:
    """Write, segment and binarize a corpus, its source a parse or text; returns the data directory.

    Args:
        target: the language into which ``words`` translate
    """
    folder.mkdir(parents=True, exist_ok=True)
    for split, count, seed in (("train", train, 1), ("valid", valid, 2)):
        lines = sentences(count, seed)
        (folder / f"{split}.en.conllu").write_text(conllu(lines, arcs), encoding="utf-8")
        (folder / f"{split}.en").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        translated = [" ".join(words[word] for word in line.split()) for line in lines]
        (folder / f"{split}.{target}").write_text("".join(line + "\n" for line in translated), encoding="utf-8")
    seg, size = folder / "seg", {"sentencepiece": "60", "subword_nmt": "60"}[kind]
    for lang, ending in (("en", "en.conllu" if parsed else "en"), (target, target)):
        inputs = [str(folder / f"{split}.{ending}") for split in ("train", "valid")]
        argv = ["segment", "--lang", lang, "--input", *inputs, "--output", str(seg), "--train", kind]
        assert command([*argv, "--vocab-size", size]) == 0
    data = folder / "bin"
    argv = [
        "-s",
        "en",
        "-t",
        target,
        "--trainpref",
        f"{seg}/train",
        "--validpref",
        f"{seg}/valid",
        "--destdir",
        str(data),
    ]
    parser = options.get_preprocessing_parser()
    preprocess.main(parser.parse_args(["--task", "syntax_translation" if parsed else "translation", *argv]))
    if not parsed:  # which is fairseq's own task, that does not know of a segmentation
        for path in seg.glob("segmentation.*"):
            shutil.copy(path, data)
    return data

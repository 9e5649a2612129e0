"""Tiny Stanza models, trained in seconds on a toy language, for the tests of parsing."""

from __future__ import annotations

import atexit
import contextlib
import io
import random
import shutil
import tempfile
from functools import lru_cache
from pathlib import Path

from stanza.models import parser as stanza_parser
from stanza.models import tagger as stanza_tagger
from stanza.models import tokenizer as stanza_tokenizer

NOUNS = ["man", "dog", "girl", "boat"]
VERBS = ["sees", "likes", "has"]
PLACES = ["park", "house", "café"]


def sentences(count: int, seed: int = 0) -> list[str]:
    """Lines of the toy language, tokenized."""
    draw = random.Random(seed)
    lines = []
    for _ in range(count):
        line = f"the {draw.choice(NOUNS)} {draw.choice(VERBS)} a {draw.choice(NOUNS)}"
        for _ in range(draw.randrange(3)):
            line += f" in the {draw.choice(PLACES)}"
        lines.append(line + " .")
    return lines


def conllu(lines: list[str], seed: int = 0) -> str:
    """The lines with trees; phrases attach to the verb or the object as a coin says, so that a parser is unsure."""
    draw = random.Random(seed)
    out = []
    for line in lines:
        words = line.split()
        rows = [(2, "det", "DET", "DT"), (3, "nsubj", "NOUN", "NN"), (0, "root", "VERB", "VBZ")]
        rows += [(5, "det", "DET", "DT"), (3, "obj", "NOUN", "NN")]
        for at in range(5, len(words) - 1, 3):
            governor, label = draw.choice([(3, "obl"), (5, "nmod")])
            rows += [(at + 3, "case", "ADP", "IN"), (at + 3, "det", "DET", "DT"), (governor, label, "NOUN", "NN")]
        rows.append((3, "punct", "PUNCT", "."))
        for number, (word, (head, deprel, upos, xpos)) in enumerate(zip(words, rows, strict=True), start=1):
            out.append(f"{number}\t{word}\t_\t{upos}\t{xpos}\t_\t{head}\t{deprel}\t_\t_")
        out.append("")
    return "\n".join(out) + "\n"


TINY = (
    "--hidden_dim 16 --char_hidden_dim 8 --deep_biaff_hidden_dim 16 --word_emb_dim 8 --char_emb_dim 8 "
    "--tag_emb_dim 8 --transformed_dim 8 --num_layers 1"
)


def train(folder: Path, *, steps: int = 40, sizes: str = TINY) -> Path:
    """Writes pos.pt and depparse.pt into ``folder``; with empty ``sizes``, of the size that Stanza's own have."""
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / "train.conllu"
    data.write_text(conllu(sentences(60)), encoding="utf-8")
    common = ["--train_file", str(data), "--eval_file", str(data), "--lang", "xx", "--shorthand", "xx_toy"]
    common += ["--no_pretrain", "--save_dir", str(folder), "--max_steps", str(steps), "--eval_interval", str(steps)]
    common += [*sizes.split(), "--word_cutoff", "1", "--dropout", "0.1", "--word_dropout", "0.1", "--cpu"]
    with contextlib.redirect_stdout(io.StringIO()):
        stanza_tagger.main([*common, "--save_name", "pos.pt", "--batch_size", "20"])
        stanza_parser.main([*common, "--save_name", "depparse.pt", "--batch_size", "300", "--no_checkpoint"])
    return folder


@lru_cache
def models() -> Path:
    """A folder with a tiny tagger and parser, trained once for all tests."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return train(folder / "toy", steps=8)


def train_tokenizer(folder: Path) -> None:
    """Writes tokenize.pt into ``folder``, for the toy language with its full stops glued to the last word."""
    lines = sentences(120, seed=2)
    text = labels = ""
    for number, line in enumerate(lines):
        for word in line.split():
            last = word == "."
            gap = 0 if last or not text or text[-1].isspace() else 1
            text += " " * gap + word
            labels += "0" * (gap + len(word) - 1) + ("2" if last else "1")  # 1 ends a token, 2 a sentence as well
        text, labels = (text + "\n\n", labels + "\n\n") if number % 3 == 2 else (text + " ", labels + "0")
    files = {"txt": text, "label": labels, "gold": conllu(lines), "mwt": "[]"}
    for name, content in files.items():
        (folder / name).write_text(content, encoding="utf-8")
    options = ["--txt_file", "txt", "--label_file", "label", "--dev_txt_file", "txt", "--dev_label_file", "label"]
    options += ["--dev_conll_gold", "gold", "--mwt_json_file", "mwt"]
    options = [str(folder / value) if value in files else value for value in options]
    options += ["--lang", "xx", "--shorthand", "xx_toy", "--save_dir", str(folder), "--no_use_mwt", "--cpu"]
    options += ["--save_name", str(folder / "tokenize.pt"), "--steps", "60", "--eval_steps", "60", "--lr0", "0.02"]
    options += ["--hidden_dim", "16", "--emb_dim", "8", "--batch_size", "8", "--sent_drop_prob", "0", "--dropout", "0"]
    options += ["--unit_dropout", "0", "--feat_dropout", "0", "--feat_unit_dropout", "0"]
    with contextlib.redirect_stdout(io.StringIO()):
        stanza_tokenizer.main(options)

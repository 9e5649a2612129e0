"""From parsed text to a trained model to trees again, by the commands that a user has."""

import gzip
import io
import json
import os
import random
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import chain_parser
import pytest
from data_errors import refused
from matrix_part import of_ten_seconds
from toy_data import fairseq, logged

from fairseq_syntax import cli
from fairseq_syntax.corpus.conllu import ParsedLine, Token, format_conllu, read_conllu, text_of, write_conllu
from fairseq_syntax.corpus.parsing.parser import ParserOptions
from fairseq_syntax.data.parse_origins import ParseOrigins
from fairseq_syntax.inference.interactive import InteractiveInput
from fairseq_syntax.use import loading, parent_head, translator
from fairseq_syntax.use.translator import Translation

pytestmark = pytest.mark.slow
NOUNS, VERBS = ["cat", "dog", "bird", "horse", "lion"], ["sees", "likes", "hears"]


def parse(rng, number):
    """`The (old) cat sees the (old) dog.`, now and then with two such sentences in a line."""
    line = ParsedLine(line_number=number)
    for _ in range(rng.choice([1, 1, 1, 2])):
        start, words = len(line.words), []
        for deprel in ("nsubj", "obj"):
            phrase = [
                ("The" if deprel == "nsubj" else "the", "det"),
                *([("old", "amod")] if rng.random() < 0.4 else []),
                (rng.choice(NOUNS), deprel),
            ]
            words += [(form, label, len(words) + len(phrase) - 1) for form, label in phrase]
            if deprel == "nsubj":
                verb = len(words)
                words.append((rng.choice(VERBS), "root", verb))
        words.append((".", "punct", verb))
        for form, label, head in words:
            line.words.append(form)
            line.heads.append(start + (verb if label in ("nsubj", "obj") else head))
            line.deprels.append(label)
        line.sentences.append((start, len(line.words)))
    count = len(line.words)
    line.upos, line.xpos = ["_"] * count, ["_"] * count
    line.tokens = [Token(w, i + 1 == count or line.words[i + 1] != ".", i, i, i) for i, w in enumerate(line.words)]
    return line


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    root = tmp_path_factory.mktemp("corpus")
    rng = random.Random(1)
    for split, size in (("train", 400), ("valid", 60), ("test", 60)):
        lines = [parse(rng, number) for number in range(size)]
        with open(root / f"{split}.en.conllu", "w") as file:
            for line in lines:
                write_conllu(file, line)
        (root / f"{split}.en").write_text("".join(text_of(line) + "\n" for line in lines))
        (root / f"{split}.de").write_text("".join(" ".join(reversed(line.words)) + "\n" for line in lines))
    segment = [
        "segment",
        "--output",
        str(root / "seg"),
        "--train",
        "sentencepiece",
        "--model-type",
        "bpe",
        "--vocab-size",
    ]
    for lang, suffix, size in (("en", ".en.conllu", "48"), ("de", ".de", "48")):
        files = [str(root / f"{split}{suffix}") for split in ("train", "valid", "test")]
        assert cli.main([*segment, size, "--lang", lang, "--input", *files]) == 0
    prefixes = [x for s in ("train", "valid", "test") for x in (f"--{s}pref", str(root / "seg" / s))]
    fairseq("preprocess", "--task", "syntax_translation", "-s", "en", "-t", "de", *prefixes,
            "--destdir", str(root / "bin"))  # fmt: skip
    return root


def train_model(corpus, name, *options, updates=250):
    size = ["--encoder-layers", 2, "--decoder-layers", 1, "--encoder-embed-dim", 48, "--encoder-ffn-embed-dim", 64]
    size += ["--encoder-attention-heads", 4, "--decoder-attention-heads", 4, "--dropout", 0]
    how = ["--optimizer", "adam", "--lr", "4e-3", "--max-tokens", 1200, "--max-update", updates, "--cpu", "--seed", 1]
    how += ["--num-workers", 0]
    how += ["--no-epoch-checkpoints", "--no-last-checkpoints", "--disable-validation", "--label-smoothing", 0.1]
    fairseq("train", corpus / "bin", "--task", "syntax_translation", *size, *how,
            "--save-dir", corpus / name, "--save-interval-updates", updates, *options)  # fmt: skip
    return next((corpus / name).glob(f"checkpoint_*_{updates}.pt"))


@of_ten_seconds
@pytest.mark.parametrize(
    "name, options",
    [
        ("heads", ["--arch", "supervised_head_transformer", "--criterion", "supervised_head"]),
        ("lisa", ["--arch", "lisa_transformer", "--criterion", "lisa", "--lisa-gold"]),
    ],
)
def test_a_trained_model_writes_the_trees_of_held_out_text(corpus, name, options, capsys):
    checkpoint = train_model(corpus, name, *options, updates=170)
    raw, out = corpus / "test.en", corpus / f"{name}.conllu"
    gold = corpus / "test.en.conllu"
    tree = ["tree", str(checkpoint), "--output", str(out)]
    scores = []
    for source, more in ((raw, ["--split-sentences"]), (gold, [])):
        assert cli.main([*tree, "--input", str(source), *more]) == 0
        capsys.readouterr()
        assert cli.main(["eval-tree", str(gold), str(out), "--json"]) == 0
        scores.append(json.loads(capsys.readouterr().out))
    for actual in scores:
        assert actual["Words"]["f1"] == 1.0 and "LAS" not in actual
        assert actual["UAS"]["f1"] > 0.95
    lines = list(read_conllu(out, n_lines=60))
    assert all(len(line.arcs) == len(line.words) for line in lines)
    assert all(head == line.heads[word] for line in lines for word, head, _, _ in line.arcs)
    assert sum(p for line in lines for *_, p in line.arcs) / sum(len(line.words) for line in lines) > 0.8

    # the same words in batches of one line: the same trees
    alone = corpus / f"{name}.alone.conllu"
    assert cli.main([*tree[:-1], str(alone), "--input", str(gold), "--batch-size", "1"]) == 0
    assert [line.heads for line in read_conllu(alone)] == [line.heads for line in lines]
    assert cli.main([*tree, "--input", str(gold), "--distributions", "--min-prob", "0.001"]) == 0
    assert all(len(line.arcs) >= len(line.words) for line in read_conllu(out))

    # tokens of several words, and a line without any: the first word stands for its token
    shared = corpus / f"{name}.shared.conllu"
    rows = "1-2\tcats\n1\tcat\n2\ts\n3\tsees\n4-6\tlions\n4\tli\n5\ton\n6\ts\n".splitlines()
    rows = [row + "\t_" * 8 if "-" in row else f"{row}\t_\t_\t_\t_\t{int(row[0]) - 1}\tdep\t_\t_" for row in rows]
    shared.write_text("# line = 1\n" + "\n".join(rows) + "\n\n# line = 3\n1\tdog\t_\t_\t_\t_\t0\troot\t_\t_\n\n")
    assert cli.main([*tree, "--input", str(shared)]) == 0
    first, empty, single = read_conllu(out)
    assert [first.heads[word] for word in (1, 4, 5)] == [0, 3, 3] and {first.heads[w] for w in (0, 2, 3)} <= {0, 2, 3}
    assert empty.words == [] and single.heads == [0]

    # The trained head among all, and its trees as those of any head: with --lisa-gold it is read from the text, too.
    where = {"heads": (1, 1), "lisa": (1, 0)}[name]
    assert cli.main(["tree", str(checkpoint), "--input", str(gold), "--choose"]) == 0
    (_, share, _, *best), *others = (row.split() for row in capsys.readouterr().out.splitlines())
    assert best == f"layer {where[0]}, head {where[1]}".split() and float(share) > 95
    assert len(others) == 7 and all(float(row[1]) < float(share) for row in others)
    assert cli.main([*tree, "--input", str(gold), "--head", "{},{}".format(*where)]) == 0
    assert [line.heads for line in read_conllu(out)] == [line.heads for line in lines]
    refused([*tree, "--input", str(gold), "--head", "1,4"], option="--head")

    with logged("fairseq.logging.progress_bar") as log:
        fairseq("validate", corpus / "bin", "--task", "syntax_translation", "--valid-subset",
                "valid", "--path", checkpoint, "--cpu", "--batch-size", 20)  # fmt: skip
    messages = log.getvalue()
    if name == "heads":
        assert all(key in messages for key in ("translation_loss", "child_loss", "parent_loss", "parent_uas"))
    else:
        assert "lisa_uas" not in messages  # the given parents stand in for the predicted ones


def test_a_model_without_a_parent_head(corpus):
    checkpoint = train_model(corpus, "plain", "--arch", "supervised_head_transformer", "--parent-weight", 0,
                             "--criterion", "supervised_head", updates=2)  # fmt: skip
    refused(["tree", str(checkpoint), "--input", str(corpus / "test.en")], "no head that predicts parents")
    out = corpus / "plain.conllu"
    of_a_head = ["--head", "0,3", "--output", str(out)]
    assert cli.main(["tree", str(checkpoint), "--input", str(corpus / "test.en"), *of_a_head]) == 0
    assert len(list(read_conllu(out))) == 60, "another head has trees, too"
    refused(["tree", "nothing.pt", "--input", str(corpus / "test.en")], path="nothing.pt")


@pytest.mark.parametrize("ending", ["en", "en.gz", "en.conllu", "stdin", "fifo"])
def test_trees_say_how_many_lines_they_are_of(tmp_path, monkeypatch, ending):
    """So that empty lines at the end are not lost, and a copy that was cut off is found out."""

    class Predicted(chain_parser.ChainParser):
        def __init__(self, options, *_, **__):
            super().__init__(options)

        def predict(self, lines):
            return lines

    monkeypatch.chdir(tmp_path)
    Path("model.pt").touch()
    monkeypatch.setattr(parent_head, "ParentHeadParser", Predicted)
    task = SimpleNamespace(cfg=SimpleNamespace(source_lang="en"))
    monkeypatch.setattr(loading, "load_models", lambda *_, **__: ([None], None, task))
    lines, given, out = ["", "A man sleeps.", "", ""], tmp_path / f"text.{ending}", tmp_path / "out.conllu"
    if ending == "en.conllu":
        parsed = chain_parser.load(ParserOptions(parser="chain_parser")).parse(lines)
        given.write_text("# lines = 4\n" + "".join(map(format_conllu, parsed)), encoding="utf-8")
    else:
        text = "".join(f"{line}\n" for line in lines).encode()
        given.write_bytes(gzip.compress(text) if ending == "en.gz" else text)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    source = "-" if ending == "stdin" else str(given)
    if ending == "fifo":
        given.unlink()
        os.mkfifo(given)
        threading.Thread(target=given.write_bytes, args=(text,), daemon=True).start()
    assert cli.main(["tree", "model.pt", "--input", source, "--output", str(out)]) == 0
    assert out.read_text(encoding="utf-8").startswith("# lines = 4\n")
    assert [text_of(line) for line in read_conllu(out)] == lines
    given.unlink()
    given.write_bytes(gzip.compress(b"") if ending == "en.gz" else b"")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    assert cli.main(["tree", "model.pt", "--input", source, "--output", str(out)]) == 0
    assert list(read_conllu(out)) == []


@pytest.mark.parametrize("ending", ["en", "en.conllu"])
def test_a_pipe_is_translated_and_not_counted_first(tmp_path, monkeypatch, ending):
    class Copying(InteractiveInput):
        needs = frozenset({"tree"})

        def __init__(self):
            super().__init__(SimpleNamespace(parse_origins=ParseOrigins(None)))

        def translations(self, lines, alignments, first_line):
            texts = [text_of(line) if isinstance(line, ParsedLine) else line for line in lines]
            return [[Translation(text, [], 0.0)] for text in texts]

    monkeypatch.chdir(tmp_path)
    Path("model.pt").touch()
    monkeypatch.setattr(translator.Translator, "load", lambda *_, **__: Copying())
    pipe, out = tmp_path / f"pipe.{ending}", tmp_path / "out"
    (parsed,) = chain_parser.load(ParserOptions(parser="chain_parser")).parse(["A man sleeps."])
    content = format_conllu(parsed) if ending == "en.conllu" else "A man sleeps.\n"
    os.mkfifo(pipe)
    threading.Thread(target=pipe.write_text, args=(content,), daemon=True).start()
    assert cli.main(["translate", "model.pt", "--input", str(pipe), "--output", str(out)]) == 0
    assert out.read_text("utf-8") == "A man sleeps.\n"


def test_options_of_trees_are_looked_at_before_the_model(tmp_path, capsys):
    for name in ("no.pt", "text.conllu"):
        (tmp_path / name).touch()
    tree = ["tree", str(tmp_path / "no.pt"), "--input", str(tmp_path / "text.conllu")]
    for more, about in (
        (["--tokenizer", "spacy", "--lang", "de"], {"option": "--lang"}),
        (["--split-sentences"], {"option": "--split-sentences"}),
        (["--min-prob", "0.1"], {"option": "--min-prob"}),
        (["--distributions", "--min-prob", "0.1"], {"path": "no.pt"}),
        (["--choose", "--head", "0,1"], {"option": "--head"}),
        (["--head", "0,1", "--system", "lisa"], {"option": "--system"}),
        (["--choose", "--input", str(tmp_path / "text")], {"option": "--input"}),
    ):
        refused([*tree, *more], **about)
    for more in (["--batch-size", "-5"], ["--min-prob", "7"], ["--device", "tpu"], ["--head", "1"]):
        with pytest.raises(SystemExit):
            cli.main([*tree, *more])
        assert more[0] in capsys.readouterr().err

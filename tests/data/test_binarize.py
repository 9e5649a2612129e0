"""Binarizing: what comes out is the parse, whichever command made it, and bad input is an error that says where."""

import json
import os
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import toy_data
from data_errors import data_error, refused
from fairseq.data import Dictionary, data_utils
from hypothesis import given, settings
from hypothesis import strategies as st
from matrix_part import examples
from random_parses import numbers, random_tree

from fairseq_syntax.corpus.conllu import ParsedLine, read_conllu, text_of, write_conllu
from fairseq_syntax.corpus.header import header
from fairseq_syntax.corpus.segmentation import load_segmenter
from fairseq_syntax.corpus.store.flat import WORD_FIELDS
from fairseq_syntax.corpus.store.reader import SyntaxStore
from fairseq_syntax.corpus.store.store_format import store_path
from fairseq_syntax.data.binarize import Summary, binarize
from fairseq_syntax.data.labels import LabelInventory, to_stored
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.tasks.config import SyntaxTranslationConfig
from fairseq_syntax.tasks.syntax_translation import SyntaxTranslationTask

SPLITS = ("train", "valid", "test")


@pytest.fixture
def segmented(toy, tmp_path) -> Path:
    """A copy of the segmented corpus that a test may spoil."""
    return Path(shutil.copytree(toy.segmented, tmp_path / "segmented"))


def preprocess(segmented: Path, data: Path, *more) -> str:
    return toy_data.fairseq("preprocess", *toy_data.preprocess_options(segmented, data), *more)


def binarize_options(segmented: Path, data: Path) -> list:
    options = ["binarize", "--output", data, "-s", "en", "-t", "de"]
    return options + [x for split in SPLITS for x in (f"--{split}pref", segmented / split)]


def fetched(path) -> dict:
    store = SyntaxStore(path)
    return numbers(store.fetch(np.arange(len(store)), arcs=store.has_arcs))


def replace_line(path: Path, number: int, line: str) -> None:
    """Put another line ``number``, counted from 1."""
    lines = path.read_text(encoding="utf-8").split("\n")
    lines[number - 1] = line
    path.write_text("\n".join(lines), encoding="utf-8")


def test_text_without_any_parse_is_for_models_that_need_none(segmented, tmp_path):
    """A baseline alone needs no parser; a part of the splits without a parse is a mistake."""
    for path in segmented.glob("train.*.conllu"):
        path.unlink()
    with data_error(path="train.en.conllu"):
        preprocess(segmented, tmp_path / "data")
    for path in segmented.glob("*.conllu"):
        path.unlink()
    with toy_data.logged("fairseq_syntax.data.preprocess") as log:
        preprocess(segmented, tmp_path / "data")
    assert "no text has a parse" in log.getvalue()
    names = {path.name for path in (tmp_path / "data").iterdir()}
    assert {"manifest.json", "segmentation.de.json", "train.en-de.en.bin"} <= names
    assert not [name for name in names if "syntax" in name or name.startswith("labels")]
    refused(binarize_options(segmented, tmp_path / "data"), ".conllu")
    cfg = SyntaxTranslationConfig(data=str(tmp_path / "data"), source_lang="en", target_lang="de")
    cfg.train_subset, cfg.required_seq_len_multiple, cfg.dataset_impl = "train", 1, None
    task = SyntaxTranslationTask.setup_task(cfg)
    task.load_dataset("valid")
    assert "src_syntax" not in task.dataset("valid").collater([task.dataset("valid")[0]])["net_input"]
    task.add_need("source", frozenset({"tree"}))
    with data_error("parse", path="labels.en.json"):
        task.load_dataset("valid")


# -- what is in the store -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("split", SPLITS)
def test_the_store_is_the_parse(toy, split):
    """Token by token, from the lines that the corpus was written from."""
    store = SyntaxStore(store_path(toy.data, split, "en", "de", "en"))
    segmenter = load_segmenter(toy.segmented / "segmentation.en.json")
    text = (toy.segmented / f"{split}.en").read_text(encoding="utf-8").splitlines()
    tokens = data_utils.load_indexed_dataset(str(toy.data / f"{split}.en-de.en"))
    dictionary = Dictionary.load(str(toy.data / "dict.en.txt"))
    assert len(store) == len(tokens) == len(toy.lines[split]) == len(text)
    split_words = several_words = 0
    for number, line in enumerate(toy.lines[split]):
        flat = store.fetch(np.array([number]), arcs=True)
        pieces = text[number].split()
        assert tokens[number].tolist() == [*map(dictionary.index, pieces), dictionary.eos()]
        assert segmenter.decode(pieces) == text_of(line)
        token_of = {w: t for t, token in enumerate(line.tokens) for w in range(token.first, token.last + 1)}
        at = 0
        arcs = []
        for t, token in enumerate(line.tokens):
            of_token = pieces[at : at + flat.pieces[t]]
            at += len(of_token)
            # The pieces spell the token: the map from pieces to words is right.
            assert segmenter.decode(of_token) == token.form
            word = token.word
            head, deprel, upos, xpos = (getattr(flat, name)[t] for name in WORD_FIELDS[1:])
            assert head == token_of[line.heads[word]]
            assert store.labels["deprel"][deprel] == line.deprels[word]
            assert store.labels["upos"][upos] == line.upos[word]
            assert store.labels["xpos"][xpos] == (line.xpos[word] if line.xpos[word] != "_" else "<unk>")
            split_words += len(of_token) > 1
            several_words += token.last > token.first
            expected = {}
            for dependent, arc_head, label, p in line.arcs:
                # An arc from one word of a token to another is no arc of the token; its root arc is.
                inside = token_of[arc_head] == t and arc_head != dependent
                if dependent == word and not inside:
                    key = (t, token_of[arc_head], label)
                    expected[key] = expected.get(key, 0) + p
            arcs += [(*key, p) for key, p in expected.items()]
        assert at == len(pieces) == flat.n_pieces[0]
        labels = store.labels["deprel"]
        actual = sorted((dependent, head, labels[label], p) for dependent, head, label, p in flat.arcs.rows())
        assert [a[:3] for a in actual] == [a[:3] for a in sorted(arcs)]
        assert [a[3] for a in actual] == pytest.approx([a[3] for a in sorted(arcs)], abs=2e-5)
    assert (split_words and several_words) or split != "train"  # the corpus has what it is for


def test_tokens_of_several_words():
    """zum = zu + dem; dem attaches to Bahnhof outside and so owns the token; heads on either word lead to the token."""
    rows = [
        ("1", "Er", 3),
        ("2-3", "gingzu", None),
        ("2", "zu", 5),
        ("3", "ging", 0),
        ("4-5", "zum", None),
        ("4", "zu", 5),
        ("5", "dem", 3),
    ]
    block = "\n".join(
        f"{i}\t{form}\t_\t_\t_\t_\t{'_' if head is None else head}\t{'_' if head is None else 'l' + i}\t_\t_"
        for i, form, head in rows
    )
    (line,) = read_conllu((block + "\n\n").splitlines(keepends=True))
    stored = to_stored(line, LabelInventory())
    # 'gingzu': its first word attaches to dem, outside the token, so that it owns it; zum is owned by dem.
    assert stored.head == [1, 2, 1]
    assert len(set(stored.deprel)) == 3
    inventory = LabelInventory()
    assert [inventory.id("deprel", l) for l in ("l1", "l2", "l5")] == [1, 2, 3]
    assert to_stored(line, inventory).deprel == [1, 2, 3]


def test_an_arc_that_stands_twice_has_the_mass_of_both():
    rows = "1\ta\t_\t_\t_\t_\t0\troot\t_\tArcs=0:root:0.5,2:dep:0.1,2:dep:0.25\n2\tb\t_\t_\t_\t_\t1\tdep\t_\t_\n\n"
    (line,) = read_conllu(rows.splitlines())
    labels = LabelInventory()
    stored = to_stored(line, labels)
    assert stored.arcs == [(0, 0, labels.id("deprel", "root"), 0.5), (0, 1, labels.id("deprel", "dep"), 0.35)]


def test_the_stock_command_and_ours_agree(toy, tmp_path):
    """fairseq-syntax binarize, beside a token dataset without syntax, makes the same files byte for byte."""
    data = tmp_path / "data"
    shutil.copytree(toy.data, data, ignore=shutil.ignore_patterns("*.arrow", "labels.*", "segmentation.*"))
    assert not list(data.glob("*.syntax.arrow"))
    assert toy_data.syntax_command(*binarize_options(toy.segmented, data)) == 0
    made = {p.name for p in data.iterdir()}
    assert {p.name for p in toy.data.iterdir()} - made <= {"preprocess.log"}
    for name in sorted(made):
        if "syntax" in name or name.startswith(("labels", "segmentation")):
            assert (data / name).read_bytes() == (toy.data / name).read_bytes(), name


def test_another_task_is_left_alone(toy, tmp_path):
    options = toy_data.preprocess_options(toy.segmented, tmp_path / "data")
    options[options.index("syntax_translation")] = "translation"
    toy_data.fairseq("preprocess", *options)
    assert (tmp_path / "data" / "train.en-de.en.bin").exists()
    assert not list((tmp_path / "data").glob("*.syntax.arrow"))


def test_only_source_and_a_given_dictionary(toy, tmp_path):
    """Test data alone, for a model that is there: its dictionary and label inventory are given."""
    options = ["--task", "syntax_translation", "-s", "en", "-t", "de", "--only-source", "--destdir", tmp_path / "data"]
    given = ["--srcdict", toy.data / "dict.en.txt", "--source-labels", toy.data / "labels.en.json"]
    toy_data.fairseq("preprocess", *options, *given, "--testpref", toy.segmented / "test", "--workers", 2)
    name = store_path("", "test", "en", "de", "en")
    assert (tmp_path / "data" / name).read_bytes() == (toy.data / name).read_bytes()
    with data_error(path="labels.en.json"):
        options[-1] = tmp_path / "other"
        toy_data.fairseq("preprocess", *options, *given[:2], "--testpref", toy.segmented / "test", "--workers", 1)


def test_parses_of_another_folder(toy, segmented, tmp_path):
    """Pieces with other parses than those beside them; a folder without them is an error, not the parses beside."""
    parses, data = tmp_path / "parses", tmp_path / "data"
    parses.mkdir()
    for path in segmented.glob("*.en.conllu"):
        path.rename(parses / path.name)
    preprocess(segmented, data, "--source-parses", parses)
    for name in map(os.path.basename, toy.data.glob("*.syntax.arrow")):
        assert (data / name).read_bytes() == (toy.data / name).read_bytes(), name
    with data_error(path="valid.en.conllu"):
        (parses / "valid.en.conllu").rename(segmented / "valid.en.conllu")
        preprocess(segmented, tmp_path / "other", "--source-parses", parses)


BEFORE = {"parser": "stanza", "tokenizer": "auto", "models": "a", "distributions": True, "min_prob": 0.01}


@pytest.mark.parametrize(
    "change, differs",
    [
        ({"parser": "supar"}, ["parser", "stanza", "supar"]),
        ({"tokenizer": "whitespace"}, ["tokenizer", "auto", "whitespace"]),
        ({"models": "b"}, ["models"]),
        ({"min_prob": 0.5}, ["min_prob", "0.01", "0.5"]),
        ({"control": ["linear"]}, ["control", "linear"]),
        ({"min_prob": 0.5, "distributions": False, "max_words": 9}, []),
    ],
)
def test_splits_that_were_parsed_in_two_ways(toy, segmented, tmp_path, change, differs):
    """An error before the work, unless the labels are given: a model may be tried on another parser's parses."""
    for split, options in (("train", BEFORE), ("valid", BEFORE | change)):
        path = segmented / f"{split}.en.conllu"
        rows = header(len(toy.lines[split]), parsed_with=options)
        path.write_text(rows + path.read_text("utf-8").split("\n", 1)[1], encoding="utf-8")
    if differs:
        with data_error(*differs, path="valid.en.conllu"):
            preprocess(segmented, tmp_path / "data")
        assert not list((tmp_path / "data").glob("*.bin"))
    with toy_data.logged("fairseq_syntax.data.labels") as said:
        labels = LabelInventory(LabelInventory.load(toy.data / "labels.en.json").labels, parsed_with=BEFORE)
        labels.save(tmp_path / "labels.json")
        preprocess(segmented, tmp_path / "data", *(["--source-labels", tmp_path / "labels.json"] if differs else []))
    assert all(name in said.getvalue() for name in differs) and said.getvalue().count("\n") == bool(differs)


# -- labels -----------------------------------------------------------------------------------------------------------


def test_labels_are_those_of_the_training_data(toy, segmented, tmp_path):
    """A label that only the validation data has is unknown, counted and reported; ids are shared by the splits."""
    text = (segmented / "valid.en.conllu").read_text(encoding="utf-8")
    (segmented / "valid.en.conllu").write_text(text.replace("\tnsubj\t", "\tdislocated\t"), encoding="utf-8")
    with toy_data.logged("fairseq_syntax.data.preprocess") as log:
        preprocess(segmented, tmp_path / "data")
    assert "deprel=dislocated" in log.getvalue()
    stores = [SyntaxStore(store_path(tmp_path / "data", split, "en", "de", "en")) for split in SPLITS]
    inventory = LabelInventory.load(tmp_path / "data" / "labels.en.json")
    assert all(s.labels == inventory.labels for s in stores)
    assert "dislocated" not in inventory.labels["deprel"]
    before, after = (fetched(store_path(d, "valid", "en", "de", "en"))["deprel"] for d in (toy.data, tmp_path / "data"))
    assert {(a, b) for a, b in zip(before, after) if a != b} == {(inventory.labels["deprel"].index("nsubj"), 0)}


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"deprel": ["<unk>"]}', '{"deprel": ["a"], "upos": ["<unk>"], "xpos": ["<unk>"]}', "\xff"],
)
def test_a_damaged_inventory(tmp_path, content):
    path = tmp_path / "labels.en.json"
    path.write_bytes(content.encode("latin-1"))
    with data_error(path="labels.en.json"):
        LabelInventory.load(path)


@settings(max_examples=examples(50))
@given(st.lists(st.tuples(st.sampled_from(["deprel", "upos", "xpos"]), st.text(max_size=5)), max_size=20))
def test_inventory_round_trip(tmp_path_factory, labels):
    inventory = LabelInventory()
    ids = [inventory.id(*label) for label in labels]
    path = tmp_path_factory.mktemp("labels") / "labels.en.json"
    inventory.save(path)
    loaded = LabelInventory.load(path)
    assert loaded.fingerprint == inventory.fingerprint
    assert [loaded.id(*label) for label in labels] == ids
    for (column, name), i in zip(labels, ids):
        assert loaded.labels[column][i] == (name if name != "_" else "<unk>")
    assert loaded.id("deprel", "never seen") == 0 and loaded.unknown == {"deprel=never seen": 1}


# -- doing it again ---------------------------------------------------------------------------------------------------


def made(data: Path) -> dict[str, tuple]:
    return {p.name: (p.stat().st_ino, p.stat().st_mtime_ns) for p in data.glob("*.arrow")}


def test_done_is_done(toy, segmented, tmp_path):
    """A second run leaves the stores as they are; a changed parse, dictionary or segmentation makes them anew."""
    data = tmp_path / "data"
    shutil.copytree(toy.data, data)
    command = binarize_options(segmented, data)
    first = made(data)
    assert len(first) == 3
    assert toy_data.syntax_command(*command) == 0
    assert made(data) == first

    # Another label of one word of the test data: only that store is new.
    parse = segmented / "test.en.conllu"
    text = parse.read_text(encoding="utf-8")
    parse.write_text(text.replace("\tobl\t", "\tobj\t", 1), encoding="utf-8")
    assert toy_data.syntax_command(*command) == 0
    second = made(data)
    assert {name for name in first if first[name] != second[name]} == {"test.en-de.en.syntax.arrow"}

    # Another dictionary: the loader would refuse the stores and say "binarize", which must then help.
    with open(data / "dict.en.txt", "a", encoding="utf-8") as file:
        file.write("another 1\n")
    assert toy_data.syntax_command(*command) == 0
    third = made(data)
    assert not set(second.values()) & set(third.values())

    # A store that was cut off is made anew.
    store = data / "valid.en-de.en.syntax.arrow"
    whole = store.read_bytes()
    store.write_bytes(whole[:-10])
    assert toy_data.syntax_command(*command) == 0
    assert store.read_bytes() == whole


def test_given_labels_that_are_no_longer_given(toy, segmented, tmp_path):
    """The store that was made with them is not that of the text's own labels, in whose order it would have them."""
    data, given = tmp_path / "data", tmp_path / "labels.json"
    shutil.copytree(toy.data, data)
    before = {p.name: p.read_bytes() for p in data.glob("*.arrow")}
    labels = LabelInventory.load(toy.data / "labels.en.json").labels
    labels = {column: [names[0], *reversed(names[1:]), "of-another-text"] for column, names in labels.items()}
    given.write_text(json.dumps(labels), encoding="utf-8")
    command = binarize_options(segmented, data)
    assert toy_data.syntax_command(*command, "--source-labels", given) == 0
    store = data / "train.en-de.en.syntax.arrow"
    assert SyntaxStore(store).labels == labels
    with_labels = made(data)
    assert toy_data.syntax_command(*command, "--source-labels", given) == 0 and made(data) == with_labels
    assert toy_data.syntax_command(*command) == 0
    assert {p.name: p.read_bytes() for p in data.glob("*.arrow")} == before
    assert (data / "labels.en.json").read_bytes() == (toy.data / "labels.en.json").read_bytes()


@pytest.mark.parametrize(
    ("column", "file", "said"),
    [("words", "t.en", "sentence 2"), ("pieces", "t.en", "sentence 2")],
)
def test_what_the_store_does_not_hold_is_told_with_the_file(tmp_path, column, file, said):
    text, parse, dictionary = tmp_path / "t.en", tmp_path / "t.en.conllu", tmp_path / "dict.en.txt"
    if column == "words":
        rows = "".join(f"{i}\ta\t_\tX\t_\t_\t{i - 1}\tdep\t_\t_\n" for i in range(1, 65_537))
        text.write_text("a\n" + "a " * 65_536 + "\n")
    else:
        rows = "1\ta\t_\tX\t_\t_\t0\troot\t_\tPieces=32768\n"
        text.write_text("a\n" + "a " * 32_768 + "\n")
    parse.write_text("1\ta\t_\tX\t_\t_\t0\troot\t_\t_\n\n" + rows + "\n")
    dictionary.write_text("a 1\n")
    options = {"lang": "en", "dictionary": str(dictionary)}
    with pytest.raises(SyntaxDataError) as error:
        binarize(str(text), str(parse), str(tmp_path / "t.arrow"), LabelInventory(), **options)
    assert str(error.value.path) == str(tmp_path / file) and said in error.value.message


def test_other_training_data_makes_all_stores_anew(toy, segmented, tmp_path):
    """The ids of all splits follow from the training data; a store with the old ids must not stay."""
    data = tmp_path / "data"
    shutil.copytree(toy.data, data)
    parse = segmented / "train.en.conllu"
    parse.write_text(parse.read_text(encoding="utf-8").replace("\tnsubj\t", "\tcsubj\t"), encoding="utf-8")
    before = made(data)
    assert toy_data.syntax_command(*binarize_options(segmented, data)) == 0
    after = made(data)
    assert all(before[name] != after[name] for name in before)
    labels = json.loads((data / "labels.en.json").read_text(encoding="utf-8"))
    for split in SPLITS:
        assert SyntaxStore(store_path(data, split, "en", "de", "en")).labels == labels


# -- bad input --------------------------------------------------------------------------------------------------------


def first_row(path: Path) -> int:
    """The line of the first word that is no root, counted from 1."""
    rows = path.read_text(encoding="utf-8").split("\n")
    return next(
        i for i, row in enumerate(rows, 1) if row[:1].isdigit() and row.split("\t")[6] not in ("0", "_") and i > 8
    )


def spoil(path: Path, what: str) -> int:
    """Break a CoNLL-U file; the line, counted from 1, that the message is to name."""
    number = first_row(path)
    rows = path.read_text(encoding="utf-8").split("\n")
    columns = rows[number - 1].split("\t")
    if what == "head out of range":
        columns[6] = "99"
    elif what == "two roots":
        columns[6] = "0"
    elif what == "cycle":
        columns[6] = columns[0]
    elif what == "id":
        columns[0] = "one"
    elif what == "columns":
        del columns[3]
    elif what == "UTF-8":
        raw = path.read_bytes().split(b"\n")
        raw[number - 1] = raw[number - 1][:3] + b"\xff" + raw[number - 1][3:]
        path.write_bytes(b"\n".join(raw))
        return number
    replace_line(path, number, "\t".join(columns))
    return number


@pytest.mark.parametrize("what", ["head out of range", "two roots", "cycle", "id", "columns", "UTF-8"])
def test_a_bad_parse(toy, segmented, tmp_path, what, capsys):
    """Named by file and line, on one line of stderr, with exit status 1; and no store is made of it."""
    parse = segmented / "train.en.conllu"
    number = spoil(parse, what)
    data = tmp_path / "data"
    shutil.copytree(toy.data, data, ignore=shutil.ignore_patterns("*.arrow", "labels.*"))
    assert toy_data.syntax_command(*binarize_options(segmented, data)) == 1
    message = capsys.readouterr().err.strip().splitlines()[-1]
    named = int(message.split(f"{parse}:")[1].split(":")[0])
    # The second of two roots may stand further down.
    assert named >= number if what in ("two roots", "cycle") else named == number
    assert not list(data.glob("*.arrow")) and not (data / "labels.en.json").exists()


@pytest.mark.parametrize("lang", ["en", "de"])
@pytest.mark.parametrize("what", ["UTF-8", "empty", "missing", "shorter", "longer"])
def test_bad_text_is_found_before_the_work(segmented, tmp_path, lang, what):
    text, path, line = segmented / f"valid.{lang}", f"valid.{lang}", None
    if what == "UTF-8":
        raw = text.read_bytes().split(b"\n")
        raw[2] += b"\xe4"
        text.write_bytes(b"\n".join(raw))
        line = 3
    elif what == "empty":
        text.write_text("")
    elif what == "missing":
        text.unlink()
    else:
        lines = text.read_text(encoding="utf-8").splitlines(keepends=True)
        lines = lines[:-1] if what == "shorter" else [*lines, "x\n"]
        text.write_text("".join(lines), encoding="utf-8")
        path = "valid.de"
    with data_error(path=path, line=line):
        preprocess(segmented, tmp_path / "data")
    assert not list((tmp_path / "data").glob("*.bin"))


def test_a_missing_parse_is_found_before_the_work(segmented, tmp_path):
    (segmented / "test.en.conllu").unlink()
    with data_error(path="test.en.conllu"):
        preprocess(segmented, tmp_path / "data")
    assert not list((tmp_path / "data").glob("*.bin"))


def make_store(tokens: str, parse: str) -> Summary:
    """The store of a text, by the segmentation beside it."""
    out, given = str(Path(tokens).with_name("store")), {"lang": "en", "dictionary": tokens}
    return binarize(tokens, parse, out, LabelInventory(), **given)


def test_line_counts_of_text_and_parse(segmented):
    tokens, parse = str(segmented / "valid.en"), str(segmented / "valid.en.conllu")
    lines = Path(tokens).read_text(encoding="utf-8").splitlines(keepends=True)
    Path(tokens).write_text("".join(lines[:-1]), encoding="utf-8")
    with data_error(path="valid.en.conllu"):
        make_store(tokens, parse)
    Path(tokens).write_text("".join([*lines, "more\n"]), encoding="utf-8")
    with data_error(path="valid.en.conllu"):
        make_store(tokens, parse)


def test_a_parse_of_other_words(segmented):
    """Equal numbers of pieces do not make it the same text."""
    tokens, parse = segmented / "valid.en", str(segmented / "valid.en.conllu")
    lines = tokens.read_text(encoding="utf-8").splitlines()
    number = next(i for i, line in enumerate(lines, 1) if "▁saw" in line.split())
    replace_line(tokens, number, lines[number - 1].replace("▁saw", "▁man", 1))
    with data_error("'saw'", "▁man", "▁saw", path="valid.en", line=number):
        make_store(str(tokens), parse)
    replace_line(tokens, number, lines[number - 1] + " ▁man")
    with data_error(path="valid.en", line=number):
        make_store(str(tokens), parse)
    last = list(read_conllu(parse))[number - 1].tokens[-1]
    rows = Path(parse).read_text(encoding="utf-8").split("\n")
    at = rows.index("", rows.index(f"# line = {number}")) - 1  # a piece too many in both files
    rows[at] = rows[at].replace(f"Pieces={last.pieces}", f"Pieces={last.pieces + 1}")
    Path(parse).write_text("\n".join(rows), encoding="utf-8")
    with data_error("its segmentation", path="valid.en", line=number):
        make_store(str(tokens), parse)


@pytest.mark.parametrize("first", [True, False])
def test_distributions_of_some_sentences_only(segmented, tmp_path, capsys, first):
    """Whichever sentence comes first: neither are the others' arcs dropped nor is the tree taken for one."""
    parse = segmented / "train.en.conllu"
    lines = list(read_conllu(parse))
    with_words = [i for i, line in enumerate(lines) if line.words]
    for i in with_words[:1] if first else with_words[1:]:
        lines[i].arcs = None
    with open(parse, "w", encoding="utf-8") as file:
        for line in lines:
            write_conllu(file, line)
    with data_error("--distributions", path="train.en.conllu"):
        preprocess(segmented, tmp_path / "data")


def test_a_parse_of_another_segmentation(segmented):
    """As many pieces in all, but not of the same words."""
    tokens, parse = str(segmented / "train.en"), segmented / "train.en.conllu"
    make_store(tokens, str(parse))
    number, line = next((n, l) for n, l in enumerate(read_conllu(parse), 1) if len({t.pieces for t in l.tokens}) > 1)
    counts = [t.pieces for t in line.tokens]
    for token, count in zip(line.tokens, counts[1:] + counts[:1]):
        token.pieces = count
    others = [other for other in read_conllu(parse) if other.line_number != line.line_number]
    with open(parse, "w", encoding="utf-8") as file:
        for one in sorted([*others, line], key=lambda l: l.line_number):
            write_conllu(file, one)
    with data_error(path="train.en", line=number):
        make_store(tokens, str(parse))


def test_a_split_of_another_segmentation_is_not_added(toy, tmp_path):
    """The directory's segmentation, by which translations are joined, stays that of the training data."""
    data, other = (Path(shutil.copytree(path, tmp_path / path.name)) for path in (toy.data, toy.segmented))
    before = (data / "segmentation.de.json").read_bytes()
    (tmp_path / "test.de").write_text("ein Satz\n" * len(toy.lines["test"]), encoding="utf-8")
    (other / "segmentation.de.json").unlink()
    argv = ["segment", "--lang", "de", "--input", tmp_path / "test.de", "--output", other, "--train", "words"]
    assert toy_data.syntax_command(*argv, "--overwrite") == 0
    given = ["--srcdict", data / "dict.en.txt", "--tgtdict", data / "dict.de.txt", "--destdir", data]
    with data_error(path="segmentation.de.json"):
        options = ["--task", "syntax_translation", "-s", "en", "-t", "de", *given]
        toy_data.fairseq("preprocess", *options, "--testpref", other / "test")
    refused(
        ["binarize", "--output", data, "-s", "en", "-t", "de", "--testpref", other / "test"],
        path="segmentation.de.json",
    )
    assert (data / "segmentation.de.json").read_bytes() == before
    for copied in (False, True):  # a copy of the files that are seen does not say by what each was cut
        if copied:
            for record in other.glob(".*.made.json"):
                record.unlink()
        with data_error(path=("segmentation.de.json" if copied else "test.de")):
            preprocess(toy.segmented, tmp_path / "new", "--testpref", other / "test")


def test_words_that_are_not_split(tmp_path):
    """Without a segmentation the text's words are the parse's own, and are compared."""
    lines = [ParsedLine()] * 0
    rng = random.Random(2)
    for i in range(4):
        lines.append(toy_data.random_parsed_line(rng, i))
    with open(tmp_path / "t.en.conllu", "w", encoding="utf-8") as file:
        for line in lines:
            write_conllu(file, line)
    text = [" ".join(t.form for t in line.tokens) for line in lines]
    (tmp_path / "t.en").write_text("\n".join(text) + "\n", encoding="utf-8")
    actual = make_store(str(tmp_path / "t.en"), str(tmp_path / "t.en.conllu"))
    assert actual.sentences == 4 and actual.pieces == actual.words == sum(len(row.split()) for row in text)
    replace_line(tmp_path / "t.en", 3, text[2].upper())
    with data_error(path="t.en", line=3):
        make_store(str(tmp_path / "t.en"), str(tmp_path / "t.en.conllu"))
    replace_line(tmp_path / "t.en", 3, text[2] + " x")
    with data_error(path="t.en", line=3):
        make_store(str(tmp_path / "t.en"), str(tmp_path / "t.en.conllu"))


def test_a_token_dataset_of_another_text(toy, segmented, tmp_path):
    """fairseq-syntax binarize compares lengths before it writes beside somebody else's tokens."""
    lines = (segmented / "valid.en").read_text(encoding="utf-8").splitlines(keepends=True)
    for wrong, line in (([lines[1], lines[0], *lines[2:]], 1), (lines[:-1], None), ([*lines, "x\n"], None)):
        (segmented / "valid.en").write_text("".join(wrong), encoding="utf-8")
        data = tmp_path / "data"
        shutil.copytree(toy.data, data, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.arrow", "labels.*"))
        refused(binarize_options(segmented, data), path="valid.en", line=line)
        assert not list(data.glob("*.arrow"))


@settings(max_examples=examples(80))
@given(data=st.data())
def test_any_damage_is_an_error_or_harmless(toy, tmp_path_factory, data):
    """Bytes changed, lines lost or doubled: an error of ours, or a store that is whole and has the text's lengths."""
    directory = tmp_path_factory.mktemp("damage")
    which = data.draw(st.sampled_from(["valid.en", "valid.en.conllu"]))
    for name in ("valid.en", "valid.en.conllu", "segmentation.en.json", "segmentation.en.model"):
        shutil.copy(toy.segmented / name, directory)
    path = directory / which
    raw = path.read_bytes()
    lines = raw.split(b"\n")
    at, line = data.draw(st.integers(0, len(raw) - 1)), data.draw(st.integers(0, len(lines) - 1))
    kind = data.draw(st.sampled_from(["byte", "cut", "lose a line", "double a line", "swap"]))
    if kind == "byte":
        raw = raw[:at] + data.draw(st.binary(max_size=2)) + raw[at + 1 :]
    elif kind == "cut":
        raw = raw[:at]
    elif kind == "swap":
        lines[line], lines[line - 1] = lines[line - 1], lines[line]
        raw = b"\n".join(lines)
    else:
        lines[line : line + 1] = [] if kind == "lose a line" else [lines[line]] * 2
        raw = b"\n".join(lines)
    path.write_bytes(raw)
    out = str(directory / "out.arrow")
    labels = LabelInventory.load(toy.data / "labels.en.json")
    options = {"lang": "en", "dictionary": str(toy.data / "dict.en.txt")}
    try:
        binarize(str(directory / "valid.en"), str(directory / "valid.en.conllu"), out, labels, **options)
    except SyntaxDataError as error:
        assert str(directory) in str(error)
        assert not os.path.exists(out) and not list(directory.glob("*.partial*"))
        return
    text = (directory / "valid.en").read_text(encoding="utf-8").split("\n")
    store = SyntaxStore(out)
    flat = store.fetch(np.arange(len(store)), arcs=store.has_arcs)
    assert flat.n_pieces.tolist() == [len(line.split()) for line in text[: len(store)]]
    ends = np.cumsum(flat.n_words)
    for start, end in zip(ends - flat.n_words, ends):
        heads = flat.head[start:end]
        assert ((heads >= 0) & (heads < end - start)).all()


@settings(max_examples=examples(30))
@given(seed=st.integers(0, 2**32))
def test_tokens_of_random_trees(seed):
    """Heads of tokens follow the heads of the words that own them, for any tree and any tokens of several words."""
    rng = random.Random(seed)
    line = toy_data.random_parsed_line(rng, 0)
    line.heads = [h for start, end in line.sentences for h in random_tree(rng, end - start, start)]
    for token in line.tokens:
        outside = [w for w in range(token.first, token.last + 1) if not token.first <= line.heads[w] <= token.last]
        roots = [w for w in range(token.first, token.last + 1) if line.heads[w] == w]
        token.word = min(outside + roots)
    stored = to_stored(line, LabelInventory())
    for t, token in enumerate(line.tokens):
        head = line.tokens[stored.head[t]]
        assert head.first <= line.heads[token.word] <= head.last
        assert (stored.head[t] == t) == (line.heads[token.word] == token.word)

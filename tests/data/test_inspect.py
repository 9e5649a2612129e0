"""What inspect says of a store, its text trees, and that its check finds every kind of damage."""

from __future__ import annotations

import io
import json
import re
import shutil

import binarized
import numpy as np
import pyarrow as pa
import pytest
import torch
import toy_data
from binarized import conllu, make, sentences
from data_errors import data_error
from hypothesis import given
from hypothesis import strategies as st
from sentencepiece import SentencePieceTrainer

from fairseq_syntax.cli import main as command
from fairseq_syntax.corpus.cycles import without_cycles
from fairseq_syntax.corpus.parsed_line import depths, draw_tree
from fairseq_syntax.corpus.segmentation import SentencePieceSegmenter, SubwordNmtSegmenter, load_segmenter
from fairseq_syntax.corpus.store import store_format
from fairseq_syntax.corpus.store.chunk import list_numbers
from fairseq_syntax.corpus.store.flat import WORD_FIELDS
from fairseq_syntax.corpus.store.reader import SyntaxStore
from fairseq_syntax.corpus.store.store_format import StoredSentence
from fairseq_syntax.corpus.store.writer import write_sentences, write_store
from fairseq_syntax.data.store_report import Tokens, check, example, find_stores, store_report, word_of
from fairseq_syntax.model import trees

VALID = "valid.en-de.en.syntax.arrow"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make(tmp_path_factory.mktemp("inspect"))


@pytest.fixture(scope="module", params=["sentencepiece", "subword_nmt"])
def segmented(request, data, tmp_path_factory):
    return data if request.param == "sentencepiece" else make(tmp_path_factory.mktemp("bpe"), kind=request.param)


def test_the_numbers_are_those_of_the_parse(data):
    text = store_report(SyntaxStore(data / VALID))
    tokens = (data.parent / "seg/valid.en").read_text(encoding="utf-8").split()
    assert f"12 sentences, 72 words, {len(tokens)} pieces" in text and "empty" not in text
    assert "144 arcs (2.00 a word, mean mass 0.8800)" in text
    counts = {name: int(n) for name, n in re.findall(r"^    (\S+) +(\d+) ", text, re.M)}
    labels = {"det": 24, "punct": 12, "obj": 12, "root": 12, "nsubj": 12}
    assert counts == {**labels, "DET": 24, "NOUN": 24, "VERB": 12, "PUNCT": 12, "<unk>": 72}
    assert SyntaxStore(data / VALID).metadata["label_mass"]["nmod"] == pytest.approx(72 * 0.13, abs=1e-3)
    assert "label groups (ud)" in text


def test_the_numbers_do_not_depend_on_how_much_is_read_at_once(data, monkeypatch):
    whole = store_report(SyntaxStore(data / VALID))
    monkeypatch.setattr("fairseq_syntax.data.store_report._BLOCK", 5)
    assert store_report(SyntaxStore(data / VALID)) == whole


def test_a_sentence_is_drawn_with_its_words_tree_and_arcs(data):
    drawn = example(SyntaxStore(data / VALID), 2, Tokens(str(data / VALID)))
    words = sentences(12, 2)[1].split()
    rows = drawn.splitlines()
    assert rows[0] == "sentence 2"
    assert rows[1].startswith("   ╭─ the DET det") and f"{words[1]}:det 0.75, {words[2]}:nmod 0.13" in rows[1]
    assert rows[3].startswith(f"{words[2]} VERB root") and "ROOT:root 0.75" in rows[3]
    assert rows[6].startswith("╰─ . PUNCT punct")
    with data_error(path="valid.en-de.en.syntax.arrow"):
        example(SyntaxStore(data / VALID), 13)
    assert "word2:det" in example(SyntaxStore(data / VALID), 1), "a store without its tokens"


def test_a_whole_directory_is_right(segmented, capsys):
    assert command(["inspect", str(segmented), "--check"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("sentences are right") == 2
    assert find_stores(segmented) == [str(segmented / f"{split}.en-de.en.syntax.arrow") for split in ("train", "valid")]


def test_a_store_of_other_sentences_is_found_out(segmented, tmp_path):
    """Written anew with a word that has one more piece: its checksums are right, but not its lengths."""
    shutil.copytree(segmented, tmp_path / "bin")
    store, path = SyntaxStore(segmented / VALID), tmp_path / "bin" / VALID
    assert check(store, Tokens(str(segmented / VALID))) is None
    sentences = []
    for i in range(len(store)):
        flat = store.fetch(np.array([i]), arcs=True)
        sentences.append(StoredSentence(*(getattr(flat, name).tolist() for name in WORD_FIELDS), flat.arcs.rows()))
    sentences[3].pieces[0] += 1
    metadata = {k: v for k, v in store.metadata.items() if k in ("labels", "dictionary_fingerprint")}
    write_sentences(path, sentences, metadata, with_arcs=True)
    assert check(SyntaxStore(path), Tokens(str(path))) is not None


@pytest.mark.parametrize(
    "what",
    [
        "head",
        "deprel",
        "arc",
        "arc's label",
        "pieces",
        "fewer pieces",
        "no piece",
        "tree_arcs",
        "piece_arcs",
        "nothing",
    ],
)
def test_numbers_of_a_store_that_are_of_nothing_are_found_out(segmented, tmp_path, what):
    """Their checksums are right: as of another program, or of another version of this one."""
    store, path = SyntaxStore(segmented / VALID), tmp_path / VALID
    reader = pa.ipc.open_file(str(segmented / VALID))
    chunk = reader.get_batch(0)
    columns = dict(zip(chunk.schema.names, chunk.columns))
    column = {"arc": "arcs", "arc's label": "arcs"}.get(what, "words")
    numbers = list_numbers(chunk, column).copy()
    longest = (numbers[:, store_format.PIECES] & (store_format.FIRST_OF_SENTENCE - 1)).argmax()
    if what == "no piece":  # and as many pieces in the sentence
        numbers[-2, store_format.PIECES] += numbers[-1, store_format.PIECES]
    place, number = {
        "head": (store_format.HEAD, 40),
        "deprel": (store_format.LABELS, len(store.labels["deprel"])),
        "arc": (store_format.ARC_HEAD, 40),
        "arc's label": (store_format.ARC_LABEL, 1000),
        "pieces": (store_format.PIECES, numbers[-1, store_format.PIECES] + 1),
        "fewer pieces": (store_format.PIECES, numbers[longest, store_format.PIECES] - 1),
        "no piece": (store_format.PIECES, 0),
    }.get(what, (store_format.HEAD, numbers[-1, store_format.HEAD]))
    numbers[longest if what == "fewer pieces" else -1, place] = number
    values = pa.FixedSizeListArray.from_arrays(pa.array(numbers.reshape(-1)), type=columns[column].type.value_type)
    columns[column] = pa.ListArray.from_arrays(columns[column].offsets, values, type=columns[column].type)
    if what in columns:
        columns[what] = pa.array(columns[what].to_numpy() + np.uint32(1))
    batch = pa.record_batch(list(columns.values()), schema=chunk.schema)
    of_format = {"version", "chunk", "sentences", "words", "pieces", "arcs", "tokens", "checksums", "checksum"}
    made = {key: value for key, value in store.metadata.items() if key not in of_format}
    write_store(path, lambda: iter([batch]), made, with_arcs=True, chunk=store.metadata["chunk"])
    changed = SyntaxStore(path)
    changed.verify()
    if what == "nothing":
        changed.check_numbers()
    else:
        with data_error("sentence", path=path):
            changed.check_numbers()


def test_a_cycle_that_tokens_of_several_words_close_is_drawn_and_counted(tmp_path, capsys, monkeypatch):
    """The root shares its token with a word that attaches to another token, whose own words attach to this one."""
    rows = ["1-2\tgingzu", "1\tzu\t4", "2\tging\t0", "3-4\tzum", "3\tzu\t4", "4\tdem\t2"]
    split = [row.split("\t") for row in rows]
    parse = "\n".join(
        f"{i}\t{form}" + ("\t_" * 8 if not head else f"\t_\tX\t_\t_\t{head[0]}\tdep\t_\t_") for i, form, *head in split
    )
    monkeypatch.setattr(binarized, "conllu", lambda lines, arcs: f"{parse}\n\n" * len(lines))
    data = binarized.make(tmp_path, arcs=False, train=8, valid=2)
    store = SyntaxStore(data / VALID)
    assert store.fetch(np.array([0])).head.tolist() == [1, 0]
    capsys.readouterr()
    assert command(["inspect", str(data / VALID), "--check"]) == 0
    printed = capsys.readouterr().out
    assert "all 2 sentences are right" in printed and "whose first word counts as a root: 2" in printed
    assert re.search(r"^ *gingzu X dep.*\n *╰─ zum X dep", printed, re.M)


@pytest.mark.parametrize("kind", ["raw", "lazy"])
def test_other_kinds_of_token_datasets_are_right(data, tmp_path, capsys, kind):
    seg = data.parent / "seg"
    argv = [*f"--task syntax_translation -s en -t de --dataset-impl {kind} --destdir".split(), tmp_path / "bin"]
    toy_data.fairseq("preprocess", *argv, "--trainpref", seg / "train", "--validpref", seg / "valid")
    capsys.readouterr()
    printed = []
    for folder in (data, tmp_path / "bin"):
        assert command(["inspect", str(folder), "--check"]) == 0
        printed.append(capsys.readouterr().out.replace(str(folder), ""))
    assert printed[0] == printed[1]


def test_another_dataset_is_found_out(data, tmp_path, capsys):
    shutil.copytree(data, tmp_path / "bin")
    for ending in ("bin", "idx"):
        shutil.copy(data / f"train.en-de.en.{ending}", tmp_path / "bin" / f"valid.en-de.en.{ending}")
    assert command(["inspect", str(tmp_path / "bin" / VALID), "--check"]) == 1
    assert re.search("WRONG: .*12.*60", capsys.readouterr().out)
    (tmp_path / "bin/dict.en.txt").unlink()
    assert command(["inspect", str(tmp_path / "bin" / VALID), "--check"]) == 1
    assert re.search(r"WRONG: .*dict\.en\.txt: ", capsys.readouterr().out)
    assert command(["inspect", str(tmp_path / "bin" / VALID)]) == 0, "without --check the store alone will do"
    with data_error("binarize"):
        find_stores(tmp_path)


def test_trees_only(tmp_path, capsys):
    data = make(tmp_path, arcs=False)
    assert command(["inspect", str(data / VALID), "--check"]) == 0
    assert "trees only" in capsys.readouterr().out


def test_words_are_spelt_from_pieces():
    assert word_of(["▁hou", "se"]) == "house" and word_of(["hou@@", "se"]) == "house"
    assert word_of(["￭."]) == "." and word_of(["▁"]) == "▁"


@pytest.mark.parametrize("word", ["10 000", "a@@", "a▂b"])
@pytest.mark.parametrize("kind", ["subword_nmt", "sentencepiece"])
def test_marks_within_a_word_are_not_shown_escaped(word, kind):
    if kind == "subword_nmt":
        segmenter = SubwordNmtSegmenter(b"#version: 0.2\na a</w>\n")
    else:
        model = io.BytesIO()
        options = {"vocab_size": 20, "hard_vocab_limit": False, "minloglevel": 2}
        SentencePieceTrainer.train(sentence_iterator=iter(["1 0 a @ b"]), model_writer=model, **options)
        segmenter = SentencePieceSegmenter(model.getvalue())
    for space in (True, False):
        assert word_of(segmenter.encode_words(["x", word], [True, space])[1]) == word


def test_a_tree_as_text():
    assert draw_tree(["A", "man", "runs", "very", "fast", "."], [1, 2, 2, 4, 2, 2]).splitlines() == [
        "   ╭─ A",
        "╭─ man",
        "runs",
        "│  ╭─ very",
        "├─ fast",
        "╰─ .",
    ]
    assert draw_tree(["a", "b"], [0, 1]) == "a\nb", "two roots"


@given(st.integers(1, 12).flatmap(lambda n: st.tuples(*(st.integers(0, i) for i in range(n)))), st.randoms())
def test_any_tree_is_drawn_with_every_word_at_its_depth(heads, random):
    """heads[i] <= i: a forest; shuffled, so that it is any forest, non-projective ones too."""
    order = list(range(len(heads)))
    random.shuffle(order)
    shuffled = [0] * len(heads)
    for i, head in enumerate(heads):
        shuffled[order[i]] = order[head]
    rows = draw_tree([f"w{i}" for i in range(len(heads))], shuffled).splitlines()
    for i, row in enumerate(rows):
        steps, word = 0, i
        while shuffled[word] != word:
            steps, word = steps + 1, shuffled[word]
        assert row.index(f"w{i}") == 3 * steps and depths(shuffled)[i] == steps


@given(st.integers(1, 12).flatmap(lambda n: st.lists(st.integers(0, n - 1), min_size=n, max_size=n)))
def test_cycles_are_broken_where_the_models_break_them(heads):
    actual = without_cycles(heads)
    assert actual == trees.parents_without_cycles(torch.tensor(heads), len(heads).bit_length()).tolist()
    depths(actual)
    assert len(draw_tree(list(map(str, heads)), heads).splitlines()) == len(heads)


def test_the_corpus_is_what_the_tests_think(data):
    assert conllu(sentences(1)).count("Arcs=") == 6


def _told(folder, capsys) -> str:
    """What ``inspect --check`` says of a directory in which something is wrong; the loader refuses it as well."""
    assert command(["inspect", str(folder), "--check"]) == 1
    printed = capsys.readouterr()
    return printed.out + printed.err


@pytest.mark.matrix(3)
@pytest.mark.parametrize(
    ("name", "size", "message"),
    [
        ("dict.en.txt", -3, "dict.en.txt: cannot be read as a dictionary: Incorrect dictionary format"),
        ("valid.en-de.en.idx", 0, "valid.en-de.en.idx: is damaged, or not an index of a token dataset"),
        ("valid.en-de.en.idx", 20, "valid.en-de.en.idx: is damaged, or not an index of a token dataset"),
        ("valid.en-de.en.idx", 60, "valid.en-de.en.idx: is damaged, or not an index of a token dataset"),
        ("valid.en-de.en.bin", 0, "valid.en-de.en.bin: has 0 bytes, but the index says"),
        ("valid.en-de.en.bin", -2, "bytes, but the index says"),
        ("valid.en-de.en.idx", None, "valid.en-de.en.idx: is damaged"),
    ],
)
def test_damaged_tokens_and_dictionaries_are_problems(data, tmp_path, capsys, name, size, message):
    """The other stores are checked, and binarize says the same of tokens."""
    folder = tmp_path / "bin"
    shutil.copytree(data, folder)
    content = bytearray((folder / name).read_bytes())
    if size is None:  # a bit of the length of the first sentence
        content[26] ^= 1
    else:
        del content[size:]
    (folder / name).write_bytes(content)
    assert command(["inspect", str(folder), "--check"]) == 1
    printed = capsys.readouterr()
    assert message in printed.out.partition("WRONG: ")[2] and not printed.err
    assert ("all 60 sentences are right" in printed.out) == ("dict" not in name)
    if "dict" not in name:
        texts = str(data.parent / "seg" / "valid")
        assert command(["binarize", "-s", "en", "-t", "de", "--validpref", texts, "--output", str(folder)]) == 1
        assert message in capsys.readouterr().err


def test_a_permuted_inventory_is_found_out(segmented, tmp_path, capsys):
    shutil.copytree(segmented, tmp_path / "bin")
    path = tmp_path / "bin/labels.en.json"
    labels = json.loads(path.read_text(encoding="utf-8"))
    labels["deprel"][1:3] = labels["deprel"][2:0:-1]
    path.write_text(json.dumps(labels), encoding="utf-8")
    assert "labels" in _told(tmp_path / "bin", capsys)


def test_another_segmentation_is_found_out(segmented, tmp_path, capsys):
    shutil.copytree(segmented, tmp_path / "bin")
    load_segmenter(segmented / "segmentation.de.json").save(tmp_path / "bin/segmentation.en")
    assert "segmentation" in _told(tmp_path / "bin", capsys)


def test_tokens_of_the_same_lengths_are_found_out(segmented, tmp_path, capsys):
    shutil.copytree(segmented, tmp_path / "bin")
    path = tmp_path / "bin" / VALID.replace(".syntax.arrow", ".bin")
    raw = bytearray(path.read_bytes())
    raw[:8] = raw[8:16]
    path.write_bytes(raw)
    assert "tokens" in _told(tmp_path / "bin", capsys)


@pytest.mark.parametrize("kind", ["sentencepiece", "subword_nmt"])
def test_words_with_a_space_in_them_are_right(tmp_path, capsys, monkeypatch, kind):
    """UD_Finnish-TDT has words such as "10 000"."""
    plain = binarized.conllu
    monkeypatch.setattr(binarized, "conllu", lambda lines, arcs: plain(lines, arcs).replace("\tman\t", "\t10 000\t"))
    data = binarized.make(tmp_path, kind=kind)
    capsys.readouterr()
    assert command(["inspect", str(data), "--check"]) == 0
    assert "WRONG" not in capsys.readouterr().out

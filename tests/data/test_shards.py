"""Data directories that are made apart and trained on together: one dictionary and one inventory for all of them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import binarized
import pytest
import toy_data
from data_errors import data_error, refused

from fairseq_syntax.cli import main
from fairseq_syntax.corpus.header import controls, header
from fairseq_syntax.data import tokens
from fairseq_syntax.data.labels import LabelInventory
from fairseq_syntax.data.packing import unpack
from fairseq_syntax.runtime.parts import Parts
from fairseq_syntax.tasks.config import SyntaxTranslationConfig
from fairseq_syntax.tasks.syntax_translation import SyntaxTranslationTask

LANGS = ("en", "de")
SHARDS = 2
UNLIKE = ("obj", "iobj")  # a label that the second shard alone has, in the place of another


@pytest.fixture(scope="module")
def segmented(tmp_path_factory) -> Path:
    """``0/train``, ``1/train`` and ``both/train``, which is one after the other; the sentences are not the same."""
    folder = tmp_path_factory.mktemp("shards")
    lines = [binarized.sentences(12, seed=number) for number in range(SHARDS)]
    texts = {"0": lines[0], "1": lines[1], "both": lines[0] + lines[1]}
    for name, text in texts.items():
        (folder / name).mkdir()
        rows = binarized.conllu(text).split("\n# line = ")
        first = {"0": len(text), "1": 0, "both": len(lines[0])}[name]
        rows[first + 1 :] = [row.replace(f":{UNLIKE[0]}:", f":{UNLIKE[1]}:") for row in rows[first + 1 :]]
        rows[first + 1 :] = [row.replace(f"\t{UNLIKE[0]}\t", f"\t{UNLIKE[1]}\t") for row in rows[first + 1 :]]
        (folder / name / "train.en.conllu").write_text("\n# line = ".join(rows), encoding="utf-8")
        german = [" ".join(binarized.DE.get(word, word) for word in line.split()) for line in text]
        (folder / name / "train.de").write_text("".join(line + "\n" for line in german), encoding="utf-8")
    for lang, ending in (("en", "en.conllu"), ("de", "de")):
        model = ["--train", "subword_nmt", "--vocab-size", "60"]
        for name in ("both", "0", "1"):
            argv = ["--lang", lang, "--input", f"{folder}/{name}/train.{ending}", "--output", f"{folder}/seg/{name}"]
            assert main(["segment", *argv, *model]) == 0
            model = ["--model", f"{folder}/seg/both/segmentation.{lang}.json"]
    return folder / "seg"


def inventory(segmented: Path, out: Path, *names: str) -> None:
    for lang in LANGS:
        texts = [f"{segmented}/{name}/train.{lang}" for name in names]
        assert main(["inventory", "--lang", lang, "--output", str(out), "--input", *texts]) == 0


def binarize(segmented: Path, out: Path, *more: object) -> None:
    options = ["--task", "syntax_translation", "-s", "en", "-t", "de", "--destdir", out, "--workers", 1]
    options += ["--trainpref", segmented / "train", "--validpref", segmented / "train"]
    toy_data.fairseq("preprocess", *options, *more)


def given(folder: Path) -> list[object]:
    return [
        *("--srcdict", folder / "dict.en.txt", "--tgtdict", folder / "dict.de.txt"),
        *("--source-labels", folder / "labels.en.json"),
    ]


def test_the_inventory_is_that_of_one_directory_of_all_texts(segmented, tmp_path, capsys):
    inventory(segmented, tmp_path / "common", "0", "1")
    assert "labels.en.json: 7 of deprel, 4 of upos, 0 of xpos" in capsys.readouterr().out
    binarize(segmented / "both", tmp_path / "both")
    for name in ("dict.en.txt", "dict.de.txt", "labels.en.json"):
        assert (tmp_path / "common" / name).read_bytes() == (tmp_path / "both" / name).read_bytes(), name
    inventory(segmented, tmp_path / "common", "0", "1")  # nothing is to be done
    other = tmp_path / "text.en"
    other.write_text("a\n")
    argv = ["inventory", "--lang", "en", "--output", str(tmp_path / "c"), "--input", str(other)]
    refused([*argv, f"{segmented}/0/train.en"], path="text.en.conllu")
    assert main([*argv, "--joined", f"{segmented}/0/train.de"]) == 0
    assert not (tmp_path / "c" / "labels.en.json").exists()


def test_several_training_texts_of_one_directory_have_one_dictionary_and_inventory(segmented, tmp_path):
    """train and train1, the second of which alone has a label."""
    inventory(segmented, tmp_path / "common", "0", "1")
    texts = ("--trainpref", f"{segmented}/0/train,{segmented}/1/train")
    with toy_data.logged("fairseq_syntax.data.preprocess") as log:
        binarize(segmented / "0", tmp_path / "data", *texts)
        binarize(segmented / "0", tmp_path / "data", *texts)  # nothing is to be done
    assert "not in the inventory" not in log.getvalue()
    for name in ("dict.en.txt", "dict.de.txt", "labels.en.json"):
        assert (tmp_path / "common" / name).read_bytes() == (tmp_path / "data" / name).read_bytes(), name
    cfg = SyntaxTranslationConfig(data=str(tmp_path / "data"), source_lang="en", target_lang="de")
    cfg.train_subset, cfg.required_seq_len_multiple, cfg.dataset_impl = "train", 1, None
    task = SyntaxTranslationTask.setup_task(cfg)
    task.load_dataset("train", combine=True)
    train = task.datasets["train"]
    names = LabelInventory.load(tmp_path / "data" / "labels.en.json").labels["deprel"]
    for sentences, present, other in ((range(12), *UNLIKE), (range(12, 24), *reversed(UNLIKE))):
        syntax = unpack(train.collater([train[i] for i in sentences])["net_input"]["src_syntax"])
        actual = {names[label] for label in syntax.deprel.tolist()}
        assert present in actual and other not in actual
    assert main(["inspect", str(tmp_path / "data"), "--check"]) == 0


def test_a_dictionary_is_made_in_parts_of_the_texts_one_after_the_other(segmented, tmp_path, monkeypatch):
    texts = [f"{segmented}/{name}/train.de" for name in ("0", "1")]
    command = ["inventory", "--lang", "de", "--output", str(tmp_path / "out"), "--input", *texts, "--workers"]
    monkeypatch.setattr(tokens, "PART_LINES", 5)
    commit, made = Parts.commit, []

    def interrupted(self, span, body):
        made.append(span)
        if len(made) == 5:
            raise KeyboardInterrupt
        commit(self, span, body)

    monkeypatch.setattr(Parts, "commit", interrupted)
    assert main([*command, "1"]) == 130
    monkeypatch.setattr(Parts, "commit", commit)
    assert main([*command, "2"]) == 0
    assert made == [(0, 5), (5, 10), (10, 12), (12, 17), (17, 22)]
    binarize(segmented / "both", tmp_path / "both", "--dict-only")
    actual = tmp_path / "out" / "dict.de.txt"
    assert actual.read_bytes() == (tmp_path / "both" / "dict.de.txt").read_bytes()
    assert not list(actual.parent.glob("*.parts"))


def test_a_dictionary_of_texts_that_are_not_as_they_should_be(tmp_path, capsys):
    """fairseq takes a byte order mark for a word, and ends in its own words at a line that is not UTF-8."""
    (tmp_path / "a.en").write_bytes(b"a b")
    (tmp_path / "b.en").write_bytes("\ufeffb c\n".encode())
    texts = [str(tmp_path / "a.en"), str(tmp_path / "b.en")]
    command = ["inventory", "--lang", "en", "--output", str(tmp_path), "--padding-factor", "1", "--input", *texts]
    assert main(command) == 0
    assert (tmp_path / "dict.en.txt").read_text("utf-8") == "b 2\na 1\nc 1\n"
    (tmp_path / "marked").write_bytes("\ufeffb 2\na 1\n".encode())
    assert tokens.load_dictionary(tmp_path / "marked").symbols[4:] == ["b", "a"]
    (tmp_path / "b.en").write_bytes(b"b\nc \xff\n")
    refused(command, path="b.en", line=2)


@pytest.mark.parametrize("option", ["--input", "--joined"])
def test_a_dictionary_of_a_pipe_is_refused(tmp_path, option):
    """It would be empty, and noted as done."""
    (tmp_path / "a.en").write_text("a b\n", encoding="utf-8")
    os.mkfifo(tmp_path / "pipe.en")
    command = ["inventory", "--lang", "en", "--output", str(tmp_path / "out"), "--input", str(tmp_path / "a.en")]
    refused([*command, option, str(tmp_path / "pipe.en")], path="pipe.en")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_two_updates_on_two_shards_that_were_made_apart(segmented, tmp_path):
    inventory(segmented, tmp_path / "common", "0", "1")
    for name in ("1", "0"):
        binarize(segmented / name, tmp_path / name, *given(tmp_path / "common"))
    both = f"{tmp_path / '0'}:{tmp_path / '1'}"
    with toy_data.logged("fairseq.data.data_utils") as log:
        state = toy_data.train(both, tmp_path / "model", max_tokens=4000, required_batch_size_multiple=1)
    assert state["optimizer_history"][-1]["num_updates"] == 2
    for name in ("0", "1"):
        assert f"{tmp_path / name}/train.en-de.en" in log.getvalue()
    # A shard with labels of its own is refused when its turn comes.
    binarize(segmented / "1", tmp_path / "own", *given(tmp_path / "common")[:4])
    with data_error(path="train.en-de.en.syntax.arrow"):
        toy_data.train(f"{tmp_path / '0'}:{tmp_path / 'own'}", tmp_path / "other", max_tokens=4000)


@pytest.mark.slow
def test_given_labels_do_not_say_how_the_text_was_parsed(segmented, tmp_path):
    """Directories of control parses with the labels of real ones; what is added later does not change what is said."""
    names = {}
    for name, options in (("0", {}), ("1", {"control": ["random"]})):
        names[name] = tmp_path / "seg" / name
        shutil.copytree(segmented / name, names[name])
        path = names[name] / "train.en.conllu"
        rows = header(12, parsed_with={"parser": "p", **options})
        path.write_text(rows + path.read_text("utf-8").split("\n", 1)[1], encoding="utf-8")
    inventory(tmp_path / "seg", tmp_path / "common", "0")
    for name in names:
        binarize(names[name], tmp_path / name, *given(tmp_path / "common"))

    def said(folder):
        return controls(LabelInventory.load(folder / "labels.en.json").parsed_with)

    assert [said(tmp_path / name) for name in ("common", *names)] == [[], [], ["random"]]
    with data_error("random", path="train.en-de.en.syntax.arrow"):  # the second directory is not of the first's kind
        toy_data.train(f"{tmp_path / '1'}:{tmp_path / '0'}", tmp_path / "model", max_tokens=4000)
    added = ["--task", "syntax_translation", "-s", "en", "-t", "de", "--destdir", tmp_path / "1", "--workers", 1]
    toy_data.fairseq("preprocess", *added, "--testpref", names["0"] / "train", *given(tmp_path / "common"))
    assert said(tmp_path / "1") == ["random"]


@pytest.mark.slow
def test_a_shard_of_another_segmentation_is_refused(segmented, tmp_path):
    """A model remembers one segmentation, by which it would cut raw text, and not as in the other directory."""
    argv = ["--lang", "de", "--input", f"{segmented}/1/train.de", "--output", f"{tmp_path}/1"]
    assert main(["segment", *argv, "--train", "subword_nmt", "--vocab-size", "40"]) == 0
    for name in ("train.en", "train.en.conllu", "segmentation.en.json", "segmentation.en.model"):
        shutil.copy(segmented / "1" / name, tmp_path / "1")
    shutil.copytree(segmented / "0", tmp_path / "0")
    inventory(tmp_path, tmp_path / "common", "0", "1")
    for name in ("0", "1"):
        binarize(tmp_path / name, tmp_path / f"bin{name}", *given(tmp_path / "common"))
    with data_error(f"{tmp_path}/bin0", path=f"{tmp_path}/bin1/segmentation.de.json"):
        toy_data.train(f"{tmp_path / 'bin0'}:{tmp_path / 'bin1'}", tmp_path / "model", max_tokens=4000)

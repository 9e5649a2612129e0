"""Data directories whose files are damaged, missing or swapped: training and ``inspect --check`` say so."""

from __future__ import annotations

import os
import shutil
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import toy_data
from data_errors import data_error
from fairseq import tasks

from fairseq_syntax.cli import main as command
from fairseq_syntax.corpus.store.reader import SyntaxStore
from fairseq_syntax.corpus.store.store_format import StoredSentence
from fairseq_syntax.corpus.store.writer import write_sentences
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime import manifest
from fairseq_syntax.runtime.digests import file_checksum
from fairseq_syntax.runtime.manifest import MANIFEST, Manifest


def load(data: Path) -> None:
    """What training reads of a data directory."""
    values = {"source_lang": "en", "target_lang": "de", "dataset_impl": None, "train_subset": "train"}
    task = tasks.setup_task(Namespace(task="syntax_translation", data=str(data), **values))
    for split in ("train", "valid"):
        task.load_dataset(split, combine=True)


def flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)


def swap_lines(path: Path) -> None:
    rows = path.read_text("utf-8").splitlines(keepends=True)
    rows[3], rows[4] = rows[4], rows[3]
    path.write_text("".join(rows), "utf-8")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-4])


def swap_splits(path: Path) -> None:
    other = path.with_name(path.name.replace("train", "valid"))
    here, there = path.read_bytes(), other.read_bytes()
    path.write_bytes(there)
    other.write_bytes(here)


def parse_otherwise(path: Path) -> None:
    """A store of the same words and pieces, in which every word depends on the first one."""
    store = SyntaxStore(path)
    flats = (store.fetch(np.array([number])) for number in range(len(store)))
    words = ((flat, [0] * len(flat.head)) for flat in flats)
    sentences = [StoredSentence(flat.pieces.tolist(), zero, zero, zero, zero) for flat, zero in words]
    write_sentences(path, sentences, store.metadata, with_arcs=False)


DAMAGES = [
    *((name, flip) for name in ("train.en-de.de.bin", "train.en-de.de.idx", "train.en-de.en.idx", "dict.de.txt")),
    *((name, flip) for name in ("segmentation.de.model", "labels.en.json", "valid.en-de.de.bin", MANIFEST)),
    *((name, swap_lines) for name in ("dict.de.txt", "dict.en.txt", "labels.en.json")),
    *((name, cut) for name in ("train.en-de.de.bin", "train.en-de.de.idx", "segmentation.en.json")),
    *((f"{split}.en-de.en.syntax.arrow", parse_otherwise) for split in ("train", "valid")),
    *((name, swap_splits) for name in ("train.en-de.de.bin", "train.en-de.de.idx")),
    *((name, Path.unlink) for name in ("train.en-de.de.bin", "train.en-de.de.idx", "segmentation.en.json")),
    *((name, Path.unlink) for name in ("segmentation.de.json", "labels.en.json", "dict.de.txt")),
]


@pytest.mark.matrix(10)
@pytest.mark.parametrize("name, damage", DAMAGES, ids=lambda value: getattr(value, "__name__", value))
def test_damage_is_told_by_training_and_by_the_check(toy, tmp_path, capsys, name, damage):
    data = tmp_path / "data"
    shutil.copytree(toy.data, data)
    damage(data / name)
    with pytest.raises(SyntaxDataError) as error:
        load(data)
    assert error.value.path is not None and Path(error.value.path).parent == data
    assert command(["inspect", str(data), "--check"]) == 1
    assert str(data / name) in "".join(capsys.readouterr())


def test_whole_data_load_and_a_missing_manifest_is_named(toy, tmp_path, capsys):
    data = tmp_path / "data"
    shutil.copytree(toy.data, data)
    load(data)
    assert command(["inspect", str(data), "--check"]) == 0
    noted = Manifest.read(data)
    files = {path.name for path in data.iterdir() if not path.name.startswith(".")}
    assert set(noted.files) == files - {MANIFEST, "preprocess.log"}
    (data / MANIFEST).unlink()
    load(data)
    assert command(["inspect", str(data), "--check"]) == 1
    assert MANIFEST in capsys.readouterr().out


def test_binarizing_the_syntax_alone_notes_the_tokens_too(toy, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(toy.data, data)
    (data / MANIFEST).unlink()
    options = ["-s", "en", "-t", "de", "--output", str(data)]
    prefixes = [x for split in ("train", "valid") for x in (f"--{split}pref", str(toy.segmented / split))]
    assert not command(["binarize", *options, *prefixes])
    noted = Manifest.read(data).files
    assert noted["train.en-de.de.bin"]["xxh3"] == file_checksum(toy.data / "train.en-de.de.bin")
    assert "test.en-de.de.bin" not in noted and "segmentation.de.model" in noted


def test_files_that_were_compared_are_read_again_only_once_they_are_written_to(toy, tmp_path, monkeypatch):
    data = tmp_path / "data"
    shutil.copytree(toy.data, data)
    read: list[str] = []
    entry_of = manifest.entry_of
    monkeypatch.setattr(manifest, "_SETTLED", 0)
    monkeypatch.setattr(manifest, "entry_of", lambda path: read.append(Path(path).name) or entry_of(path))
    load(data)
    assert "train.en-de.de.bin" in read and len(set(read)) == len(read)
    read.clear()
    load(data)
    assert read == []
    tokens = data / "train.en-de.de.bin"
    times = tokens.stat()
    flip(tokens)
    os.utime(tokens, ns=(times.st_atime_ns, times.st_mtime_ns))  # who changes a file may set its time back
    with pytest.raises(SyntaxDataError) as error:
        load(data)
    assert Path(error.value.path) == tokens and read == [tokens.name]


def test_files_that_have_just_been_written_are_compared_again(toy, tmp_path, monkeypatch):
    """Within the resolution of a file system's clock two contents may have one time."""
    data = tmp_path / "data"
    shutil.copytree(toy.data, data, ignore=shutil.ignore_patterns(manifest.COMPARED))
    monkeypatch.setattr(manifest, "_SETTLED", 10**15)
    load(data)
    assert not (data / manifest.COMPARED).exists()


def test_tokens_that_are_text_are_found_and_compared_also_for_the_other_direction(toy, tmp_path):
    """``--dataset-impl raw`` has no index."""
    options = ["--task", "syntax_translation", "-s", "de", "-t", "en", "--dataset-impl", "raw", "--workers", 1]
    splits = [part for split in ("train", "valid") for part in (f"--{split}pref", toy.segmented / split)]
    toy_data.fairseq("preprocess", *options, *splits, "--destdir", tmp_path)
    values = {"source_lang": "en", "target_lang": "de", "train_subset": "train", "data": str(tmp_path)}
    task = tasks.setup_task(Namespace(task="syntax_translation", **values, dataset_impl="raw"))
    task.add_need("source", frozenset({"tree"}))
    task.load_dataset("train", combine=True)
    assert task.datasets["train"].source_syntax is not None
    for split, impl, names in (("tarin", "raw", ["train, valid"]), ("train", None, ["raw"])):
        task = tasks.setup_task(Namespace(task="syntax_translation", **values, dataset_impl=impl))
        with data_error(*names, path=tmp_path):
            task.load_dataset(split)
    swap_lines(tmp_path / "train.de-en.en")
    task = tasks.setup_task(Namespace(task="syntax_translation", **values, dataset_impl="raw"))
    with data_error(path="train.de-en.en"):
        task.load_dataset("train", combine=True)

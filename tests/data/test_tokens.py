"""Dictionaries and token datasets, made in parts, against those that fairseq writes itself."""

from __future__ import annotations

import os
import pickle
import random
from pathlib import Path

import kills
import numpy as np
import pytest
import torch
from data_errors import data_error
from fairseq.binarizer import FileBinarizer, VocabularyDatasetBinarizer
from fairseq.data import Dictionary, data_utils
from fairseq.data.indexed_dataset import IndexedDatasetBuilder, MMapIndexedDataset
from fairseq.tasks.translation import TranslationTask

from fairseq_syntax.data import tokens
from fairseq_syntax.data.tokens import binarize_tokens, load_dictionary, make_dictionary
from fairseq_syntax.runtime.jobs import RecordedStep
from fairseq_syntax.runtime.parts import Parts

WORDS = [
    "a",
    "▁the",
    "<unk>",
    "</s>",
    "<pad>",
    "unknown",
    "ünknown",
    "0",
    "\u00a0",
    "\u3000",
    "\x85",
    "\x1c",
    "\u2028",
    "  ",
]


def written(prefix: Path) -> tuple[bytes, bytes]:
    return tuple(Path(f"{prefix}.{ending}").read_bytes() for ending in ("bin", "idx"))


def dictionary(size: int) -> Dictionary:
    result = Dictionary()
    for word in ("a", "▁the", "0", *(f"w{number}" for number in range(size))):
        result.add_symbol(word)
    return result


@pytest.fixture
def text(tmp_path):
    rng = random.Random(1)
    lines = [" ".join(rng.choices([*WORDS, "w3", "w65600"], k=rng.randrange(12))) for _ in range(60)]
    path = tmp_path / "t.en"
    path.write_text("\n\n" + "\n".join(lines) + rng.choice(["\n", ""]), encoding="utf-8", newline="\n")
    return path


def interrupted(at: int, made: list[int]):
    """``Parts.commit``, which notes the first lines of the parts that it gets, and is interrupted once."""
    commit = Parts.commit

    def counting(self, span, body):
        made.append(span[0])
        if len(made) == at:
            raise KeyboardInterrupt
        return commit(self, span, body)

    return counting


def binarize(path: Path, prefix: Path, words: Dictionary, workers: int = 1):
    step = RecordedStep.of("tokens", [f"{prefix}.bin", f"{prefix}.idx"], [path])
    return binarize_tokens(step, path, words, workers=workers)


def counted(path: Path, out: Path, workers: int = 1, **options: int) -> Dictionary:
    options = {"threshold": -1, "nwords": -1, "padding_factor": 8, **options}
    symbols = make_dictionary(
        RecordedStep.of("dictionary", [out], [path], **options), [path], workers=workers, **options
    )
    made = load_dictionary(out)
    assert symbols == len(made)
    return made


@pytest.mark.parametrize("size", [10, 70_000])
@pytest.mark.parametrize("workers", [1, 2])
def test_the_bytes_and_the_summary_are_those_of_fairseq(text, tmp_path, monkeypatch, size, workers):
    words = dictionary(size)
    binarizer = VocabularyDatasetBinarizer(words, append_eos=True)
    summary = FileBinarizer.multiprocess_dataset(str(text), "mmap", binarizer, str(tmp_path / "a"), len(words))
    assert summary.num_replaced > 10
    for part_lines in (7, 1000):
        monkeypatch.setattr(tokens, "PART_LINES", part_lines)
        (tmp_path / "b.bin").unlink(missing_ok=True)  # so that it is not done
        actual = binarize(text, tmp_path / "b", words, workers=workers)
        assert str(actual) == str(summary)
        assert written(tmp_path / "b") == written(tmp_path / "a")
        assert not (tmp_path / "b.bin.parts").exists()
    assert MMapIndexedDataset(str(tmp_path / "b"))._index.dtype == (np.uint16 if size == 10 else np.uint32)


def test_a_run_that_was_killed_goes_on_and_damaged_parts_are_made_again(text, tmp_path, monkeypatch):
    words, made = dictionary(10), []
    monkeypatch.setattr(tokens, "PART_LINES", 7)
    binarize(text, tmp_path / "a", words)
    monkeypatch.setattr(Parts, "commit", interrupted(4, made))
    with pytest.raises(KeyboardInterrupt):
        binarize(text, tmp_path / "b", words)
    (part,) = (tmp_path / "b.bin.parts").glob("000000000007-000000000014.*.part")
    part.write_bytes(part.read_bytes()[:-1] + b"\xff")
    binarize(text, tmp_path / "b", words)
    assert made[:6] == [0, 7, 14, 21, 7, 21] and made[6:] == list(range(28, 63, 7))
    assert written(tmp_path / "b") == written(tmp_path / "a")


def test_a_line_ends_where_its_parse_does(tmp_path):
    """fairseq ends a line at a carriage return, too, and takes a byte order mark for a word."""
    words = dictionary(10)
    (tmp_path / "t.en").write_bytes("\ufeffw1 w2\r\nw3\rw4\n".encode())
    binarize(tmp_path / "t.en", tmp_path / "t", words)
    actual = MMapIndexedDataset(str(tmp_path / "t"))
    assert [words.string(sentence) for sentence in actual] == ["w1 w2", "w3 w4"]
    (tmp_path / "u.en").write_bytes(b"w1\nw2 \xff\n")
    with data_error(path="u.en", line=2):
        binarize(tmp_path / "u.en", tmp_path / "u", words)
    assert not (tmp_path / "u.bin").exists() and not (tmp_path / "u.bin.parts").exists()


@pytest.mark.parametrize("options", [{}, {"threshold": 20}, {"nwords": 9, "padding_factor": 1}])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_dictionary_of_counted_words_is_that_of_fairseq(text, tmp_path, monkeypatch, workers, options):
    monkeypatch.setattr(tokens, "PART_LINES", 7)
    theirs = TranslationTask.build_dictionary([str(text)], **options)
    actual = counted(text, tmp_path / "dict.txt", workers, **options)
    assert actual.symbols == theirs.symbols
    assert actual.count[actual.nspecial :] == theirs.count[theirs.nspecial :]
    assert not (tmp_path / "dict.txt.parts").exists()


def test_counting_goes_on_where_it_was_killed(text, tmp_path, monkeypatch):
    made: list[int] = []
    monkeypatch.setattr(tokens, "PART_LINES", 7)
    counted(text, tmp_path / "a.txt")
    monkeypatch.setattr(Parts, "commit", interrupted(4, made))
    with pytest.raises(KeyboardInterrupt):
        counted(text, tmp_path / "b.txt")
    assert list(tmp_path.glob("b.txt.parts/*.part")) and not (tmp_path / "b.txt").exists()
    counted(text, tmp_path / "b.txt")
    assert (tmp_path / "a.txt").read_bytes() == (tmp_path / "b.txt").read_bytes()
    assert made == [0, 7, 14, 21, 21, *range(28, 63, 7)]


def test_a_kill_leaves_no_tokens_with_the_index_of_others(text, tmp_path):
    """The two files take their names one after the other: between that there is no dataset."""
    words = dictionary(10)
    (tmp_path / "other.en").write_text("a\n", encoding="utf-8")
    binarize(text, tmp_path / "whole", words)
    for moment in range(50):
        cut = tmp_path / f"cut{moment}"
        binarize(tmp_path / "other.en", cut, words)
        old = written(cut)
        killed = kills.killed_at(moment, lambda cut=cut: binarize(text, cut, words))
        actual = [
            path.read_bytes() if (path := Path(f"{cut}.{ending}")).exists() else None for ending in ("bin", "idx")
        ]
        assert actual[1] is None or tuple(actual) in (old, written(tmp_path / "whole"))
        if not killed:
            break
    assert moment >= 4 and tuple(actual) == written(tmp_path / "whole")


@pytest.mark.parametrize("kind", ["lazy", "cached"])
def test_tokens_of_the_older_kinds_are_read_by_each_process_for_itself(tmp_path, kind):
    """A data loader's workers share fairseq's open file, and with it the position of the next sentence."""
    prefix = str(tmp_path / "tokens")
    builder = IndexedDatasetBuilder(prefix + ".bin")
    for number in range(5):
        builder.add_item(torch.full((number + 1,), number))
    builder.finalize(prefix + ".idx")
    dataset = data_utils.load_indexed_dataset(prefix, None, kind)
    assert dataset[3].tolist() == [3] * 4, "without being told to prefetch it"
    file, two = dataset.data_file, np.empty(2, np.int32)
    file.seek(4 * 10)
    os.lseek(file.fileno(), 0, os.SEEK_SET)  # as another process does
    for _ in range(2):
        assert file.readinto(two) == 8 and two.tolist() == [5, 5]  # fairseq adds 1
    assert pickle.loads(pickle.dumps(dataset))[4].tolist() == [4] * 5, "in a worker that was not forked"


def test_a_byte_order_mark_is_no_part_of_the_first_piece(tmp_path):
    path = tmp_path / "dict.txt"
    dictionary(3).save(str(path))
    expected = load_dictionary(path).symbols
    path.write_bytes("\ufeff".encode() + path.read_bytes())
    assert load_dictionary(path).symbols == expected
    path.write_bytes(path.read_text("utf-8-sig").encode("utf-16-le"))
    with data_error(path=path):
        load_dictionary(path)

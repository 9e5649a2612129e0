"""fairseq-preprocess and binarize, killed at any point and given again, end with the bytes of an undisturbed run."""

import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import toy_data
from data_errors import data_error
from fairseq import options
from fairseq_cli import preprocess
from full_disk import files_no_larger_than
from random_parses import numbers

import fairseq_syntax.data.binarize as binarizing
from fairseq_syntax.corpus.conllu import read_conllu, write_conllu
from fairseq_syntax.corpus.store.reader import SyntaxStore
from fairseq_syntax.corpus.text_parts import conllu_parts, count_lines
from fairseq_syntax.data.labels import LabelInventory
from fairseq_syntax.runtime import jobs, parts


class Killed(BaseException):
    """Stands for a kill: nothing in the package catches it."""


@pytest.fixture(scope="module")
def segmented(tmp_path_factory) -> Path:
    raw, out = tmp_path_factory.mktemp("raw"), tmp_path_factory.mktemp("seg")
    toy_data.write_raw(raw, toy_data.corpus(seed=3))
    toy_data.segment(raw, out)
    return out


def run(segmented: Path, data: Path, *more: str) -> None:
    argv = [str(a) for a in toy_data.preprocess_options(segmented, data)]
    args = options.get_preprocessing_parser().parse_args([*argv, *more])  # puts the package's main in its place
    preprocess.main(args)


def content(data: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in data.iterdir() if p.suffix in (".bin", ".idx", ".txt", ".json", ".arrow")}


@pytest.mark.matrix(1)
@pytest.mark.slow
@pytest.mark.parametrize("joined", [False, True])
def test_killed_after_any_file_and_given_again(segmented, tmp_path, monkeypatch, joined):
    more = ["--joined-dictionary"] if joined else []
    run(segmented, tmp_path / "whole", *more)
    whole = {n: b for n, b in content(tmp_path / "whole").items() if n != "preprocess.log"}
    counted = jobs.write_json
    for stop in range(1, 30):
        calls = []

        def note(path, value, stop=stop, calls=calls):
            calls.append(path)
            if len(calls) == stop:
                raise Killed
            counted(path, value)

        monkeypatch.setattr(jobs, "write_json", note)
        data = tmp_path / f"cut{stop}"
        try:
            run(segmented, data, *more)
            break
        except Killed:
            monkeypatch.setattr(jobs, "write_json", counted)
        for path in list(data.glob("*.bin"))[:1] + list(data.glob("dict.*.txt"))[stop % 2 :][:1]:
            path.write_bytes(path.read_bytes()[:-3])  # it was being written
        run(segmented, data, *more)
        assert content(data) == whole
        assert not list(data.glob("*.parts"))
        shutil.rmtree(data)
    assert stop > 8, "dictionaries and tokens were noted, begun and done"


@pytest.mark.parametrize("task", ["syntax_translation", "translation"])
def test_the_log_of_one_run_takes_no_lines_of_the_next(segmented, tmp_path, task):
    handlers = list(preprocess.logger.handlers)
    run(segmented, tmp_path / "data", "--task", task)
    assert preprocess.logger.handlers == handlers
    assert (tmp_path / "data" / "preprocess.log").read_text()


def test_a_joined_dictionary_of_the_source_alone_is_that_of_both_texts(segmented, tmp_path):
    for name, more in (("both", []), ("source", ["--only-source"])):
        run(segmented, tmp_path / name, "--joined-dictionary", "--dict-only", *more)
    actual = [(tmp_path / name / "dict.en.txt").read_bytes() for name in ("both", "source")]
    assert actual[0] == actual[1] and not (tmp_path / "source" / "dict.de.txt").exists()


@pytest.mark.parametrize("more", [[], ["--joined-dictionary"]])
def test_given_again_nothing_is_made_and_another_text_is_refused(segmented, tmp_path, more):
    data = tmp_path / "data"
    run(segmented, data, *more)
    before = {p.name: p.stat().st_mtime_ns for p in data.glob("*.bin")}
    whole = content(data)
    run(segmented, data, *more)
    assert content(data) == whole
    assert before == {p.name: p.stat().st_mtime_ns for p in data.glob("*.bin")}
    other = tmp_path / "other"
    shutil.copytree(segmented, other)
    for name in ("train.en", "train.en.conllu", "train.de"):
        shutil.copy(other / name.replace("train", "valid"), other / name)
    with data_error(path="dict.en.txt"):
        run(other, data, *more)


def test_a_full_disk_and_then_room(segmented, tmp_path):
    run(segmented, tmp_path / "whole")
    with files_no_larger_than(1500), data_error():
        run(segmented, tmp_path / "data")
    run(segmented, tmp_path / "data")
    assert content(tmp_path / "data") == content(tmp_path / "whole")


def test_a_full_disk_leaves_the_dictionaries_of_an_earlier_run(segmented, tmp_path):
    run(segmented, tmp_path, "--dict-only")
    made = content(tmp_path)
    given = ["--srcdict", str(tmp_path / "dict.en.txt"), "--tgtdict", str(tmp_path / "dict.de.txt")]
    with files_no_larger_than(100), data_error(path="dict.en.txt"):
        run(segmented, tmp_path, "--dict-only", *given)
    assert content(tmp_path) == made


@pytest.mark.parametrize(("lang", "option", "other"), [("en", "--srcdict", "de"), ("de", "--tgtdict", "en")])
def test_a_given_joined_dictionary_is_taken_again(segmented, tmp_path, lang, option, other):
    run(segmented, tmp_path / "made", "--joined-dictionary", "--dict-only")
    data, given = tmp_path / "data", tmp_path / "made" / f"dict.{lang}.txt"
    more = ["--joined-dictionary", option, str(given)]
    run(segmented, data, *more)
    whole, copy = content(data), data / f"dict.{other}.txt"
    run(segmented, data, *more)
    assert content(data) == whole
    run(segmented, data, "--joined-dictionary", option, str(copy))
    assert content(data) == whole
    copy.write_text("another 1\n", encoding="utf-8")
    with data_error(path=f"dict.{other}.txt"):
        run(segmented, data, *more)
    assert copy.read_text(encoding="utf-8") == "another 1\n"


def test_what_is_given_is_looked_at_before_the_work(segmented, tmp_path):
    missing, bad = tmp_path / "missing", tmp_path / "bad"
    bad.write_text("no count\n", encoding="utf-8")
    for option, path in (
        ("--srcdict", missing),
        ("--tgtdict", bad),
        ("--source-labels", missing),
        ("--target-labels", bad),
    ):
        with data_error(path=path):
            run(segmented, tmp_path / "data", option, str(path))
    run(segmented, tmp_path / "made", "--dict-only")
    made = {lang: str(tmp_path / "made" / f"dict.{lang}.txt") for lang in ("en", "de")}
    both = ["--srcdict", made["en"], "--tgtdict", made["de"]]
    with data_error("--joined-dictionary"):
        run(segmented, tmp_path / "data", "--joined-dictionary", *both)
    with data_error(option="--trainpref"):
        run(segmented, tmp_path / "data", "--trainpref", "", *both[:2])
    assert not (tmp_path / "data").exists()


def store_of(segmented, out, **more) -> bytes:
    given = {"lang": "en", "dictionary": str(segmented / "train.en"), **more}
    labels = LabelInventory()
    binarizing.binarize(str(segmented / "train.en"), str(segmented / "train.en.conllu"), str(out), labels, **given)
    return out.read_bytes()


def test_parts_workers_and_kills_do_not_change_the_store(segmented, tmp_path, monkeypatch):
    monkeypatch.setattr(binarizing, "SENTENCES_PER_CHUNK", 7)
    whole = store_of(segmented, tmp_path / "a.arrow")
    assert store_of(segmented, tmp_path / "b.arrow", workers=2) == whole
    commit, done = parts.Parts.commit, []

    def kill(self, span, body):
        done.append(span)
        if len(done) == 3:
            raise Killed
        commit(self, span, body)

    monkeypatch.setattr(parts.Parts, "commit", kill)
    with pytest.raises(Killed):
        store_of(segmented, tmp_path / "c.arrow")
    assert store_of(segmented, tmp_path / "c.arrow") == whole
    assert done.count(done[0]) == 1 and done.count(done[2]) == 2, "what was committed is not made again"
    names = [f"{name}.arrow" for name in "abc"]
    assert sorted(p.name for p in tmp_path.iterdir()) == [*(f".{name}.made.json" for name in names), *names]
    monkeypatch.setattr(binarizing, "SENTENCES_PER_CHUNK", 4096)
    one = tmp_path / "one.arrow"
    store_of(segmented, one)
    ids = np.arange(len(SyntaxStore(one)))
    assert numbers(SyntaxStore(one).fetch(ids)) == numbers(SyntaxStore(tmp_path / "a.arrow").fetch(ids))
    assert SyntaxStore(one).labels == SyntaxStore(tmp_path / "a.arrow").labels


def test_a_damaged_store_is_made_again(segmented, tmp_path):
    out = tmp_path / "a.arrow"
    whole = store_of(segmented, out)
    mark = out.stat().st_mtime_ns
    assert store_of(segmented, out) == whole and out.stat().st_mtime_ns == mark
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 16
    out.write_bytes(damaged)
    assert store_of(segmented, out) == whole


@pytest.mark.matrix(2)
@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("numbered", [True, False])
def test_a_parse_cut_into_parts_is_the_parse(tmp_path, numbered, mark):
    rng = random.Random(1)
    path = tmp_path / "t.conllu"
    numbers = sorted(rng.sample(range(40), 20)) if numbered else range(20)
    with open(path, "w", encoding="utf-8") as file:
        for number in numbers:
            line = toy_data.random_parsed_line(rng, number, max_sentences=2 if numbered else 1)
            write_conllu(file, line)
    if not numbered:
        rows = path.read_text(encoding="utf-8").splitlines(keepends=True)
        path.write_text("".join(row for row in rows if not row.startswith("# line")), encoding="utf-8")
    path.write_text(f"{mark}# lines = {number + 1}\n" + path.read_text(encoding="utf-8"), encoding="utf-8")
    assert count_lines(path) == number + 1
    expected = list(read_conllu(path))
    for size in (1, 3, 7, 100):
        parts = list(conllu_parts(path, size))
        assert [part.start for part in parts] == list(range(0, len(expected), size))
        actual = [line for part in parts for line in part.parses()]
        for a, b in zip(expected, actual, strict=True):
            assert (a.words, a.heads, a.line_number, a.arcs) == (b.words, b.heads, b.line_number, b.arcs)
            assert a.file_line == b.file_line or not a.words
    if numbered:
        path.write_text(path.read_text(encoding="utf-8").partition("\n")[2], encoding="utf-8")
        with data_error(path="t.conllu"):
            list(conllu_parts(path, 5, n_lines=10))
        path.write_text(path.read_text(encoding="utf-8").replace("# line = ", "# line = 99999"), encoding="utf-8")
        with data_error("# lines = N", path="t.conllu"):
            list(conllu_parts(path, 5))

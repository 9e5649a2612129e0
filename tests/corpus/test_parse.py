"""Parsing a corpus: lines in, lines out, whatever is in them and whatever happens in between."""

from __future__ import annotations

import errno
import gzip
import os
import re
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path

import chain_parser
import pytest
import torch
from data_errors import data_error, refused
from hypothesis import given, settings
from hypothesis import strategies as st
from matrix_part import examples

import emulated_cuda
from fairseq_syntax.cli import main
from fairseq_syntax.corpus.conllu import ParsedLine, read_conllu, text_of, write_conllu
from fairseq_syntax.corpus.header import parsed_with
from fairseq_syntax.corpus.parsing import parse_jobs
from fairseq_syntax.corpus.parsing.conllu_file import pass_on
from fairseq_syntax.corpus.parsing.parse_jobs import Job, merge, parse_corpus
from fairseq_syntax.corpus.parsing.parser import LONGEST_WORD, ParserOptions, load_parser, options_as_before
from fairseq_syntax.corpus.parsing.tokenizers import BasicTokenizer, spell_out
from fairseq_syntax.corpus.words import single_spaced
from fairseq_syntax.runtime.locks import locked
from fairseq_syntax.runtime.parts import Parts

CHAIN = ParserOptions(parser="chain_parser")
# Of processes that find the tests' own parser.
PATHS = [str(Path(__file__).parents[1] / "helpers"), str(Path(__file__).parents[2])]
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(PATHS), "OMP_NUM_THREADS": "1"}
TEXT = ["A man sleeps.", "", "Two dogs, one cat", "  ", "It's late! Isn't it?", "end", ""]


@pytest.fixture
def text(tmp_path) -> Path:
    path = tmp_path / "text.en"
    path.write_text("".join(f"{line}\n" for line in TEXT), encoding="utf-8")
    return path


def job(text: Path, name: str = "out.conllu", **changes) -> Job:
    return Job(text, text.with_name(name), changes.pop("options", CHAIN), **{"part_lines": 2} | changes)


def forms(tokenizer: BasicTokenizer, line: str) -> list[list[str]]:
    return [[token.form for token in sentence] for sentence in tokenizer.tokenize([line])[0]]


# ------------------------------------------------------------------------------------------------------ tokenizers


def test_the_basic_tokenizer_splits_as_english_treebanks_do():
    line = "\"Don't,\" said Mr. O'Neil's wife: $1,000.50 at 10:30 (U.S.) isn't the 15-year-old's... www.a.org/b?c."
    assert " ".join(*forms(BasicTokenizer("en"), line)) == (
        "\" Do n't , \" said Mr. O'Neil 's wife : $ 1,000.50 at 10:30 ( U.S. ) is n't the 15-year-old 's ... "
        "www.a.org/b?c ."
    )
    assert forms(BasicTokenizer("fr"), "L'homme d'aujourd'hui.") == [["L'", "homme", "d'", "aujourd'hui", "."]]
    assert forms(BasicTokenizer("de"), "Geht's?") == [["Geht's", "?"]]
    assert forms(BasicTokenizer("hi"), "नमस्ते दुनिया।") == [["नमस्ते", "दुनिया", "।"]]


def test_sentences_are_split_on_request_only():
    line = 'He said: "Stop!" Then he left... and Mr. Smith came. 2 dogs. yes'
    assert len(forms(BasicTokenizer("en"), line)) == 1
    split = forms(BasicTokenizer("en", split_sentences=True), line)
    assert [" ".join(sentence) for sentence in split] == [
        'He said : " Stop ! "',
        "Then he left ... and Mr. Smith came .",
        "2 dogs . yes",
    ]


@settings(max_examples=examples(300))
@given(
    st.one_of(
        st.text(max_size=60),
        st.lists(st.sampled_from(["a", "B", "9", ".", ",", "'", "n't", '"', "-", "(", ")", "é", "。", "@", "/", "\t"])),
    ),
    st.sampled_from(["en", "fr", "it", "de"]),
    st.booleans(),
)
def test_tokens_always_add_up_to_the_text(line, lang, split):
    line = "".join(line)
    options = ParserOptions(parser="chain_parser", lang=lang, split_sentences=split)
    (parsed,) = load_parser(options).parse([line])
    assert text_of(parsed) == single_spaced(line)
    assert len(parsed.sentences) <= 1 or split


@pytest.mark.parametrize("space", ["\u00a0", "\t", "  ", "\u2009\u2009"])
def test_white_space_within_a_token_is_a_single_space(space):
    tokens = spell_out(f"Il a 10{space}000 fr.", ["Il", "a", f"10{space}000", "fr."])
    assert [(token.form, token.words) for token in tokens[2:3]] == [("10 000", ["10 000"])]
    edges = spell_out(f"10{space}000", [f"10{space}", "000"])
    assert [(token.form, token.space_after) for token in edges] == [("10", True), ("000", True)]


class _Losing(BasicTokenizer):
    """A tokenizer that leaves out the word "lost"."""

    def _line(self, line, number):
        return [spell_out(line, [form for form in line.split() if form != "lost"], number)] if line.strip() else []


def test_a_tokenizer_that_loses_text_is_told_with_file_and_line(text, monkeypatch):
    text.write_text("\n".join(["a", "", "b", "all is lost", "c"]), encoding="utf-8")
    monkeypatch.setattr("fairseq_syntax.corpus.parsing.parser.BasicTokenizer", _Losing)
    with data_error("' lost'", "--tokenizer", path="text.en"):
        parse_corpus(job(text, part_lines=3))
    with data_error("--tokenizer", line=9):
        load_parser(CHAIN).parse([["a", "list"], "b", "it is lost"], first_line=6)


def test_a_tokenizer_that_changes_the_text_is_found_out():
    with data_error("dog", "--tokenizer"):
        spell_out("a cat", ["a", "dog"])
    with data_error("cat", "--tokenizer"):
        spell_out("a cat", ["a"])


@pytest.mark.slow
def test_spacy_tokenizes_where_it_is_installed():
    pytest.importorskip("spacy")
    options = ParserOptions(parser="chain_parser", tokenizer="spacy", split_sentences=True)
    (parsed, empty) = load_parser(options).parse(["It isn't  late. Go home!", ""])
    assert parsed.words == ["It", "is", "n't", "late", ".", "Go", "home", "!"]
    assert parsed.sentences == [(0, 5), (5, 8)] and empty.words == []


# ------------------------------------------------------------------------------------------------------ lines


def test_words_are_numbered_through_the_line_and_roots_are_their_own_heads():
    options = ParserOptions(parser="chain_parser", split_sentences=True, distributions=True)
    (line,) = load_parser(options).parse(["Go home. It rains."], first_line=7)
    assert line.line_number == 7
    assert line.sentences == [(0, 3), (3, 6)]
    assert line.heads == [0, 0, 1, 3, 3, 4]
    assert line.arcs[3:5] == [(3, 3, "root", 0.9), (4, 3, "dep", 0.9)]


def test_lists_of_tokens_are_taken_as_they_are():
    first, empty = load_parser(CHAIN).parse([["don't", "split", "me."], []])
    assert first.words == ["don't", "split", "me."] and text_of(first) == "don't split me."
    assert empty.words == []


def test_pretokenized_text_is_split_at_spaces_only():
    (line,) = load_parser(ParserOptions(parser="chain_parser", tokenizer="whitespace")).parse(["do n't , ok ? No !"])
    assert line.words == ["do", "n't", ",", "ok", "?", "No", "!"] and len(line.sentences) == 1


def test_the_parser_reads_the_characters_that_moses_escapes():
    """Its tokens stay in the parse as they are in the text, of which the pieces are made."""
    seen, line = [], "it &apos;s a &quot;well @-@ known&quot; &amp;lt; a@-@b"
    for tokenizer in ("whitespace", "basic"):
        parser = load_parser(ParserOptions(parser="chain_parser", tokenizer=tokenizer))
        parser.parse_sentences = lambda sentences, parse=parser.parse_sentences: (
            seen.append(sentences) or parse(sentences)
        )
        assert text_of(*parser.parse([line])) == line
    assert seen[0] == [["it", "'s", "a", '"well', "-", 'known"', "&lt;", "a@-@b"]]
    assert "&" in seen[1][0]  # raw text has no escapes


def test_of_a_very_long_word_the_parser_sees_the_beginning(monkeypatch):
    parser = load_parser(CHAIN)
    seen, parse = [], parser.parse_sentences
    monkeypatch.setattr(parser, "parse_sentences", lambda sentences: seen.extend(sentences) or parse(sentences))
    text = "a " + "x" * 100_000 + " man"
    (line,) = parser.parse([text])
    assert text_of(line) == text and len(line.words[1]) == 100_000
    assert [len(word) for word in seen[0]] == [1, LONGEST_WORD, 3]


def test_long_sentences_are_parsed_in_parts_or_refused():
    words = ["w"] * 10 + [","] + ["w"] * 14
    split = load_parser(ParserOptions(parser="chain_parser", max_words=12)).parse([words])[0]
    assert split.sentences == [(0, 11), (11, 23), (23, 25)]
    assert split.words == words
    with data_error("25", "12"):
        load_parser(ParserOptions(parser="chain_parser", max_words=12, long_lines="error")).parse([words])


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (ParserOptions(parser="nothing_of_this_name"), ["nothing_of_this_name"]),
        (ParserOptions(parser="csv"), ["csv"]),
        (ParserOptions(parser="chain_parser", tokenizer="stanza"), ["chain_parser", "stanza"]),
        (ParserOptions(parser="chain_parser", device="nosuch"), ["nosuch"]),
    ],
)
def test_unknown_parsers_tokenizers_and_devices(options, names):
    with data_error(*names):
        load_parser(options)


# ------------------------------------------------------------------------------------------------------ jobs


def folder_of(text: Path) -> Path:
    return job(text).parts.folder


def test_every_line_comes_out_once_and_in_order(text):
    output = parse_corpus(job(text))
    assert [text_of(line) for line in read_conllu(output, n_lines=len(TEXT))] == [single_spaced(line) for line in TEXT]
    assert [line.line_number for line in read_conllu(output)] == list(range(len(TEXT)))
    assert sorted(os.listdir(text.parent)) == [".out.conllu.made.json", "out.conllu", "text.en"]


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_parts_and_workers_do_not_change_the_bytes(text, workers):
    whole = parse_corpus(job(text, "whole.conllu"))
    assert parse_corpus(job(text, "workers.conllu", workers=workers)).read_bytes() == whole.read_bytes()
    gz = text.with_suffix(".en.gz")
    gz.write_bytes(gzip.compress(text.read_bytes()))
    assert parse_corpus(job(gz, "gz.conllu")).read_bytes() == whole.read_bytes()


def test_shards_together_are_the_whole(text):
    whole = parse_corpus(job(text, "whole.conllu")).read_bytes()
    for count in (1, 2, 3, 4, 5, 9):
        shards = [job(text, f"{count}.conllu", shard=(number, count)) for number in range(1, count + 1)]
        covered = [part for shard in shards for part in shard.shard_spans]
        assert covered == shards[0].spans
        for shard in [*reversed(shards), shards[0]]:
            assert parse_corpus(shard) is None
        assert merge(job(text, f"{count}.conllu")).read_bytes() == whole


@settings(max_examples=examples(30))
@given(
    st.lists(st.text(st.characters(exclude_characters="\n\r\0", exclude_categories=["Cs"]), max_size=12), min_size=1),
    st.integers(1, 4),
    st.integers(1, 5),
)
def test_no_line_is_lost_or_doubled(lines, part_lines, shards):
    how = {"part_lines": part_lines, "options": replace(CHAIN, tokenizer="whitespace")}  # takes any script
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text"
        text.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="")
        for number in range(1, shards + 1):
            parse_corpus(job(text, **how, shard=(number, shards)))
        output = merge(job(text, **how))
        actual = [text_of(line) for line in read_conllu(output, n_lines=len(lines))]
        assert actual == [single_spaced(line) for line in lines]


def test_a_merge_before_the_end_says_which_lines_are_missing(text):
    parse_corpus(job(text, shard=(1, 2)))
    with data_error(path="out.conllu.parts"):
        merge(job(text))
    assert not job(text).output.exists()
    assert parse_corpus(job(text)).exists()  # without a shard, the rest is parsed


def test_a_run_that_failed_continues_where_it_was(text, monkeypatch):
    whole = parse_corpus(job(text, "whole.conllu")).read_bytes()
    real, calls = os.fsync, []

    def full(descriptor):
        calls.append(descriptor)
        if len(calls) == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with data_error(".part"):
        parse_corpus(job(text))
    monkeypatch.setattr(os, "fsync", real)
    spans = [name.partition(".")[0] for name in sorted(os.listdir(folder_of(text)))]
    assert spans == ["000000000000-000000000002", "000000000002-000000000004"]
    marks = {name: os.stat(folder_of(text) / name).st_mtime_ns for name in os.listdir(folder_of(text))}
    parse_corpus(job(text, shard=(1, 1)))
    assert all(os.stat(folder_of(text) / name).st_mtime_ns == mark for name, mark in marks.items())
    assert parse_corpus(job(text)).read_bytes() == whole


def test_a_text_that_is_overwritten_while_it_is_parsed_is_told(text, monkeypatch):
    text.write_text("a line\n" * 5000)  # more than is read at once
    whole, overwritten = chain_parser.ChainParser.parse_sentences, iter([True])

    def and_overwritten(self, sentences):
        if next(overwritten, False):
            text.write_text("another line\n" * 100)
        return whole(self, sentences)

    monkeypatch.setattr(chain_parser.ChainParser, "parse_sentences", and_overwritten)
    with data_error(path="out.conllu"):
        parse_corpus(job(text, part_lines=100))
    assert not list(text.parent.glob("out*"))
    assert len(list(read_conllu(parse_corpus(job(text, part_lines=100))))) == 100


def test_a_damaged_part_is_parsed_again(text):
    whole = parse_corpus(job(text, "whole.conllu")).read_bytes()
    parse_corpus(job(text, shard=(1, 1)))
    for number, damage in enumerate([lambda b: b[:-20], lambda b: b"", lambda b: b.replace(b"A\t", b"B\t")]):
        part = job(text).parts.path(job(text).spans[number % 2 * 2])
        part.write_bytes(damage(part.read_bytes()))
    assert parse_corpus(job(text)).read_bytes() == whole


def test_parts_of_another_job_are_never_mixed_in(text):
    parse_corpus(job(text, shard=(1, 2)))
    other = replace(CHAIN, distributions=True)
    parse_corpus(job(text, options=other, shard=(2, 2)))
    for options in (CHAIN, other):
        with data_error(path="out.conllu.parts"):
            merge(job(text, options=options))
    whole = parse_corpus(job(text, "whole.conllu", options=other)).read_bytes()
    assert parse_corpus(job(text, options=other)).read_bytes() == whole
    assert len(os.listdir(folder_of(text))) == 2, "the first job's are left"
    text.write_text(text.read_text().replace("cat", "cow"))
    with data_error("--overwrite", path="out.conllu"):
        parse_corpus(job(text))
    changed = parse_corpus(job(text, "changed.conllu")).read_bytes()
    assert parse_corpus(job(text, overwrite=True)).read_bytes() == changed
    assert not folder_of(text).exists()


MODEL = """
from chain_parser import ChainParser as Parser

def load(options):
    return Parser(options)
"""


@pytest.fixture
def without_fingerprint(tmp_path, monkeypatch):
    """The options of a parser whose module has no fingerprint, with a model of the content that is given."""
    (tmp_path / "parser_of_a_file.py").write_text(MODEL, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)

    def options(content: str, name: str) -> ParserOptions:
        path = tmp_path / "models" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
        given = path.parent if "/" in name else path
        return ParserOptions(parser="parser_of_a_file", model_dir=str(given))

    return options


@pytest.mark.parametrize("names", [("a.pt", "b.pt"), ("a/model.pt", "b/model.pt")], ids=["file", "folder"])
def test_the_models_of_a_module_without_a_fingerprint_count_by_their_content(text, without_fingerprint, names):
    first, moved = (without_fingerprint("first", name) for name in names)
    output = parse_corpus(job(text, options=first))
    assert parse_corpus(job(text, options=moved)) == output, "the same model elsewhere"
    other = without_fingerprint("other", names[1])
    with data_error(path="out.conllu"):
        parse_corpus(job(text, options=other))
    output.unlink()
    parse_corpus(job(text, options=first, shard=(1, 2)))
    parse_corpus(job(text, options=other, shard=(2, 2)))
    with data_error(path="out.conllu.parts"):
        merge(job(text, options=first))


def test_the_models_in_a_linked_folder_count(text, without_fingerprint):
    part = Path(without_fingerprint("first", "part/model.pt").model_dir)
    whole = without_fingerprint("first", "whole/model.pt")
    Path(whole.model_dir, "part").symlink_to(part)
    before = job(text, options=whole).step.made_from
    without_fingerprint("other", "part/model.pt")
    assert job(text, options=whole).step.made_from != before


def test_an_output_among_the_models_is_refused(text, without_fingerprint):
    options = without_fingerprint("first", "a/model.pt")
    inside = Path(options.model_dir) / "out.conllu"
    with data_error("--model-dir", path="out.conllu"):
        parse_corpus(Job(text, inside, options))
    named = replace(options, model_dir="a-name-that-is-no-path")
    assert job(text, options=named).step.made_from != job(text, options=options).step.made_from


def test_what_a_killed_merge_left_is_removed_and_the_parts_of_another_job_are_not(text):
    parse_corpus(job(text, shard=(1, 1)))
    whole, aside = job(text), text.with_name("aside")
    shutil.copytree(whole.parts.folder, aside)
    output = merge(whole)
    shutil.copytree(aside, whole.parts.folder)
    assert merge(whole) == output and not whole.parts.folder.exists()
    output.rename(text.with_name("first"))
    parse_corpus(job(text, options=replace(CHAIN, distributions=True), shard=(1, 2)))
    text.with_name("first").rename(output)
    assert merge(whole) == output == parse_corpus(job(text))
    assert len(list(whole.parts.folder.iterdir())) == 2


def test_a_parse_goes_into_a_pipe(text):
    """As in ``--output >(gzip > out.gz)``: nothing can be locked beside it."""
    read, write = os.pipe()
    try:
        common = ["--input", text, "--parser", "chain_parser", "--part-lines", "2"]
        assert parse(*common, "--output", f"/dev/fd/{write}") == 0
        os.close(write)
        with os.fdopen(read, "rb") as pipe:
            actual = pipe.read()
    finally:
        with suppress(OSError):
            os.close(write)
    assert actual == parse_corpus(job(text)).read_bytes()


def test_the_text_is_read_once_before_the_parts_by_the_command(text, monkeypatch):
    read, read_lines = [], parse_jobs.read_lines
    monkeypatch.setattr(parse_jobs, "read_lines", lambda path: read.append(path) or read_lines(path))
    common = ["--input", text, "--output", text.with_name("out"), "--parser", "chain_parser"]
    assert parse(*common) == 0 and len(read) == 1
    assert parse(*common, "--merge") == 0 and len(read) == 2


def test_threads_are_the_cores_of_the_process_or_what_the_user_says(text, monkeypatch):
    given = []
    note = lambda step, source, make, *_, **__: (given.append(make.threads), False)  # noqa: E731
    monkeypatch.setattr("fairseq_syntax.corpus.parsing.parse_jobs.map_parts", note)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 4, 5, 6, 7}, raising=False)
    for omp, threads in (("", None), ("1", None), ("1", 4)):
        monkeypatch.setenv("OMP_NUM_THREADS", omp)
        parse_corpus(job(text, workers=2, threads=threads))
    assert given == [3, None, 4]


def test_a_finished_file_is_kept_and_a_foreign_one_is_not_replaced(text):
    output = parse_corpus(job(text))
    mark = output.stat().st_mtime_ns
    assert parse_corpus(job(text)) == output == merge(job(text))
    assert output.stat().st_mtime_ns == mark
    output.write_text("someone's thesis\n")
    with data_error("--overwrite", path="out.conllu"):
        parse_corpus(job(text))
    assert output.read_text() == "someone's thesis\n"


def test_a_result_that_was_damaged_is_not_taken_for_done(text):
    output = parse_corpus(job(text))
    whole = output.read_bytes()
    for damaged in (whole[:-20], whole.replace(b"dep", b"obj", 1)):
        output.write_bytes(damaged)
        with data_error("--overwrite", path="out.conllu"):
            parse_corpus(job(text))
        assert output.read_bytes() == damaged
        assert parse_corpus(job(text, overwrite=True)).read_bytes() == whole


@pytest.mark.parametrize(
    ("change", "names", "line"),
    [
        (lambda parses: parses[:-1], ["chain_parser"], None),
        (lambda parses: [parses[0], replace(parses[1], upos=[])], ["upos"], 6),
        (lambda parses: [parses[0], replace(parses[1], heads=[0])], ["heads"], 6),
        (lambda parses: [replace(parses[0], heads=[1]), parses[1]], ["head 1"], 4),
        (lambda parses: [parses[0], replace(parses[1], heads=[0, 3])], ["head 3"], 6),
        (lambda parses: [parses[0], replace(parses[1], heads=[-1, 0])], ["head -1"], 6),
        (lambda parses: [parses[0], replace(parses[1], arcs=None)], ["chain_parser", "--distributions"], None),
        (lambda parses: [parses[0], replace(parses[1], arcs=[(3, 0, "a", 1.0)])], ["word 3"], 6),
    ],
)
def test_what_is_no_parse_of_the_words_is_the_parsers_fault(change, names, line):
    parser = load_parser(replace(CHAIN, distributions=True))
    parser.parse_sentences = lambda sentences: change([parser.chain(words) for words in sentences])
    with data_error(*names, line=line):
        parser.parse(["one", "", "two words"], first_line=3)
    assert [line.words for line in parser.parse(["", " "])] == [[], []]


def test_bad_text_and_bad_trees_are_refused(text):
    empty = text.with_name("empty")
    empty.write_text("")
    with data_error(path="empty"):
        parse_corpus(job(empty))
    with data_error(path="missing"):
        parse_corpus(job(text.with_name("missing")))
    text.write_bytes(b"good\nb\xe4d\n")
    with data_error(path="text.en", line=2):
        parse_corpus(job(text))
    text.write_text("TWOROOTS in here\n")
    with data_error(path="text.en", line=1):
        parse_corpus(job(text))


DEVICE_PARSER = """
import time
from pathlib import Path

import torch
from fairseq_syntax.corpus.parsing.chain import ChainParser, fingerprint

class DeviceParser(ChainParser):
    # writes down the device that "cuda" means in this process, and waits until another process has done so, too
    def parse_sentences(self, sentences):
        here = torch.empty(0, device="cuda").device.index
        Path(self.options.model_dir, f"{here}-{id(self)}").touch()
        deadline = time.monotonic() + 60
        while len(list(Path(self.options.model_dir).iterdir())) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        return super().parse_sentences(sentences)

load = DeviceParser
"""


@pytest.mark.gpu
@pytest.mark.slow
def test_processes_that_parse_use_different_gpus(text, tmp_path, monkeypatch):
    (tmp_path / "device_parser.py").write_text(DEVICE_PARSER)
    (tmp_path / "seen").mkdir()
    for name, value in emulated_cuda.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.syspath_prepend(tmp_path)
    options = ParserOptions(parser="device_parser", model_dir=str(tmp_path / "seen"), device="cuda")
    parse_corpus(job(text, options=options, workers=2))
    used = {path.name.partition("-")[0] for path in (tmp_path / "seen").iterdir()}
    assert used == {str(number) for number in range(min(2, torch.cuda.device_count()))}


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_killed_run_goes_on_and_ends_with_the_same_bytes(text, workers):
    lines = [f"line {number} of the text" for number in range(40)]
    lines[25] = "KILL here"
    text.write_text("".join(f"{line}\n" for line in lines))
    (text.parent / "die").touch()
    command = [sys.executable, "-c", "import sys; from fairseq_syntax.cli import main; sys.exit(main())", "parse"]
    command += ["--parser", "chain_parser", "--model-dir", str(text.parent), "--input", str(text), "--part-lines", "4"]
    command += ["--workers", workers, "--output", str(text.with_name("out"))]
    died = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)
    assert died.returncode == (-9 if workers == "1" else 1)
    assert "error: " in died.stderr or workers == "1"
    left = os.listdir(text.with_name("out.parts"))
    assert 0 < len([name for name in left if name.endswith(".part")]) < 10
    assert not text.with_name("out").exists()
    (text.parent / "die").unlink()
    subprocess.run(command, env=ENVIRONMENT, check=True)
    assert text.with_name("out").read_bytes() == parse_corpus(job(text, "whole", part_lines=4)).read_bytes()


@pytest.mark.slow
def test_two_processes_for_one_output(text):
    """The second waits, and finds that there is nothing to do."""
    out = text.with_name("out")
    command = [sys.executable, "-c", "import sys; from fairseq_syntax.cli import main; sys.exit(main())", "parse"]
    command += ["--parser", "chain_parser", "--input", text, "--part-lines", "1", "--output", out]
    with locked(out):
        both = [subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True) for _ in range(2)]
        waiting = [iter(process.stderr) for process in both]
        assert all(any("waiting for another process" in line for line in lines) for lines in waiting)
        assert not out.exists()
    said = ["".join(lines) for lines in waiting]
    assert [process.wait() for process in both] == [0, 0] and sum("is up to date" in text for text in said) == 1
    assert out.read_bytes() == parse_corpus(job(text, "whole", part_lines=1)).read_bytes()


# ------------------------------------------------------------------------------------------------------ the command


def parse(*arguments: str | Path) -> int:
    return main(["parse", *map(str, arguments)])


def test_the_command_parses_shards_and_merges(text):
    out = text.with_name("out")
    common = ["--input", text, "--output", out, "--parser", "chain_parser", "--part-lines", "3"]
    assert parse(*common, "--shard", "2/2") == 0
    refused(["parse", *common, "--merge"], path="out.parts")
    assert parse(*common, "--shard", "1/2") == 0
    assert parse(*common, "--merge") == 0
    assert len(list(read_conllu(out, n_lines=len(TEXT)))) == len(TEXT)
    assert parse(*common, "--distributions") == 1
    assert parse(*common, "--distributions", "--overwrite") == 0
    assert next(read_conllu(out)).arcs is not None
    whole = out.read_bytes()
    assert parse(*common, "--overwrite") == 0
    assert parse(*common, "--distributions", "--overwrite") == 0
    assert out.read_bytes() == whole and parse(*common, "--distributions", "--overwrite") == 0


def test_overwriting_leaves_what_is_there_until_there_is_better(text, monkeypatch):
    """Neither a wrong model nor a kill costs the earlier result, and the parts of the killed run are used."""
    out = text.with_name("out")
    common = ["--input", text, "--output", out, "--parser", "chain_parser", "--part-lines", "3", "--overwrite"]
    out.write_text("someone's thesis\n")
    for wrong in (["--input", text.with_name("none")], ["--parser", "stanza", "--model-dir", text.with_name("none")]):
        assert parse(*common, *wrong) == 1
        assert out.read_text() == "someone's thesis\n"
    commit, done = Parts.commit, []

    def killed(parts, span, body):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(span)
        commit(parts, span, body)

    monkeypatch.setattr(Parts, "commit", killed)
    with pytest.raises(KeyboardInterrupt):
        parse_corpus(Job(text, out, CHAIN, part_lines=3, overwrite=True))
    assert out.read_text() == "someone's thesis\n" and len(list(out.with_name("out.parts").iterdir())) == 2
    monkeypatch.setattr(Parts, "commit", lambda parts, span, body: (done.append(span), commit(parts, span, body)))
    parse_corpus(Job(text, out, CHAIN, part_lines=3, overwrite=True))
    assert len(done) == len(set(done)) == -(-len(TEXT) // 3), "no part twice"
    assert out.read_bytes() == parse_corpus(Job(text, text.with_name("other"), CHAIN, part_lines=3)).read_bytes()


@pytest.mark.parametrize("parser", ["chain_parser", "conllu"])
def test_the_input_is_not_overwritten(text, parser):
    before = text.read_bytes()
    link = text.with_name("link")
    link.symlink_to(text)
    for output in (text, link, text.parent / "." / text.name):
        refused(["parse", "--input", text, "--output", output, "--parser", parser, "--overwrite"], path=text)
    assert text.read_bytes() == before


def test_names_of_files_need_not_be_utf8(text):
    """In processes of its own: what a test prints must be UTF-8 for pytest's workers."""

    def said(*arguments: str) -> bytes:
        command = [sys.executable, "-m", "fairseq_syntax", *arguments]
        return subprocess.run(command, env=ENVIRONMENT, check=True, capture_output=True).stdout

    source, output = (os.fsdecode(os.fsencode(text.parent) + name) for name in (b"/in\xff", b"/out\xff.conllu"))
    text.rename(source)
    times = set()
    for _ in range(2):
        assert b"/out\xff.conllu: " in said("parse", "--parser", "chain_parser", "--input", source, "--output", output)
        times.add(os.stat(output).st_mtime_ns)
    assert len(times) == 1, "the second run found the record of the first"
    said("segment", "--lang", "en", "--input", output, "--output", str(text.parent / "pieces"), "--train", "words")


def test_what_is_named_gz_is_compressed(text):
    """And read again as such, by the same command too, which finds it finished."""
    plain, packed = text.with_name("out.conllu"), text.with_name("out.conllu.gz")
    common = ["--input", text, "--parser", "chain_parser"]
    assert parse(*common, "--output", plain) == 0 and parse(*common, "--output", packed) == 0
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()
    mark = packed.stat().st_mtime_ns
    assert parse(*common, "--output", packed) == 0 and packed.stat().st_mtime_ns == mark
    again = text.with_name("again.conllu.gz")
    assert parse("--parser", "conllu", "--input", packed, "--output", again) == 0
    first = again.read_bytes()
    assert parse("--parser", "conllu", "--input", packed, "--output", again, "--overwrite") == 0
    assert again.read_bytes() == first, "no time is in it"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--shard", "1/2", "--merge"],
        ["--shard", "1/2", "--overwrite"],
        ["--text", "x"],
        ["--pretokenized", "--split-sentences"],
        ["--pretokenized", "--tokenizer", "basic"],
        ["--parser", "conllu", "--distributions"],
        ["--parser", "conllu", "--max-words", "9"],
        ["--parser", "conllu", "--long-lines", "error"],
        ["--parser", "conllu", "--split-sentences"],
        ["--parser", "conllu", "--pretokenized"],
        ["--parser", "conllu", "--tokenizer", "basic"],
        ["--parser", "conllu", "--model-dir", "x"],
        ["--parser", "conllu", "--workers", "2"],
        ["--parser", "conllu", "--threads", "3"],
        ["--parser", "conllu", "--part-lines", "5"],
        ["--parser", "conllu", "--device", "cuda"],
        ["--parser", "conllu", "--batch-size", "1"],
        ["--parser", "conllu", "--gpus-per-worker", "1"],
        ["--parser", "conllu", "--min-prob", "0.1"],
        ["--structured"],
        ["--temperature", "2"],
        ["--label-temperature", "2"],
        ["--min-prob", "0.1"],
    ],
)
def test_options_that_contradict_each_other(text, arguments, capsys):
    parse_corpus(job(text, "parsed"))
    given = text.with_name("parsed") if "conllu" in arguments else text
    assert parse("--input", given, "--output", text.with_name("o"), "--parser", "chain_parser", *arguments) == 1
    message = capsys.readouterr().err
    assert "error:" in message
    if "conllu" in arguments or arguments[0] in ("--structured", "--temperature", "--label-temperature", "--min-prob"):
        assert (arguments[2] if "conllu" in arguments else arguments[0]) in message
    assert not text.with_name("o").exists()


@pytest.mark.parametrize("shard", ["0/2", "3/2", "1", "a/b", "1/0"])
def test_shards_are_counted_from_one(text, shard):
    with pytest.raises(SystemExit):
        parse("--input", text, "--output", text.with_name("o"), "--shard", shard)


def test_an_existing_parse_is_checked_and_passed_on(text):
    foreign, out = text.with_name("foreign"), text.with_name("out")
    with open(foreign, "w") as file:
        for line in load_parser(CHAIN).parse(["A man sleeps.", "Two dogs"]):
            file.write("".join(row for row in _rows(line) if not row.startswith("# line")))
    text.write_text("A man  sleeps.\nTwo dogs\n")
    common = ["--parser", "conllu", "--input", foreign, "--output", out]
    assert parse(*common, "--text", text) == 0
    assert [text_of(line) for line in read_conllu(out, n_lines=2)] == ["A man sleeps.", "Two dogs"]
    assert out.read_text().startswith("# lines = 2\n# line = 1\n")
    assert parse(*common) == 1  # there is something already
    text.write_text("A man sleeps.\nTwo cats\n")
    refused(["parse", *common, "--text", text, "--overwrite"], path="foreign", line=6)
    text.write_text("A man sleeps.\n\nTwo dogs\n")
    assert parse(*common, "--text", text, "--overwrite") == 1
    foreign.write_text("")
    refused(["parse", *common, "--overwrite"], path="foreign")


def test_an_existing_parse_is_passed_on_once(text, capsys, caplog):
    out = text.with_name("copy.conllu")
    parse_corpus(job(text))
    common = ["--parser", "conllu", "--input", text.with_name("out.conllu"), "--output", out, "--text", text]
    caplog.set_level("INFO")
    for said in (False, True):
        assert parse(*common) == 0
        assert f"{out}: {len(TEXT)} lines\nnext: " in capsys.readouterr().out
        assert ("copy.conllu" in caplog.text) == said
    parse_corpus(job(text, overwrite=True, options=replace(CHAIN, distributions=True)))
    assert parse(*common) == 1 and "copy.conllu" in capsys.readouterr().err
    assert parse(*common, "--overwrite") == 0 == parse(*common)
    with open(out, "a") as file:
        file.write("\n")
    assert parse(*common) == 1 and "copy.conllu" in capsys.readouterr().err


def test_a_parse_that_is_refused_leaves_the_record_of_what_is_there(text):
    first, other, out = (text.with_name(f"{name}.conllu") for name in ("first", "other", "copy"))
    parse_corpus(job(text, first.name))
    pass_on(first, out)
    text.with_name("other").write_text("another text\n" * len(TEXT))
    parse_corpus(job(text.with_name("other"), other.name))
    with data_error(path="other.conllu", line=1):
        pass_on(other, out, text=text, overwrite=True)
    assert pass_on(first, out) == len(TEXT)


def test_what_is_parsed_already_is_not_parsed_as_text(text):
    parse_corpus(job(text))
    named, unnamed = text.with_name("out.conllu"), text.with_name("unnamed")
    shutil.copy(named, unnamed)
    for path in (named, unnamed):
        output = text.with_name("new.conllu")
        refused(["parse", "--parser", "chain_parser", "--input", path, "--output", output], path=path)
        refused(["filter", "--input", path, "--output", text.with_name("kept")], path=path)


def test_a_pipe_cannot_be_read_twice(text):
    parse_corpus(job(text))
    pipe, out = text.with_name("pipe"), text.with_name("new.conllu")
    os.mkfifo(pipe)
    passed_on = ["--parser", "conllu", "--output", out]
    for arguments in (
        [*passed_on, "--input", text.with_name("out.conllu"), "--text", pipe],
        [*passed_on, "--input", pipe, "--text", text],
        ["--parser", "chain_parser", "--input", pipe, "--output", out],
    ):
        refused(["parse", *arguments], path=pipe)
    assert not out.exists() and not text.with_name("new.conllu.parts").exists()


def test_a_parse_in_another_normal_form(text):
    text.write_text("cafe\u0301\n", encoding="utf-8")
    parse_corpus(job(text))
    text.write_text("caf\u00e9\n", encoding="utf-8")
    given = ["--input", text.with_name("out.conllu"), "--text", text]
    refused(["parse", "--parser", "conllu", *given, "--output", text.with_name("new.conllu")], "NFC")


def test_only_what_is_named_as_a_parse_is_to_be_segmented(text, capsys):
    """Under another name it would be taken for text."""
    for name, next_ in (("a.conllu", True), ("a.conllu.gz", True), ("a.txt", False)):
        assert parse("--parser", "chain_parser", "--input", text, "--output", text.with_name(name)) == 0
        assert ("fairseq-syntax segment" in capsys.readouterr().out) == next_


def test_an_existing_parse_keeps_its_empty_lines(text):
    out = text.with_name("out")
    again = text.with_name("again")
    parse_corpus(job(text))
    assert parse("--parser", "conllu", "--input", text.with_name("out.conllu"), "--output", again) == 0
    lines = list(read_conllu(again))
    assert [text_of(line) for line in lines] == [single_spaced(line) for line in TEXT]
    text.write_text("\n\n")
    parse_corpus(job(text, "out"))
    assert parse("--parser", "conllu", "--input", out, "--output", again, "--overwrite") == 0
    assert [line.words for line in read_conllu(again)] == [[], []]


def _rows(line: ParsedLine) -> list[str]:
    import io

    file = io.StringIO()
    write_conllu(file, line)
    return file.getvalue().splitlines(keepends=True)


# ------------------------------------------------------------------------------------------- as the training text was


def test_the_title_has_the_options(tmp_path, text):
    options = ParserOptions(parser="chain_parser", split_sentences=True, temperature=1.5, device="cpu", batch_size=7)
    output = parse_corpus(job(text, options=options))
    recorded = {**options.of_the_result, "models": ""}
    assert parsed_with(output) == recorded
    assert options.of_the_result.keys() == {f.name for f in fields(options)} - {"device", "model_dir", "batch_size"}
    copied, kept = tmp_path / "copied.conllu", tmp_path / "kept.conllu"
    assert main(["parse", "--parser", "conllu", "--input", str(output), "--output", str(copied)]) == 0
    keep = ["--output", str(tmp_path / "kept.en"), "--conllu", str(output), "--conllu-output", str(kept)]
    assert main(["filter", "--input", str(text), *keep, "--min-length", "4"]) == 0  # the first line goes
    for path in (copied, kept):
        assert parsed_with(path) == recorded
        assert path.read_text("utf-8").count("parsed_with") == 1


@pytest.mark.parametrize(
    "rows", ["", "# lines = 1\n1\ta\n# parsed_with = {}\n", "# parsed_with = stanza\n", "# parsed_with = [1]\n"]
)
def test_a_title_without_options(tmp_path, rows):
    path = tmp_path / "p.conllu"
    path.write_text(rows)
    assert parsed_with(path) is None


def test_a_title_behind_a_byte_order_mark(tmp_path):
    path = tmp_path / "p.conllu"
    path.write_bytes(b'\xef\xbb\xbf# lines = 1\r\n# parsed_with = {"lang": "de"}\r\n')
    assert parsed_with(path) == {"lang": "de"}


def test_models_other_than_those_of_the_training_text_are_told(monkeypatch, caplog):
    monkeypatch.setattr(chain_parser, "fingerprint", lambda options: "these")
    for models, told in (("these", 0), ("others", 1), ("", 0)):
        caplog.clear()
        load_parser(CHAIN, {**CHAIN.of_the_result, "models": models})
        assert len(caplog.records) == told


def test_raw_text_is_parsed_as_the_training_text_was(caplog):
    before = ParserOptions("supar", "fr", tokenizer="spacy", max_words=9, min_prob=0.1, structured=True).of_the_result
    given = {"model_dir": "dir", "distributions": True, "source_lang": "de"}
    same = options_as_before(before, **given)
    assert same == ParserOptions(**before | {"model_dir": "dir", "distributions": True})
    assert options_as_before(before, parser="supar", lang="it", **given) == replace(same, lang="it")
    assert options_as_before(None, **given) == ParserOptions(lang="de", model_dir="dir", distributions=True)
    assert not caplog.records or all(record.levelname == "INFO" for record in caplog.records)
    other = options_as_before(before, parser="stanza", **given)  # whose scores are others
    assert other == ParserOptions("stanza", "de", "dir", distributions=True)
    assert any("supar" in record.message for record in caplog.records if record.levelname == "WARNING")
    odd = {
        "tokenizer": None,
        "temperature": "hot",
        "max_words": True,
        "of_tomorrow": 1,
        "model_dir": "/",
        "device": "x",
    }
    assert options_as_before(odd, **given) == options_as_before(None, **given)
    with data_error("my.parser"):
        options_as_before({"parser": "my.parser"}, **given)
    trial = {"parser": "fairseq_syntax.corpus.parsing.chain"}  # what `run --smoke` parses with
    assert options_as_before(trial, **given).parser == trial["parser"]
    assert options_as_before({"parser": "my.parser", "max_words": 9}, parser="my.parser").max_words == 9


def test_the_parser_of_the_guide(text, monkeypatch):
    """The example of ``docs/how-to.md``, as a user would copy it."""
    guide = (Path(__file__).resolve().parents[2] / "docs/how-to.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^## Bring your own parser$.*?^```python\n(.*?)^```$", guide, re.M | re.S)
    (text.parent / "parser_of_the_guide.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(text.parent)
    output = text.with_name("parsed.conllu")
    assert main(["parse", "--parser", "parser_of_the_guide", "--input", str(text), "--output", str(output)]) == 0
    lines = list(read_conllu(output))
    assert [text_of(line) for line in lines] == [line.strip() for line in TEXT]
    assert all(line.heads == [max(0, word - 1) for word in range(len(line.words))] for line in lines)


# ----------------------------------------------------------------------------------------------------- many labels


@pytest.mark.parametrize(("column", "count"), [("upos", 80), ("deprel", 1100), ("arcs", 1100)])
def test_more_labels_than_a_store_has_room_for_are_told_by_the_first_step_that_reads_them(
    tmp_path, column, count, monkeypatch
):
    """Not only by fairseq-preprocess, after days of parsing and segmentation."""
    text, other = tmp_path / "text.en", tmp_path / "other.conllu"
    text.write_text("one two three four\n" * (count // 4), encoding="utf-8")
    names = iter(range(10 * count))

    def chain(self, words):
        """The chain, in which each word has a label of its own."""
        labels = [f"L{next(names)}" for _ in words]
        arcs = [(i + 1, i, label if column == "arcs" else "dep", 0.9) for i, label in enumerate(labels)]
        columns = {"deprels": labels} if column == "deprel" else {"upos": labels} if column == "upos" else {}
        return replace(plain(self, words), **columns, arcs=arcs if self.options.distributions else None)

    plain = chain_parser.ChainParser.chain
    monkeypatch.setattr(chain_parser.ChainParser, "chain", chain)
    distributions = replace(CHAIN, distributions=True)
    limit = {"upos": ("upos", "63"), "deprel": ("deprel", "1,023"), "arcs": ("deprel", "1,023")}[column]
    with data_error(*limit, path="text.en"):  # each part has fewer
        parse_corpus(Job(text, tmp_path / "out.conllu", distributions, part_lines=10))
    with other.open("w", encoding="utf-8") as file:
        for number, line in enumerate(load_parser(distributions).parse(text.read_text("utf-8").splitlines())):
            line.line_number = number
            write_conllu(file, line)
    with data_error(*limit, path="other.conllu"):
        pass_on(other, tmp_path / "out.conllu")
    for command in (
        ["control", "linear", "--output", tmp_path / "control.conllu", "--input", other],
        ["segment", "--lang", "en", "--output", tmp_path / "pieces", "--train", "words", "--input", other],
    ):
        refused(command, *limit, path="other.conllu")
    assert not [path for path in tmp_path.rglob("*.conllu") if path != other]

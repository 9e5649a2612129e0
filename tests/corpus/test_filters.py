"""Corpus filters: every reason, nothing lost or shifted, and errors that name the file."""

from __future__ import annotations

import gzip
import os
import sys

import pytest
from data_errors import data_error, run
from hypothesis import given, settings
from hypothesis import strategies as st
from matrix_part import examples

from fairseq_syntax.corpus import filters
from fairseq_syntax.corpus.conllu import read_conllu, text_of
from fairseq_syntax.corpus.filters import Judge, Limits, conllu_blocks, filter_files
from fairseq_syntax.corpus.text_parts import conllu_parts, parallel_parts
from fairseq_syntax.runtime.parts import Parts

EN = [
    "A man is riding his bike near the river .",
    "",
    "Two dogs run over the green grass in the park .",
    "one two three four five six seven eight nine ten",
    "yes",
    "Ein Mann fährt mit seinem Fahrrad am Fluss entlang .",
    "The children are playing football in the street .",
]
DE = [
    "Ein Mann fährt mit seinem Fahrrad am Fluss .",
    "Zwei",
    "Zwei Hunde laufen im Park über das grüne Gras .",
    "eins zwei",
    "ja",
    "Ein Mann fährt mit seinem Fahrrad am Fluss entlang .",
    "Die Kinder spielen auf der Straße Fußball .",
]


@pytest.fixture
def corpus(tmp_path):
    for name, lines in (("en", EN), ("de", DE)):
        (tmp_path / name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return tmp_path


def _filter(folder, limits, **more):
    report = filter_files(
        [str(folder / "en"), str(folder / "de")], [str(folder / "out.en"), str(folder / "out.de")], limits, **more
    )
    kept = [(folder / f"out.{lang}").read_text(encoding="utf-8").splitlines() for lang in ("en", "de")]
    assert [len(lines) for lines in kept] == [report.kept] * 2
    assert report.kept + sum(report.removed.values()) == report.lines
    return report, kept


@pytest.mark.parametrize(
    "limits, gone",
    [
        (Limits(), {2: "empty"}),
        (Limits(min_length=2), {2: "empty", 5: "too short"}),
        (Limits(max_length=9), {2: "empty", 1: "too long", 3: "too long", 4: "too long", 6: "too long"}),
        (Limits(max_ratio=2.0), {2: "empty", 4: "ratio"}),
        (Limits(max_ratio=5.0), {2: "empty"}),
        (Limits(characters=True, min_length=4), {2: "empty", 5: "too short"}),
    ],
)
def test_each_limit_removes_what_it_says(corpus, limits, gone):
    removed = corpus / "removed.tsv"
    report, (en, de) = _filter(corpus, limits, removed=str(removed))
    assert en == [line for i, line in enumerate(EN, 1) if i not in gone]
    assert de == [line for i, line in enumerate(DE, 1) if i not in gone]
    rows = [row.split("\t") for row in removed.read_text(encoding="utf-8").splitlines()]
    assert {int(row[0]): row[1] for row in rows} == gone
    assert [row[3:] for row in rows] == [[EN[i - 1], DE[i - 1]] for i in sorted(gone)]
    for reason in set(gone.values()):
        assert f"{list(gone.values()).count(reason)}  {reason}" in str(report)


def test_a_filter_that_removes_everything_is_an_error(corpus):
    with data_error("7", path=str(corpus / "en")) as caught:
        _filter(corpus, Limits(min_length=100))
    assert "6 too short" in str(caught.value) and "--characters" in caught.value.hint
    assert not (corpus / "out.en").exists()


@pytest.mark.slow
def test_a_sentence_in_another_language_goes(corpus):
    pytest.importorskip("py3langid")
    report, (en, _) = _filter(corpus, Limits(min_length=5, languages=("en", "de")), workers=2)
    assert en == [EN[0], EN[2], EN[6]]
    assert report.removed == {"empty": 1, "too short": 2, "language": 1}
    assert report.examples["language"][0] == 6 and "de (" in report.examples["language"][1]
    with data_error("6 language") as caught:
        _filter(corpus, Limits(languages=("fr", "fr")))
    assert caught.value.hint is None, "limits of length remove nothing here"
    with data_error("xx"):
        Judge(Limits(languages=("xx",)))(["a line"])


def test_a_missing_identifier_is_no_fault_of_a_line(corpus, monkeypatch):
    monkeypatch.setitem(sys.modules, "py3langid.langid", None)
    with data_error("py3langid") as caught:
        _filter(corpus, Limits(languages=("en", "de")))
    assert "line 1" not in str(caught.value)


def _sentence(words: str, *, line: int | None, bad: bool = False) -> str:
    rows = [f"# line = {line}"] if line else []
    rows += ["# text_id = kept"]
    for i, word in enumerate(words.split(), 1):
        rows.append(f"{i}\t{word}\tlemma\tX\t_\tF=1\t{(i - 1) if not bad else i}\tdep\t_\tNote=1")
    return "\n".join(rows) + "\n\n"


def test_lines_without_a_valid_parse_go_and_the_rest_is_renumbered(corpus):
    parse = corpus / "en.conllu"
    text = "# lines = 7\n" + _sentence(EN[0], line=1) + _sentence("Two dogs run", line=3)
    text += _sentence("over the green grass in the park .", line=3) + _sentence(EN[3], line=4, bad=True)
    text += _sentence(EN[5], line=6)
    parse.write_text(text, encoding="utf-8")
    out = corpus / "out.conllu"
    report, (en, _) = _filter(corpus, Limits(), conllu=(str(parse), str(out)))
    assert report.removed == {"empty": 1, "no parse": 2, "bad parse": 1}
    assert en == [EN[0], EN[2], EN[5]]
    lines = list(read_conllu(out, n_lines=3))
    assert [text_of(line) for line in lines] == [EN[0], EN[2], EN[5]]
    assert len(lines[1].sentences) == 2
    written = out.read_text(encoding="utf-8")
    assert written.startswith("# lines = 3\n# line = 1\n# text_id = kept\n1\tA\tlemma\tX\t_\tF=1\t0\tdep\t_\tNote=1\n")


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_parse_of_another_text_is_an_error(corpus, jobs):
    parse, out = corpus / "x.conllu", corpus / "out.conllu"
    for side in (EN, DE):  # it may be of either
        parse.write_text("".join(_sentence(line, line=n) for n, line in enumerate(side, 1) if line), encoding="utf-8")
        _filter(corpus, Limits(), conllu=(str(parse), str(out)), workers=jobs)
    shifted = [*EN[1:], EN[0]]
    parse.write_text("".join(_sentence(line, line=n) for n, line in enumerate(shifted, 1) if line), encoding="utf-8")
    for name in ("out.conllu", "out.en", "out.de"):
        (corpus / name).unlink()
    with data_error(path="x.conllu"):
        _filter(corpus, Limits(), conllu=(str(parse), str(out)), workers=jobs)
    assert not list(corpus.glob("out*"))


def test_what_is_kept_of_a_parse_has_the_spaces_of_the_text(tmp_path):
    (tmp_path / "en").write_text("I don't.\nso\n")
    parse = tmp_path / "en.conllu"
    rows = ["1\tI", "2-3\tdon't", "2\tdo", "3\tn't", "4\t."]
    heads = "0\troot", "_\t_", "1\tdep", "1\tdep", "1\tpunct"
    parse.write_text(
        "\n".join(f"{row}\tlemma\t_\t_\t_\t{head}\t_\tNote=1" for row, head in zip(rows, heads))
        + "\n\n"
        + _sentence("so", line=None)
    )
    filter_files([str(tmp_path / "en")], [str(tmp_path / "o")], Limits(), conllu=(str(parse), str(tmp_path / "oc")))
    assert [text_of(line) for line in read_conllu(tmp_path / "oc")] == ["I don't.", "so"]
    kept = [row.split("\t") for row in (tmp_path / "oc").read_text().splitlines() if "\t" in row]
    assert [row[9] for row in kept] == ["Note=1", "Note=1|SpaceAfter=No", "Note=1", "Note=1", "Note=1", "Note=1"]
    assert {row[2] for row in kept} == {"lemma"}


def test_a_parse_without_line_numbers_is_one_sentence_a_line(tmp_path):
    (tmp_path / "en").write_text("a b\nc\n")
    parse = tmp_path / "en.conllu"
    parse.write_text(_sentence("a b", line=None) + _sentence("c", line=None, bad=True))
    filter_files([str(tmp_path / "en")], [str(tmp_path / "o")], Limits(), conllu=(str(parse), str(tmp_path / "oc")))
    assert (tmp_path / "o").read_text() == "a b\n"
    assert [line.words for line in read_conllu(tmp_path / "oc")] == [["a", "b"]]


def test_a_row_of_empty_columns_is_no_valid_parse(tmp_path):
    (tmp_path / "en").write_text("a b\nc\n")
    parse = tmp_path / "en.conllu"
    parse.write_text(_sentence("a b", line=None).rstrip("\n") + "\n" + "\t" * 9 + "\n\n" + _sentence("c", line=None))
    report = filter_files(
        [str(tmp_path / "en")], [str(tmp_path / "o")], Limits(), conllu=(str(parse), str(tmp_path / "oc"))
    )
    assert report.removed == {"bad parse": 1} and (tmp_path / "o").read_text() == "c\n"


def test_a_parse_of_one_row_with_a_backslash(tmp_path):
    (tmp_path / "en").write_text("C:\\temp\n")
    parse = tmp_path / "en.conllu"
    parse.write_text("1\tC:\\temp\t_\tX\t_\t_\t0\troot\t_\t_\n\n")
    filter_files([str(tmp_path / "en")], [str(tmp_path / "o")], Limits(), conllu=(str(parse), str(tmp_path / "oc")))
    assert (tmp_path / "o").read_text() == "C:\\temp\n"


@settings(max_examples=examples(30))
@given(st.lists(st.lists(st.integers(1, 4), max_size=3), min_size=1, max_size=8))
def test_blocks_are_those_of_the_reader(tmp_path_factory, plan):
    """plan: for each line the lengths of its sentences."""
    path = tmp_path_factory.mktemp("blocks") / "x.conllu.gz"
    text = f"# lines = {len(plan)}\n" + "".join(
        _sentence("w " * n, line=i + 1) for i, line in enumerate(plan) for n in line
    )
    path.write_bytes(gzip.compress(text.encode()))
    blocks = [block for part in conllu_parts(path, 3) for block in conllu_blocks(part)]
    for block, line in zip(blocks, read_conllu(path, n_lines=len(plan)), strict=True):
        assert [len(s) for s in ([r for r in b.splitlines() if r[0] != "#"] for b in block.split("\n\n") if b)] == [
            end - start for start, end in line.sentences
        ]


def test_a_line_number_beyond_reason_ends_at_once(tmp_path):
    (tmp_path / "text").write_text("a\n")
    (tmp_path / "parse").write_text("# line = 999999999\n1\ta\t_\tX\tX\t_\t0\troot\t_\t_\n\n")
    with data_error("999999999", path="parse", line=1):
        filter_files(
            [str(tmp_path / "text")],
            [str(tmp_path / "out")],
            Limits(),
            conllu=(str(tmp_path / "parse"), str(tmp_path / "parse.out")),
        )


def test_bad_input_is_named_and_writes_nothing(corpus):
    files = [str(corpus / "en"), str(corpus / "de")]
    outs = [str(corpus / "out.en"), str(corpus / "out.de")]
    with data_error(path="de"):
        filter_files(files, [files[1], outs[1]], Limits())
    with data_error(path="out.en"):
        filter_files(files, [outs[0], outs[0]], Limits())
    with data_error():
        filter_files(files, outs[:1], Limits())
    parse = corpus / "x.conllu"
    parse.write_text(_sentence("a", line=8))
    with data_error(path="x.conllu"):
        filter_files(files, outs, Limits(), conllu=(str(parse), str(corpus / "y")))
    parse.write_text(_sentence("a", line=2) + _sentence("a", line=1))
    with data_error("'# line = 1'", "'# line = 2'", path="x.conllu", line=5):
        filter_files(files, outs, Limits(), conllu=(str(parse), str(corpus / "y")))
    (corpus / "de").write_text("kurz\n")
    with data_error(path="de"):
        filter_files(files, outs, Limits())
    (corpus / "de").write_bytes("\n".join(DE).encode("latin-1"))
    with data_error(path="de", line=1):
        filter_files(files, outs, Limits())
    (corpus / "en").write_text("")
    (corpus / "de").write_text("")
    with data_error(path="en"):
        filter_files(files, outs, Limits())
    assert not (corpus / "out.en").exists() and not (corpus / "out.de").exists()


@pytest.mark.parametrize("pipe", ["en", "de", "conllu"])
def test_a_pipe_is_refused_since_it_is_read_once(corpus, pipe):
    parse = corpus / "conllu"
    parse.write_text("".join(_sentence(line, line=n) for n, line in enumerate(EN, 1) if line), encoding="utf-8")
    (corpus / pipe).unlink()
    os.mkfifo(corpus / pipe)
    with data_error(path=pipe):
        _filter(corpus, Limits(), conllu=(str(parse), str(corpus / "out.conllu")))
    assert not list(corpus.glob("out*"))


@pytest.mark.parametrize("changed", ["en", "de", "conllu"])
@pytest.mark.parametrize("lines", [-1, 1])
def test_a_file_that_changes_once_it_was_read_changes_nothing(corpus, monkeypatch, changed, lines):
    """What is written is of the lines that were read, and the next run is of the new ones."""
    parse = corpus / "conllu"
    rows = [_sentence(line, line=n) for n, line in enumerate(EN, 1) if line]
    parse.write_text("".join(rows), encoding="utf-8")
    other = {"en": EN, "de": DE, "conllu": [row.removesuffix("\n") for row in rows]}[changed]
    other = other[:-1] if lines < 0 else [*other, "more" if changed != "conllu" else _sentence("more", line=8)]

    def then_changed(*given):
        yield from parallel_parts(*given)
        (corpus / changed).write_text("".join(line + "\n" for line in other), encoding="utf-8")

    conllu = (str(parse), str(corpus / "out.conllu"))
    whole = _filter(corpus, Limits(), conllu=conllu)
    kept = (corpus / "out.conllu").read_bytes()
    for path in (*corpus.glob("out*"), *corpus.glob(".out*")):
        path.unlink()
    with monkeypatch.context() as patch:
        patch.setattr(filters, "parallel_parts", then_changed)
        assert _filter(corpus, Limits(), conllu=conllu) == whole
    assert (corpus / "out.conllu").read_bytes() == kept
    if changed == "conllu" and lines < 0:
        assert _filter(corpus, Limits(), conllu=conllu)[0].removed == {"empty": 1, "no parse": 1}
    else:
        with data_error():  # the files no longer fit together
            _filter(corpus, Limits(), conllu=conllu)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_filter_that_was_killed_goes_on_and_one_that_is_done_is_not_done_again(corpus, monkeypatch, workers):
    monkeypatch.setattr(filters, "PART_LINES", 2)
    whole = _filter(corpus, Limits(min_length=2), workers=workers)
    commit, made = Parts.commit, []

    def interrupted(self, span, body):
        made.append(span)
        if len(made) == 3:
            raise KeyboardInterrupt
        commit(self, span, body)

    monkeypatch.setattr(Parts, "commit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        _filter(corpus, Limits(min_length=3))
    judged = len(made)
    resumed = _filter(corpus, Limits(min_length=3))
    assert made[judged:] == [(4, 6), (6, 7)], "parts that were committed are not judged again"
    assert resumed != whole and _filter(corpus, Limits(min_length=3)) == resumed and len(made) == 5
    assert _filter(corpus, Limits(min_length=2)) == whole


def test_the_command_prints_its_report(corpus, capsys):
    argv = ["filter", "--input", f"{corpus}/en", f"{corpus}/de", "--output", f"{corpus}/o.en", f"{corpus}/o.de"]
    assert run(*argv, "--max-ratio", "2", "--min-length", "2") == 0
    printed = capsys.readouterr().out
    assert "7 lines, 4 kept, 3 removed" in printed
    assert "1  ratio; the first is line 4: 10:2" in printed and "eins zwei" in printed
    with data_error("--conllu", "--conllu-output"):
        run(*argv, "--conllu", "x")


@pytest.mark.parametrize(
    "option",
    [
        *(("--min-length", "0"), ("--max-length", "0"), ("--workers", "0")),
        *(("--max-ratio", "0.5"), ("--max-ratio", "nan")),
    ],
)
def test_limits_that_make_no_sense(option, capsys):
    with pytest.raises(SystemExit):
        run("filter", "--input", "x", "--output", "y", *option)
    assert f"{option[0]}: " in capsys.readouterr().err


def test_a_parse_in_another_normal_form():
    parse = _sentence("cafe\u0301", line=1)
    with data_error("NFC"):
        Judge(Limits())(["das", "caf\u00e9"], parse)
    with data_error("cafe"):
        Judge(Limits())(["das", "cafe"], parse)

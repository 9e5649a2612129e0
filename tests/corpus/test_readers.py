"""Readers of corpora: what was written in a corpus's own format is read back, and what is wrong with it is located."""

import bz2
import errno
import gzip
import hashlib
import html
import http.client
import http.server
import io
import lzma
import sys
import tarfile
import tempfile
import threading
import zipfile
from functools import partial
from itertools import pairwise
from pathlib import Path
from xml.sax.saxutils import escape

import pytest
from data_errors import data_error
from full_disk import files_no_larger_than
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from matrix_part import examples

from fairseq_syntax.cli import main
from fairseq_syntax.corpus import downloads
from fairseq_syntax.corpus.conllu import check_text
from fairseq_syntax.corpus.gathering import named_splits, read_split, split_files, worded
from fairseq_syntax.corpus.parallel_text import parallel, read_aspec, read_tagged, read_tsv
from fairseq_syntax.corpus.readers import Split, iwslt, names, read_corpus, reader, write_corpus
from fairseq_syntax.corpus.readers.nist import evaluation
from fairseq_syntax.corpus.segments import read_segments, unescape_entities
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.lab.scoring.outputs import read_text
from fairseq_syntax.runtime.files import COMPRESSED, atomic_open

# Sentences as files hold them: words with single spaces, of any script, with what markup must escape.
words = st.text(
    st.characters(exclude_categories=("Cc", "Cs", "Zs", "Zl", "Zp", "Cn", "Co"), exclude_characters="\ufeff|")
    | st.sampled_from("&<>;\"'"),
    min_size=1,
    max_size=8,
).filter(lambda word: word.split() == [word])
sentences = st.lists(words, min_size=0, max_size=5).map(" ".join)
corpora = st.lists(sentences, min_size=1, max_size=6)
in_a_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(60))


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode("utf-8")) if path.suffix == ".gz" else text.encode("utf-8"))
    return path


def lines(side) -> str:
    return "".join(f"{line}\n" for line in side)


def sgm(side, system: str = "", document: str = "d") -> str:
    rows = lines(f'<seg id="{n}"> {escape(line)} </seg>' for n, line in enumerate(side, 1))
    return f'<srcset setid="x" srclang="any">\n<doc {system}docid="{document}">\n<p>\n{rows}</p>\n</doc>\n</srcset>\n'


def tags(side, *more: str) -> str:
    talk = ["<url>http://x</url>", "<keywords>talks</keywords>", "<talkid>1</talkid>", *more]
    return lines([*talk, f"<title>{side[0]}</title>", f"<description>{side[1]}</description>", *side[2:]])


def error_of(read) -> SyntaxDataError:
    with pytest.raises(SyntaxDataError) as caught:
        list(read() if callable(read) else read)
    return caught.value


# -- formats -----------------------------------------------------------------------------------------------------------


@in_a_folder
@given(corpora, st.sampled_from(["\n", " ", ""]), st.booleans())
def test_sgm_is_read_back(tmp_path, side, between, upper):
    """Segments over several lines, several on one line, and entities, each resolved once."""
    text = between.join(f'<seg id="{n}">{between}{escape(line)}{between}</seg>' for n, line in enumerate(side))
    text = text.replace("seg", "SEG") if upper and not any("seg" in line for line in side) else text
    assert [segment.text for segment in read_segments(write(tmp_path / "x.sgm", f"<doc>{text}</doc>"))] == side


@in_a_folder
@given(corpora)
def test_wmt_xml_is_read_back(tmp_path, side):
    def of(element, attributes, texts):
        segments = lines(f'<seg id="{n}">{escape(line)}</seg>' for n, line in enumerate(texts, 1))
        return f"<{element} {attributes}><p>\n{segments}</p></{element}>\n"

    documents = "".join(
        f'<doc id="{n}" origlang="en">'
        + of("src", 'lang="en"', part)
        + of("ref", 'lang="de" translator="A"', [f"A {line}" for line in part])
        + of("ref", 'lang="de" translator="B"', [f"B {line}" for line in part])
        + "</doc>\n"
        for n, part in enumerate((side, side[:1]))
    )
    path = write(tmp_path / "x.xml", f'<?xml version="1.0" encoding="utf-8"?>\n<dataset>{documents}</dataset>\n')
    rows = [(line, *(" ".join(f"{name} {line}".split()) for name in "AB")) for line in [*side, *side[:1]]]
    for references in (1, 2):  # one file is given for all sides
        files = split_files([str(path)], ("en", "de"), references)
        assert list(read_split(files, ("en", "de"))) == [row[: references + 1] for row in rows]
    assert list(parallel(path, path)) == [row[:2] for row in rows]
    for langs in (("de", "en"), ("en", "fr")):
        assert error_of(partial(read_split, [path, path], langs)).path == path


@in_a_folder
@given(corpora)
def test_aspec_and_tsv_are_read_back(tmp_path, side):
    train = lines(f"0.9 ||| A-1 ||| {n} ||| ja {line} ||| {line}" for n, line in enumerate(side))
    assert [row["en"] for row in read_aspec(write(tmp_path / "train-1.txt", train))] == side
    test = lines(f"A-1 ||| {n} ||| ja {line} ||| {line}" for n, line in enumerate(side))
    read = list(read_aspec(write(tmp_path / "test.txt", test)))
    assert [row["en"] for row in read] == side and [row["ja"] for row in read] == [f"ja {s}".strip() for s in side]
    table = write(tmp_path / "x.tsv", lines(f"{line}\tx {line}\t0.5" for line in side))
    assert list(read_tsv(table)) == [(line, f"x {line}".strip()) for line in side]


def test_the_format_of_a_compressed_file_is_told_by_its_name(tmp_path):
    side, other = tmp_path / "x.sgm.xz", tmp_path / "pairs.tsv.bz2"
    side.write_bytes(lzma.compress(sgm(["a", "b"]).encode()))
    other.write_bytes(bz2.compress(b"a\tb\n"))
    assert list(parallel(side)) == [("a",), ("b",)]
    assert list(read_split(split_files([str(other)], ("en", "de")), ("en", "de"))) == [("a", "b")]


def test_test_sets_are_paired_by_their_identifiers(tmp_path):
    """Documents and segments in another order, as published sets have them, are no reason to pair others."""

    def documents(lang, order, attribute="docid", numbered=True):
        def segments(name):
            ids = (1, 2, 3) if lang == "en" else (2, 3, 1)
            return "".join(f"<seg{f' id={n}' * numbered}>{lang} {name}{n}</seg>" for n in ids)

        return write(tmp_path / lang, f"<refset>{''.join(f'<doc {attribute}={n}>{segments(n)}</doc>' for n in order)}")

    pair = [tmp_path / "en.sgm", tmp_path / "de.sgm"]
    documents("en", "ab").rename(pair[0])
    documents("de", "ba").rename(pair[1])
    by_id = [(f"en {name}{n}", f"de {name}{n}") for name in "ab" for n in (1, 2, 3)]
    assert list(parallel(*pair)) == by_id
    documents("de", "ba", attribute="genre").rename(pair[1])  # without names, the first is the first
    assert next(parallel(*pair)) == ("en a1", "de b1")
    documents("de", "ba", numbered=False).rename(pair[1])
    assert next(parallel(*pair)) == ("en a1", "de a2")
    for order, lacking in (("b", 1), ("abc", 0), ("abb", 1)):
        documents("de", order).rename(pair[1])
        assert error_of(partial(parallel, *pair)).path == pair[lacking]
    for reads_text in (check_text, read_text):
        with data_error("corpus", path=pair[0]):
            reads_text(pair[0])
    mixed = [pair[0], write(tmp_path / "plain.de", lines("abcdef"))]
    assert list(parallel(*mixed))[3] == ("en b1", "d")


def test_segments_without_a_translation_are_left_out_of_one_file(tmp_path, caplog):
    one = "<doc id='a'><src lang='en'><seg id='1'>x</seg><seg id='2'>y</seg></src><ref><seg id='2'>Y</seg></ref></doc>"
    suite = "<doc id='b' testsuite='t'><src lang='en'><seg id='1'>z</seg></src></doc>"
    path = write(tmp_path / "x.xml", f"<dataset>{suite}{one}</dataset>")
    assert list(parallel(path, path)) == [("y", "Y")] and "2" in caplog.text


@pytest.mark.parametrize("ending", COMPRESSED)
def test_splits_may_be_compressed(tmp_path, ending):
    for lang in ("en", "de"):
        with atomic_open(tmp_path / f"x.{lang}{ending}") as file:
            file.write(f"{lang}\n")
    langs, prefix = ("en", "de"), [str(tmp_path / "x")]
    assert list(read_split(split_files(prefix, langs), langs)) == [("en", "de")]
    assert downloads.find(tmp_path, "x.en").suffix == ending
    write(tmp_path / f"x.en{'.xz' if ending == '.gz' else '.gz'}", "")
    with data_error(path=tmp_path / "x.en"):
        split_files(prefix, langs)


@pytest.mark.checkout
def test_a_reader_of_ones_own_as_the_repository_shows_one(tmp_path):
    jsonl = str(Path(__file__).parents[2] / "preprocess" / "jsonl.py")
    for name, line in (
        ("train", '{"translation": {"en": "a", "de": " b  c"}}'),
        ("validation", '{"de": "d", "en": "e"}'),
    ):
        write(tmp_path / f"{name}.jsonl.gz", lines([line]))
    write(tmp_path / "test.jsonl", lines(['{"en": "f", "de": "g"}', '{"en": "h"}']))
    splits = dict(read_corpus(jsonl, tmp_path, "en", "de"))
    assert list(splits["train"]) == [("a", "b c")] and list(splits["valid"]) == [("e", "d")]
    error = error_of(splits["test"])
    assert (error.path, error.line) == (tmp_path / "test.jsonl", 2)


def test_what_is_odd_about_splits_is_told(tmp_path, capsys):
    for name, rows in (("train", "abcdef"), ("valid", "xyza"), ("test", "xuva")):
        write(tmp_path / f"{name}.en", lines(rows))
        write(tmp_path / f"{name}.de", lines(rows if name == "test" else rows.upper()))
    splits = [part for split in ("train", "valid") for part in (f"--{split}", str(tmp_path / split))]
    command = ["corpus", "-s", "en", "-t", "de", *splits, "--output", str(tmp_path / "text"), "--test"]
    assert main([*command, f"good={write(tmp_path / 'g.tsv', 'u' + chr(9) + 'v')}"]) == 0
    assert [line for line in capsys.readouterr().err.splitlines() if "good" in line or "pairs" not in line] == []
    assert main([*command, str(tmp_path / "test"), f"same={tmp_path / 'train'}"]) == 0
    told = capsys.readouterr().err.splitlines()
    assert any("test: " in line and "same text" in line for line in told)
    assert any("1 of 4" in line and "valid" in line and "train" in line for line in told)
    assert any("6 of 6" in line and "same" in line for line in told)


@in_a_folder
@given(st.lists(sentences.filter(lambda s: not s.startswith("<")), min_size=2, max_size=6))
def test_iwslt_tags_are_read_back(tmp_path, side):
    """Titles and descriptions are sentences, other tags are not, and no entity is resolved: the file is no XML."""
    path = write(tmp_path / "train.tags.de-en.de", tags(side, "<translator href='x'>Somebody</translator>"))
    assert list(read_tagged(path)) == side


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("AT&amp;T", "AT&T"),
        ("AT&T; R&D", "AT&T; R&D"),
        ("&amp;lt;", "&lt;"),
        ("&amp;amp;quot;", "&amp;quot;"),
        ("&#8217;&#x2019;", "’’"),
        ("x&copy=1", "x&copy=1"),
        ("&quot;a&quot; &nosuch;", '"a" &nosuch;'),
    ],
)
def test_entities_are_resolved_once(text, means):
    assert unescape_entities(text) == means


@given(sentences, st.integers(1, 3))
def test_escaping_and_resolving_are_inverse(text, times):
    escaped = text
    for _ in range(times):
        escaped = html.escape(escaped)
    for _ in range(times):
        escaped = unescape_entities(escaped)
    assert escaped == text


def test_what_is_wrong_with_a_file_is_located(tmp_path):
    def where(read, text, name="x", **options):
        path = write(tmp_path / name, text)
        error = error_of(partial(read, path, **options))
        assert error.path == path
        return error.line

    assert where(read_segments, "<doc>\n<seg>a</seg>\n<seg>b\nc\n") == 3
    assert where(read_segments, "<seg>a\nb\n<seg>c</seg>\n") == 1
    assert where(read_aspec, "A ||| 1 ||| x ||| y\nA ||| 1 ||| x\n") == 2
    assert where(read_tsv, "a\tb\na\n") == 2
    assert where(read_segments, "<doc>\n<src>\n<seg>a & b</seg></src></doc>\n") == 3
    assert where(read_segments, "<doc>\n<src><seg>a</seg>\n") == 3
    names = "abcdefgh"
    entities = "".join(f'<!ENTITY {name} "{40 * f"&{before};"}">\n' for before, name in pairwise(names))
    bomb = f'<!DOCTYPE d [\n<!ENTITY a "aaaa">\n{entities}]>\n<d><src><seg>&h;</seg></src></d>\n'
    assert where(read_segments, bomb) == bomb.count("\n")
    path = tmp_path / "latin"
    path.write_bytes("a\nä\n".encode("latin-1"))
    error = error_of(parallel(path, path))
    assert (error.path, error.line) == (path, 2)


def test_sides_of_unequal_length_are_an_error(tmp_path):
    paths = [write(tmp_path / "a", "1\n2\n"), write(tmp_path / "b", "1\n2\n3\n"), write(tmp_path / "c", "1\n2\n3\n")]
    for order in ([0, 1], [1, 0], [2, 1, 0]):
        error = error_of(parallel(*(paths[n] for n in order)))
        assert (error.path, error.line) == (paths[0], 2)


def test_a_file_is_a_stream(tmp_path):
    """The first row is there before the damaged end of the file is read."""
    path = tmp_path / "x.gz"
    whole = gzip.compress(lines(f"{n} {hashlib.sha256(str(n).encode()).hexdigest()}" for n in range(20_000)).encode())
    path.write_bytes(whole[: len(whole) // 2])
    rows = parallel(path, path)
    assert next(rows)[0].startswith("0 ")
    with pytest.raises(SyntaxDataError):
        list(rows)


# -- corpora -----------------------------------------------------------------------------------------------------------

ENGLISH = ["A man sees the dog.", "Two girls & a boat", "The dog doesn't see it.", "She said: go home!"]
GERMAN = ["Ein Mann sieht den Hund.", "Zwei Mädchen & ein Boot", "Der Hund sieht es nicht.", "Sie sagte: geh heim!"]


def numbered(side, count: int) -> list[str]:
    return [f"{number} {side[number % len(side)]}" for number in range(count)]


def splits(name, folder, langs, **options) -> dict[str, list]:
    return {split: list(rows) for split, rows in read_corpus(name, folder, *langs, options=options)}


def test_a_corpus_may_be_in_a_linked_folder(tmp_path):
    write(tmp_path / "elsewhere" / "train.en", "a\n")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "of_the_group").symlink_to(tmp_path / "elsewhere")
    assert downloads.find(tmp_path / "data", "train.en").read_text() == "a\n"


def test_multi30k(tmp_path):
    for split, count, ending in (("train", 9, ".gz"), ("val", 3, ""), ("test_2016_flickr", 4, "")):
        for lang, side in (("en", ENGLISH), ("de", GERMAN)):
            write(tmp_path / f"{split}.{lang}{ending}", lines(numbered(side, count)))
    actual = splits("multi30k", tmp_path, ("de", "en"), tests=["test_2016_flickr"])
    assert {name: len(rows) for name, rows in actual.items()} == {"train": 9, "valid": 3, "test_2016_flickr": 4}
    assert actual["valid"][1] == ("1 Zwei Mädchen & ein Boot", "1 Two girls & a boat")


def test_iwslt(tmp_path):
    for lang, side, more in (("de", GERMAN, ["<translator>S</translator>"]), ("en", ENGLISH, [])):
        rows = numbered(side, 69)
        rows[9] += " a" * 12 if lang == "de" else ""  # one side much longer than the other
        write(tmp_path / "de-en" / f"train.tags.de-en.{lang}", tags(rows, *more))
        for name in ("dev2010", "dev2012", "tst2010", "tst2011", "tst2012"):
            write(tmp_path / "de-en" / f"IWSLT14.TED.{name}.de-en.{lang}.xml", sgm(numbered(side, 5)))
    pytest.importorskip("sacremoses")
    actual = splits("iwslt", tmp_path, ("de", "en"))
    # The 10th pair goes, and every 23rd of the others is for validation.
    everything = numbered(ENGLISH, 69)
    del everything[9]
    assert {name: len(rows) for name, rows in actual.items()} == {"train": 66, "valid": 2, "test": 25}
    assert [row[1] for row in actual["valid"]] == everything[22::23]
    unread = dict(read_corpus("iwslt", tmp_path, "de", "en"))
    assert list(unread["train"]) == actual["train"]  # also if the rows are read after the splits
    actual = splits("iwslt", tmp_path, ("en", "de"), valid=["dev2010"], tests=["tst2010", "tst2011"])
    assert [(name, len(rows)) for name, rows in actual.items()] == [
        ("train", 69),
        ("valid", 5),
        ("tst2010", 5),
        ("tst2011", 5),
    ]
    assert actual["tst2010"][1] == ("1 Two girls & a boat", "1 Zwei Mädchen & ein Boot")
    sets = {"valid": ["dev2010"], "tests": ["tst2010"]}
    assert splits("iwslt", tmp_path, ("en", "de"), year=2014, **sets).keys() == {"train", "valid", "tst2010"}
    with data_error("IWSLT17*.dev2010.en-de.en.xml"):  # and not the sets of 2014
        splits("iwslt", tmp_path, ("en", "de"), year=2017, **sets)


@pytest.mark.parametrize(
    ("tokens", "kept"),
    [([1, 1], True), ([0, 1], False), ([175, 175], True), ([176, 176], False), ([2, 3], True), ([5, 8], False)],
)
def test_pairs_that_moses_keeps(tokens, kept):
    assert iwslt.is_kept(tokens) is kept and iwslt.is_kept(tokens[::-1]) is kept


def test_wmt(tmp_path):
    for name in ("news-commentary-v11", "europarl-v7"):
        for lang, side in (("en", ENGLISH), ("de", GERMAN)):
            write(tmp_path / "training" / f"{name}.de-en.{lang}", lines(numbered(side, 6)))
    write(tmp_path / "dev" / "newstest2015-ende-src.en.sgm", sgm(numbered(ENGLISH, 3)))
    write(tmp_path / "dev" / "newstest2015-ende-ref.de.sgm", sgm(numbered(GERMAN, 3)))
    write(tmp_path / "dev" / "newstest2014-deen-src.en.sgm", sgm(numbered(ENGLISH, 4)))
    write(tmp_path / "dev" / "newstest2014-deen-ref.de.sgm", sgm(numbered(GERMAN, 4)))
    write(tmp_path / "newstest2016.en", lines(numbered(ENGLISH, 5)))
    write(tmp_path / "newstest2016.de", lines(numbered(GERMAN, 5)))
    document = "<src lang='en'><p><seg id='1'>a &amp; b</seg></p></src><ref lang='de'><p><seg id='1'>c</seg></p></ref>"
    write(tmp_path / "newstest2021.en-de.xml", f"<dataset><doc id='1'>{document}</doc></dataset>\n")
    tests = ["newstest2014", "newstest2016", "newstest2021"]
    actual = splits("wmt", tmp_path, ("en", "de"), corpora=["news-commentary-v11", "europarl-v7"], tests=tests)
    counts = {"train": 12, "valid": 3, "newstest2014": 4, "newstest2016": 5, "newstest2021": 1}
    assert {name: len(rows) for name, rows in actual.items()} == counts
    assert actual["valid"][1] == ("1 Two girls & a boat", "1 Zwei Mädchen & ein Boot")
    assert actual["newstest2021"] == [("a & b", "c")]


def test_cwmt_and_setimes(tmp_path):
    for lang, side in (("en", ENGLISH), ("ch", GERMAN)):
        write(tmp_path / "casia2015" / f"casia2015_{lang}.txt", lines(numbered(side, 3)))
    for lang, side in (("en", ENGLISH), ("cn", GERMAN)):
        write(tmp_path / "datum2017" / f"Book1_{lang}.txt", lines(numbered(side, 2)))
        write(tmp_path / f"newsdev2017.{'zh' if lang == 'cn' else lang}", lines(numbered(side, 1)))
    options = {"corpora": ["casia2015", "datum2017-1"], "valid": "newsdev2017", "tests": []}
    actual = splits("wmt", tmp_path, ("zh", "en"), **options)
    assert len(actual["train"]) == 5 and actual["train"][0] == (f"0 {GERMAN[0]}", f"0 {ENGLISH[0]}")
    for lang in ("en", "tr"):
        write(tmp_path / f"SETIMES.en-tr.{lang}", lines(numbered(ENGLISH, 3)))
        write(tmp_path / f"newstest2016.{lang}", lines(numbered(ENGLISH, 3)))
    actual = splits("wmt", tmp_path, ("en", "tr"), corpora=["SETIMES2"], valid="newstest2016", tests=[])
    assert len(actual["train"]) == 3


def test_aspec(tmp_path):
    for name, count in (("train/train-1", 4), ("train/train-2", 3), ("train/train-3", 2)):
        rows = lines(f"0.9 ||| A ||| {n} ||| 犬を{n}見た ||| {name} {n}" for n in range(count))
        write(tmp_path / f"{name}.txt", rows)
    for name in ("dev/dev", "test/test"):
        write(tmp_path / f"{name}.txt", lines(f"A ||| {n} ||| 犬 ||| {name} {n}" for n in range(2)))
    actual = splits("aspec", tmp_path, ("en", "ja"), train_pairs=5)
    assert list(actual) == ["train", "valid", "test"]
    assert len(actual["train"]) == 5 and actual["train"][4] == ("train/train-2 0", "犬を0見た")
    assert len(splits("aspec", tmp_path, ("ja", "en"))["train"]) == 9
    assert error_of(read_corpus("aspec", tmp_path, "en", "ja", download=True)).path == tmp_path


def test_nist_has_all_references(tmp_path):
    for lang in ("zh", "en"):
        write(tmp_path / f"train.{lang}", lines(numbered(ENGLISH, 4)))
    for name in ("mt02", "mt05"):
        write(tmp_path / f"{name}-src.sgm", sgm(numbered(GERMAN, 3)))
        references = "".join(sgm([f"{t} {line}" for line in numbered(ENGLISH, 3)], f'sysid="{t}" ') for t in "ABCD")
        write(tmp_path / f"{name}-ref.sgm", references)
    actual = splits("nist", tmp_path, ("zh", "en"), tests=["mt05"])
    assert actual["valid"][0] == (f"0 {GERMAN[0]}", f"A 0 {ENGLISH[0]}")
    assert actual["mt05"][2] == (f"2 {GERMAN[2]}", *(f"{t} 2 {ENGLISH[2]}" for t in "ABCD"))
    lowered = splits("nist", tmp_path, ("zh", "en"), tests=["mt05"], lowercase=True)["mt05"]
    assert lowered[0] == (f"0 {GERMAN[0]}", *(f"{t} 0 {ENGLISH[0]}".lower() for t in "ABCD"))
    # One translator has a sentence less than the others.
    text = (tmp_path / "mt05-ref.sgm").read_text(encoding="utf-8")
    cut = text[: text.rindex("<seg")] + "</p></doc></srcset>\n"
    write(tmp_path / "mt05-ref.sgm", cut)
    cut_off = read_corpus("nist", tmp_path, "zh", "en", options={"tests": ["mt05"]})
    assert error_of(row for _, rows in cut_off for row in rows).path == tmp_path / "mt05-ref.sgm"


@settings(max_examples=examples(30))
@given(st.permutations("ABCD"), st.data())
def test_nist_matches_documents_by_name(order, data):
    """Source and references may have them in different orders, the references by translator or mixed."""
    with tempfile.TemporaryDirectory() as folder:
        source = "".join(sgm([f"source {name} {n}" for n in range(2)], document=name) for name in order)
        write(Path(folder, "mt05-src.sgm"), source)
        files = data.draw(st.permutations([(translator, name) for translator in "xy" for name in "ABCD"]))
        references = "".join(
            sgm([f"{translator} {name} {n}" for n in range(2)], f"sysid={translator} ", name)
            for translator, name in files
        )
        write(Path(folder, "mt05-ref.sgm"), references)
        first, second = dict.fromkeys(translator for translator, _ in files)
        rows = [tuple(f"{side} {name} {n}" for side in ("source", first, second)) for name in order for n in range(2)]
        assert list(evaluation(Path(folder), "mt05")) == rows
        write(Path(folder, "mt05-ref.sgm"), references.replace('docid="A"', 'docid="E"'))
        assert error_of(evaluation(Path(folder), "mt05")).path == Path(folder, "mt05-ref.sgm")


def test_a_split_with_references_is_written_and_read(tmp_path):
    rows = [("a", "b", "c"), ("d", "e", "f")]
    written = write_corpus(iter([Split("train", iter([("x", "y")])), Split("mt05", iter(rows))]), tmp_path, "zh", "en")
    assert [(split.name, split.sentences) for split in written] == [("train", 1), ("mt05", 2)]
    assert list(parallel(*written[1].paths)) == rows
    broken = [("a\nb", "c\nd"), ("e", "f")]
    for number, wrong in enumerate(([Split("train", [])], [Split("a", rows), Split("a", rows)], [Split("a", broken)])):
        with pytest.raises(SyntaxDataError):
            write_corpus(wrong, tmp_path / str(number), "zh", "en")
    assert not list((tmp_path / "0").iterdir())


def test_unknown_names_are_told(tmp_path):
    assert {"aspec", "iwslt", "moses", "multi30k", "nist", "wmt"} <= set(names())
    page = Path(sys.modules[read_corpus.__module__].__file__ or "").with_name("README.md").read_text("utf-8")
    assert [name for name in names() if f"[`{name}`]({name}.py)" not in page] == []
    assert "multi30k" in (error_of(read_corpus("nosuch", tmp_path, "en", "de")).hint or "")
    assert "corpora" in (error_of(read_corpus("wmt", tmp_path, "en", "de", options={"corpus": []})).hint or "")
    for name, options in (("iwslt", {"year": "abc"}), ("nist", {"lowercase": 5}), ("wmt", {"corpora": {"nc": 1}})):
        message = str(error_of(read_corpus(name, tmp_path, "en", "de", options=options)))
        assert f"reader {name}" in message and f"option {next(iter(options))}" in message
    assert error_of(read_corpus("wmt", tmp_path, "en", "de")).path == tmp_path
    write(tmp_path / "a" / "train.en", "a\n")
    write(tmp_path / "b" / "train.en", "a\n")
    assert error_of(read_corpus("multi30k", tmp_path, "en", "de")).path == tmp_path
    mine = write(
        tmp_path / "mine.py",
        "from __future__ import annotations\ndef read(data, source, target, *, n=1) -> Iterator[Any]:\n"
        "    yield 'train', [(source, target)] * n\n",
    )
    assert [list(rows) for _, rows in read_corpus(str(mine), tmp_path, "a", "b", options={"n": 2})] == [
        [("a", "b")] * 2
    ]
    with pytest.raises(SyntaxDataError):
        reader(str(tmp_path / "none.py"))


# -- validation and test data out of a corpus --------------------------------------------------------------------------


def held_out(corpus, **options):
    with tempfile.TemporaryDirectory() as folder:
        for lang, side in zip(("zh", "en"), zip(*corpus)):
            write(Path(folder) / f"UNv1.0.en-zh.{lang}", lines(side))
        return splits("moses", Path(folder), ("zh", "en"), **options)


@settings(max_examples=examples(40))
@given(st.lists(st.integers(0, 45), min_size=1, max_size=200), st.integers(0, 3), st.integers(1, 30), st.integers(0, 9))
def test_held_out_parts_are_disjoint_and_of_the_right_lengths(lengths, groups, size, seed):
    corpus = [(" ".join(["w"] * n), str(i)) for i, n in enumerate(lengths)]
    options = {"seed": seed, "group_count": groups, "group_size": size, "valid_pairs": 5, "max_length": 40}
    actual = held_out(corpus, **options)
    numbers = [int(row[1]) for rows in actual.values() for row in rows]
    assert len(set(numbers)) == len(numbers)
    for name, rows in actual.items():
        of_split = [int(row[1]) for row in rows]
        assert of_split == sorted(of_split), "in the order of the corpus"
        if groups and name.startswith("test"):
            to = int(name.removeprefix("test_"))
            assert all(to - 10 < lengths[n] <= to for n in of_split)
            assert len(of_split) == min(size, sum(to - 10 < n <= to for n in lengths))
        else:
            assert all(0 < lengths[n] <= 40 or name == "test" for n in of_split)
    in_tests = {int(row[1]) for name, rows in actual.items() if name.startswith("test") for row in rows}
    left = [n for n, length in enumerate(lengths) if 0 < length <= 40 and n not in in_tests]
    assert len(actual["valid"]) == min(5, len(left)) and len(actual["train"]) == len(left) - len(actual["valid"])
    assert actual == held_out(corpus, **options), "by the seed"


def test_every_pair_is_as_likely_to_be_held_out():
    corpus = [("w", str(n)) for n in range(20)]
    counts = [0] * 20
    for seed in range(200):
        parts = held_out(corpus, seed=seed, group_size=5, valid_pairs=0)
        for _, n in parts["test"]:
            counts[int(n)] += 1
    assert sum(counts) == 1000 and all(25 < count < 75 for count in counts)  # 50 each, sd 6.1


def test_moses_pairs_with_words_by_a_program(tmp_path):
    chinese = ["我爱你" * n for n in range(1, 9)]
    write(tmp_path / "en-zh" / "UNv1.0.en-zh.zh", lines(chinese))
    write(tmp_path / "en-zh" / "UNv1.0.en-zh.en", lines(f"I love you {n}" for n in range(8)))
    characters = f"{sys.executable} -c 'import sys; [print(*line.strip()) for line in sys.stdin]'"
    options = {"words": {"zh": characters}, "group_count": 2, "group_width": 6, "group_size": 3, "valid_pairs": 1}
    actual = splits("moses", tmp_path, ("zh", "en"), **options)
    assert [len(rows) for rows in actual.values()] == [3, 1, 2, 2]
    assert all(6 < len(source.split()) <= 12 for source, _ in actual["test_12"])
    assert ("我 爱 你", "I love you 0") in actual["test_6"]


# -- words by a program ------------------------------------------------------------------------------------------------


def python(code: str) -> str:
    return f"{sys.executable} -c '{code}'"


CHARACTERS = python("import sys; [print(*line.strip()) for line in sys.stdin]")


def segment_words(sentences, program: str):
    """The sentences of one language with spaces between their words."""
    return (row[0] for row in worded(((sentence,) for sentence in sentences), ["zh"], {"zh": program}))


@settings(max_examples=15)
@given(corpora)
def test_only_spaces_come_between_words(side):
    side = [line.replace("'", "’") for line in side]
    spaced = list(segment_words(side, CHARACTERS))
    assert ["".join(line.split()) for line in spaced] == ["".join(line.split()) for line in side]


def test_more_than_the_pipes_hold_goes_through():
    side = ["我爱你" * 100] * 600  # half a megabyte each way
    assert sum(1 for _ in segment_words(side, CHARACTERS)) == 600


def test_words_of_both_languages_and_of_all_references():
    def rows():
        for n in range(1, 10):
            yield (f"犬{n}", f"我爱{n}", f"爱我{n}")

    spaced = list(worded(rows(), ("ja", "zh"), {"ja": CHARACTERS, "zh": CHARACTERS}))
    assert spaced == [(f"犬 {n}", f"我 爱 {n}", f"爱 我 {n}") for n in range(1, 10)]
    assert list(worded([("a b", "cd")], ("en", "zh"), {"zh": CHARACTERS})) == [("a b", "c d")]


def test_a_program_that_fails_is_told():
    assert error_of(segment_words(["a"], "no-such-program"))
    assert error_of(segment_words(["ab", "cd"], python('print("a b")'))).line == 1
    assert error_of(segment_words(["ab", "cd"], python('print("a b"); print("c"); print("x")'))).line == 2
    assert error_of(worded([("ab", "cd")], ("en", "ja"), {"jp": CHARACTERS})).message.startswith("jp")
    error = error_of(segment_words(["ab"], python('import sys; print("no model", file=sys.stderr); sys.exit(3)')))
    assert error.line == 0 and error.hint == "no model"

    def damaged():
        yield "ab"
        raise SyntaxDataError("of the stream", line=7)

    assert error_of(segment_words(damaged(), CHARACTERS)).line == 7


# -- downloads ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def site():
    """A server on the loopback: ``site.files`` by name; at most ``site.most`` bytes an answer, whatever it promises."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            content = server.files.get(self.path[1:])
            if content is None:
                return self.send_error(404)
            begin = int((self.headers["Range"] or "bytes=0-")[6:-1])
            if begin >= len(content):
                return self.send_error(416)
            server.asked.append((self.path[1:], begin))
            self.send_response(206 if begin else 200)
            self.send_header("Content-Length", str(len(content) - begin))
            self.end_headers()
            self.wfile.write(content[begin : begin + server.most])

        def log_message(self, *arguments):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    server.files, server.asked, server.most = {}, [], 1 << 30
    server.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def tgz(name: str, content: bytes, kind=tarfile.REGTYPE, target: str = "") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        member = tarfile.TarInfo(name)
        member.type, member.linkname, member.size = kind, target, len(content)
        tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def zipped(name: str, content: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as packed:
        packed.writestr(name, content)
    return buffer.getvalue()


def test_a_cut_off_download_goes_on_and_is_checked(tmp_path, site):
    content = bytes(range(256)) * 10
    site.files["file"], site.most = content, 1000
    right = {"file": f"sha256:{hashlib.sha256(content).hexdigest()}"}
    for size in (1000, 2000):
        with pytest.raises(SyntaxDataError):
            downloads.fetch_all([f"{site.url}/file"], tmp_path, right)
        assert [(p.name, p.stat().st_size) for p in tmp_path.iterdir()] == [("file.part", size)]
    downloads.fetch_all([f"{site.url}/file"], tmp_path, right)
    assert (tmp_path / "file").read_bytes() == content and [begin for _, begin in site.asked] == [0, 1000, 2000]
    downloads.fetch_all([f"{site.url}/file"], tmp_path, right)
    assert len(site.asked) == 3, "what is there is kept"
    # A whole .part asks for nothing more; with another checksum than it should have it goes.
    (tmp_path / "file").rename(tmp_path / "file.part")
    with pytest.raises(SyntaxDataError):
        downloads.fetch(f"{site.url}/file", tmp_path / "file", f"md5:{hashlib.md5(b'other').hexdigest()}")
    assert not list(tmp_path.iterdir())


def test_a_lost_connection_is_no_fault_of_the_disk(tmp_path, site, monkeypatch):
    def read(*arguments):
        raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")

    site.files["file"] = b"a"
    monkeypatch.setattr(http.client.HTTPResponse, "read", read)
    with data_error("reset", path=f"{site.url}/file"):
        downloads.fetch(f"{site.url}/file", tmp_path / "file")


def test_a_full_disk_is_no_fault_of_the_network(tmp_path, site):
    site.files["file"] = bytes(5000)
    with files_no_larger_than(1000), data_error("room", path="file.part"):
        downloads.fetch(f"{site.url}/file", tmp_path / "file")


@pytest.mark.parametrize("filters", [True, False], ids=["this Python", "Python 3.11.3"])
def test_archives_are_unpacked_into_the_folder_only(tmp_path, site, monkeypatch, filters):
    if not filters:
        monkeypatch.delattr(tarfile, "data_filter", raising=False)
    site.files |= {"a.tgz": tgz("corpus/train.en", b"a\n"), "b.zip": zipped("corpus/train.de", b"b\n")}
    site.files |= {
        "c.gz": gzip.compress(b"c\n"),
        "evil.tgz": tgz("../outside", b"x"),
        "evil.zip": zipped("../out", b"x"),
    }
    site.files["link.tgz"] = tgz("link", b"", tarfile.SYMTYPE, "/etc")
    folder = tmp_path / "data"
    downloads.fetch_all([f"{site.url}/{name}" for name in ("a.tgz", "b.zip", "c.gz")], folder)
    assert list(parallel(*(downloads.find(folder, f"train.{lang}") for lang in ("en", "de")))) == [("a", "b")]
    assert list(parallel(downloads.find(folder, "c"))) == [("c",)]
    downloads.fetch_all([f"{site.url}/evil.zip"], folder)
    assert (folder / "out").exists()
    for name in ("evil.tgz", "link.tgz"):
        with pytest.raises(downloads.DamagedArchive):
            downloads.fetch_all([f"{site.url}/{name}"], folder)
        assert not (folder / name).exists()
    assert not (folder / "link").exists() and [p.name for p in tmp_path.iterdir()] == ["data"]
    with pytest.raises(SyntaxDataError):
        downloads.fetch_all([f"{site.url}/none"], folder)


def test_a_damaged_archive_is_fetched_again(tmp_path, site):
    right = tgz("train.en", bytes(hashlib.sha256(b"x").digest() * 10_000))
    site.files["a.tgz"] = right[: len(right) // 2] + bytes(20) + right[len(right) // 2 + 20 :]
    with pytest.raises(downloads.DamagedArchive):
        downloads.fetch_all([f"{site.url}/a.tgz"], tmp_path)
    assert not list(tmp_path.glob("a.tgz*"))
    site.files["a.tgz"] = right
    downloads.fetch_all([f"{site.url}/a.tgz"], tmp_path)
    assert downloads.find(tmp_path, "train.en").stat().st_size == 320_000


def test_wmt_fetches_archives_of_one_name_apart(tmp_path, site, monkeypatch):
    from fairseq_syntax.corpus.readers import wmt

    pair = {"en": b"a\n", "de": b"b\n"}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as packed:
        for lang, text in pair.items():
            packed.writestr(f"training/nc.de-en.{lang}", text)
    site.files["nc.zip"] = buffer.getvalue()
    monkeypatch.setattr(wmt, "ARCHIVES", {"nc": f"{site.url}/nc.zip"})
    monkeypatch.setattr(
        wmt, "TESTS", {f"newstest{year}": (f"{site.url}/{year}/test.zip", None) for year in (2015, 2016)}
    )
    for year in (2015, 2016):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as packed:
            for side, lang in (("src", "en"), ("ref", "de")):
                packed.writestr(f"test/newstest{year}-ende-{side}.{lang}.sgm", sgm([f"{lang} {year}"]))
        site.files[f"{year}/test.zip"] = buffer.getvalue()
    actual = dict(read_corpus("wmt", tmp_path, "en", "de", download=True, options={"corpora": ["nc"]}))
    assert list(actual["train"]) == [("a", "b")] and list(actual["newstest2016"]) == [("en 2016", "de 2016")]


def test_test_sets_have_names_prefixes_and_pairs_of_files(tmp_path):
    for lang in ("en", "de"):
        (tmp_path / f"pair.{lang}.gz").touch()
    one, two, en, de = (str(tmp_path / name) for name in ("t2016", "t2017", "pair.en", "pair.de"))
    assert named_splits([one, two]) == {"t2016": [one], "t2017": [two]}
    assert named_splits([f"t={en}", de, one, f"x={two}.tsv"]) == {"t": [en, de], "t2016": [one], "x": [f"{two}.tsv"]}
    assert named_splits([en, one], of_reader=True) == {"pair.en": [en], "t2016": [one]}
    assert named_splits([en, de, one]) == {"pair": [en, de], "t2016": [one]}
    (tmp_path / "new2014-ende-src.en.sgm").touch()
    sides = [str(tmp_path / f"new2014-ende-{side}.sgm") for side in ("src.en", "ref.de")]
    assert named_splits(sides) == {"new2014-ende": sides}
    in_run = str(tmp_path / "lr=0.1" / "t2016")
    assert named_splits([in_run, f"x={in_run}"]) == {"t2016": [in_run], "x": [in_run]}
    with pytest.raises(SyntaxDataError):
        named_splits([one, f"t2016={two}"])


def test_a_second_table_of_a_split_is_not_lost():
    with data_error("b.tsv.gz"):
        split_files(["a.tsv", "b.tsv.gz"], ("en", "de"))


def test_further_references_belong_to_a_test_set_of_files(tmp_path, capsys):
    for name in ("train.en", "train.de", "train.de.1"):
        write(tmp_path / name, "a\n")
    write(tmp_path / "table.tsv", "a\ta\n")
    write(tmp_path / "table.tsv.1", "a\n")
    prefix, output = str(tmp_path / "train"), tmp_path / "text"
    command = ["corpus", "-s", "en", "-t", "de", "--train", prefix, "--valid", prefix, "--output", str(output)]
    tests = ["--test", f"t={prefix}", f"table={tmp_path / 'table.tsv'}", "--references"]
    for wrong in ("x=2", "t=two", "table=2"):
        assert main([*command, *tests, wrong]) == 1 and wrong.partition("=")[0] in capsys.readouterr().err
    assert main([*command, *tests, "t=2"]) == 0 and (output / "t.de.1").read_text() == "a\n"


def test_a_corpus_is_not_overwritten_by_a_part_of_it(tmp_path, capsys):
    folder = tmp_path / "corpus"
    folder.mkdir()
    names = [f"{name}.{lang}" for name in ("train", "val", "newstest") for lang in ("en", "de")]
    for name in names:
        write(folder / name, "a\nb\n")
    train, valid, test = (str(folder / name) for name in ("train", "val", "newstest"))
    files = ["--train", train, "--valid", valid, "--test", test]
    reader = ["--reader", "multi30k", "--data", str(folder), "--option", "tests=newstest"]
    for of in (files, reader):
        command = ["corpus", "-s", "en", "-t", "de", *of, "--subset", "1", "--first", "1", "--output"]
        assert main([*command, str(folder)]) == 1 and "would overwrite" in capsys.readouterr().err
        assert all((folder / name).read_text() == "a\nb\n" for name in names)
        assert [main([*command, str(tmp_path / "text")]) for _ in range(2)] == [0, 0]


def test_options_that_a_corpus_of_files_or_of_a_reader_does_not_have(tmp_path, capsys):
    for name in ("train.en", "train.de"):
        write(tmp_path / name, "a\n")
    prefix, output = str(tmp_path / "train"), tmp_path / "text"
    files = ["--train", prefix, "--valid", prefix]
    reader = ["--reader", "multi30k", "--data", str(tmp_path)]
    for of in ([*files, "--download"], [*files, "--option", "tests=a"], [*reader, "--valid", prefix], files[:2]):
        option = next(word for word in reversed(of) if word.startswith("--"))
        assert main(["corpus", "-s", "en", "-t", "de", *of, "--output", str(output)]) == 1
        assert option in capsys.readouterr().err and not output.exists()

"""Texts and parses of other tools: what they mean is taken, and what would be taken for something else is told."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import toy_data
from data_errors import data_error

from fairseq_syntax.corpus.conllu import read_conllu, text_of
from fairseq_syntax.corpus.filters import Limits, filter_files
from fairseq_syntax.corpus.parsing.conllu_file import pass_on
from fairseq_syntax.corpus.parsing.parse_jobs import Job, parse_corpus
from fairseq_syntax.corpus.parsing.parser import ParserOptions
from fairseq_syntax.corpus.parsing.tokenizers import SpacyTokenizer
from fairseq_syntax.corpus.segmentation import WordSegmenter, load_segmenter
from fairseq_syntax.corpus.segmentation_files import segment_file
from fairseq_syntax.corpus.text_parts import conllu_parts
from fairseq_syntax.data.labels import LabelInventory
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.lab.scoring.contrast_sets import ContrastItem, ContrastSet, _checked


def rows(*words: str, label: str = "dep", upos: str = "NOUN") -> str:
    """A sentence in which each word depends on the one before it, without a word on spaces."""
    return "".join(f"{i + 1}\t{w}\t_\t{upos}\t_\t_\t{i}\t{label if i else 'root'}\t_\t_\n" for i, w in enumerate(words))


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_a_parse_that_knows_of_no_spaces_has_those_of_its_text(tmp_path):
    """Its pieces are then those of raw text."""
    text = write(tmp_path / "text", "I don't.\n«10 000 €»\n")
    parse = write(tmp_path / "in.conllu", rows("I", "do", "n't", ".") + "\n" + rows("«", "10 000", "€", "»") + "\n")
    pass_on(parse, tmp_path / "out.conllu", text=text)
    actual = [[token.space_after for token in line.tokens] for line in read_conllu(tmp_path / "out.conllu")]
    assert actual == [[True, False, False, True], [False, True, False, True]]


def test_spaces_within_words_are_those_of_the_text_too(tmp_path):
    text = write(tmp_path / "text", "10 000 du coup\nà peine dujour\n")
    first = "1\t10000\t_\tX\t_\t_\t0\troot\t_\tA=b\n2-3\tducoup\t" + "\t".join("_" * 8) + "\n"
    first += "2\tde\t_\tX\t_\t_\t1\tdep\t_\t_\n3\tle coup\t_\tX\t_\t_\t1\tdep\t_\t_\n"
    parse = write(tmp_path / "in.conllu", first + "\n" + rows("àpeine", "du jour") + "\n")
    pass_on(parse, tmp_path / "out.conllu", text=text)
    kept = (str(tmp_path / "kept"), str(tmp_path / "kept.conllu"))
    filter_files([str(text)], kept[:1], Limits(), conllu=(str(parse), kept[1]))
    for path in (tmp_path / "out.conllu", kept[1]):
        lines = list(read_conllu(path))
        assert [text_of(line) for line in lines] == text.read_text(encoding="utf-8").splitlines()
        assert [line.words for line in lines] == [["10 000", "de", "le coup"], ["à peine", "dujour"]]


@pytest.mark.parametrize("title, told", [("", 1), ('# parsed_with = {"tokenizer": "whitespace"}\n', 0)])
def test_a_parse_that_knows_of_no_spaces_is_told_of_once(tmp_path, caplog, title, told):
    """Unless it is of tokenized text, or there are no marks to tell by."""
    write(tmp_path / "in.en.conllu", f"# lines = 2\n{title}{rows('I', 'see', '.')}\n{rows('so', '.')}\n")
    pass_on(tmp_path / "in.en.conllu", tmp_path / "out.en.conllu")
    assert sum(r.levelname == "WARNING" for r in caplog.records) == told
    segment_file(WordSegmenter(), tmp_path / "out.en.conllu", [tmp_path / "pieces", tmp_path / "pieces.conllu"])
    assert sum(r.levelname == "WARNING" for r in caplog.records) == 2 * told
    text = write(tmp_path / "text", "I see.\nso.\n")
    pass_on(tmp_path / "in.en.conllu", tmp_path / "out.en.conllu", text=text, overwrite=True)
    assert sum(r.levelname == "WARNING" for r in caplog.records) == 2 * told


def test_escapes_are_named(tmp_path):
    text = write(tmp_path / "text", "a (b) &c\n")
    parse = write(tmp_path / "in.conllu", rows("a", "-LRB-", "b", "-RRB-", "&amp;", "c") + "\n")
    with pytest.raises(SyntaxDataError) as error:
        pass_on(parse, tmp_path / "out.conllu", text=text)
    assert "-LRB-" in error.value.hint


@pytest.mark.parametrize(
    "text, line",
    [
        (rows("a", "\u00a0", "b"), 2),
        (rows("a", "b", "\u3000"), 3),
        (rows("a", "b", label=" punct"), 2),
        (rows("a", upos="NOUN "), 1),
        ("# global.columns = ID FORM UPOS XPOS LEMMA FEATS HEAD DEPREL DEPS MISC\n" + rows("a"), 1),
    ],
)
def test_what_is_in_the_wrong_place_has_its_row(tmp_path, text, line):
    path = write(tmp_path / "in.conllu", text + "\n")
    with pytest.raises(SyntaxDataError) as error:
        list(read_conllu(path))
    assert error.value.line == line and error.value.path == str(path)


@pytest.mark.parametrize("blank", ["\u00a0", "\u3000 ", " ", ""])
def test_a_blank_line_is_the_same_to_all_readers(tmp_path, blank):
    path = write(tmp_path / "in.conllu", f"{rows('a', 'b')}{blank}\n{rows('c')}{blank}\n")
    assert [line.words for line in read_conllu(path)] == [["a", "b"], ["c"]]
    assert sum(part.end - part.start for part in conllu_parts(path, 1)) == 2


def test_the_standard_columns_may_be_named(tmp_path):
    names = "# global.columns = ID FORM LEMMA UPOS XPOS FEATS HEAD DEPREL DEPS MISC\n"
    assert [line.words for line in read_conllu(write(tmp_path / "in.conllu", names + rows("a") + "\n"))] == [["a"]]


@pytest.mark.parametrize("content", ["the 120\nof 80\n", "#version: 0.2\nĠ t\nĠ a\n", "a b\nab c\n"])
def test_a_vocabulary_is_not_taken_for_byte_pair_codes(tmp_path, content):
    with pytest.raises(SyntaxDataError):
        load_segmenter(write(tmp_path / "codes", content))


def test_a_label_too_many_is_named():
    labels = LabelInventory()
    for number in range(63):
        labels.id("upos", f"T{number}")
    with data_error("T63"):
        labels.id("upos", "T63")


@pytest.mark.parametrize(
    "links, line",
    [
        ("0-0\n" * 59, None),  # of fewer lines than the text
        ("\ufeff0-0\n" + "0-0\n" * 59, 1),
        ("0-0\n0-0 1\n" + "0-0\n" * 58, 2),
        ("0-0\n0-−1\n" + "0-0\n" * 58, 2),
    ],
)
def test_links_that_fairseq_cannot_read_are_told_before_the_work(toy, tmp_path, links, line):
    shutil.copytree(toy.segmented, tmp_path / "segmented")
    write(tmp_path / "segmented/train.align", links)
    options = toy_data.preprocess_options(tmp_path / "segmented", tmp_path / "data")
    with pytest.raises(SyntaxDataError) as error:
        toy_data.fairseq("preprocess", *options, "--align-suffix", "align")
    assert str(error.value.path).endswith("train.align") and error.value.line == line


def test_a_source_that_no_pair_uses_may_be_empty(caplog):
    contrast = ContrastSet("a", ["text", ""])
    contrast.row(0, "right")
    contrast.row(0, "wrong")
    contrast.items = [ContrastItem(0, 1, "a")]
    assert _checked(contrast, "a", first_line=1) and not caplog.records
    contrast.row(1, "right")
    contrast.items.append(ContrastItem(2, 1, "a"))
    assert _checked(contrast, "a", first_line=1) and len(caplog.records) == 1, "published sets have some"


@pytest.mark.parametrize(
    "lang, text",
    [("ja", "a"), ("zh-CN", "a"), ("th", "a"), ("en", "私は東京に行きます。"), ("en", "ฉันชอบกินข้าว")],
)
def test_the_basic_tokenizer_refuses_scripts_without_spaces(tmp_path, lang, text):
    options = ParserOptions(parser="chain_parser", lang=lang)
    path = write(tmp_path / "text", f"{text}\n")
    with pytest.raises(SyntaxDataError) as error:
        parse_corpus(Job(path, tmp_path / "out.conllu", options))
    assert error.value.option == "--tokenizer"
    spaced = Job(path, tmp_path / "out.conllu", replace(options, tokenizer="whitespace"))
    assert parse_corpus(spaced) == spaced.output


def test_a_foreign_word_is_no_text_without_spaces(tmp_path):
    path = write(tmp_path / "text", "She reads 東京 in Tokyo, and 北京 in Beijing.\n")
    parse_corpus(Job(path, tmp_path / "out.conllu", ParserOptions(parser="chain_parser")))
    (line,) = read_conllu(tmp_path / "out.conllu")
    assert "東京" in line.words


@pytest.mark.parametrize("lang, words", [("ja", 7), ("zh", 5)])
def test_spacy_cuts_japanese_and_chinese_into_words(lang, words):
    for module in ("spacy", "sudachipy" if lang == "ja" else "jieba"):
        pytest.importorskip(module)
    text = {"ja": "私は東京に行きます。", "zh": "他在北京大学学习。"}[lang]
    ((tokens,),) = SpacyTokenizer(lang).tokenize([text])
    assert len(tokens) == words and "".join(token.form for token in tokens) == text


@pytest.mark.parametrize("split", [False, True])
def test_spacy_cuts_lines_that_are_too_long_for_it_in_parts(split):
    for module in ("spacy", "sudachipy"):
        pytest.importorskip(module)
    text, more = "私は東京に行きます。", "京" * 30_000
    (short,), long, other = SpacyTokenizer("ja", split_sentences=split).tokenize([text, 2000 * text, more])
    assert [token.form for sentence in long for token in sentence] == 2000 * [token.form for token in short]
    assert len(long) == (2000 if split else 1)
    assert "".join(token.form for sentence in other for token in sentence) == more


@pytest.mark.parametrize("text, told", [("A man , a dog .\n", True), ("A man, a dog.\n", False), ("a man\n", False)])
def test_a_text_that_looks_tokenized_is_told_of(tmp_path, caplog, text, told):
    path = write(tmp_path / "text", 20 * text)
    for tokenizer in ("basic", "whitespace"):
        assert Job(path, tmp_path / "out", ParserOptions(parser="chain_parser", tokenizer=tokenizer)).n_lines == 20
    assert sum("pretokenized" in record.message for record in caplog.records) == told

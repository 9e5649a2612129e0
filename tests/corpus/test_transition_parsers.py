"""spaCy's and UDPipe's parsers behind the interface of all parsers, and models of another language."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from data_errors import data_error, refused
from parse_models import conllu, models, sentences
from transition_models import spacy_pipeline, udpipe_model

from fairseq_syntax.cli import main
from fairseq_syntax.corpus.conllu import read_conllu, text_of
from fairseq_syntax.corpus.parsing.parser import (
    ParserOptions,
    check_parser,
    fingerprint_of_models,
    load_parser,
    model_path,
    one_root,
)

LINES = ["the man sees a dog. the girl likes a boat in the park.", "", "  the  dog has a man. "]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def pipeline(folder) -> Path:
    pytest.importorskip("spacy")
    return spacy_pipeline(folder / "spacy")


@pytest.fixture(scope="module")
def udpipe(folder) -> Path:
    pytest.importorskip("ufal.udpipe")
    return udpipe_model(folder / "toy.udpipe")


@pytest.fixture(scope="module", params=["spacy", "udpipe"])
def options(request) -> ParserOptions:
    """The options of a parser with toy models."""
    place = request.getfixturevalue("pipeline" if request.param == "spacy" else "udpipe")
    return ParserOptions(request.param, "en", str(place))


def by_itself(options: ParserOptions, line: str) -> list[tuple[int, str, str]]:
    """Head (from 1), label and tag of each word of a line that is one sentence, by the program alone."""
    if options.parser == "spacy":
        import spacy

        pipeline = spacy.load(options.model_dir)
        document = pipeline.make_doc(" ".join(line.split()))
        for token in document:
            token.is_sent_start = token.i == 0
        for _, component in pipeline.pipeline:
            document = component(document)
        assert len({word.dep_ for word in document}) > 2, "it has learned something"
        return [(0 if w.head.i == w.i else w.head.i + 1, w.dep_.replace("ROOT", "root"), w.tag_) for w in document]
    from ufal.udpipe import Model, Pipeline, ProcessingError

    model = Model.load(options.model_dir)  # a pipeline does not keep its model alive
    pipeline = Pipeline(model, "tokenizer=presegmented", Pipeline.DEFAULT, Pipeline.DEFAULT, "conllu")
    rows = pipeline.process(line, ProcessingError()).splitlines()
    columns = [row.split("\t") for row in rows if row[:1].isdigit()]
    return [(int(column[6]), column[7], column[4]) for column in columns]


def as_ids(line) -> list[tuple[int, str, str]]:
    heads = [0 if head == word else head + 1 for word, head in enumerate(line.heads)]
    return list(zip(heads, line.deprels, line.xpos))


def test_it_parses_raw_text_as_the_program_does(options):
    first, empty, last = parser_lines = load_parser(options).parse(LINES)
    assert [text_of(line) for line in parser_lines] == [" ".join(line.split()) for line in LINES]
    assert not empty.words and len(first.sentences) == 1
    for line, text in ((first, LINES[0]), (last, LINES[2])):
        assert as_ids(line) == by_itself(options, text)
    together = load_parser(options).parse(LINES[:1] * 3)
    assert all(as_ids(line) == as_ids(first) for line in together)


def test_given_words_stay(options):
    words = ["the", "dog", "'s", "man", "sees", "a.b"]
    (line,) = load_parser(options).parse([words])
    assert line.words == words and [token.form for token in line.tokens] == words


@pytest.mark.matrix(1)
def test_through_the_commands(options, tmp_path, caplog):
    text, parse, gold = (tmp_path / name for name in ("text", "text.conllu", "gold.conllu"))
    text.write_text("".join(f"{line}\n" for line in [*sentences(5), ""]))
    of_parser = ["--parser", options.parser, "--model-dir", options.model_dir]
    command = ["parse", "--input", str(text), "--output", str(parse), *of_parser]
    assert main([*command, "--pretokenized"]) == 0
    assert [" ".join(line.words) for line in read_conllu(parse)] == [*sentences(5), ""]
    header = json.loads(parse.read_text().splitlines()[1].partition(" = ")[2])
    assert header["parser"] == options.parser and header["models"] == fingerprint_of_models(options)
    refused([*command, "--distributions"], option="--distributions")
    gold.write_text(conllu(sentences(9)))
    calibrate = ["calibrate", "--gold", str(gold), *of_parser]
    report = tmp_path / "report.json"
    assert main([*calibrate, "--json", str(report)]) == 0
    lines, read = [line.split() for line in sentences(9)], list(read_conllu(gold))
    parsed = load_parser(options).parse(lines)
    right = [a == b for ours, theirs in zip(parsed, read) for a, b in zip(as_ids(ours), as_ids(theirs))]
    heads = [a[0] == b[0] for ours, theirs in zip(parsed, read) for a, b in zip(as_ids(ours), as_ids(theirs))]
    about = json.loads(report.read_text())
    assert about["words"] == len(heads) and about["uas"] == pytest.approx(sum(heads) / len(heads))
    assert about["las"] >= sum(right) / len(right)  # whatever the tags
    assert "labels" not in caplog.text
    gold.write_text(gold.read_text().replace("\tnsubj\t", "\tsubject\t").replace("\tdet\t", "\tDET\t"))
    assert main(calibrate) == 0 and "conventions" in caplog.text
    refused([*calibrate, "--picture", tmp_path / "x.svg"], option="--picture")


def test_the_models_are_identified_by_version_and_content(options, tmp_path):
    before = fingerprint_of_models(options)
    assert ("0.0.0" if options.parser == "spacy" else "UDPipe 1.") in before
    place = tmp_path / "toy.udpipe"
    if options.parser == "spacy":
        place = Path(shutil.copytree(options.model_dir, place))
    else:
        shutil.copy(options.model_dir, place)
    moved = ParserOptions(options.parser, "en", str(place))
    assert fingerprint_of_models(moved) == before
    with open(place / "parser" / "model" if options.parser == "spacy" else place, "ab") as file:
        file.write(b"x")
    assert fingerprint_of_models(moved) != before


def test_what_is_no_model_is_told(options, tmp_path):
    place = tmp_path / "bad"
    if options.parser == "spacy":
        place.mkdir()
    else:
        place.write_bytes(b"nothing")
    with data_error(path=str(place)):
        load_parser(ParserOptions(options.parser, "en", str(place)))
    with data_error(path=str(tmp_path / "none")):
        check_parser(ParserOptions(options.parser, "en", str(tmp_path / "none")))


def test_further_roots_are_attached_to_the_first():
    assert one_root([2, 0, 2, 0, 4, 0], list("abcdef")) == ([2, 0, 2, 2, 4, 2], ["a", "b", "c", "dep", "e", "dep"])
    assert one_root([0], ["root"]) == ([0], ["root"])


# ------------------------------------------------------------------------------------------------------- spaCy alone


@pytest.fixture
def installed(monkeypatch):
    """Names of pipelines that seem to be installed."""
    spacy_parser = pytest.importorskip("fairseq_syntax.corpus.parsing.spacy")
    names: dict[str, Path] = {}
    monkeypatch.setattr(spacy_parser, "get_installed_models", lambda: list(names))
    monkeypatch.setattr(spacy_parser, "get_package_path", names.__getitem__)
    return names


def test_an_installed_pipeline_has_a_name(pipeline, tmp_path, installed):
    with data_error("download", option="--model-dir"):
        check_parser(ParserOptions("spacy", "en"))
    installed |= {"en_toy": tmp_path, "de_toy": tmp_path}
    shutil.copytree(pipeline, tmp_path / "en_toy-0.0.0")  # as in a package
    in_folder = fingerprint_of_models(ParserOptions("spacy", "en", str(pipeline)))
    for name in (None, "en_toy"):
        assert fingerprint_of_models(ParserOptions("spacy", "en", name)) == in_folder
        load_parser(ParserOptions("spacy", "en", name))
    installed["en_other"] = tmp_path
    with data_error("en_other, en_toy", option="--model-dir"):
        load_parser(ParserOptions("spacy", "en"))
    with data_error("en_toy", path="en_nosuch"):
        load_parser(ParserOptions("spacy", "en", "en_nosuch"))
    assert model_path("spacy", "en_toy", tmp_path) is None
    assert model_path("stanza", "en_toy", tmp_path) == model_path("spacy", "./en_toy", tmp_path) == tmp_path / "en_toy"


def test_spacy_sees_the_spaces_of_the_text(pipeline, monkeypatch):
    parser = load_parser(ParserOptions("spacy", "en", str(pipeline), tokenizer="basic"))
    seen = []
    pipe = parser.pipeline.pipe

    def spied(documents, **how):
        documents = list(documents)
        seen.extend(document.text for document in documents)
        return pipe(documents, **how)

    monkeypatch.setattr(parser.pipeline, "pipe", spied)
    parser.parse(["it isn't a dog.", ["two", "words", "."]])
    assert [text.rstrip() for text in seen] == ["it isn't a dog.", "two words ."]


def test_a_pipeline_without_a_parser(tmp_path):
    spacy = pytest.importorskip("spacy")
    spacy.blank("en").to_disk(tmp_path / "blank")
    with data_error("parser", path=str(tmp_path / "blank")):
        load_parser(ParserOptions("spacy", "en", str(tmp_path / "blank")))


def test_sentences_are_split_where_asked_for(options):
    for tokenizer in ("auto", "basic"):
        split = ParserOptions(options.parser, "en", options.model_dir, tokenizer=tokenizer, split_sentences=True)
        (line,) = load_parser(split).parse(["A man sleeps. Two dogs bark."])
        if tokenizer == "basic" or options.parser == "spacy":  # the tokenizer of a toy model splits as it likes
            assert len(line.sentences) == 2
        assert sum(head == word for word, head in enumerate(line.heads)) == len(line.sentences)


def test_multi_word_tokens_of_udpipe():
    pytest.importorskip("ufal.udpipe")
    from fairseq_syntax.corpus.parsing.udpipe import _tokens

    words = [SimpleNamespace(form=form) for form in ("<root>", "va", "a", "il", "mare")]
    sentence = SimpleNamespace(words=words, multiwordTokens=[SimpleNamespace(idFirst=2, idLast=3, form="al")])
    assert _tokens(sentence) == [("va", ["va"]), ("al", ["a", "il"]), ("mare", ["mare"])]


# --------------------------------------------------------------------------------------- models of another language


def stanza_models(folder: Path, lang: str) -> Path:
    """The toy models of Stanza as those of a language."""
    folder.mkdir()
    for name in ("pos.pt", "depparse.pt"):
        state = torch.load(models() / name, weights_only=True)
        state["config"]["lang"] = lang
        torch.save(state, folder / name)
    return folder


def test_models_of_another_language_are_refused(tmp_path, caplog):
    english = stanza_models(tmp_path / "en", "en")
    text = tmp_path / "text"
    text.write_text("Ein Hund .\n")
    command = ["parse", "--input", text, "--output", tmp_path / "x.conllu", "--model-dir", english, "--pretokenized"]
    refused([*command, "--lang", "de"], "en", path=str(english))
    assert not (tmp_path / "x.conllu").exists()
    with data_error("de", path=str(english)):  # translate, serve and Python load a parser so
        load_parser(ParserOptions("stanza", "de", str(english)))
    assert main([*map(str, command), "--lang", "en"]) == 0
    caplog.clear()
    german = text.rename(tmp_path / "text.de")
    command[2], command[4] = german, tmp_path / "y.conllu"
    assert main([*map(str, command), "--lang", "en"]) == 0 and "--lang de" in caplog.text
    for said, lang in (("zh-hans", "zh"), ("nb", "no"), ("en", "en-GB"), ("xx", "de"), ("", "de")):
        others = stanza_models(tmp_path / f"{said}-{lang}", said)
        check_parser(ParserOptions("stanza", lang, str(others), tokenizer="whitespace"))
    torch.save({"model": {}}, english / "pos.pt")  # one that says nothing
    with data_error("en"):
        check_parser(ParserOptions("stanza", "de", str(english)))


def test_spacy_says_its_language(tmp_path):
    pytest.importorskip("spacy").blank("de").to_disk(tmp_path / "german")
    with data_error("de", option="--model-dir"):
        load_parser(ParserOptions("spacy", "en", str(tmp_path / "german")))


def test_published_models_of_udpipe_are_named_by_their_language(tmp_path):
    pytest.importorskip("ufal.udpipe")
    for name, lang, fits in (("german-gsd-ud-2.5.udpipe", "de", True), ("norwegian-x-ud-2.udpipe", "en", False)):
        (tmp_path / name).touch()
        one = ParserOptions("udpipe", lang, str(tmp_path / name))
        if fits:
            check_parser(one)
        else:
            with data_error(option="--model-dir"):
                check_parser(one)
    with data_error("file", option="--model-dir"):
        check_parser(ParserOptions("udpipe", "de"))
    (tmp_path / "mine.udpipe").touch()
    check_parser(ParserOptions("udpipe", "de", str(tmp_path / "mine.udpipe")))

"""``serve --missing-parse``: sentences that the parser cannot take, or not in time, beside others that it can."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import chain_parser
import pytest
from data_errors import data_error, refused
from served import StandIn, running

from fairseq_syntax.corpus.conllu import ParsedLine
from fairseq_syntax.corpus.parsing.parser import Parser, ParserOptions, SentenceParse
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.use.serving.served_models import Source, load_served, load_source
from fairseq_syntax.use.serving.service import Service
from fairseq_syntax.use.translator import Translation, Translator


class Moody(Parser):
    """Chains; it fails on the word ``fail``, and waits for ``go`` at the word ``slow``."""

    def __init__(self) -> None:
        super().__init__(ParserOptions(parser="moody"))
        self.go = threading.Event()

    def parse_sentences(self, sentences: list[list[str]]) -> list[SentenceParse]:
        words = {word for sentence in sentences for word in sentence}
        if "fail" in words:
            raise RuntimeError("out of memory")
        assert "slow" not in words or self.go.wait(20)
        return [
            SentenceParse(list(range(len(s))), ["dep"] * len(s), ["X"] * len(s), ["_"] * len(s), None)
            for s in sentences
        ]


class Reader(StandIn):
    """Says how it was given each sentence: as a tree, as words or as text."""

    needs = frozenset({"tree"})

    def translations(self, sentences: list, *_: Any, **__: Any) -> list[list[Translation]]:
        return [[Translation(self.form(sentence), [], 0.0)] for sentence in sentences]

    def form(self, sentence: Any) -> str:
        if not isinstance(sentence, ParsedLine):
            return f"text {sentence}"
        return f"tree {len(sentence.words)}" if sentence.parsed else f"words {sentence.words}"


def service(source: Source, *models: StandIn) -> Service:
    return Service(models or (Reader(),), source)  # type: ignore[arg-type]


def said(answer: dict) -> list[str]:
    return [t["text"] for t in answer["translations"]]


def test_a_sentence_that_cannot_be_parsed_goes_without_and_the_others_keep_theirs():
    with running(service(Source(Moody(), neutral=True))) as server:
        status, answer = server.translate(text=["a b", "fail c d", "e"], tree=True)
        assert status == 200 and said(answer) == ["tree 2", "text fail c d", "tree 1"]
        assert answer["without_parse"] == [1] and [p is None for p in answer["parses"]] == [False, True, False]
        status, answer = server.translate(tokens=["fail", "it."], tree=True)
        assert status == 200 and said(answer) == ["words ['fail', 'it.']"], "the tokens stay"
        assert answer["without_parse"] == [0] and answer["parses"] == [None]
        assert "fairseq_syntax_unparsed_total 2.0" in server.ask("GET", "/metrics")[1]
    with running(service(Source(Moody()))) as server:
        assert server.translate(text="fail")[0] == 500
        assert server.translate(text="works")[1]["without_parse"] == []


def test_a_parse_that_takes_too_long_is_not_waited_for():
    parser = Moody()
    with running(service(Source(parser, neutral=True, timeout=0.3))) as server:
        status, answer = server.translate(text="slow one")
        assert status == 200 and said(answer) == ["text slow one"] and answer["without_parse"] == [0]
        parser.go.set()
        for _ in range(50):  # a busy machine may take longer than that once
            status, answer = server.translate(text="slow two")
            assert status == 200
            if not answer["without_parse"]:
                break
        assert said(answer) == ["tree 2"]


def test_without_a_parser():
    """A model that reads no parse goes without anyhow: nothing is missing to it."""
    plain = StandIn()
    plain.name = "plain"
    with running(service(Source(None, neutral=True), Reader(), plain)) as server:
        assert server.translate(text="a b", model="plain")[1]["without_parse"] == []
        status, answer = server.translate(text="a b", model=["plain", "stand-in"])
        assert status == 200 and said(answer) == ["b a", "text a b"] and answer["without_parse"] == [0]
    reads = [Reader()]
    with pytest.raises(SyntaxDataError):
        load_source(reads, "no_such_parser", "", None)  # type: ignore[arg-type]
    source = load_source(reads, "no_such_parser", "", None, missing_parse="neutral", parse_timeout=2.0)  # type: ignore[arg-type]
    assert source.parser is None and source.neutral and source.timeout == 2.0


class Plain(chain_parser.ChainParser):
    """A parser without distributions, whatever the options say."""

    def chain(self, words):
        return replace(super().chain(words), arcs=None)


def test_a_parser_without_distributions_serves_models_that_read_none(monkeypatch):
    monkeypatch.setitem(sys.modules, "plain_parser", SimpleNamespace(load=Plain))
    model = Reader()
    with running(service(load_source([model], "plain_parser", "", None), model)) as server:  # type: ignore[list-item]
        status, answer = server.translate(text="a b", tree=True)
        assert status == 200 and said(answer) == ["tree 2"] and answer["parses"][0]["arcs"] is None
    model.needs = frozenset({"tree", "arcs"})
    with data_error("distributions"):
        load_source([model], "plain_parser", "", None)  # type: ignore[list-item]


def test_options_that_do_not_go_together(tmp_path):
    (tmp_path / "model.pt").touch()
    refused(["serve", str(tmp_path / "model.pt"), "--parse-timeout", "1"], option="--parse-timeout")


@pytest.mark.slow
def test_a_trained_model_says_what_it_says_offline(toy, trained):
    texts = ["w1 w2 w3.", "the w2, w4"]
    offline = Translator.load(trained, parser_name="none", missing_parse="neutral", device="cpu")
    models = load_served({"PASCAL": trained}, missing_parse="neutral")
    with running(service(load_source(models, "none", "", None, missing_parse="neutral"), *models)) as server:
        status, answer = server.translate(text=texts)
        assert status == 200 and answer["without_parse"] == [0, 1]
        expected = [best[0] for best in offline.translations(texts)]
        assert said(answer) == [e.text for e in expected]
        assert [t["score"] for t in answer["translations"]] == pytest.approx([e.score for e in expected], abs=1e-4)
        shown = server.translate(text=texts[0], attention=True)[1]["attention"]
        assert shown["outputs"]["PASCAL"]["text"] == expected[0].text

"""What is asked and answered over HTTP, with a trained model: each answer is what the model says offline."""

from __future__ import annotations

import base64
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from data_errors import data_error
from matrix_part import of_ten_seconds
from served import running, stand_in_service

import fairseq_syntax.use.serving.served_models as served_models
from fairseq_syntax.corpus.conllu import format_conllu, parse_conllu_block, text_of
from fairseq_syntax.corpus.parsing.parser import ParserOptions, load_parser
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.manifest import MANIFEST
from fairseq_syntax.use.serving.messages import EXAMPLE_CONLLU, MAX_BEAM, MAX_SENTENCES, REQUEST_EXAMPLES
from fairseq_syntax.use.serving.served_models import Source, examples_of, load_served, load_source
from fairseq_syntax.use.serving.service import Service
from fairseq_syntax.use.translator import Translator

pytestmark = pytest.mark.slow
CHAIN = ParserOptions(parser="chain_parser", distributions=True)


@pytest.fixture(scope="module")
def server(toy, trained):
    models = load_served({"PASCAL": trained, "again": trained})
    with running(Service(models, Source(load_parser(CHAIN)), batch_size=8)) as started:
        yield started


@pytest.fixture(scope="module")
def offline(toy, trained):
    """The same model as users of Python have it."""
    return Translator.load(trained, parser=load_parser(CHAIN), beam=4, nbest=4)


@pytest.fixture(scope="module")
def lines(toy):
    return [line for line in toy.lines["test"] if line.words]


def same(actual, expected) -> None:
    assert [f["text"] for f in actual] == [e.text for e in expected]
    assert [f["pieces"] for f in actual] == [e.pieces for e in expected]
    np.testing.assert_allclose([f["score"] for f in actual], [e.score for e in expected], atol=2e-4)


def test_text_is_parsed_and_translated(server, offline, lines):
    texts = [text_of(line) for line in lines]
    status, answer = server.translate(text=texts)
    assert status == 200 and answer["sources"] == texts
    assert [t["sentence"] for t in answer["translations"]] == list(range(len(texts)))
    same(answer["translations"], [actual[0] for actual in offline.translations(texts)])
    assert answer["parses"] is None and answer["attention"] is None
    assert server.translate(text=texts[2])[1]["translations"][0]["text"] == answer["translations"][2]["text"]


def test_tokens_stay_what_they_are(server, offline):
    tokens = ["zum", "w1-w2", "."]
    status, answer = server.translate(tokens=tokens, tree=True)
    assert status == 200 and answer["parses"][0]["words"] == tokens
    same(answer["translations"], [offline.translations(offline._input.parser.parse([tokens]))[0][0]])
    assert server.translate(tokens=[tokens, ["w1"]])[1]["sources"] == ["zum w1-w2 .", "w1"]


def test_a_parse_is_used_as_it_is(server, offline, lines):
    blocks = "".join(format_conllu(line, comments=False) for line in lines)
    status, answer = server.translate(conllu=blocks)
    single = [parse_conllu_block(format_conllu(line, comments=False)) for line in lines if len(line.sentences) == 1]
    assert status == 200 and len(answer["translations"]) == sum(len(line.sentences) for line in lines)
    actual = {t["text"] for t in answer["translations"]}
    assert {best[0].text for best in offline.translations(single)} <= actual


def test_numbers_of_lines_make_no_empty_lines(server, monkeypatch):
    """246 characters made five million lines, for which everybody else had to wait."""
    from fairseq_syntax.corpus import conllu_reader

    made = []
    original = conllu_reader.ParsedLine
    monkeypatch.setattr(conllu_reader, "ParsedLine", lambda **kw: made.append(kw) or original(**kw))
    row = "1\tw1\t_\tX\tX\t_\t0\troot\t_\t_\n\n"
    numbered = "".join(f"# line = {number * 1_000_000}\n{row}" for number in (1, 2, 2, 3))
    status, answer = server.translate(conllu=f"# lines = 3000001\n{numbered}", tree=True)
    assert status == 200 and [parse["words"] for parse in answer["parses"]] == [["w1"], ["w1", "w1"], ["w1"]]
    assert len(made) <= 3


def test_the_parse_that_is_answered_can_be_changed_and_sent_again(server, lines):
    text = next(text_of(line) for line in lines if len(line.words) > 4)
    _, first = server.translate(text=text, tree=True)
    parse = first["parses"][0]
    assert parse["heads"] == list(range(len(parse["words"]))), "a chain, counted from 1, and 0 for the root"
    assert parse["arcs"][1] == {"dependent": 2, "head": 1, "label": "dep", "p": 0.9}
    _, same_again = server.translate(conllu=parse["conllu"], tree=True)
    assert same_again["parses"] == first["parses"]
    assert same_again["translations"][0]["score"] == pytest.approx(first["translations"][0]["score"], abs=2e-4)
    rows = [row.split("\t") for row in parse["conllu"].split("\n")]
    for row in rows[1:]:
        if len(row) == 10:
            row[6] = "1"
    _, changed = server.translate(conllu="\n".join("\t".join(row) for row in rows))
    assert abs(changed["translations"][0]["score"] - first["translations"][0]["score"]) > 1e-4


def test_a_parse_of_several_sentences_is_one_text_when_it_is_sent_again(server, lines):
    several = next(line for line in lines if len(line.sentences) > 1)
    single = next(line for line in lines if len(line.sentences) == 1)
    given = format_conllu(replace(several, line_number=0)) + format_conllu(replace(single, line_number=1))
    _, first = server.translate(conllu=given, tree=True)
    assert [len(parse["sentences"]) for parse in first["parses"]] == [len(several.sentences), 1]
    for chosen in (slice(0, 1), slice(1, 2), slice(0, 2)):
        sent = "".join(parse["conllu"] for parse in first["parses"][chosen])
        _, again = server.translate(conllu=sent, tree=True)
        assert [parse["words"] for parse in again["parses"]] == [parse["words"] for parse in first["parses"][chosen]]
        assert [t["text"] for t in again["translations"]] == [t["text"] for t in first["translations"][chosen]]
    assert again["parses"] == first["parses"]
    _, one = server.translate(conllu=format_conllu(single, comments=False), tree=True)
    assert one["parses"][0]["conllu"] == format_conllu(single, comments=False), "without a number where none is needed"


def test_words_are_found_in_the_text(server):
    """Those of a contraction, which has the pieces, stand where it stands."""
    words = ["zu", "dem", "𝒜", "w1", "."]
    rows = [[i, word, "_", "X", "_", "_", i - 1, "dep", "_", "_"] for i, word in enumerate(words, 1)]
    rows[3][9] = "SpaceAfter=No"
    rows.insert(0, ["1-2", "zum", *"________"])
    _, answer = server.translate(conllu="\n".join("\t".join(map(str, row)) for row in rows), tree=True)
    assert answer["sources"] == ["zum 𝒜 w1."]
    assert answer["parses"][0]["characters"] == [[0, 3], [0, 3], [4, 5], [6, 8], [8, 9]]


def test_a_parser_without_probabilities_serves_models_that_need_none(trained, monkeypatch, caplog):
    """It was asked for them, for the page, and refused."""

    def load(options, before):
        if options.distributions:
            raise SyntaxDataError("has no distributions", option="--distributions", hint="name another parser")
        return load_parser(options)

    monkeypatch.setattr(served_models, "load_parser", load)
    models = load_served({"m": trained})
    source = load_source(models, "chain_parser", "", None)
    assert source.parser.parse(["a b"])[0].arcs is None
    assert "has no distributions" in caplog.text and "name another parser" not in caplog.text
    monkeypatch.setattr(models[0], "needs", frozenset({"tree", "arcs"}))
    with data_error("distributions"):
        load_source(models, "chain_parser", "", None)
    plain = [SimpleNamespace(needs=frozenset(), parsed_with=None, source_lang="en")]
    assert load_source(plain, "", "", None).parser is None
    assert load_source(plain, "chain_parser", "", None).parser is not None, "a parser that is named is used"


def test_beam_nbest_and_models(server, offline, lines):
    text = text_of(lines[0])
    status, answer = server.translate(text=text, nbest=3, model=["again", "PASCAL"])
    assert status == 200
    assert [(t["model"], t["rank"]) for t in answer["translations"]] == [
        (m, r) for m in ("again", "PASCAL") for r in range(3)
    ]
    expected = offline.translations([text])[0]
    same(answer["translations"][:3], expected[:3])
    same(answer["translations"][3:], expected[:3])
    assert len(server.translate(text=text, beam=1, nbest=2)[1]["translations"]) == 2


def test_alignments_are_those_of_the_translator(server, offline, lines):
    texts = [text_of(line) for line in lines]
    status, answer = server.translate(text=texts, alignments=True)
    assert status == 200
    for actual, expected in zip(answer["translations"], offline.translations(texts, alignments=True)):
        alignment = expected[0].alignment
        assert actual["alignment"]["pharaoh"] == alignment.pharaoh()
        assert actual["alignment"]["links"] == [list(link) for link in alignment.links]
        words = [actual["text"][start:end] for start, end in actual["alignment"]["target_words"]]
        assert words == [expected[0].text[start:end] for start, end in alignment.target_words] and all(words)


def test_attention_is_that_of_the_translation(server, lines):
    text = next(text_of(line) for line in lines if len(line.words) > 4)
    status, answer = server.translate(text=text, attention=True)
    shown = answer["attention"]
    output = shown["outputs"]["PASCAL"]
    assert status == 200 and output["text"] == answer["translations"][0]["text"]
    assert sum(shown["counts"]) == len(shown["pieces"]) - 1 and shown["words"] == text.replace(".", " .").split()
    assert shown["trees"]["parser"]["heads"] == [max(0, i - 1) for i in range(len(shown["words"]))]
    for kind, rows, columns in (
        ("encoder", shown["pieces"], shown["pieces"]),
        ("cross", output["pieces"], shown["pieces"]),
    ):
        for layer in output["attention"][kind]:
            weights = np.frombuffer(base64.b64decode(layer["data"]), np.uint8).reshape(layer["heads"], len(rows), -1)
            assert weights.shape[2] == len(columns)
            np.testing.assert_allclose(weights.sum(-1) / 255, 1, atol=0.05)


def test_attention_that_interrupts_a_search_leaves_it_its_steps(trained, lines):
    models = load_served({"PASCAL": trained})
    service = Service(models, Source(None))

    def steps_of_search(interrupts):
        steps = 0

        def on_step():
            nonlocal steps
            steps += 1
            if interrupts and steps == 2:
                service._translate_batch(("attention", "PASCAL", 4, False, ("", "")), [lines[1]], list, True)
            return []

        service._translate_batch(("search", "PASCAL", 4, False, ("", "")), [lines[0]], on_step, False)
        return steps

    try:
        assert steps_of_search(interrupts=True) == steps_of_search(interrupts=False) > 2
    finally:
        service.close()


def test_many_clients_at_once_get_their_own_answers(server, offline, lines):
    texts = [text_of(line) for line in lines]
    expected = dict(zip(texts, map(str, offline.translate(texts))))
    wrong = []

    def client(number):
        for i in range(4):
            text = texts[(number * 5 + i) % len(texts)]
            status, answer = server.translate(text=text)
            if status != 200 or answer["translations"][0]["text"] != expected[text]:
                wrong.append((status, text, answer))

    threads = [threading.Thread(target=client, args=(n,)) for n in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
    counted = server.ask("GET", "/metrics")[1]
    batches = float(counted.split("fairseq_syntax_parse_batch_count ")[1].split("\n")[0])
    sentences = float(counted.split("fairseq_syntax_parse_batch_sum ")[1].split("\n")[0])
    assert sentences > 1.5 * batches, "they were batched"


CYCLE = "1\ta\t_\tX\t_\t_\t2\tdep\t_\t_\n2\tb\t_\tX\t_\t_\t1\tdep\t_\t_\n"


@pytest.mark.parametrize(
    "body, reason",
    [
        (b"", "JSON"),
        (b"{", "JSON"),
        (b"[]", "Input should be an object"),
        ({}, "one of text, tokens and conllu"),
        ({"text": ""}, "text.*at least 1 character"),
        ({"text": " \t"}, "text"),
        ({"text": "\x1c"}, "no words|text"),
        ({"text": []}, "at least 1 item"),
        ({"text": 5}, "text.*valid"),
        ({"text": "x" * 2001}, "^text.0: String should have at most 2000 characters$"),
        ({"text": ["a", ""]}, "^text.1: String should have at least 1 character$"),
        ({"text": ["x"] * (MAX_SENTENCES + 1)}, f"at most {MAX_SENTENCES} items"),
        ({"text": "a", "tree": 0.0}, "tree.*valid boolean"),
        ({"text": "a", "attention": "no"}, "attention.*valid boolean"),
        ({"text": "a", "beam": "5"}, "beam.*valid integer"),
        ({"text": "a", "nbest": 1.5}, "nbest.*valid integer"),
        ({"text": "a", "tokens": ["a"]}, "one of text, tokens and conllu"),
        ({"text": "a", "beams": 3}, "beams: Extra inputs"),
        ({"text": "a", "beam": 0}, "beam.*greater than or equal to 1"),
        ({"text": "a", "beam": MAX_BEAM + 1}, f"less than or equal to {MAX_BEAM}"),
        ({"text": "a", "model": "none"}, "no model 'none'; there are: PASCAL, again"),
        ({"text": ["a", "b"], "attention": True}, "^attention is answered for one sentence and one model"),
        ({"tokens": ["a b"]}, "tokens"),
        ({"tokens": []}, "at least 1 item"),
        ({"conllu": "not a parse"}, "column"),
        ({"conllu": "# nothing\n"}, "no sentence"),
        ({"conllu": CYCLE}, "root|cycle"),
        ({"conllu": EXAMPLE_CONLLU * 2}, "id|expected|row|word"),
        ({"text": "\ud800"}, "JSON"),
        (
            {"conllu": EXAMPLE_CONLLU.replace("man", "m" * 3000)},
            "has 30[0-9]+ characters, more than 2000",
        ),
        ({"conllu": "1-2\tx" + "\t_" * 8 + "\n" + EXAMPLE_CONLLU.replace("man", "m" * 3000)}, "characters in a word"),
        ({"text": "w " * 999}, "positions|pieces|long"),
    ],
)
def test_bad_input_is_answered_with_a_reason(server, body, reason):
    import re

    status, answer = server.ask("POST", "/translate", body)
    assert 400 <= status < 500 and re.search(reason, answer["detail"]), (status, answer)
    assert "Traceback" not in answer["detail"] and len(answer["detail"]) < 2100


def test_a_whole_number_may_have_a_point(server):
    assert server.translate(text="w1 w2", beam=4.0) == server.translate(text="w1 w2", beam=4)


def test_a_long_sentence_spoils_no_other(server):
    answers = {}
    texts = {"long": "w " * 999, **{f"w{i}": f"w{i}" for i in range(6)}}
    threads = [
        threading.Thread(target=lambda k=k, t=t: answers.update({k: server.translate(text=t)[0]}))
        for k, t in texts.items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert answers == {k: 422 if k == "long" else 200 for k in texts}


def test_the_description_and_its_examples(server):
    status, described = server.ask("GET", "/openapi.json")
    assert status == 200 and set(described["paths"]) == {
        "/",
        "/translate",
        "/health",
        "/models",
        "/metrics",
        "/languages",
    }
    content = described["paths"]["/translate"]["post"]["requestBody"]["content"]["application/json"]
    assert content["examples"].keys() == REQUEST_EXAMPLES.keys()
    for name, example in content["examples"].items():
        assert server.ask("POST", "/translate", example["value"])[0] == 200, name
    status, models = server.ask("GET", "/models")
    assert status == 200 and models["parser"] == "chain_parser" and "nsubj" in models["relations"]
    first = models["models"][0]
    assert (first["name"], first["needs"], first["source_lang"]) == ("PASCAL", ["tree"], "en")
    assert first["systems"] == ["pascal"] and first["parameters"] > 1000
    assert server.ask("GET", "/health")[1] == {"status": "ok", "waiting": 0}
    assert server.ask("GET", "/nothing") == (404, {"detail": "Not Found", "error": "Not Found"})
    assert server.ask("GET", "/translate")[0] == 405


def test_examples_are_sentences_of_the_models_data(toy, trained):
    (model,) = load_served({"PASCAL": trained})
    known = {text_of(line) for line in toy.lines["test"]}
    examples = examples_of(model)
    assert len(examples) == 3 and set(examples) <= known


def test_examples_of_data_of_the_other_direction(toy, trained, tmp_path):
    data = shutil.copytree(toy.data, tmp_path / "bin", ignore=shutil.ignore_patterns(MANIFEST))
    for path in Path(data).glob("*.en-de.*"):
        path.rename(path.with_name(path.name.replace(".en-de.", ".de-en.")))
    (model,) = load_served({"PASCAL": trained}, data=str(data))
    assert len(examples_of(model)) == 3


def test_without_a_parser(trained):
    models = load_served({"PASCAL": trained})
    assert load_source(models, "none", "", None).parser is None
    with running(Service(models, Source(None))) as server:
        status, answer = server.translate(text="w1 w2")
        assert status == 422 and "PASCAL cannot translate without a parse (send CoNLL-U)" in answer["detail"]
        assert server.translate(conllu=EXAMPLE_CONLLU)[0] == 200
    _, service = stand_in_service()
    with running(service) as server:
        status, answer = server.translate(text="  no   parse ", tree=True)
        assert status == 200 and answer["translations"][0]["text"] == "esrap on" and answer["parses"] == [None]


def test_models_that_cannot_be_served(tmp_path, trained):
    with data_error(path="none.pt"):
        load_served({"x": tmp_path / "none.pt"})


@of_ten_seconds
def test_fuzzed_requests_find_no_defect(server):
    """Whatever the description allows, and what it does not: no 5xx, and answers as described."""
    pytest.importorskip("schemathesis")
    from fuzzing import fuzz

    actual = fuzz(f"http://127.0.0.1:{server.port}", 100)
    assert actual[422] > 25 and sum(actual.values()) > 75


def test_the_commands_limits_reach_the_server(trained, monkeypatch):
    from fairseq_syntax.cli import main as command
    from fairseq_syntax.use.serving import app, server

    seen = {}
    monkeypatch.setattr(app, "create_app", lambda service, **limits: seen.update(limits, service=service) or "app")
    monkeypatch.setattr(server, "serve", lambda *where, grace: seen.update(where=where, grace=grace))
    argv = ["serve", f"m={trained}", str(trained), "--parser", "chain_parser", "--queue", "3", "--timeout", "7.5"]
    argv += [
        "--allowed-host",
        "Translate.Example.",
        "--max-bytes",
        "99",
        "--grace",
        "4",
        "--batch-size",
        "5",
        "--host",
        "127.0.0.2",
        "--port",
        "0",
        "--device",
        "cpu",
    ]
    assert not command([*argv, "--missing-parse", "neutral", "--parse-timeout", "2"])
    service = seen["service"]
    assert seen["where"] == ("app", "127.0.0.2", 0) and (seen["timeout"], seen["max_bytes"]) == (7.5, 99)
    assert {"localhost", "translate.example"} < set(seen["hosts"]) and seen["grace"] == 4.0
    assert (
        service.capacity == 3
        and service.default == "m"
        and list(service.models)[:1] == ["m"]
        and len(service.models) == 2
    )
    assert (service.source.neutral, service.source.timeout) == (True, 2.0)
    assert type(service.source.parser).__name__ == type(load_parser(CHAIN)).__name__
    assert {model._translator.batch_size for model in service.models.values()} == {5}
    service.close()

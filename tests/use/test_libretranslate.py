"""LibreTranslate's API: what its clients send, and what they read of the answers."""

from __future__ import annotations

import re
import socket
from urllib.parse import urlencode

import pytest
from data_errors import data_error
from hypothesis import given, settings
from hypothesis import strategies as st
from matrix_part import examples
from served import StandIn, running, stand_in_service

from fairseq_syntax.use.serving.libretranslate import _BETWEEN
from fairseq_syntax.use.serving.markup import units
from fairseq_syntax.use.serving.served_models import Source
from fairseq_syntax.use.serving.service import Service

FORM = {"content-type": "application/x-www-form-urlencoded"}


@pytest.fixture(scope="module")
def server():
    _, service = stand_in_service()
    with running(service) as server:
        yield server


def test_a_text_and_a_list_of_texts(server):
    ask = {"source": "en", "target": "de"}
    assert server.translate(q="one two", **ask) == (200, {"translatedText": "owt eno"})
    assert server.translate(q=["ab", "cd"], **ask) == (200, {"translatedText": ["ba", "dc"]})
    form = urlencode({"q": "one two", "source": "en", "target": "de", "api_key": ""}).encode()
    assert server.ask("POST", "/translate", form, FORM) == (200, {"translatedText": "owt eno"})
    for none in (None, ""):  # as LibreTranslate itself takes it
        assert server.translate(q="one two", format=none, **ask) == (200, {"translatedText": "owt eno"})
    status, answer = server.translate(q="ab", source="auto", target="de", alternatives=2, format="text")
    assert status == 200 and answer["detectedLanguage"]["language"] == "en" and len(answer["alternatives"]) == 2
    assert server.translate(text="one two")[1]["translations"][0]["text"] == "owt eno", "ours beside it"


def test_sentences_and_the_white_space_between_them(server):
    _, answer = server.translate(q="Abc. Def!\n\n  x y\n", source="en", target="de")
    assert answer["translatedText"] == ".cbA !feD\n\n  y x\n"
    for whole in ("Abc. def", "Např. čaj", "И т. д. в", "π.χ. ένα", "Ví dụ. ạ"):  # a lowercase letter goes on
        assert server.translate(q=whole, source="en", target="de")[1]["translatedText"] == whole[::-1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            '<p class="a">ab &amp; c<br/><b>de</b></p><script>var x = "q";</script>',
            '<p class="a">c &amp; ba<br/><b>ed</b></p><script>var x = "q";</script>',
        ),
        # the last value does not end
        (
            """<p title="x > y" alt='"<'>ab</p><p title="cd>ef</p>""",
            """<p title="x > y" alt='"<'>ba</p><p title="cd>fe</p>""",
        ),
        ("a <b>bc</b> d <i>e</i>", "e d cb a"),  # a sentence is one, and no tag is in the middle of another
        ("<i>A b.</i> <a href='x'>Cd e</a>.", "<i>.b A</i> <a href='x'>.e dC</a>"),
        ("<b>Ab. Cd</b> ef", ".bA fe dC"),
        ("<b><p>a b</p></b>", "<b><p>b a</p></b>"),
        ("a <code>x<b>y</b></code> b <pre>c\n d</pre>", "a <code>x<b>y</b></code> b <pre>c\n d</pre>"),
        ('<div translate="no">a <div>b</div> cd</div>ef', '<div translate="no">a <div>b</div> cd</div>fe'),
        ('ab <span class="x notranslate">ACME</span> cd', 'ba <span class="x notranslate">ACME</span> dc'),
        ("ab <img src=x> cd<!-- e -->fg", "ba <img src=x> dc<!-- e -->gf"),
        ("a &lt; b", "b &lt; a"),
        ("<pre>a b", "<pre>a b"),
    ],
)
def test_html_is_split_at_blocks_and_keeps_what_is_not_to_be_translated(server, text, expected):
    _, answer = server.translate(q=text, source="en", target="de", format="html")
    assert answer["translatedText"] == expected


@settings(max_examples=examples(60))
@given(st.lists(st.sampled_from(["<b>", "</b>", "<p>", "</p>", "<i>", "</i>", "<code>", "</code>", "Ab ", "c. ", "."])))
def test_tags_of_html_stay_in_order_and_in_pairs(parts):
    text = "".join(parts)
    kept = [part for is_sentence, part in units(text, _BETWEEN) if not is_sentence]
    tags, left = re.findall("<.*?>", text), re.findall("<.*?>", "".join(kept))
    at = iter(tags)
    assert all(tag in at for tag in left), "a subsequence"
    for name in "bi":
        gone = [len(re.findall(tag, text)) - len(re.findall(tag, "".join(kept))) for tag in (f"<{name}>", f"</{name}>")]
        assert gone[0] == gone[1]
    assert sum(map(str.isalpha, re.sub("<.*?>", "", text))) == sum(
        sum(map(str.isalpha, re.sub("<.*?>", "", part))) for _, part in units(text, _BETWEEN)
    )


def test_a_form_of_several_parts_is_read(server):
    """As LibreTranslate's page and ``curl -F`` send it."""
    fields = {"q": "one zwölf", "source": "en", "target": "de", "format": "text"}
    parts = [f'--XX\r\nContent-Disposition: form-data; name="{k}"\r\n\r\n{v}\r\n' for k, v in fields.items()]
    kind = {"content-type": "multipart/form-data; boundary=XX"}
    assert server.ask("POST", "/translate", ("".join(parts) + "--XX--\r\n").encode(), kind) == (
        200,
        {"translatedText": "flöwz eno"},
    )
    for body in (b"", b"--XX", b"nothing", b"--XX--\r\n"):
        status, answer = server.ask("POST", "/translate", body, kind)
        assert status == 400 and answer["error"]


def test_json_that_is_sent_as_a_form_is_told_so(server):
    """As ``curl -d`` sends it without a header."""
    for body in (b'{"text": "one two"}', b' {"q": "a", "source": "en", "target": "de"}'):
        status, answer = server.ask("POST", "/translate", body, FORM)
        assert status == 400 and "application/json" in answer["error"]


def test_every_refusal_has_an_error(server):
    for body in (b"[1", b"{}", b'{"q": ', b'{"text": "a", "model": "x"}', b"x" * 2_000_000):
        status, answer = server.ask("POST", "/translate", body)
        assert status in (400, 413, 422) and answer["error"] == answer["detail"]
    for method, path in (("GET", "/translate"), ("GET", "/nothing")):
        assert server.ask(method, path)[1]["error"]


def test_the_languages(server):
    status, answer = server.ask("GET", "/languages")
    assert status == 200 and answer == [
        {"code": "en", "name": "English", "targets": ["de"]},
        {"code": "de", "name": "German", "targets": []},
    ]


def test_varieties_of_a_language_have_models_of_their_own():
    models = [StandIn() for _ in range(3)]
    for model, lang in zip(models, ("pt_BR", "pt", "de_AT")):
        model.name = model.target_lang = lang
    with running(Service(models, Source(None))) as server:
        (english, *_) = server.ask("GET", "/languages")[1]
        assert english["targets"] == ["de", "pt", "pt-br"]
        for target, model in (("pt-BR", 0), ("pt", 1), ("pt-PT", 1), ("de", 2), ("de-AT", 2)):
            before = len(models[model].batches)
            assert server.translate(q="ab", source="en", target=target) == (200, {"translatedText": "ba"})
            assert len(models[model].batches) == before + 1, target


def test_a_multilingual_model_translates_between_any_two_of_its_languages():
    model = StandIn()
    model.languages = {name: name for name in ("en_XX", "de_DE", "fr_XX", "zh_CN", "zh_TW")}
    with running(Service([model], Source(None))) as server:
        (english, *others) = server.ask("GET", "/languages")[1]
        assert english["targets"] == ["de", "en", "fr", "zh-cn", "zh-tw"] and len(others) == 4
        for source, target, said in (
            ("en", "de", "ba"),
            ("fr", "zh-TW", "bafr_XX>zh_TW"),
            ("fr", "de", "bafr_XX>de_DE"),
        ):
            assert server.translate(q="ab", source=source, target=target) == (200, {"translatedText": said})
        assert server.translate(q="ab", source="auto", target="fr")[1]["translatedText"] == "bafr_XX"
        assert [server.translate(q="ab", source="en", target=t)[0] for t in ("zh", "it")] == [400, 400]
        assert server.translate(q="ab", source="it", target="de")[0] == 400
        assert server.translate(text="ab", target_name="fr_XX")[1]["translations"][0]["text"] == "bafr_XX"
        status, answer = server.translate(text="ab", target_name="it_IT")
        assert status == 422 and "it_IT" in answer["error"]


@pytest.mark.parametrize(
    "body",
    [
        {"q": "a", "source": "en"},
        {"q": "", "source": "en", "target": "de"},
        {"q": "a", "source": "fr", "target": "de"},
        {"q": "a", "source": "en", "target": "fr"},
        {"q": "a", "source": "en", "target": "de", "format": "pdf"},
        {"q": [1], "source": "en", "target": "de"},
        {"q": ["a"] * 65, "source": "en", "target": "de"},
        {"q": "A. B. " * 40, "source": "en", "target": "de"},
        {"q": "a" * 2001, "source": "en", "target": "de"},
        {"q": "a", "source": "en", "target": "de", "alternatives": -1},
        {"q": "a", "source": "en", "target": "de", "alternatives": "9" * 5000},
    ],
)
def test_errors_are_as_libretranslate_gives_them(server, body):
    status, answer = server.translate(**body)
    assert status == 400 and list(answer) == ["error"] and answer["error"]


def test_a_form_of_too_many_fields_is_an_error_of_its_sender(server):
    """As of a form's limits that are not looked at (CVE-2026-54283)."""
    status, answer = server.ask("POST", "/translate", b"q=a&" * 50_000 + b"source=en&target=de", FORM)
    assert status == 400 and list(answer) == ["error"]


def test_a_long_text_is_measured_before_it_is_split(server, monkeypatch):
    """300,000 sentences in 900 KB held everybody up for three seconds."""
    from fairseq_syntax.use.serving import libretranslate

    split = []
    monkeypatch.setattr(libretranslate, "_apart", lambda text, *args, **how: split.append(text))
    status, answer = server.translate(q=". A" * 300_000, source="en", target="de")
    assert status == 400 and list(answer) == ["error"] and not split


def test_the_sentences_of_a_text_are_counted_while_it_is_split():
    from fairseq_syntax.use.serving.libretranslate import _apart

    sentences: list[str] = []
    with data_error():
        _apart("A. " * 1000, sentences, markup=False)
    assert len(sentences) == 64


@pytest.mark.parametrize("rest", [b"", b"5\r\na=bXX0\r\n\r\n"])
def test_a_body_that_breaks_off_or_is_broken_is_no_defect_of_the_server(server, rest, caplog):
    """The second: a chunk that does not end as it must (CVE-2025-43859)."""
    length = b"transfer-encoding: chunked" if rest else b"content-length: 99"
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(b"POST /translate HTTP/1.1\r\nhost: localhost\r\n" + length + b"\r\n\r\n" + rest)
        connection.shutdown(socket.SHUT_WR)
        answer = connection.recv(1000)
    assert not answer or answer.split()[1] == b"400"
    assert server.ask("GET", "/health")[0] == 200
    assert 'status="500"' not in server.ask("GET", "/metrics")[1] and not [r for r in caplog.records if r.exc_info]


def test_a_translation_that_takes_too_long():
    _, service = stand_in_service(wait=True)
    with running(service, timeout=0.1) as server:
        status, answer = server.translate(q="a", source="en", target="de")
        assert status == 504 and list(answer) == ["error"]

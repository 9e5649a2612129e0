"""LibreTranslate's API: what its clients send, and what they read of the answers."""

from __future__ import annotations

from urllib.parse import urlencode

import pytest
from served import running, stand_in_service

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
    status, answer = server.translate(q="ab", source="auto", target="de", alternatives=2, format="text")
    assert status == 200 and answer["detectedLanguage"]["language"] == "en" and len(answer["alternatives"]) == 2
    assert server.translate(text="one two")[1]["translations"][0]["text"] == "owt eno", "ours beside it"


def test_sentences_and_the_white_space_between_them(server):
    _, answer = server.translate(q="Abc. Def!\n\n  x y\n", source="en", target="de")
    assert answer["translatedText"] == ".cbA !feD\n\n  y x\n"


def test_html_keeps_its_markup(server):
    text = '<p class="a">ab &amp; c<br/><b>de</b></p><script>var x = "q";</script>'
    _, answer = server.translate(q=text, source="en", target="de", format="html")
    assert answer["translatedText"] == '<p class="a">c &amp; ba<br/><b>ed</b></p><script>var x = "q";</script>'


def test_the_languages(server):
    status, answer = server.ask("GET", "/languages")
    assert status == 200 and answer == [
        {"code": "en", "name": "English", "targets": ["de"]},
        {"code": "de", "name": "German", "targets": []},
    ]


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
    ],
)
def test_errors_are_as_libretranslate_gives_them(server, body):
    status, answer = server.translate(**body)
    assert status == 400 and list(answer) == ["error"] and answer["error"]


def test_a_translation_that_takes_too_long():
    _, service = stand_in_service(wait=True)
    with running(service, timeout=0.1) as server:
        status, answer = server.translate(q="a", source="en", target="de")
        assert status == 504 and list(answer) == ["error"]

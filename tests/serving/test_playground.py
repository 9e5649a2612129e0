"""The playground in a real browser: parse, change an attachment by mouse, keyboard, touch and form, see who follows."""

from __future__ import annotations

import itertools
import json
import time

import browser as chromium
import numpy as np
import pytest
from PIL import Image
from served import running

from fairseq_syntax.inference.alignment import WordAlignment
from fairseq_syntax.inference.translator import Translation
from fairseq_syntax.parsing.base import Parser, ParserOptions, SentenceParse
from fairseq_syntax.serving.models import Source, load_models
from fairseq_syntax.serving.service import Service
from fairseq_syntax.text.conllu import ParsedLine

pytestmark = pytest.mark.slow
SENTENCE = "the man saw the girl with the telescope ."
HEADS = [2, 3, 0, 5, 3, 8, 8, 3, 3]
LABELS = ["det", "nsubj", "root", "det", "obj", "case", "det", "obl", "punct"]
TAGS = ["DET", "NOUN", "VERB", "DET", "NOUN", "ADP", "DET", "NOUN", "PUNCT"]


class OneSentenceParser(Parser):
    """Knows the tree of one sentence, and doubts one of its arcs; others are chains."""

    def parse_sentences(self, sentences: list[list[str]]) -> list[SentenceParse]:
        return [self._parse(words) for words in sentences]

    def _parse(self, words: list[str]) -> SentenceParse:
        n = len(words)
        known = words == SENTENCE.split()
        heads, labels, tags = (
            (HEADS, LABELS, TAGS) if known else (list(range(n)), ["root"] + ["dep"] * (n - 1), ["X"] * n)
        )
        arcs = [(i + 1, head, label, 1.0) for i, (head, label) in enumerate(zip(heads, labels))]
        if known:
            arcs[7:8] = [(8, 3, "obl", 0.6), (8, 5, "nmod", 0.375)]
        return SentenceParse(heads, labels, tags, ["_"] * n, arcs)


class Naming:
    """A model whose translation names the head of the telescope; ``blind``: it does not look."""

    source_lang, target_lang = "en", "de"

    def __init__(self, name: str, blind: bool) -> None:
        self.name, self.blind = name, blind
        self.needs, self.systems = frozenset(() if blind else ["arcs"]), [] if blind else ["ldd"]

    def parameters(self) -> int:
        return 1

    def relations(self) -> list[str]:
        return ["nmod", "obl"]

    def translations(self, sentences: list[ParsedLine], beam: int, alignments: bool) -> list[list[Translation]]:
        return [[Translation(self.of(line), [], -0.25)] for line in sentences]

    def of(self, line: ParsedLine) -> str:
        word = len(line.words) - 2
        if self.blind:
            return "Fernrohr (Mann) <b>"
        best = max((arc for arc in line.arcs if arc[0] == word), key=lambda arc: arc[3])
        assert best[1] == line.heads[word] and best[2] == line.deprels[word], "tree and arcs say the same"
        return f"Fernrohr ({line.words[best[1]]}) <b>"

    def attention(self, line: ParsedLine, beam: int) -> dict:
        return {
            "words": line.words,
            "tags": line.upos,
            "counts": [1] * len(line.words),
            "pieces": [*line.words, "</s>"],
            "trees": {},
            "arcs": [],
            "outputs": {self.name: {"text": "", "pieces": [], "attention": {}}},
        }


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    program = chromium.find()
    if program is None:
        pytest.skip("no Chromium is installed")
    opened = chromium.Browser(program, tmp_path_factory.mktemp("profile"), 1200, 1000)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def server():
    source = Source(OneSentenceParser(ParserOptions(parser="one sentence")))
    with running(Service([Naming("plain", True), Naming("LDD", False)], source)) as started:
        yield started


def rest(browser) -> None:
    """Wait until all that was asked is answered and shown."""
    quiet = "!asking.text && !asking.inside && document.querySelector('#cards').getAttribute('aria-busy') === 'false'"
    end = time.time() + 30
    while not browser.run(quiet):
        assert time.time() < end, browser.errors
        time.sleep(0.02)


@pytest.fixture
def page(browser, server):
    browser.errors.clear()
    browser.requests.clear()
    browser.open(f"http://127.0.0.1:{server.port}/")
    browser.run("document.querySelector('#text').value = " + json.dumps(SENTENCE) + "; translateText()")
    rest(browser)
    yield browser
    assert browser.errors == []
    here = (f"http://127.0.0.1:{server.port}/", "data:", "about:")
    assert all(url.startswith(here) for url in browser.requests), "nothing comes from elsewhere"


def said(browser) -> dict[str, list[str]]:
    """By model, the sentences of its card: now, and before if that was another."""
    return browser.run(
        "Object.fromEntries([...document.querySelectorAll('.card')].map(card => [card.dataset.model,"
        " [...card.querySelectorAll('.said')].map(p => p.innerText.trim())]))"
    )


SAW, GIRL = "Fernrohr (saw) <b>", "Fernrohr (girl) <b>"
PLAIN = ["Fernrohr (Mann) <b>"]


def pick(browser, word: int, by: str) -> None:
    """Attach the telescope to a word in one of the ways there are."""
    spot = "#tree-picture .spot[data-i='{}']"
    if by == "mouse":
        middle = "(r => [r.x + r.width / 2, r.y + r.height / 2])"
        browser.run("scrollTo(0, 0)")
        # the middle of the upper part of the arc
        begin = browser.run(
            "(p => {const r = p.ownerSVGElement.getBoundingClientRect();"
            " const q = p.getPointAtLength(p.getTotalLength() / 2); return [r.x + q.x, r.y + q.y]})"
            "(document.querySelector(\".one[data-i='7'] .grip\"))"
        )
        end = browser.run(f"{middle}(document.querySelector({json.dumps(spot.format(word))}).getBoundingClientRect())")
        mouse = {"button": "left", "clickCount": 1}
        browser.send("Input.dispatchMouseEvent", type="mousePressed", x=begin[0], y=begin[1], **mouse)
        for share in (0.3, 0.7, 1.0):
            x, y = (a + share * (b - a) for a, b in zip(begin, end))
            browser.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y, button="left", buttons=1)
        assert browser.run("document.querySelectorAll('.ghost').length") == 1
        browser.send("Input.dispatchMouseEvent", type="mouseReleased", x=end[0], y=end[1], **mouse)
    elif by == "clicks":
        browser.mouse(spot.format(7), click=True)
        browser.mouse(spot.format(word), click=True)
    elif by == "keys":
        browser.run(f"document.querySelector({json.dumps(spot.format(8))}).focus()")
        browser.key("ArrowLeft")
        browser.key("Enter")
        while browser.run("state.aim") != word:
            browser.key("ArrowLeft")
        browser.key("Enter")
    elif by == "arc":
        possible = f".one[data-i='7'][data-h='{word}'] .choice-grip"
        browser.run(f"document.querySelector({json.dumps(possible)}).dispatchEvent(new MouseEvent('click'))")
    else:
        browser.run(f"document.querySelector({json.dumps(spot.format(7))}).focus()")
        browser.run(
            f"(s => {{s.value = {word}; s.dispatchEvent(new Event('change'))}})(document.querySelector('#detail-head'))"
        )
    rest(browser)


def test_the_parse_is_drawn_with_what_the_parser_doubts(page):
    count = "document.querySelectorAll('#tree-picture {}').length"
    assert page.run(count.format(".arc.sure")) == 9 and page.run(count.format(".arc.maybe")) == 1
    labels = page.run("[...document.querySelectorAll('#tree-picture .arclabel')].map(t => t.textContent)")
    assert "obl .60" in labels and "nmod .38" in labels and "det" in labels, "a certain arc has no figure"
    assert said(page) == {"plain": PLAIN, "LDD": [SAW]}
    assert page.run("[...document.querySelectorAll('.unit.differs')].map(u => u.innerText)") == ["(saw)"]
    page.run("(e => {e.value = '0.5'; e.dispatchEvent(new Event('input'))})(document.querySelector('#least'))")
    assert page.run(count.format(".arc.maybe")) == 0


@pytest.mark.parametrize("by", ["mouse", "clicks", "keys", "arc", "form"])
def test_a_changed_attachment_is_followed_by_who_reads_it(page, by):
    pick(page, 4, by)
    assert said(page) == {"plain": PLAIN, "LDD": [GIRL, SAW]}
    badges = page.run("[...document.querySelectorAll('.card div .badge')].map(b => b.innerText)")
    assert badges == ["cannot follow", "follows your tree; before:"]
    assert page.run("document.querySelectorAll('#tree-picture .arc.changed').length") == 1
    hint = page.run("document.querySelector('#hint').innerText")
    assert hint == "telescope attaches to girl as nmod.", "with the label that the parser has for it"
    page.mouse("#reset", click=True)
    rest(page)
    assert said(page) == {"plain": PLAIN, "LDD": [SAW]}
    assert page.run("document.querySelector('#reset').hidden")


def test_a_tree_stays_a_tree(page):
    page.run("take(4)")  # the girl cannot attach to her article
    allowed = page.run("[...state.heads.keys()].filter(h => allowed(4, h))")
    assert allowed == [0, 1, 2, 5, 6, 7, 8]
    page.run("chosen(3)")
    assert "cannot attach to the, which is below it" in page.run("document.querySelector('#hint').innerText")
    page.run("drop(); take(2)")
    assert "saw is the root" in page.run("document.querySelector('#hint').innerText")
    # another root: the old one attaches to it
    page.run("document.querySelector(\".spot[data-i='4']\").focus()")
    page.key("Enter")
    page.key("r")
    rest(page)
    assert page.run("state.heads")[2] == 4 and page.run("state.heads")[4] == 4
    assert page.run("document.querySelector('#problem').hidden"), "the server takes it"
    page.run("document.querySelector(\".spot[data-i='7']\").focus()")
    page.key("Enter")
    page.key("ArrowLeft")
    page.key("Escape")
    assert page.run("state.taken === null && document.querySelectorAll('.ghost').length === 0")


def test_a_label_can_be_changed_too(page):
    page.run("document.querySelector(\".spot[data-i='7']\").focus()")
    field = "document.querySelector('#detail-label')"
    page.run(f"(e => {{e.value = 'obl, odd|one'; e.dispatchEvent(new Event('change'))}})({field})")
    rest(page)
    assert page.run("state.labels[7]") == "obl,_odd|one" and page.run("document.querySelector('#problem').hidden")
    assert said(page)["LDD"] == [SAW]


def test_reasons_are_shown_and_go_away(page):
    page.run("document.querySelector('#text').value = 'x '.repeat(1500)")
    page.run("translateText()")
    rest(page)
    assert "at most 2000 characters" in page.run("document.querySelector('#problem').innerText")
    page.run("document.querySelector('#text').value = 'a b c'")
    page.run("translateText()")
    rest(page)
    assert page.run("document.querySelector('#problem').hidden") and "b" in page.run(
        "document.querySelector('#tree-picture').textContent"
    )


def test_it_fits_a_phone(page, tmp_path):
    page.send("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=1, mobile=True)
    try:
        page.run("new Promise(done => setTimeout(done, 400))")
        assert page.run("document.documentElement.scrollWidth") <= 390, "nothing is wider than the window"
        small = page.run(
            "[...document.querySelectorAll('button, select, #tree-picture .spot')]"
            ".filter(e => e.getClientRects().length).filter(e => e.getBoundingClientRect().height < 24).length"
        )
        assert small == 0, "large enough for a finger"
        page.screenshot(tmp_path / "phone.png")
        assert np.asarray(Image.open(tmp_path / "phone.png").convert("L")).std() > 5
    finally:
        page.send("Emulation.setDeviceMetricsOverride", width=1200, height=1000, deviceScaleFactor=1, mobile=False)


def test_everything_has_a_name_and_colours_are_told_apart(page):
    unnamed = page.run(
        "[...document.querySelectorAll('button, select, input, textarea, a, [role=button]')].filter(e =>"
        " !(e.innerText || '').trim() && !e.getAttribute('aria-label') && !(e.labels && e.labels.length))"
        ".map(e => e.outerHTML)"
    )
    assert unnamed == []
    assert page.run("document.querySelector(\".spot[data-i='7']\").getAttribute('aria-label')") == (
        "telescope, NOUN, obl of saw, probability 0.60"
    )

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    style = "getComputedStyle(document.documentElement).getPropertyValue('--{}').trim()"
    for name in ("ink", "soft", "blue", "other"):
        for ground in ("#ffffff", page.run(style.format("wash"))):
            a, b = sorted((luminance(page.run(style.format(name))), luminance(ground)))
            assert (b + 0.05) / (a + 0.05) >= 4.5, (name, ground)


def test_attention_of_a_trained_model_is_drawn(browser, toy, trained):
    source = Source(OneSentenceParser(ParserOptions(parser="one sentence")))
    with running(Service(load_models({"PASCAL": trained}), source)) as server:
        browser.errors.clear()
        browser.open(f"http://127.0.0.1:{server.port}/#w1%20w2%20w3")
        rest(browser)
        assert browser.run("document.querySelectorAll('#panels .panel').length") == 2
        assert browser.run("document.querySelectorAll('#panels .panel:first-child .minis canvas').length") == 4
        assert browser.run("document.querySelectorAll('#panels .panel:first-child .cells rect').length") > 4
        browser.mouse("#panels .panel:first-child .minis figure:nth-child(2) canvas", click=True)
        assert browser.run("document.querySelector('select.head').value") == "1"
        assert browser.errors == []


class Mirror(Naming):
    """A model that says its source again, word for word."""

    def translations(self, sentences: list[ParsedLine], beam: int, alignments: bool) -> list[list[Translation]]:
        found = []
        for line in sentences:
            text, ends = " ".join(line.words), list(itertools.accumulate(len(word) + 1 for word in line.words))
            words = [(end - 1 - len(word), end - 1) for end, word in zip(ends, line.words)]
            alignment = WordAlignment(text, text, words, words, [(i, i) for i in range(len(words))])
            found.append([Translation(text, [], -0.25, alignment)])
        return found


def test_hovering_marks_the_word_that_is_aligned_whatever_characters_stand_before(browser):
    """Offsets are in characters, of which JavaScript takes some for two."""
    words = ["👩", "𝒜𝒷", "👧", "see", "dogs"]
    source = Source(OneSentenceParser(ParserOptions(parser="one sentence")))
    with running(Service([Mirror("mirror", True)], source)) as started:
        browser.open(f"http://127.0.0.1:{started.port}/")
        browser.run(f"document.querySelector('#text').value = {json.dumps(' '.join(words))}; translateText()")
        rest(browser)
        marked = browser.run(
            "[...document.querySelectorAll('.said .unit')].map(unit => {"
            " unit.dispatchEvent(new Event('mouseenter'));"
            " const found = [...document.querySelectorAll('.word.linked')].map(w => Number(w.dataset.i));"
            " unit.dispatchEvent(new Event('mouseleave')); return [unit.textContent, found]; })"
        )
    assert marked == [[word, [i]] for i, word in enumerate(words)]

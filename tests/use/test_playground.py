"""The playground in a real browser: parse, change an attachment by mouse, keyboard, touch and form, see who follows."""

from __future__ import annotations

import itertools
import json
import time
from dataclasses import replace
from typing import Any

import browser as chromium
import numpy as np
import pytest
from PIL import Image
from served import running

from fairseq_syntax.corpus.conllu import ParsedLine, parse_conllu_block
from fairseq_syntax.corpus.parsing.parser import Parser, ParserOptions, SentenceParse
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.inference.alignment import WordAlignment
from fairseq_syntax.use.serving.served_models import Source, load_served
from fairseq_syntax.use.serving.service import Service
from fairseq_syntax.use.translator import Translation

pytestmark = [pytest.mark.slow, pytest.mark.matrix(5, of="uses of the playground")]
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

    def __init__(self, name: str, blind: bool, shows_attention: bool = True) -> None:
        self.name, self.blind, self.shows_attention = name, blind, shows_attention
        self.needs, self.systems = frozenset(() if blind else ["arcs"]), [] if blind else ["ldd"]

    def parameters(self) -> int:
        return 1

    def relations(self) -> list[str]:
        return ["nmod", "obl"]

    def translations(self, sentences: list[ParsedLine], beam: int, *_: Any) -> list[list[Translation]]:
        return [[Translation(self.of(line), [], -0.25), Translation("zweite", [], -1.0)][:beam] for line in sentences]

    def of(self, line: ParsedLine) -> str:
        word = len(line.words) - 2
        if self.blind:
            return "Fernrohr (Mann) <b>"
        best = max((arc for arc in line.arcs if arc[0] == word), key=lambda arc: arc[3])
        assert best[1] == line.heads[word] and best[2] == line.deprels[word], "tree and arcs say the same"
        return f"Fernrohr ({line.words[best[1]]}) <b>"

    def attention(self, line: ParsedLine, beam: int, *_: Any) -> dict:
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
    end = time.time() + 120
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


SPOT = "#tree-picture .spot[data-i='{}']"
MOUSE = {"button": "left", "clickCount": 1}


def press(browser, word: int) -> list[float]:
    """Press the mouse on a word's arc; returns where."""
    browser.run("scrollTo(0, 0)")
    # the middle of the upper part of the arc
    begin = browser.run(
        "(p => {const r = p.ownerSVGElement.getBoundingClientRect();"
        " const q = p.getPointAtLength(p.getTotalLength() / 2); return [r.x + q.x, r.y + q.y]})"
        f"(document.querySelector(\".one[data-i='{word}'] .grip\"))"
    )
    browser.send("Input.dispatchMouseEvent", type="mousePressed", x=begin[0], y=begin[1], **MOUSE)
    return begin


def carry(browser, word: int, to: int) -> list[float]:
    """Press the mouse on a word's arc and bring it to another word; returns where that is."""
    begin = press(browser, word)
    middle = "(r => [r.x + r.width / 2, r.y + r.height / 2])"
    end = browser.run(f"{middle}(document.querySelector({json.dumps(SPOT.format(to))}).getBoundingClientRect())")
    for share in (0.3, 0.7, 1.0):
        x, y = (a + share * (b - a) for a, b in zip(begin, end))
        browser.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y, button="left", buttons=1)
    return end


def release(browser, at: list[float]) -> None:
    browser.send("Input.dispatchMouseEvent", type="mouseReleased", x=at[0], y=at[1], **MOUSE)


def pick(browser, word: int, by: str) -> None:
    """Attach the telescope to a word in one of the ways there are."""
    spot = SPOT
    if by == "mouse":
        end = carry(browser, 7, word)
        assert browser.run("document.querySelectorAll('.ghost').length") == 1
        release(browser, end)
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


def focus(browser, selector: str) -> None:
    browser.run(f"document.querySelector({json.dumps(selector)}).focus()")


def translate(browser, text: str) -> None:
    browser.run(f"document.querySelector('#text').value = {json.dumps(text)}; translateText()")
    rest(browser)


FOCUSED = "document.activeElement.id"
HINT = "document.querySelector('#hint').innerText"
FIELDS = "['word', 'head', 'label'].map(n => $('detail-' + n)).map(e => e.value ?? e.innerText)"


def test_the_fields_change_the_word_that_they_show(page):
    focus(page, SPOT.format(7))
    page.mouse("#detail-label", click=True)
    release(page, carry(page, 1, 7))
    rest(page)
    assert page.run(FOCUSED) == "detail-label", "an arc that is dragged takes no focus"
    assert page.run(FIELDS) == ["man", "7", "nsubj"]
    for letter in "xx":
        page.key(letter)
    page.run("document.activeElement.blur()")
    rest(page)
    assert "xx" in page.run("state.labels[1]") and page.run("state.labels[7]") == "obl"
    # and the first word of a new sentence is another one
    focus(page, SPOT.format(0))
    page.mouse("#detail-label", click=True)
    translate(page, "a b c")
    assert page.run(FOCUSED) == "detail-label" and page.run(FIELDS) == ["a", "0", "root"]


def test_what_is_being_typed_stays(page):
    focus(page, SPOT.format(7))
    page.run("document.querySelector('#detail-label').select(); document.querySelector('#detail-label').focus()")
    page.key("x")
    page.run("showAll()")
    rest(page)
    assert page.run(FIELDS) == ["telescope", "2", "x"]


def test_an_answer_does_not_end_a_drag(page):
    pick(page, 4, "clicks")
    end = carry(page, 1, 7)
    page.run("translateTree()")
    rest(page)
    assert page.run("state.taken") == 1 and page.run("document.querySelectorAll('.ghost').length") == 1
    release(page, end)
    rest(page)
    assert page.run("state.heads[1]") == 7 and page.run("document.querySelectorAll('.carrying').length") == 0
    # nor does another drawing take a click away; it is made afterwards
    at = press(page, 2)
    page.run("(e => {e.value = '0.9'; e.dispatchEvent(new Event('input'))})(document.querySelector('#least'))")
    possible = "document.querySelectorAll('#tree-picture .maybe').length"
    assert page.run(possible) == 2
    release(page, at)
    assert "saw is the root" in page.run(HINT)
    assert page.run(possible) == 1, "the head of man, of which the parser is sure"


def click_through(browser, target: str, redraw: str) -> None:
    """Click what is drawn anew while the mouse is pressed on it."""
    element = f"document.querySelector({json.dumps(target)})"
    browser.mouse(target)
    at = browser.run(f"(r => [r.x + r.width / 2, r.y + r.height / 2])({element}.getBoundingClientRect())")
    browser.send("Input.dispatchMouseEvent", type="mousePressed", x=at[0], y=at[1], **MOUSE)
    browser.run(f"{element}.pressed = true; {redraw}")
    assert browser.run(f"{element}.pressed"), "the drawing waits"
    release(browser, at)
    browser.run("new Promise(done => setTimeout(done))")
    assert not browser.run(f"{element}.pressed"), "and is made"


def test_a_drawing_takes_no_click_on_a_word_away(page):
    click_through(page, SPOT.format(7), "drawParse()")
    assert page.run("state.taken") == 7
    # where the click draws nothing, the drawing is made all the same
    click_through(page, SPOT.format(2), "drawParse()")
    page.run("drop()")


def test_a_new_sentence_ends_a_drag(page):
    end = carry(page, 1, 7)
    translate(page, "a b c")
    assert page.run("[...document.querySelectorAll('.word')].map(w => w.textContent)") == ["a", "b", "c"]
    assert page.run("document.querySelectorAll('.carrying, .ghost').length") == 0 and page.run("state.taken") is None
    page.send("Input.dispatchMouseEvent", type="mouseMoved", x=end[0], y=end[1] + 3, button="left", buttons=1)
    release(page, end)
    rest(page)
    assert page.run("state.heads") == [0, 0, 1]


def test_the_focus_stays_in_the_parse(page):
    focus(page, SPOT.format(7))
    focus(page, "#detail-head")
    page.run("(e => {e.value = 4; e.dispatchEvent(new Event('change'))})(document.querySelector('#detail-head'))")
    rest(page)
    assert page.run(FOCUSED) == "detail-head" and page.run(FIELDS) == ["telescope", "4", "nmod"]
    focus(page, "#reset")
    page.run("document.querySelector('#reset').click()")
    rest(page)
    assert page.run("document.activeElement.matches('.spot[data-i=\"7\"]')"), "the button is gone"


def test_the_hint_is_of_what_is_taken(page):
    pick(page, 4, "clicks")
    focus(page, SPOT.format(1))
    page.key("Enter")
    assert page.run(HINT) == "man: choose its new head."
    page.key("Escape")
    assert page.run(HINT).startswith("Drag an arc to another head")


def test_an_address_that_is_no_encoded_text(page):
    page.open(page.run("location.origin") + "/#100%")
    rest(page)
    assert page.run("document.querySelector('#text').value") == "100%" and "100%" in page.run("state.text")


def test_another_address_is_another_text(page):
    page.run("location.hash = '#a%20b%20c'; new Promise(done => setTimeout(done, 100))")
    rest(page)
    assert page.run("state.text") == page.run("document.querySelector('#text').value") == "a b c"
    assert page.run("location.hash") == "#a%20b%20c"


def test_an_error_of_a_proxy_is_told_by_its_status(page):
    page.run("fetch = () => Promise.resolve(new Response('<html>Bad Gateway</html>', {status: 502})); translateText()")
    rest(page)
    assert page.run("document.querySelector('#problem').innerText") == "The server answered with status 502."


def test_reasons_are_of_what_was_asked_last(page):
    problem = "document.querySelector('#problem').innerText"
    translate(page, "x " * 1500)
    page.run("look()")
    rest(page)
    assert "at most 2000 characters" in page.run(problem), "that something else was answered is no matter"
    page.run("ask('inside', {text: 'x', model: 'nobody', attention: true})")
    rest(page)
    assert "no model 'nobody'" in page.run(problem) and "at most 2000 characters" in page.run(problem)
    translate(page, SENTENCE)
    assert page.run("document.querySelector('#problem').hidden")
    page.run("state.labels[7] = 'two\\twords'; translateTree()")
    rest(page)
    assert page.run(problem)
    page.mouse("#reset", click=True)
    rest(page)
    assert page.run("document.querySelector('#problem').hidden"), "there is nothing to be asked about the parser's tree"


def test_a_question_that_was_cancelled_changes_nothing(page):
    twice = (
        "(async () => {{ const one = {0}(), other = {0}(); await one;"
        " const after = {1}; await other; return after }})()"
    )
    waits = "document.querySelector('#cards').getAttribute('aria-busy')"
    assert page.run(twice.format("translateText", waits)) == "true", "the other is still being asked"
    rest(page)
    assert page.run(twice.format("look", "state.exhibit !== null")) is True, "the picture stays until there is another"
    rest(page)
    assert page.run(waits) == "false"


def test_a_change_of_the_tree_does_not_cancel_a_text(page):
    ask = "(async () => {{ {}; const asked = translateText({}); attach(7, 4); await asked; }})()"
    page.run(ask.format("document.querySelector('#wanted input[value=plain]').checked = false", "true"))
    rest(page)
    assert said(page) == {"LDD": [GIRL, SAW]}, "the choice of models, and the change"
    page.run(ask.format("$('text').value = 'a b c'", "false"))
    rest(page)
    assert page.run("state.text") == "a b c" and not page.run("anyChanged()")
    page.run(
        "(async () => { $('text').value = 'd e'; const asked = translateText();"
        " original(); translateTree(); await asked; })()"
    )
    rest(page)
    assert page.run("state.text") == "d e"


def test_reasons_are_shown_and_go_away(page):
    page.run("document.querySelector('#text').value = 'x '.repeat(1500)")
    page.run("translateText()")
    rest(page)
    assert "at most 2000 characters" in page.run("document.querySelector('#problem').innerText")
    assert page.run("$('parse').hidden && $('translations').hidden && $('inside').hidden"), "those of another text"
    page.run("document.querySelector('#text').value = 'a b c'")
    page.run("translateText()")
    rest(page)
    assert page.run("document.querySelector('#problem').hidden") and "b" in page.run(
        "document.querySelector('#tree-picture').textContent"
    )


def test_a_text_that_is_too_long_is_not_cut_in_silence(page):
    page.run("$('text').value = ''; $('text').focus(); 1")
    page.send("Input.insertText", text="word " * 500)  # as pasted
    page.key("Enter")
    rest(page)
    assert page.run("$('text').value.length") == 2500
    assert "at most 2000 characters" in page.run("document.querySelector('#problem').innerText")


def test_the_tree_of_a_long_text_can_be_changed_too(page):
    translate(page, "word " * 300)
    assert page.run("state.parsed.words.length") == 300
    page.run("attach(5, 3)")
    rest(page)
    assert page.run("document.querySelector('#problem').innerText") == ""
    assert page.run("state.now !== null && state.exhibit !== null")


def test_another_choice_of_models_or_translations_keeps_the_changed_tree(page):
    pick(page, 4, "clicks")
    page.mouse("#wanted input[value=plain]", click=True)
    rest(page)
    assert said(page) == {"LDD": [GIRL, SAW]} and page.run("state.heads[7]") == 4
    page.mouse("#wanted input[value=plain]", click=True)
    rest(page)
    assert said(page) == {"plain": PLAIN, "LDD": [GIRL, SAW]}
    page.run("$('nbest').value = '3'; $('nbest').dispatchEvent(new Event('change')); 1")
    rest(page)
    lists = "document.querySelectorAll('.card .further').length"
    assert said(page) == {"plain": PLAIN, "LDD": [GIRL, SAW]} and page.run(lists) == 2
    page.mouse("#reset", click=True)
    rest(page)
    assert page.run(lists) == 2, "as many as are chosen"
    pick(page, 4, "clicks")
    page.mouse("#go", click=True)
    rest(page)
    assert said(page)["LDD"] == [SAW] and not page.run("anyChanged()"), "a sentence that is entered is parsed"


def test_what_was_copied_is_said_for_a_moment(page):
    page.run("Object.defineProperty(navigator, 'clipboard', {value: {writeText: async text => { copied = text }}}); 1")
    label = "document.querySelector('#copy-conllu').textContent"
    before = page.run(label)
    page.mouse("#copy-conllu", click=True)
    assert page.run(label) == "Copied" and page.run("copied === state.parsed.conllu")
    pick(page, 4, "clicks")
    page.run("new Promise(done => setTimeout(done, 1600))")
    assert page.run(label) == before, "the changed parse was not copied"


def test_what_is_saved_is_what_the_translations_were_made_from(page):
    page.run("save = (name, type, text) => { page = JSON.parse(text) }; page = null; 1")

    def saved() -> tuple[str, str]:
        """The head of the telescope and LDD's translation."""
        everything = page.run("$('save-json').click(), page")
        (row,) = (row for row in everything["conllu"].split("\n") if "telescope" in row)
        return row.split("\t")[6], everything["translations"]["LDD"]["text"]

    assert saved() == ("3", SAW)
    pick(page, 4, "clicks")
    assert saved() == ("5", GIRL)
    page.run("answered = fetch; fetch = () => Promise.reject(new TypeError()); attach(7, 1)")
    rest(page)
    assert page.run("state.heads[7]") == 1 and "does not answer" in page.run("$('problem').innerText")
    assert saved() == ("5", GIRL)
    page.run("fetch = answered; 1")
    page.mouse("#reset", click=True)
    rest(page)
    assert saved() == ("3", SAW)


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
    with running(Service(load_served({"PASCAL": trained, "again": trained}), source)) as server:
        browser.errors.clear()
        browser.open(f"http://127.0.0.1:{server.port}/#w1%20w2%20w3")
        rest(browser)
        assert browser.run("document.querySelectorAll('#panels .panel').length") == 2
        assert browser.run("document.querySelectorAll('#panels .panel:first-child .minis canvas').length") == 4
        assert browser.run("document.querySelectorAll('#panels .panel:first-child .cells rect').length") > 4
        browser.mouse("#panels .panel:first-child .minis figure:nth-child(2) canvas", click=True)
        assert browser.run("document.querySelector('select.head').value") == "1"
        click_through(browser, "#panels .panel:first-child .minis figure:nth-child(3) canvas", "showInside()")
        assert browser.run("document.querySelector('select.head').value") == "2"
        # until another model has answered, the picture is of the one before
        browser.run(
            "$('inside-model').value = 'again'; $('inside-model').dispatchEvent(new Event('change'));"
            " $('scale').dispatchEvent(new Event('change'))"
        )
        assert browser.run("document.querySelectorAll('#panels .panel').length") == 2
        rest(browser)
        assert "again" in browser.run("document.querySelector('#panels .scroll svg').getAttribute('aria-label')")
        assert browser.errors == []


class Unseen(Naming):
    """A model that shows no attention, as with CTranslate2."""

    def __init__(self, name: str) -> None:
        super().__init__(name, blind=False, shows_attention=False)

    def attention(self, *_: Any) -> dict:
        raise SyntaxDataError("no attention")


def test_a_model_without_attention_is_not_asked_for_it(browser):
    models = [Unseen("fast"), Naming("plain", blind=True)]
    with running(Service(models, Source(OneSentenceParser(ParserOptions(parser="one sentence"))))) as server:
        browser.errors.clear()
        browser.open(f"http://127.0.0.1:{server.port}/#the%20children%20sleep")
        rest(browser)
        assert browser.run("document.querySelector('#problem').hidden && state.model") == "plain"
        for model, shown in (("fast", False), ("plain", True), ("fast", False)):
            browser.run(f"$('inside-model').value = '{model}'; $('inside-model').dispatchEvent(new Event('change'))")
            rest(browser)
            assert browser.run("document.querySelector('#problem').hidden"), model
            assert browser.run("!document.querySelector('#panels').hidden") is shown
    assert browser.errors == []


class Mirror(Naming):
    """A model that says its source again, word for word."""

    def translations(self, sentences: list[ParsedLine], beam: int, *_: Any) -> list[list[Translation]]:
        result = []
        for line in sentences:
            forms = [token.form for token in line.tokens]
            text, ends = " ".join(forms), list(itertools.accumulate(len(form) + 1 for form in forms))
            words = [(end - 1 - len(form), end - 1) for end, form in zip(ends, forms)]
            alignment = WordAlignment(text, text, words, words, [(i, i) for i in range(len(words))])
            result.append([Translation(text, [], -0.25, alignment)])
        return result


def hovered(browser, parser: Parser, text: str) -> list:
    """Each unit of the translation with the words of the parse that are marked when the mouse is on it."""
    with running(Service([Mirror("mirror", True)], Source(parser))) as started:
        browser.open(f"http://127.0.0.1:{started.port}/")
        translate(browser, text)
        return browser.run(
            "[...document.querySelectorAll('.said .unit')].map(unit => {"
            " unit.dispatchEvent(new Event('mouseenter'));"
            " const found = [...document.querySelectorAll('.word.linked')].map(w => Number(w.dataset.i));"
            " unit.dispatchEvent(new Event('mouseleave')); return [unit.textContent, found]; })"
        )


def test_hovering_marks_the_word_that_is_aligned_whatever_characters_stand_before(browser):
    """Offsets are in characters, of which JavaScript takes some for two."""
    words = ["👩", "𝒜𝒷", "👧", "see", "dogs"]
    marked = hovered(browser, OneSentenceParser(ParserOptions(parser="one sentence")), " ".join(words))
    assert marked == [[word, [i]] for i, word in enumerate(words)]


class Contracting(OneSentenceParser):
    """A parser to which *zum* is two words."""

    def parse(self, sentences: list[str | list[str]], first_line: int = 0) -> list[ParsedLine]:
        words = ["zu", "dem", "Haus", "mit", "dem", "Hund"]
        rows = [f"{i}\t{word}\t_\tX\t_\t_\t{i - 1}\tdep\t_\t_" for i, word in enumerate(words, 1)]
        return [parse_conllu_block("\n".join(["1-2\tzum" + "\t_" * 8, *rows])) for _ in sentences]


def test_hovering_marks_all_words_of_a_contraction(browser):
    marked = hovered(browser, Contracting(ParserOptions(parser="contracting")), "zum Haus mit dem Hund")
    assert marked == [["zum", [0, 1]], ["Haus", [2]], ["mit", [3]], ["dem", [4]], ["Hund", [5]]]


class Saying(Naming):
    """A model of a language, with one thing to say."""

    def __init__(self, name: str, language: str, text: str) -> None:
        super().__init__(name, True)
        self.target_lang, self.text = language, text

    def of(self, line: ParsedLine) -> str:
        return self.text


def test_each_translation_is_in_its_models_language(browser):
    models = [Saying("A", "de", "das Haus"), Saying("B", "zh_CN", "房子"), Saying("C", "de", "ein Haus")]
    models.append(Saying("D", "zh_CN", "小房子"))
    source = Source(OneSentenceParser(ParserOptions(parser="one sentence")))
    with running(Service(models, source), examples=[SENTENCE]) as started:
        browser.open(f"http://127.0.0.1:{started.port}/")
        rest(browser)
        assert "4 models, en → de, zh" in browser.run("document.querySelector('#loaded').innerText")
        assert browser.run("[...document.querySelectorAll('.said')].map(p => p.lang)") == ["de", "zh", "de", "zh"]
        units = "[...document.querySelectorAll('.card')].map(c => [...c.querySelectorAll('{}')].map(u => u.innerText))"
        assert browser.run(units.format(".unit")) == [["das", "Haus"], [*"房子"], ["ein", "Haus"], [*"小房子"]]
        assert browser.run(units.format(".unit.differs")) == [[], [], ["ein"], ["小"]]
        assert browser.run("document.querySelector('#difference').innerText") == "Marked words differ from A or B."
        browser.run("document.querySelectorAll('#wanted input').forEach((box, k) => { box.checked = k < 2 })")
        translate(browser, SENTENCE)
        assert browser.run(units.format(".unit.differs")) == [[], []], "languages are not compared"
        assert browser.run("document.querySelector('#difference').innerText") == ""


@pytest.mark.parametrize("handle", [SPOT.format(4), ".one[data-i='4'] .arclabel"], ids=["word", "label"])
def test_a_word_and_a_label_can_be_dragged_as_the_arc(page, handle):
    before = page.run("state.heads.join()")
    box = "(r => [r.x + r.width / 2, r.y + r.height / 2])(document.querySelector(`{}`).getBoundingClientRect())"
    page.run("scrollTo(0, 0)")
    begin, end = (page.run(box.format(place)) for place in (handle, SPOT.format(1)))
    page.send("Input.dispatchMouseEvent", type="mousePressed", x=begin[0], y=begin[1], **MOUSE)
    for x in (begin[0] + 20, end[0]):
        page.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=end[1], button="left", buttons=1)
    page.send("Input.dispatchMouseEvent", type="mouseReleased", x=end[0], y=end[1], **MOUSE)
    rest(page)
    assert page.run("state.heads[4]") == 1 and page.run("state.heads.join()") != before
    assert page.run("state.taken") is None, "the end of a drag is no click"


def test_further_translations_and_what_is_saved(page):
    page.run("$('nbest').value = '3'; $('nbest').dispatchEvent(new Event('change')); 1")
    rest(page)
    assert page.run("document.querySelector('.card .further').innerText.trim()") == "zweite"
    picture = page.run("pictureText()")
    assert picture.startswith("<svg") and "--blue" in picture and 'class="spot' not in picture
    assert page.run("parseNow() === state.parsed.conllu")


def test_a_score_is_told_in_words_that_a_stranger_knows(page):
    assert page.run("document.querySelector('.card .number').innerText") == "78 % a piece"  # exp(-0.25)


class Undecided(OneSentenceParser):
    """A parser with no arc of the telescope above its threshold."""

    def _parse(self, words: list[str]) -> SentenceParse:
        parse = super()._parse(words)
        assert parse.arcs is not None
        return replace(parse, arcs=[arc for arc in parse.arcs if arc[0] != 8])


class Counting(Naming):
    """A model that says how many arcs the telescope has."""

    def of(self, line: ParsedLine) -> str:
        return str([arc[1] for arc in line.arcs or () if arc[0] == 7])


def test_a_chosen_arc_is_read_where_the_parser_had_none(browser):
    source = Source(Undecided(ParserOptions(parser="undecided")))
    with running(Service([Counting("LDD", False)], source)) as started:
        browser.open(f"http://127.0.0.1:{started.port}/")
        translate(browser, SENTENCE)
        assert said(browser) == {"LDD": ["[]"]}
        pick(browser, 4, "clicks")
        assert said(browser) == {"LDD": ["[4]", "[]"]}


class Despairing(Naming):
    """A model that gives its translation no probability."""

    def translations(self, sentences: list[ParsedLine], beam: int, *_: Any) -> list[list[Translation]]:
        return [[Translation("nichts", [], float("-inf"), unknown=[(4, 7)], words=9)] for _ in sentences]


def test_no_probability_is_0_and_words_that_the_model_does_not_know_are_marked(browser):
    source = Source(OneSentenceParser(ParserOptions(parser="one sentence")))
    with running(Service([Despairing("none", True)], source)) as started:
        answer = started.translate(text=SENTENCE)[1]
        assert answer["translations"][0]["score"] is None, "JSON has no infinity"
        browser.open(f"http://127.0.0.1:{started.port}/")
        translate(browser, SENTENCE)
        assert browser.run("document.querySelector('.card .number').innerText") == "0 % a piece"
        assert browser.run("document.querySelector('.card .moved').innerText") == "unknown words: 1 of 9"
        assert browser.run("[...document.querySelectorAll('.word.unknown')].map(w => w.textContent).join()") == "man"


class Splitting(OneSentenceParser):
    """A parser that ends a sentence at each full stop."""

    def parse(self, sentences: list[str | list[str]], first_line: int = 0) -> list[ParsedLine]:
        line = ParsedLine.of_words(["Go", ".", "Come", "."], [0, 1, 1, 3], ["root", "punct", "dep", "punct"])
        two = replace(line, heads=[0, 0, 2, 2], deprels=["root", "punct"] * 2, sentences=[(0, 2), (2, 4)])
        return [two if text == "Go . Come ." else line for text in sentences]


def test_a_text_of_several_sentences_is_told_of(browser):
    source = Source(Splitting(ParserOptions(parser="splitting")))
    with running(Service([Naming("plain", True)], source), examples=["Go . Come .", "Go on ."]) as started:
        browser.open(f"http://127.0.0.1:{started.port}/")
        rest(browser)
        chips = browser.run("[...document.querySelectorAll('.chip')].map(chip => chip.innerText)")
        assert chips == ["Go . Come .", "Go on ."]
        assert "2 sentences" in browser.run("document.querySelector('#several').innerText")
        browser.run("document.querySelectorAll('.chip')[1].click()")
        rest(browser)
        assert browser.run("document.querySelector('#several').hidden")


def test_the_apis_page_needs_no_network(server, page):
    page.open(f"http://127.0.0.1:{server.port}/docs")
    assert page.run("document.querySelectorAll('h2').length") >= 5
    assert not page.run("document.querySelectorAll('script, link, img').length")

"""The corpus out of LibreOffice's help packages, on small packages made here."""

import difflib
import html
import io
import random
import tarfile
from pathlib import Path

import pytest

from fairseq_syntax.corpus.downloads import DamagedArchive
from fairseq_syntax.corpus.readers import libreoffice, read_corpus
from fairseq_syntax.errors import SyntaxDataError

VERBS = ["opens", "closes", "moves", "saves", "prints", "deletes", "renames", "searches", "formats", "aligns"]
NOUNS = ["document", "table", "chart", "picture", "paragraph", "footnote", "macro", "cell", "field", "border"]


def english(number: int) -> str:
    """Prose that is unlike the others."""
    rng = random.Random(number)
    words = [word for _ in range(4) for word in ("the", rng.choice(NOUNS), rng.choice(VERBS), f"x{number}")]
    return " ".join(word if word[0] != "x" else "q" + "abcdefghij"[number % 10] * 3 for word in words) + "."


def turkish(number: int) -> str:
    return " ".join(f"{word}lar" for word in english(number).rstrip(".").split()) + "."


def japanese(number: int) -> str:
    return "文書を開いて保存します" + "一二三四五六七八九十"[number % 10] * 5 + str(number)


def write_package(path: Path, pages: dict[str, str], ending: str = "xz") -> None:
    """A Debian package: an ar archive of the format's version, the control files and the files."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode=f"w:{ending}") as tar:
        for name, content in pages.items():
            member = tarfile.TarInfo(f"./usr/share/libreoffice/help/xx/text/{name}")
            member.size = len(content.encode())
            tar.addfile(member, io.BytesIO(content.encode()))
    with path.open("wb") as package:
        package.write(b"!<arch>\n")
        members = {"debian-binary": b"2.0\n", "control.tar.gz": b"odd", f"data.tar.{ending}": data.getvalue()}
        for name, content in members.items():
            package.write(f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode())
            package.write(content + b"\n" * (len(content) % 2))


def page(paragraphs: dict[str, str]) -> str:
    rows = (f'<p id="{name}" class="x">{html.escape(text)}</p>' for name, text in paragraphs.items())
    return f"<html><body><p>no id</p>{''.join(rows)}</body></html>"


@pytest.fixture
def packages(tmp_path) -> Path:
    """English, Turkish and Japanese, 30 pages of 4 paragraphs; Japanese has three of the four."""
    data = tmp_path / "debs"
    data.mkdir()
    for package, translate in (("en-us", english), ("tr", turkish), ("ja", japanese)):
        pages = {
            f"shared/{at:02}.html": page(
                {
                    f"par_id{at}{which}": english(4 * at + which)
                    if translate is japanese and which == 3
                    else translate(4 * at + which)
                    for which in range(4)
                }
            )
            for at in range(30)
        }
        write_package(data / f"libreoffice-help-{package}_4%3a7.4_all.deb", pages, "gz" if package == "tr" else "xz")
    return data


def test_paragraphs_of_a_page(tmp_path):
    content = (
        '<h1 id="hd_id1" dir="auto">Rows &amp; <b>columns</b></h1>'
        '<p id="par_id2">Press <span id="swlinux" hidden="true"><kbd>Command</kbd></span>'
        '<span id="defaultCtrl"><span class="k">Ctrl</span></span>+A.<br>Then\u200b  go\n on.</p>'
        '<p id="par_id3"><span id="writer" hidden="true">Hidden</span> words</p>'
        '<p id="bm_id4">an anchor</p><p id="par_id5"> </p><p id="par_id2">the second of an id</p>'
    )
    path = tmp_path / "libreoffice-help-xx_1.deb"
    write_package(path, {"b.html": "<p id='x'>y</p>", "a/c.html": content, "a/c.js": content})
    assert libreoffice.read_package(path) == {
        ("a/c.html", "hd_id1"): "Rows & columns",
        ("a/c.html", "par_id2"): "Press Ctrl+A. Then go on.",
    }


def test_what_is_no_package_is_an_error(tmp_path):
    path = tmp_path / "libreoffice-help-xx_1.deb"
    write_package(path, {"a.js": "x"})
    with pytest.raises(SyntaxDataError) as error:
        libreoffice.read_package(path)
    assert error.value.path == path
    whole = path.read_bytes()
    for damaged in (b"odd", whole[:-40], whole[:100], whole.replace(b"data.tar.xz", b"odds.tar.xz")):
        path.write_bytes(damaged)
        with pytest.raises(DamagedArchive):
            libreoffice.read_package(path)


@pytest.mark.parametrize(
    "language, target, taken",
    [
        ("tr", "Belgeyi açıp kaydedin ve sonra kapatın.", True),
        ("tr", "Open the document and then save it.", False),  # as it was
        ("tr", "Open the document, save it!", False),  # copied words
        ("tr", "Belge", False),  # too short
        ("tr", "Откройте документ и сохраните его.", False),  # another script
        ("zh_cn", "打开文档，然后保存。", True),
        ("zh_cn", "文書を開いて保存します。", False),  # kana
        ("ja", "文書を開いて保存します。", True),
        ("ja", "Open 文書", False),
        ("ja", "文", False),
    ],
)
def test_what_is_a_translation(language, target, taken):
    assert libreoffice.is_translated(language, "Open the document and then save it.", target) == taken


@pytest.mark.parametrize(
    "text, taken",
    [
        ("Opens the document in a new window.", True),
        ("Tools Options", False),
        ("=SUM(A1:A3) + B2 * 5", False),
        ("word " * 61, False),
    ],
)
def test_what_is_prose(text, taken):
    assert libreoffice.is_prose(text) == taken


def is_near_copy(one: str, other: str) -> bool:
    """By the definition, of two paragraphs."""
    a, b = libreoffice.mask_names(one), libreoffice.mask_names(other)
    if a == b:
        return True

    def grams(words, n):
        return {tuple(words[at : at + n]) for at in range(len(words) - n + 1)}

    if len(grams(a, 5) & grams(b, 5)) > 0.7 * max(1, len(grams(a, 5))):
        return True
    both = grams(a, 3) | grams(b, 3)
    if both and len(grams(a, 3) & grams(b, 3)) / len(both) > 0.6:
        return True
    # words in the same order are asked of paragraphs that share a trigram
    in_order = difflib.SequenceMatcher(None, b, a, autojunk=False).ratio() > 0.75
    return bool(grams(a, 3) & grams(b, 3)) and in_order


def test_near_copies_by_pairs():
    rng = random.Random(1)
    actual = 0
    for _ in range(150):
        texts = [" ".join(rng.choices("abcd", k=rng.randint(1, 12))) for _ in range(4)]
        words = texts[0].split()
        words[rng.randrange(len(words))] = rng.choice(["z", '"a b"', "12"])
        text = " ".join(words)
        copies = libreoffice.NearCopies(texts).has_one_of(text)
        assert copies == any(is_near_copy(text, other) for other in texts), (text, texts)
        actual += copies
    assert 20 < actual < 140
    assert libreoffice.NearCopies(['See "Rows" 12 of it']).has_one_of("see «Columns» 3 of it")


def test_the_parts(packages):
    english_text, *others = (
        libreoffice.read_package(packages / f"libreoffice-help-{package}_4%3a7.4_all.deb")
        for package in ("en-us", "tr", "ja")
    )
    parts = libreoffice.split_by_page(english_text, dict(zip(("tr", "ja"), others)))
    more = parts.pop("more")
    pages = {part: {paragraph.key.page for paragraph in actual} for part, actual in parts.items()}
    assert all(pages.values()) and sum(map(len, pages.values())) == len(set.union(*pages.values()))
    for paragraphs in parts.values():
        for paragraph in paragraphs:
            assert paragraph.text == english_text[paragraph.key]
            assert paragraph.translations == {lang: texts[paragraph.key] for lang, texts in zip(("tr", "ja"), others)}
            assert not paragraph.key.id.endswith("3")
    assert more and all(paragraph.key.id.endswith("3") and [*paragraph.translations] == ["tr"] for paragraph in more)
    training = [paragraph.text for paragraph in parts["train"] + more]
    for part in ("valid", "test"):
        for paragraph in parts[part]:
            assert not any(is_near_copy(paragraph.text, other) for other in training)
    first = parts["test"][0]
    assert libreoffice.pairs([*more, first], "ja") == [(first.text, others[1][first.key])]


def test_the_reader(packages, monkeypatch):
    pages = packages / "pages"
    options = {"languages": ["tr", "ja"], "pages": True}
    rows = {
        target: dict(read_corpus("libreoffice", packages, "en", target, options=options)) for target in ("ja", "tr")
    }
    of_page = {path.stem: path.read_text().splitlines() for path in pages.iterdir()}
    for part in ("valid", "test"):
        assert [row[0] for row in rows["ja"][part]] == [row[0] for row in rows["tr"][part]]
        assert len(rows["ja"][part]) == len(of_page[part]) > 0
    assert len(rows["tr"]["train"]) > len(rows["ja"]["train"])
    assert of_page.keys() == {"valid", "test"}, "the folder is the same for all languages"
    for language, translate in (("ja", japanese), ("tr", turkish)):
        translations = {english(number): translate(number) for number in range(120)}
        assert all(translations[row[0]] == row[1] for part in rows[language].values() for row in part)
    assert not set(of_page["test"]) & set(of_page["valid"])
    alone, one = (
        {
            part: list(pairs)
            for part, pairs in read_corpus("libreoffice", packages, "en", "tr", options={"languages": of})
        }
        for of in ("tr", ["tr"])
    )
    assert alone == one and len(one["test"]) >= len(of_page["test"])
    with pytest.raises(SyntaxDataError):
        list(read_corpus("libreoffice", packages, "en", "de", options=options))
    monkeypatch.setenv("PATH", str(packages))  # without apt-get
    of_all = {"languages": ["tr", "ja"]}
    assert dict(read_corpus("libreoffice", packages, "en", "tr", options=of_all, download=True)) == rows["tr"]
    (packages / "libreoffice-help-ja_4%3a7.4_all.deb").unlink()
    for download in (False, True):
        with pytest.raises(SyntaxDataError):
            list(read_corpus("libreoffice", packages, "en", "tr", options=of_all, download=download))

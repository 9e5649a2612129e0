"""LibreOffice's help: an English text and its translations, paragraph by paragraph, from Debian packages.

Files: the packages ``libreoffice-help-LANG``, of English (``en-us``) and of all ``languages``; ``download: true``
downloads them with ``apt-get``. A page has the same paragraph ids in all languages. The paragraphs that exist in all
languages are assigned to training, validation or test by their pages; validation and test paragraphs with near copies
in an earlier part are removed. Paragraphs that exist only in the language pair are appended to the training part. The
text is documentation with 17 words per paragraph, a quarter of which have several sentences. Sentences of a page are
not independent; use ``pages`` for ``score --groups``.

Texts © contributors to LibreOffice and The Document Foundation, MPL-2.0, in parts Apache-2.0 (from Apache OpenOffice).
"""

from __future__ import annotations

import difflib
import html
import logging
import random
import re
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fairseq_syntax.corpus.downloads import find, package_files
from fairseq_syntax.corpus.parallel_text import Row, Split
from fairseq_syntax.corpus.words import WITHOUT_SPACES, language_of, single_spaced
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.digests import sha256_of
from fairseq_syntax.runtime.files import atomic_open, files_below, make_folder

logger = logging.getLogger(__name__)

# As in package names, but with _ for -, since fairseq splits file names such as en-zh_cn at the hyphen.
LANGUAGES = ("de", "fr", "hu", "tr", "zh_cn", "ja")
SEED = 1
# Shares of the pages; about 1,000 paragraphs each without near copies.
TEST_SHARE, VALID_SHARE = 0.106, 0.086
# SHA-256 of all parts in LANGUAGES, from packages 4:7.4.7-1+deb12u14 of Debian 12.
DIGEST = "a87ea24b431b5b1cc2b86ed647511715435fce97e7348b3a0ab45d3076b9ca8e"

_PARAGRAPH = re.compile(r'<(p|h[1-6])\b[^>]*\bid="((?:par|hd|tit)_id[^"]*)"[^>]*>(.*?)</\1>', re.DOTALL)
_INVISIBLE = re.compile("[\u200b-\u200f\u00ad\ufeff]")
_HAN_OR_KANA = re.compile("[\u3040-\u30ff\u3400-\u9fff]")
_KANA = re.compile("[\u3040-\u30ff]")
_LATIN = re.compile("[A-Za-z\u00c0-\u024f]")
_LETTER = re.compile(r"[^\W\d_]")
_WORD = re.compile(r"[^\W_]+")
_PLAIN_WORD = re.compile(r"[(\"“]?[A-Za-z][a-z'’-]*[.,:;!?)\"”]*")
_QUOTED = re.compile(r"[\"“”'‘’«»][^\"“”'‘’«»]{1,40}[\"“”'‘’«»]")


class Key(NamedTuple):
    """The identity of a paragraph in all languages: the file of its page, and its id."""

    page: str
    id: str


Paragraphs = dict[Key, str]


def read_package(path: Path) -> Paragraphs:
    """Read the paragraphs of a language's package by page and id, sorted by the names of pages."""
    pages = {}
    for name, content in package_files(path):
        match = re.fullmatch(r"(?:\./)?usr/share/libreoffice/help/[^/]+/text/(.+\.html)", name)
        if match:
            pages[match[1]] = content
    if not pages:
        raise SyntaxDataError("contains no help pages", path=path, hint="a package libreoffice-help-LANG of Debian")
    paragraphs: Paragraphs = {}
    for page in sorted(pages):
        for match in _PARAGRAPH.finditer(pages[page].decode("utf-8")):
            text = re.sub(r"<br\b[^>]*>", " ", default_variant(match[3]))
            text = html.unescape(re.sub(r"<[^>]+>", "", text))
            if text := single_spaced(_INVISIBLE.sub("", text)):
                paragraphs.setdefault(Key(page, match[2]), text)
    return paragraphs


def default_variant(markup: str) -> str:
    """Remove the spans that a script hides, such as "Command" next to "Ctrl", or Writer's words next to Calc's.

    A paragraph that has hidden spans but no default becomes empty.
    """

    def is_hidden(markup: str) -> bool:
        return 'hidden="true"' in markup and 'id="default' not in markup

    if is_hidden(markup):
        return ""
    kept: list[str] = []
    depth, hidden_from = 0, None
    for piece in re.split(r"(<[^>]+>)", markup):
        if piece.startswith("<span"):
            depth += 1
            if hidden_from is None and is_hidden(piece):
                hidden_from = depth
        if hidden_from is None:
            kept.append(piece)
        if piece == "</span>":
            if depth == hidden_from:
                hidden_from = None
            depth -= 1
    return "".join(kept)


def is_prose(text: str) -> bool:
    """Whether an English paragraph is text of 4 to 60 words, rather than code, a formula, a label or a table cell."""
    words = text.split()
    plain = sum(_PLAIN_WORD.fullmatch(word) is not None for word in words)
    return 4 <= len(words) <= 60 and plain >= 3 and plain >= 0.6 * len(words)


def is_translated(language: str, source: str, target: str) -> bool:
    """Whether a paragraph is translated; in the packages, half of Japanese and a third of Turkish are in English."""
    letters = _LETTER.findall(target)
    if target == source or not letters:
        return False
    if language_of(language) in WITHOUT_SPACES:
        if len(_HAN_OR_KANA.findall(target)) < 0.4 * len(letters):
            return False
        if language != "ja" and _KANA.search(target):
            return False
        return 0.4 <= len(target) / len(source.split()) <= 10
    if len(_LATIN.findall(target)) < 0.8 * len(letters):
        return False
    source_words, target_words = lowercase_words(source), lowercase_words(target)
    copied = sum(word in set(source_words) for word in target_words)
    return copied <= 0.5 * len(target_words) and 1 / 3 <= len(target_words) / max(1, len(source_words)) <= 3


def lowercase_words(text: str) -> list[str]:
    """The lowercased words, without punctuation."""
    return _WORD.findall(text.lower())


class Paragraph(NamedTuple):
    """An English paragraph with its place and its translations by language."""

    key: Key
    text: str
    translations: dict[str, str]


def distinct_paragraphs(english: Paragraphs, others: Mapping[str, Paragraphs]) -> list[Paragraph]:
    """The paragraphs of prose without duplicates; of several copies, the one with the most translations is kept.

    Help pages embed each other. A text with more than two ids belongs to the user interface and is left out.
    """
    ids: dict[str, set[str]] = defaultdict(set)
    for key, text in english.items():
        ids[text].add(key.id)
    best: dict[str, Paragraph] = {}
    for key, text in english.items():
        if not is_prose(text) or len(ids[text]) > 2:
            continue
        found = {language: paragraphs[key] for language, paragraphs in others.items() if key in paragraphs}
        translations = {language: target for language, target in found.items() if is_translated(language, text, target)}
        if text not in best or len(translations) > len(best[text].translations):
            best[text] = Paragraph(key, text, translations)
    return list(best.values())


def mask_names(text: str) -> list[str]:
    """The words with numbers and quoted names masked, lowercased, so that instances of a template are equal."""
    return lowercase_words(re.sub(r"\d+", "0", _QUOTED.sub(" Q ", text)))


def ngrams(words: Sequence[str], n: int) -> set[tuple[str, ...]]:
    """The distinct n-grams."""
    return {tuple(words[start : start + n]) for start in range(len(words) - n + 1)}


class NearCopies:
    """An index of paragraphs, to find near copies of others among them.

    A near copy is equal after masking, shares more than 0.7 of the 5-grams, has a 3-gram Jaccard index above 0.6, or
    has more than 0.75 of the words in the same order (difflib's ratio).
    """

    def __init__(self, texts: Iterable[str]) -> None:
        self._masked = [mask_names(text) for text in texts]
        self._whole = {tuple(words) for words in self._masked}
        self._trigrams = [len(ngrams(words, 3)) for words in self._masked]
        self._with: dict[tuple[str, ...], list[int]] = defaultdict(list)
        for number, words in enumerate(self._masked):
            for gram in ngrams(words, 3) | ngrams(words, 5):
                self._with[gram].append(number)

    def has_one_of(self, text: str) -> bool:
        """Whether any of the paragraphs is a near copy of ``text``."""
        words = mask_names(text)
        if tuple(words) in self._whole:
            return True
        fives, threes = ngrams(words, 5), ngrams(words, 3)
        shared = self._shared(fives)
        if max(shared.values(), default=0) > 0.7 * max(1, len(fives)):
            return True
        shared = self._shared(threes)
        alike = {at: count / (len(threes) + self._trigrams[at] - count) for at, count in shared.items()}
        if max(alike.values(), default=0.0) > 0.6:
            return True
        matcher = difflib.SequenceMatcher(None, b=words, autojunk=False)
        for at in sorted(alike, key=lambda at: (-alike[at], at))[:50]:
            matcher.set_seq1(self._masked[at])
            if matcher.quick_ratio() > 0.75 and matcher.ratio() > 0.75:
                return True
        return False

    def _shared(self, grams: Iterable[tuple[str, ...]]) -> Counter[int]:
        return Counter(number for gram in grams for number in self._with.get(gram, ()))


Parts = dict[str, list[Paragraph]]


def split_by_page(english: Paragraphs, others: Mapping[str, Paragraphs]) -> Parts:
    """Split the paragraphs by their pages, and remove near copies from the validation and test parts.

    ``train``, ``valid`` and ``test`` exist in all languages; ``more`` are further training paragraphs, which do not.
    """
    paragraphs = distinct_paragraphs(english, others)
    pages = sorted({paragraph.key.page for paragraph in paragraphs})
    random.Random(SEED).shuffle(pages)
    tests, held_out = TEST_SHARE * len(pages), (TEST_SHARE + VALID_SHARE) * len(pages)
    part_of = {page: "test" if at < tests else "valid" if at < held_out else "train" for at, page in enumerate(pages)}
    parts: Parts = {"train": [], "valid": [], "test": [], "more": []}
    for paragraph in paragraphs:
        part = part_of[paragraph.key.page]
        if len(paragraph.translations) == len(others):
            parts[part].append(paragraph)
        elif part == "train":
            parts["more"].append(paragraph)
    training = [text for language in others for text, _ in pairs([*parts["train"], *parts["more"]], language)]
    earlier = [NearCopies(dict.fromkeys(training))]
    for part in ("valid", "test"):
        parts[part] = [
            paragraph for paragraph in parts[part] if not any(copies.has_one_of(paragraph.text) for copies in earlier)
        ]
        earlier.append(NearCopies(paragraph.text for paragraph in parts[part]))
    return parts


def pairs(paragraphs: Iterable[Paragraph], language: str) -> list[Row]:
    """The paragraphs that are translated into a language, with their translations."""
    return [(each.text, each.translations[language]) for each in paragraphs if language in each.translations]


def digest(parts: Parts, languages: Iterable[str]) -> str:
    """The SHA-256 of the whole content."""
    return sha256_of(
        "\t".join([*pair, ""]).encode()
        for language in languages
        for paragraphs in parts.values()
        for pair in pairs(paragraphs, language)
    )


def read(
    data: Path, source: str, target: str, *, languages: Sequence[str] = LANGUAGES, pages: bool = False
) -> Iterator[Split]:
    """Yield the splits train, valid and test.

    Args:
        languages: the languages whose common paragraphs are split; equal languages give equal test sets for all pairs
        pages: also write the help page of each line of valid and test to ``pages/SPLIT.page`` in the corpus's folder

    Raises:
        SyntaxDataError: the pair is not English and one of the languages, or a package is missing or damaged
    """
    if source != "en" or target not in languages:
        raise SyntaxDataError(f"no pair {source}-{target}", hint=f"en and one of {', '.join(languages)}")
    english, *others = (read_package(find(data, f"{name}_*.deb")) for name in package_names(languages))
    parts = split_by_page(english, dict(zip(languages, others)))
    if tuple(languages) == LANGUAGES and digest(parts, languages) != DIGEST:
        logger.warning("%s: not the packages of Debian 12 (4:7.4.7-1+deb12u14); their lines are others", data)
    parts["train"] += [paragraph for paragraph in parts.pop("more") if target in paragraph.translations]
    for name, paragraphs in parts.items():
        if pages and name != "train":  # whose lines differ by language, while all languages share the folder
            make_folder(data / "pages")
            with atomic_open(data / "pages" / f"{name}.page") as file:
                file.writelines(paragraph.key.page + "\n" for paragraph in paragraphs)
        yield Split(name, pairs(paragraphs, target))


def download(data: Path, source: str, target: str, *, languages: Sequence[str] = LANGUAGES) -> None:
    """Download missing packages with ``apt-get download``, from the system's release."""
    make_folder(data)
    missing = [name for name in package_names(languages) if not any(files_below(data, f"{name}_*.deb"))]
    if not missing:
        return
    try:
        subprocess.run(["apt-get", "download", *missing], cwd=data, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        hint = "fetch the packages by hand from Debian's mirrors: pool/main/libr/libreoffice"
        raise SyntaxDataError(f"apt-get download failed: {error}", path=data, hint=hint) from error


def package_names(languages: Sequence[str]) -> list[str]:
    """The names of the packages of English and these languages."""
    return [f"libreoffice-help-{language.replace('_', '-')}" for language in ("en_us", *languages)]

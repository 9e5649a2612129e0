"""WMT: the training corpora of the translation tasks, and the newstest sets.

Training files as in the archives (anywhere below the folder, plain or compressed): pairs of plain text in Moses format,
such as ``news-commentary-v11.de-en.de`` and ``.en``, ``europarl-v7.de-en``, ``commoncrawl.de-en``, ``rapid2016.de-en``,
``SETIMES2.en-tr``; for Chinese, CWMT's ``casia2015_ch.txt`` with ``casia2015_en.txt`` and so on (available on request
from Nanjing University's CWMT site). Test sets: ``newstest2016-ende-src.en.sgm`` with ``-ref.de.sgm``, plain
``newstest2016.en``, or from 2021 ``newstest2021.en-de.xml``.

``download: true`` downloads files from statmt.org, and SETIMES from OPUS. The addresses have not been tried, because
the hosts could not be reached during development. MD5 checksums are sacrebleu's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from fairseq_syntax.corpus.downloads import fetch_all, find, find_sides
from fairseq_syntax.corpus.parallel_text import Row, parallel
from fairseq_syntax.corpus.readers import Split
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.files import files_below

STATMT = "https://data.statmt.org"
# The addresses of the training corpora; that of CWMT has none.
ARCHIVES = {
    "news-commentary-v9": "https://www.statmt.org/wmt14/training-parallel-nc-v9.tgz",
    "news-commentary-v11": f"{STATMT}/wmt16/translation-task/training-parallel-nc-v11.tgz",
    "news-commentary-v12": f"{STATMT}/wmt17/translation-task/training-parallel-nc-v12.tgz",
    "europarl-v7": "https://www.statmt.org/wmt13/training-parallel-europarl-v7.tgz",
    "commoncrawl": "https://www.statmt.org/wmt13/training-parallel-commoncrawl.tgz",
    "rapid2016": f"{STATMT}/wmt17/translation-task/rapid2016.tgz",
    "SETIMES2": "https://object.pouta.csc.fi/OPUS-SETIMES/v2/moses/en-tr.txt.zip",
}
# The addresses of the test sets, and sacrebleu's checksums.
TESTS = {
    "newstest2013": ("https://www.statmt.org/wmt14/dev.tgz", None),
    "newstest2014": ("https://www.statmt.org/wmt14/test-full.tgz", "md5:a8cd784e006feb32ac6f3d9ec7eb389a"),
    "newstest2015": ("https://www.statmt.org/wmt15/test.tgz", "md5:67e3beca15e69fe3d36de149da0a96df"),
    "newstest2016": (f"{STATMT}/wmt16/translation-task/test.tgz", "md5:3d809cd0c2c86adb2c67034d15c4e446"),
    "newstest2017": (f"{STATMT}/wmt17/translation-task/test.tgz", "md5:86a1724c276004aa25455ae2a04cef26"),
}
BOOKS = range(1, 21)
CWMT = {
    "casia2015": "casia2015_{}.txt",
    "casict2015": "casict2015_{}.txt",
    "datum2015": "datum_{}.txt",
    "neu2017": "NEU_{}.txt",
    **{f"datum2017-{n}": f"Book{n}_{{}}.txt" for n in BOOKS},
}
HINT_CWMT = "CWMT's corpus is to be asked for at Nanjing University's CWMT site"
CORPORA = ("news-commentary-v11",)


def read(
    data: Path,
    source: str,
    target: str,
    *,
    corpora: Sequence[str] = CORPORA,
    valid: str = "newstest2015",
    tests: Sequence[str] = ("newstest2016",),
) -> Iterator[Split]:
    """The splits.

    Args:
        corpora: the training corpora to concatenate, in this order; ``cwmt`` stands for all of CWMT's
        valid, tests: names such as ``newstest2016``; files for this translation direction are preferred
    """
    langs = (source, target)
    yield Split("train", chain(*(_training(data, name, langs) for name in corpora)))
    yield Split("valid", newstest(data, valid, langs))
    for name in tests:
        yield Split(name, newstest(data, name, langs))


def download(
    data: Path,
    source: str,
    target: str,
    *,
    corpora: Sequence[str] = CORPORA,
    valid: str = "newstest2015",
    tests: Sequence[str] = ("newstest2016",),
) -> None:
    """Download the archives of missing corpora and test sets."""
    for name in corpora:
        if name not in ARCHIVES:
            hint = f"{', '.join(ARCHIVES)} can be" if name not in (*CWMT, "cwmt") else HINT_CWMT
            raise SyntaxDataError(f"{name} cannot be downloaded", path=data, hint=hint)
    fetch_all(dict.fromkeys(ARCHIVES[name] for name in corpora), data)
    for name in dict.fromkeys([valid, *tests]):
        if name not in TESTS:
            raise SyntaxDataError(f"{name} cannot be downloaded", path=data, hint=f"{', '.join(TESTS)} can be")
        # One folder each, since archives of several years are named test.tgz.
        url, checksum = TESTS[name]
        fetch_all([url], data / name, {url.rsplit("/", 1)[-1]: checksum})


def _training(data: Path, name: str, langs: tuple[str, str]) -> Iterator[Row]:
    """Read one training corpus."""
    if name == "cwmt":
        return chain(*(_training(data, part, langs) for part in CWMT))
    if name in CWMT:
        codes = {"zh": ("ch", "cn"), "en": ("en",)}
        if set(langs) != set(codes):
            raise SyntaxDataError(f"{name} has Chinese and English, not {' and '.join(langs)}")
        names = [[CWMT[name].format(code) for code in codes[lang]] for lang in langs]
        return parallel(*(find(data, *candidates, hint=HINT_CWMT) for candidates in names))
    spellings = ["SETIMES2", "SETIMES"] if name == "SETIMES2" else [name]
    return parallel(*find_sides(data, spellings, langs))


def newstest(data: Path, name: str, langs: tuple[str, str]) -> Iterator[Row]:
    """Read a test set, for this translation direction if the file names distinguish it."""
    source, target = langs
    xml = [f"{name}.{source}-{target}.xml", f"{name}.{source}-{target}.all.xml"]
    if any(file for each in xml for file in files_below(data, each)):
        path = find(data, *xml)
        return parallel(path, path, langs=langs)
    files = [
        find(
            data,
            f"{name}-{source}{target}-{side}.{lang}.sgm",
            # until 2014, one set for both directions, named after either
            f"{name}-{target}{source}-{side}.{lang}.sgm",
            f"{name}-{side}.{lang}.sgm",
            f"{name}.{lang}",
        )
        for side, lang in (("src", source), ("ref", target))
    ]
    return parallel(*files)

"""IWSLT: TED talks, in the layout of the evaluation campaigns from 2014 to 2017.

The files of the archives from the WIT3 site: ``train.tags.de-en.de`` with its other side, and
``IWSLT14.TED.dev2010.de-en.de.xml`` and so on. ``download: true`` downloads the German-English archive of 2014 hosted
by fairseq and, with ``year: 2017``, the archives from WIT3's copy on GitHub (English with Arabic, Chinese, French,
German and others). Italian is in the multilingual archive DeEnItNlRo, which must be downloaded manually from WIT3's
site, like the archives of 2015.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, compress
from pathlib import Path

from fairseq_syntax.corpus.downloads import fetch_all, find_sides
from fairseq_syntax.corpus.parallel_text import Row, parallel
from fairseq_syntax.corpus.readers import Split
from fairseq_syntax.errors import SyntaxDataError

SITES = {
    2014: "https://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz",
    2017: "https://raw.githubusercontent.com/hlt-mt/WIT3/master/archive/2017-01-trnted/texts/"
    "{source}/{target}/{source}-{target}.tgz",
}
# MD5 checksums from sacrebleu; none is published for fairseq's archive.
CHECKSUMS = {
    "en-de.tgz": "md5:d8a32cfc002a4f12b17429cfa78050e6",
    "de-en.tgz": "md5:ca2b94d694150d4d6c5dc64c200fa589",
    "en-zh.tgz": "md5:575b788dad6c5b9c5cee636f9ac1094a",
    "zh-en.tgz": "md5:1c0ae40171d52593df8a6963d3828116",
    "en-fr.tgz": "md5:3cf07ebe305312b12f7f1a4d5f8f8377",
    "fr-en.tgz": "md5:19927da9de0f40348cad9c0fc61642ac",
}
EVERY = 23
MOST_TOKENS, RATIO = 175, 1.5
FAIRSEQ_TESTS = ("dev2010", "dev2012", "tst2010", "tst2011", "tst2012")


def read(
    data: Path,
    source: str,
    target: str,
    *,
    valid: Sequence[str] = (),
    tests: Sequence[str] = (),
    year: int | None = None,
) -> Iterator[Split]:
    """The splits.

    Args:
        valid: development sets to concatenate, such as ``dev2010``. The default is fairseq's split for IWSLT 2014:
            every 23rd of the training pairs that Moses' clean-corpus-n keeps (1 to 175 tokens per side, ratio at most
            1.5); this requires ``pip install '.[iwslt]'``
        tests: test sets, one per split. The default is fairseq's five test sets as one split ``test``
        year: the campaign (default: any); sets of the same name differ between campaigns
    """
    langs = (source, target)
    train = find_sides(data, ["train.tags"], langs)

    def evaluation(name: str) -> Iterator[Row]:
        """Read a development or test set."""
        campaign = "IWSLT" if year is None else f"IWSLT{str(year)[-2:]}"
        return parallel(*find_sides(data, [f"{campaign}*.{name}"], langs, ending=".xml"))

    if valid:
        yield Split("train", parallel(*train))
        yield Split("valid", chain(*map(evaluation, valid)))
    else:
        kept = cleaned(parallel(*train), langs)
        number = accumulate(kept)  # the number of each pair among the kept ones
        parts = bytes(0 if not keep else 2 if n % EVERY == 0 else 1 for keep, n in zip(kept, number))
        for split, part in (("train", 1), ("valid", 2)):
            yield Split(split, compress(parallel(*train), bytes(each == part for each in parts)))
    if not tests:
        yield Split("test", chain(*map(evaluation, FAIRSEQ_TESTS)))
    for name in tests:
        yield Split(name, evaluation(name))


def download(data: Path, source: str, target: str, *, year: int = 2014) -> None:
    """Download the archive of a campaign. Raises SyntaxDataError if this fails."""
    if year not in SITES or (year == 2014 and {source, target} != {"de", "en"}):
        message = f"{source}-{target} of {year} cannot be downloaded"
        raise SyntaxDataError(message, path=data, hint="fetch it by hand from WIT3's site")
    url = SITES[year].format(source=source, target=target)
    fetch_all([url], data, CHECKSUMS if year == 2017 else None)


def cleaned(rows: Iterable[Row], langs: tuple[str, str]) -> bytes:
    """Whether (0 or 1) Moses' ``clean-corpus-n.perl -ratio 1.5 … 1 175`` keeps each pair, in Moses' tokens."""
    try:
        from sacremoses import MosesTokenizer
    except ImportError as error:
        hint = "pip install sacremoses, or name the development sets in valid"
        raise SyntaxDataError("fairseq's split counts Moses' tokens", hint=hint) from error
    tokenizers = [MosesTokenizer(lang) for lang in langs]
    return bytes(is_kept([len(t.tokenize(side)) for t, side in zip(tokenizers, row)]) for row in rows)


def is_kept(tokens: list[int]) -> bool:
    """Whether a pair with these numbers of tokens is kept for training."""
    return min(tokens) >= 1 and max(tokens) <= MOST_TOKENS and max(tokens) <= RATIO * min(tokens)

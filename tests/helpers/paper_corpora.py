"""Small corpora, each in the files and formats of a known one, for the readers and for smoke tests of recipes."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from xml.sax.saxutils import escape

# A sentence of so many words, and which words: they hold what markup has to escape.
WORDS = ["a", "man", "sees", "two", "dogs", "near", "the", "old", "tree", "R&D", "Turing", "<b>", "said", "it's"]
CHINESE = list("我爱北京天安门今天气很好")


def sentence(rng: random.Random, lang: str, words: int) -> str:
    """Words of no meaning; of Chinese and Japanese without spaces."""
    if lang in ("zh", "ja"):
        return "".join(rng.choices(CHINESE, k=words)) + "。"
    return " ".join([*rng.choices(WORDS, k=words), "."])


def pairs(seed: str, langs: tuple[str, str], count: int, longest: int = 12) -> list[tuple[str, str]]:
    """Pairs of sentences, by a seed."""
    rng = random.Random(seed)
    lengths = [rng.randint(2, longest) for _ in range(count)]
    return [(sentence(rng, langs[0], n), sentence(rng, langs[1], n)) for n in lengths]


def write(path: Path, lines: list[str]) -> None:
    """A file of lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def plain(folder: Path, names: tuple[str, str], rows: list[tuple[str, str]]) -> None:
    """Two plain files."""
    for place, name in enumerate(names):
        write(folder / name, [row[place] for row in rows])


def segments(rows: list[str], system: str = "") -> list[str]:
    """NIST's SGML."""
    body = [f'<seg id="{n}"> {escape(row)} </seg>' for n, row in enumerate(rows, 1)]
    return ['<refset setid="x">', f'<doc {system}docid="d">', "<p>", *body, "</p>", "</doc>", "</refset>"]


def multi30k(folder: Path, langs: tuple[str, str]) -> None:
    for name, count in (("train", 60), ("val", 8), ("test_2016_flickr", 6), ("test_2017_flickr", 6)):
        plain(folder, (f"{name}.{langs[0]}", f"{name}.{langs[1]}"), pairs(name, langs, count))


def iwslt(folder: Path, langs: tuple[str, str]) -> None:
    pair = "-".join(langs)
    rows = pairs("train", langs, 90)
    for place, lang in enumerate(langs):
        side = [row[place] for row in rows]
        talk = ["<url>http://x</url>", "<talkid>1</talkid>", f"<title>{side[0]}</title>"]
        write(folder / pair / f"train.tags.{pair}.{lang}", [*talk, *(s.replace("<b>", "b") for s in side[1:])])
    # The paper with Chinese is of 2015; without a year, two campaigns would be ambiguous.
    for campaign in ("IWSLT15", "IWSLT17") if "zh" in langs else ("IWSLT17",):
        for name in ("dev2010", "dev2012", "tst2010", "tst2011", "tst2012", "tst2015"):
            rows = pairs(name, langs, 4)
            for place, lang in enumerate(langs):
                path = folder / pair / f"{campaign}.TED.{name}.{pair}.{lang}.xml"
                write(path, segments([row[place] for row in rows]))


def wmt(folder: Path, langs: tuple[str, str]) -> None:
    other = next(lang for lang in langs if lang != "en")
    pair = f"en-{other}" if other == "tr" else f"{other}-en"
    for name in ("news-commentary-v9", "news-commentary-v11", "news-commentary-v12", "europarl-v7", "commoncrawl",
                 "rapid2016", "SETIMES2"):  # fmt: skip
        plain(folder / "training", tuple(f"{name}.{pair}.{lang}" for lang in langs), pairs(name, langs, 25))
    codes = {"zh": "ch", "en": "en"}
    cwmt = ["casia2015_{}", "casict2015_{}", "datum_{}", "NEU_{}", *(f"Book{n}_{{}}" for n in range(1, 21))]
    for name in cwmt if other == "zh" else ():
        plain(folder / "cwmt", tuple(f"{name.format(codes[lang])}.txt" for lang in langs), pairs(name, langs, 4))
    for name in ("newstest2013", "newstest2014", "newstest2015", "newstest2016", "newstest2017", "newsdev2017"):
        rows = pairs(name, langs, 6)
        for place, (side, lang) in enumerate(zip(("src", "ref"), langs)):
            path = folder / "sgm" / f"{name}-{''.join(langs)}-{side}.{lang}.sgm"
            write(path, segments([row[place] for row in rows]))


def aspec(folder: Path, langs: tuple[str, str]) -> None:
    for name, count in (
        ("train/train-1", 30),
        ("train/train-2", 20),
        ("train/train-3", 10),
        ("dev/dev", 6),
        ("test/test", 6),
    ):
        rows = [dict(zip(langs, row)) for row in pairs(name, langs, count)]
        score = "0.9 ||| " if name.startswith("train") else ""
        lines = [f"{score}A-1 ||| {n} ||| {row['ja']} ||| {row['en']}" for n, row in enumerate(rows)]
        write(folder / f"{name}.txt", lines)


def nist(folder: Path, langs: tuple[str, str]) -> None:
    plain(folder, (f"train.{langs[0]}", f"train.{langs[1]}"), pairs("train", langs, 60))
    for name in ("mt02", "mt05", "mt08", "mt12"):
        rows = pairs(name, langs, 6)
        write(folder / f"{name}-src.sgm", segments([row[0] for row in rows]))
        translators = [segments([f"{t} {row[1]}" for row in rows], f'sysid="{t}" ') for t in "ABCD"]
        write(folder / f"{name}-ref.sgm", [line for lines in translators for line in lines])


def moses(folder: Path, langs: tuple[str, str]) -> None:
    pair = "-".join(sorted(langs))
    for name in ("UNv1.0", "news-commentary-v12"):
        plain(folder, tuple(f"{name}.{pair}.{lang}" for lang in langs), pairs(name, langs, 400, longest=78))


CORPORA: dict[str, Callable[[Path, tuple[str, str]], None]] = {
    "aspec": aspec,
    "iwslt": iwslt,
    "moses": moses,
    "multi30k": multi30k,
    "nist": nist,
    "wmt": wmt,
}

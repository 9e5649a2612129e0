"""One pair of plain files in Moses' manner, ``NAME.zh-en.zh`` and ``NAME.zh-en.en``, from which the tests are drawn.

So come the UN Parallel Corpus (``UNv1.0.en-zh``; to be fetched in parts from the UN's site and put together:
``cat UNv1.0.en-zh.tar.gz.* | tar -xz``), News Commentary (``news-commentary-v12.zh-en``), and the corpora of OPUS.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from fairseq_syntax.corpus.downloads import find
from fairseq_syntax.corpus.held_out import held_out
from fairseq_syntax.corpus.parallel_text import Row, aligned, read_text
from fairseq_syntax.corpus.readers import Split
from fairseq_syntax.corpus.word_segmentation import segment_words

HINT = "fetch the corpus by hand, and put its files here"


def read(
    data: Path,
    source: str,
    target: str,
    *,
    name: str = "UNv1.0",
    words: Mapping[str, str] | None = None,
    seed: int = 1,
    train_pairs: int | None = None,
    max_length: int | None = None,
    valid_pairs: int = 1000,
    group_width: int = 10,
    group_count: int = 0,
    group_size: int = 1000,
) -> Iterator[Split]:
    """The splits: train, valid, and test or test_10, test_20, … by the words of the source.

    Args:
        name: what the files' names begin with
        words: by language, a program that puts spaces between words (:mod:`.word_segmentation`)
        seed, train_pairs, max_length, valid_pairs, group_width, group_count, group_size: of
            :func:`.held_out.held_out`
    """
    langs = (source, target)
    pairs = (f"{source}-{target}", f"{target}-{source}")
    paths = [find(data, *(f"{name}.{p}.{lang}" for p in pairs), hint=HINT) for lang in langs]
    programs = [(words or {}).get(lang) for lang in langs]

    def rows() -> Iterator[Row]:
        sides: list[Iterable[str]] = [
            segment_words(read_text(path), program) if program else read_text(path)
            for path, program in zip(paths, programs)
        ]
        return aligned(sides, paths)

    yield from held_out(
        rows,
        seed=seed,
        train_pairs=train_pairs,
        max_length=max_length,
        valid_pairs=valid_pairs,
        group_width=group_width,
        group_count=group_count,
        group_size=group_size,
    )

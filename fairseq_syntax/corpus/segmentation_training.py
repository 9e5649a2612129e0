"""Training of segmentation models on text or parses, by sentencepiece or subword-nmt."""

from __future__ import annotations

import io
import os
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any

from fairseq_syntax.corpus.conllu import is_conllu
from fairseq_syntax.corpus.parallel_text import reservoir
from fairseq_syntax.corpus.segmentation import (
    SEGMENTERS,
    Segmenter,
    SubwordNmtSegmenter,
    WordSegmenter,
    escape_sentencepiece,
    escape_subword_nmt,
    spaces_before,
)
from fairseq_syntax.corpus.text_parts import TextPart, parts_of
from fairseq_syntax.corpus.words import single_spaced
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.workers import interruptible

# This private-use character marks boundaries between words without a space for sentencepiece.
_BOUNDARY = "\ue000"
PART_LINES = 1000
Words = tuple[list[str], list[bool]]  # the words of a line, and whether a space precedes each


def train_segmenter(
    kind: str,
    files: Sequence[str | os.PathLike[str]],
    vocab_size: int,
    *,
    model_type: str = "unigram",
    character_coverage: float = 1.0,
    max_lines: int = 0,
    seed: int = 1,
    threads: int = 2,
) -> Segmenter:
    """Train a model on the lines of all files. The same files and options give the same model.

    Args:
        kind: ``sentencepiece`` or ``subword_nmt``; ``words`` needs no training and ignores the other arguments
        files: text or CoNLL-U (``.conllu``), plain or compressed; several for a joint model of two languages
        vocab_size: the number of pieces (for sentencepiece, fewer if the text does not have as many)
        model_type: sentencepiece only: ``unigram`` or ``bpe``
        character_coverage: sentencepiece only: the share of the text's characters that the model covers
        max_lines: train on this many random lines, drawn with ``seed``; 0 for all
        threads: sentencepiece only; affects the last digit of the model's scores

    Raises:
        SyntaxDataError: the files contain no word, or the tool rejects the options
    """
    segmenter = SEGMENTERS[kind]
    if segmenter is WordSegmenter:
        return WordSegmenter()
    lines = read_words(files, max_lines, seed)
    if (first := next(lines, None)) is None:
        raise SyntaxDataError("no words to train a segmentation model on", hint="name other text with --train-on")
    lines = chain([first], lines)
    if segmenter is SubwordNmtSegmenter:
        model, pieces = _train_subword_nmt(lines, vocab_size)
    else:
        options: dict = {"vocab_size": vocab_size, "model_type": model_type, "num_threads": threads}
        model, pieces = _train_sentencepiece(lines, character_coverage=character_coverage, **options)
    return segmenter(model, {"pieces": pieces})


def read_words(files: Iterable[str | os.PathLike[str]], max_lines: int = 0, seed: int = 1) -> Iterator[Words]:
    """The words of all lines that have any, from parses or from plain text split at spaces.

    Args:
        max_lines: draw this many random lines, in no particular order; those that are not drawn are not parsed, to
            save time. 0 for all lines in order
    """
    part_lines = 1 if max_lines else PART_LINES
    parts: Iterable[TextPart] = chain.from_iterable(parts_of(path, part_lines) for path in files)
    if max_lines:
        parts = reservoir(filter(_has_words, parts), max_lines, random.Random(seed))
    for line in chain.from_iterable(part.lines() for part in parts):
        if isinstance(line, str):
            words = line.split()
            spaces = [True] * len(words)
        else:
            words, spaces = [token.form for token in line.tokens], spaces_before(line.tokens)
        if words:
            yield words, spaces


def _has_words(part: TextPart) -> bool:
    if is_conllu(part.path):
        return any(row[:1].isdigit() for row in part.rows)
    return any(map(str.split, part.texts()))


def _train_sentencepiece(lines: Iterable[Words], **options: Any) -> tuple[bytes, int]:
    import sentencepiece

    wrong: Exception | None = None

    def sentences() -> Iterator[str]:
        nonlocal wrong
        try:
            for words, spaces in lines:
                escaped = [escape_sentencepiece(single_spaced(word)) for word in words]
                text = "".join((" " if space else _BOUNDARY) + word for word, space in zip(escaped, spaces)).lstrip(" ")
                yield text
        except Exception as error:
            wrong = error  # sentencepiece does not pass it on
            raise

    output = io.BytesIO()
    train = partial(
        sentencepiece.SentencePieceTrainer.train,
        sentence_iterator=sentences(),
        model_writer=output,
        **options,
        normalization_rule_name="identity",
        pretokenization_delimiter=_BOUNDARY,
        hard_vocab_limit=False,
        max_sentence_length=1 << 24,  # longer lines would be skipped silently
        minloglevel=2,
    )
    try:
        interruptible(train)
    except Exception as error:  # sentencepiece 0.2.0 turns errors of the iterator into SystemError
        if wrong is not None:
            raise wrong from None
        if not isinstance(error, (RuntimeError, SystemError)):
            raise
        message = f"sentencepiece cannot train such a model: {error}"
        raise SyntaxDataError(message, hint="try another --vocab-size") from error
    model = output.getvalue()
    return model, len(sentencepiece.SentencePieceProcessor(model_proto=model))


def _train_subword_nmt(lines: Iterable[Words], vocab_size: int) -> tuple[bytes, int]:
    from subword_nmt.learn_bpe import learn_bpe

    counts: Counter[str] = Counter()
    for words, spaces in lines:
        counts.update(escape_subword_nmt(single_spaced(word), space) for word, space in zip(words, spaces))
    # The initial symbols as in subword-nmt, which distinguishes characters at the end of a word.
    characters = len({(character, i == len(word)) for word in counts for i, character in enumerate(word, start=1)})
    if vocab_size <= characters or not any(len(word) > 1 for word in counts):
        message = f"a vocabulary of {vocab_size} leaves nothing to merge: the text has {characters} characters alone"
        raise SyntaxDataError(message, hint="give a larger --vocab-size")
    output = io.StringIO()
    dictionary = io.StringIO("".join(f"{word} {count}\n" for word, count in counts.items()))
    # Pairs that occur once are also merged if the vocabulary has room, as in sentencepiece.
    learn_bpe(dictionary, output, vocab_size, min_frequency=1, is_dict=True, total_symbols=True)
    codes = output.getvalue()
    return codes.encode("utf-8"), characters + codes.count("\n") - 1  # without the version line

"""Training of segmentation models on text or parses, by sentencepiece or subword-nmt."""

from __future__ import annotations

import io
import os
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain

from fairseq_syntax.corpus import segmentation
from fairseq_syntax.corpus.conllu import ParsedLine, check_text, is_conllu, read_conllu
from fairseq_syntax.corpus.parallel_text import reservoir
from fairseq_syntax.corpus.piece_marks import escape_sentencepiece, escape_subword_nmt
from fairseq_syntax.corpus.text_parts import TextPart, conllu_parts
from fairseq_syntax.corpus.words import single_spaced
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.files import check_rereadable, file_sha256, read_lines
from fairseq_syntax.runtime.workers import interruptible

# This private-use character marks boundaries between words without a space for sentencepiece.
_BOUNDARY = "\ue000"


Words = tuple[list[str], list[bool]]  # the words of a line, and whether a space precedes each


def read_words(path: str | os.PathLike[str]) -> Iterator[Words]:
    """Yield each line's words, from a parse or from plain text split at spaces, and whether a space precedes each."""
    return map(words_of_line, read_conllu(path) if is_conllu(path) else read_lines(path))


def words_of_line(line: ParsedLine | str) -> Words:
    """The words of one line; see :func:`read_words`."""
    if isinstance(line, str):
        words = line.split()
        return words, [True] * len(words)
    return [token.form for token in line.tokens], segmentation.spaces_before(line.tokens)


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
) -> segmentation.Segmenter:
    """Train a model on the lines of all files. The same files and options give the same model.

    Args:
        kind: ``sentencepiece`` or ``subword_nmt``; ``words`` needs no training and ignores the other arguments
        files: text or CoNLL-U (``.conllu``), plain or gzip; several for a joint model of two languages
        vocab_size: the number of pieces (for sentencepiece, fewer if the text does not have as many)
        model_type: sentencepiece only: ``unigram`` or ``bpe``
        character_coverage: sentencepiece only: the share of the text's characters that the model covers
        max_lines: train on this many random lines; 0 for all
        seed: the seed of this selection
        threads: sentencepiece only; affects the last digit of the model's scores

    Raises:
        SyntaxDataError: the files contain no word, the tool rejects the options, or as in :func:`fingerprints`
    """
    about = {"files": fingerprints(files)}
    if kind not in segmentation.SEGMENTERS:
        raise SyntaxDataError(f"no segmentation of kind {kind!r}", hint=f"one of {', '.join(segmentation.SEGMENTERS)}")
    if kind == segmentation.WordSegmenter.kind:
        return segmentation.WordSegmenter(about={"training": {"options": {}, **about}})
    lines: Iterable = _drawn(files, max_lines, seed) if max_lines else chain.from_iterable(map(read_words, files))
    lines = (line for line in lines if line[0])
    options: dict = {"vocab_size": vocab_size, "max_lines": max_lines, "seed": seed}
    if kind == "sentencepiece":
        options |= {"model_type": model_type, "character_coverage": character_coverage, "threads": threads}
        model, pieces = _train_sentencepiece(lines, options)
    else:
        model, pieces = _train_subword_nmt(lines, vocab_size)
    return segmentation.SEGMENTERS[kind](model, {"training": {"options": options, **about}, "pieces": pieces})


def fingerprints(files: Sequence[str | os.PathLike[str]]) -> list[list[str]]:
    """The name and SHA-256 of each file, in order; as lists, so that they equal values read from JSON.

    Raises:
        SyntaxDataError: a file cannot be read, is a pipe, or is CoNLL-U under another name
    """
    for path in files:
        check_rereadable("a model is trained in two passes over it", path)
        check_text(path)
    return [[os.path.basename(path), file_sha256(path)] for path in files]


def _drawn(files: Sequence[str | os.PathLike[str]], count: int, seed: int) -> Iterator[Words]:
    """Draw random non-empty lines from all files; parses that are not drawn are not parsed, to save time."""

    def all_lines() -> Iterator[TextPart | str]:
        for path in files:
            if is_conllu(path):
                parts = conllu_parts(path, 1)
                yield from (part for part in parts if any(row[:1].isdigit() for row in part.rows))
            else:
                yield from (text for text in read_lines(path) if text and not text.isspace())

    for line in reservoir(all_lines(), count, random.Random(seed)):
        yield from map(words_of_line, [line] if isinstance(line, str) else line.parses())


def _train_sentencepiece(lines: Iterable[Words], options: dict) -> tuple[bytes, int]:
    import sentencepiece

    count = 0
    wrong: Exception | None = None

    def sentences() -> Iterator[str]:
        nonlocal count, wrong
        try:
            for words, spaces in lines:
                escaped = [escape_sentencepiece(single_spaced(word)) for word in words]
                text = "".join((" " if space else _BOUNDARY) + word for word, space in zip(escaped, spaces)).lstrip(" ")
                count += 1
                yield text
        except Exception as error:
            wrong = error  # sentencepiece does not pass it on
            raise

    output = io.BytesIO()
    train = partial(
        sentencepiece.SentencePieceTrainer.train,
        sentence_iterator=sentences(),
        model_writer=output,
        model_type=options["model_type"],
        vocab_size=options["vocab_size"],
        character_coverage=options["character_coverage"],
        num_threads=options["threads"],
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
        if not count:
            raise _no_words() from None
        if not isinstance(error, (RuntimeError, SystemError)):
            raise
        raise SyntaxDataError(
            f"sentencepiece cannot train such a model: {error}", hint="try another --vocab-size"
        ) from error
    model = output.getvalue()
    return model, len(sentencepiece.SentencePieceProcessor(model_proto=model))


def _no_words() -> SyntaxDataError:
    return SyntaxDataError("no words to train a segmentation model on", hint="name other text with --train-on")


def _train_subword_nmt(lines: Iterable[Words], vocab_size: int) -> tuple[bytes, int]:
    from subword_nmt.learn_bpe import learn_bpe

    counts: Counter[str] = Counter()
    for words, spaces in lines:
        for index, (word, space) in enumerate(zip(words, spaces)):
            counts[escape_subword_nmt(single_spaced(word), index == 0 or space)] += 1
    if not counts:
        raise _no_words()
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

"""Parsing: against Stanza's own pipeline, the share of the time spent outside the parser, and what arcs cost.

The models are those of the folder in ``STANZA_MODEL_DIR`` (pos.pt and depparse.pt), or of Stanza's usual size, trained
for a few steps.
"""

from __future__ import annotations

import os
import statistics
import sys
from functools import lru_cache, partial
from pathlib import Path

from bench.harness import in_turn, measure, record, seconds, temporary_folder

LINES = 1500
sys.path.append(str(Path(__file__).parents[1] / "tests" / "helpers"))  # whose parse_models trains the parser


@lru_cache
def _folder() -> Path:
    """A temporary folder with the text to parse, which outlives no run."""
    folder = temporary_folder()
    from parse_models import sentences

    (folder / "text.en").write_text("".join(f"{line}\n" for line in sentences(LINES, seed=1)), encoding="utf-8")
    return folder


@lru_cache
def _models() -> tuple[str, str]:
    """The models' folder, and what they are."""
    if "STANZA_MODEL_DIR" in os.environ:
        return os.environ["STANZA_MODEL_DIR"], "given by STANZA_MODEL_DIR"
    from parse_models import train

    return str(train(_folder() / "models", steps=30, sizes="")), "trained for 30 steps"


def _parser(**changes):
    from fairseq_syntax.corpus.parsing.parser import ParserOptions, load_parser

    return load_parser(ParserOptions(model_dir=_models()[0], **changes))


def _texts() -> list[str]:
    return (_folder() / "text.en").read_text(encoding="utf-8").splitlines()


@measure("parse/stanza", "parse/outside")
def against_the_pipeline() -> None:
    """The whole job, text to merged file, against Stanza's pipeline on the same tokens in memory."""
    from fairseq_syntax.corpus.parsing import parse_jobs
    from fairseq_syntax.runtime.files import make_folder
    from fairseq_syntax.runtime.parts import make_parts

    folder, texts = _folder(), _texts()
    parser = _parser()
    tokens = [[t.form for sentence in line for t in sentence] for line in parser.tokenizer.tokenize(texts)]
    words = sum(map(len, tokens))
    inside: list[float] = []

    class Timed:
        """The parser, with a clock on what is Stanza's."""

        def parse_sentences(self, sentences):
            begin = seconds()
            found = type(parser).parse_sentences(parser, sentences)
            inside.append(seconds() - begin)
            return found

    parser.parse_sentences = Timed().parse_sentences

    def job() -> None:
        whole = parse_jobs.Job(folder / "text.en", folder / "out.conllu", parser.options)
        make_folder(whole.parts.folder)
        parse_part = parse_jobs._ParsePart(parser.options, None)
        parse_part.parser = parser
        make_parts(whole.parts, whole.source(), parse_part)
        parse_jobs.merge(whole)
        (folder / "out.conllu").unlink()

    pairs = in_turn(job, lambda: parser.pipeline(tokens))
    detail = {"words": words, "lines": len(texts), "models": _models()[1]}
    record(
        "parse/stanza",
        [plain / ours for ours, plain in pairs],
        unit="speed, text to file over Stanza's pipeline alone",
        detail=detail
        | {
            "words_per_second": round(words / statistics.median(ours for ours, _ in pairs)),
            "plain_words_per_second": round(words / statistics.median(plain for _, plain in pairs)),
        },
    )
    shares = [1.0 - within / ours for within, (ours, _) in zip(inside[-len(pairs) :], pairs)]
    record("parse/outside", shares, unit="share of the time outside the parser", detail=detail)


@measure("parse/distributions", "parse/structured")
def with_distributions() -> None:
    """Parsing with distributions, local and structured, against parsing without."""
    texts = _texts()
    plain = _parser()
    words = sum(len(line.words) for line in plain.parse(texts))
    for name, parser in (
        ("parse/distributions", _parser(distributions=True)),
        ("parse/structured", _parser(distributions=True, structured=True)),
    ):
        pairs = in_turn(partial(parser.parse, texts), partial(plain.parse, texts))
        record(
            name,
            [ours / without for ours, without in pairs],
            unit="time, with distributions over without",
            detail={
                "words": words,
                "words_per_second": round(words / statistics.median(ours for ours, _ in pairs)),
                "arcs_per_word": round(sum(len(line.arcs or ()) for line in parser.parse(texts)) / words, 3),
                "min_prob": parser.options.min_prob,
                "models": _models()[1],
            },
        )

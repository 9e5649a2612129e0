"""spaCy's transition-based parser (``pip install spacy``), with any installed pipeline or a folder that holds one.

spaCy decides on one tree step by step, so there are no distributions. The labels are those of the pipeline's training
data: ClearNLP's in English, Universal Dependencies' or others in other languages.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import spacy
from spacy.tokens import Doc
from spacy.util import get_installed_models, get_package_path

from fairseq_syntax.corpus.parsing.parser import Parser, ParserOptions, SentenceParse, default_tokenizer, one_root
from fairseq_syntax.corpus.parsing.tokenizers import SpacyTokenizer
from fairseq_syntax.corpus.words import language_of
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.console import partly_done
from fairseq_syntax.runtime.digests import file_sha256
from fairseq_syntax.runtime.digests import fingerprint as digest_of
from fairseq_syntax.runtime.files import files_below

# Components that do not affect trees and tags, and whose names say so.
_UNUSED = ["ner", "lemmatizer", "trainable_lemmatizer", "entity_linker", "entity_ruler", "textcat", "spancat", "senter"]
_ROOT = "ROOT"  # spaCy's label of the root, which is `root` everywhere else
_WORDS_PER_SENTENCE = 20  # for batches, which spaCy counts in sentences


def load(options: ParserOptions) -> Parser:
    """Load the pipeline ``model_dir``, or the one installed pipeline of the language.

    Raises:
        SyntaxDataError: there is no such pipeline, or it does not parse
    """
    place = _place(options)
    try:
        if options.device.startswith("cuda"):
            spacy.require_gpu(int(options.device.partition(":")[2] or 0))
        pipeline = spacy.load(place, exclude=_UNUSED)
    except Exception as error:  # a folder that is no pipeline, a damaged file, another version of spaCy, no CuPy
        message = f"spaCy cannot load this pipeline: {type(error).__name__}: {error}"
        raise SyntaxDataError(message, path=options.model_dir or place) from error
    if not any("parser" in name for name in pipeline.pipe_names):
        message = f"the pipeline has no parser, only {', '.join(pipeline.pipe_names) or 'a tokenizer'}"
        raise SyntaxDataError(message, path=options.model_dir or place, hint="name another pipeline as --model-dir")
    return SpacyParser(options, pipeline)


def check(options: ParserOptions) -> None:
    """Raise SyntaxDataError if there is no such pipeline, or no such tokenizer."""
    _place(options)
    if options.tokenizer not in ("auto", "spacy"):
        default_tokenizer(options)


def fingerprint(options: ParserOptions) -> str:
    """The name and version of the pipeline, a digest of its files, and the version of spaCy."""
    place, meta = _place(options), _meta(options)
    files = sorted(files_below(place))
    content = digest_of([(path.relative_to(place).as_posix(), file_sha256(path)) for path in files])
    name = f"{meta.get('lang', '')}_{meta.get('name', '')} {meta.get('version', '')}"
    return f"{name}, {content[:16]}, spaCy {spacy.__version__}"


def languages_of_models(options: ParserOptions) -> set[str]:
    """The language in the pipeline's metadata."""
    return {str(_meta(options).get("lang", ""))}


def _place(options: ParserOptions) -> Path:
    """The folder of the pipeline: a folder, an installed package, or the one installed package of the language."""
    name, installed = options.model_dir, sorted(get_installed_models())
    if name is not None and Path(name).is_dir():
        place = Path(name)
    elif name is not None and name not in installed:
        hint = f"installed are {', '.join(installed) or 'no pipelines'}; python -m spacy download NAME installs one"
        raise SyntaxDataError("is neither a folder nor an installed pipeline of spaCy", path=name, hint=hint)
    else:
        of_language = [name] if name else [one for one in installed if one.startswith(f"{language_of(options.lang)}_")]
        if len(of_language) != 1:
            message = f"several pipelines for {options.lang!r} are installed: {', '.join(of_language)}"
            if not of_language:
                message = f"no pipeline of spaCy for {options.lang!r} is installed"
            hint = "name it as --model-dir (in a recipe: models); python -m spacy download NAME installs one"
            raise SyntaxDataError(message, option="--model-dir", hint=hint)
        place = get_package_path(of_language[0])
    # In a package, the pipeline is one folder below, which is named like the package and its version.
    inner = [path.parent for path in place.glob("*/config.cfg")]
    return place if (place / "config.cfg").exists() or len(inner) != 1 else inner[0]


def _meta(options: ParserOptions) -> dict[str, Any]:
    try:
        return dict(json.loads((_place(options) / "meta.json").read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


class SpacyParser(Parser):
    """A parser with the tagger, parser and tokenizer of a spaCy pipeline."""

    def __init__(self, options: ParserOptions, pipeline: Any) -> None:
        own = options.tokenizer in ("auto", "spacy")
        tokenizer = SpacyTokenizer(options.lang, split_sentences=options.split_sentences, pipeline=pipeline)
        super().__init__(options, tokenizer if own else default_tokenizer(options))
        self.pipeline = pipeline

    def parse_sentences(self, sentences: list[list[str]]) -> list[SentenceParse]:
        return self.parse_spaced(sentences, [[True] * len(words) for words in sentences])

    def parse_spaced(self, sentences: list[list[str]], spaces: Sequence[Sequence[bool]]) -> list[SentenceParse]:
        # With a given beginning, spaCy's parser does not divide a sentence. Its features include the spaces.
        vocabulary = self.pipeline.vocab
        documents = (
            Doc(vocabulary, words=words, spaces=list(after), sent_starts=[True, *[False] * (len(words) - 1)])
            for words, after in zip(sentences, spaces, strict=True)
        )
        parses: list[SentenceParse] = []
        at_once = max(1, self.options.batch_size // _WORDS_PER_SENTENCE)
        for document in self.pipeline.pipe(documents, batch_size=at_once):
            heads, labels = one_root(
                [0 if token.head.i == token.i else token.head.i + 1 for token in document],
                ["root" if token.dep_ == _ROOT else token.dep_ or "dep" for token in document],
            )
            upos, xpos = [token.pos_ or "_" for token in document], [token.tag_ or "_" for token in document]
            parses.append(SentenceParse(heads, labels, upos, xpos))
            if len(parses) % at_once == 0:
                partly_done(len(parses) / len(sentences))
        return parses

"""UDPipe 1's transition-based parser (``pip install ufal.udpipe``), with the model file ``--model-dir``.

UDPipe decides on one tree step by step, so there are no distributions. It runs on the CPU, in one thread.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

from ufal.udpipe import Model, ProcessingError, Sentence

from fairseq_syntax.corpus.parsing.parser import Parser, ParserOptions, SentenceParse, default_tokenizer, one_root
from fairseq_syntax.corpus.parsing.tokenizers import TokenizedLine, Tokenizer, spell_out
from fairseq_syntax.corpus.words import single_spaced
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.console import partly_done
from fairseq_syntax.runtime.digests import file_sha256

_NAME = re.compile(r"([a-z_]+)-[a-z]+-ud-\d")  # of the published models: english-ewt-ud-2.5-191206.udpipe
_REPORT_EVERY = 100  # sentences


def check(options: ParserOptions) -> None:
    """Raise SyntaxDataError if there is no such file, or no such tokenizer, or for another device than a CPU."""
    _path(options)
    if options.tokenizer not in ("auto", "udpipe"):
        default_tokenizer(options)
    if options.device != "cpu":
        raise SyntaxDataError("UDPipe runs on the CPU only", option="--device", hint="--workers N runs several")


def load(options: ParserOptions) -> Parser:
    """Load the UDPipe model ``model_dir``. Raises SyntaxDataError if it is not one."""
    check(options)
    path = _path(options)
    if (model := Model.load(str(path))) is None:
        raise SyntaxDataError(
            "UDPipe cannot load this model", path=path, hint="a file such as english-ewt-ud-2.5.udpipe"
        )
    own = options.tokenizer in ("auto", "udpipe") and model.newTokenizer(Model.DEFAULT) is not None
    return UdpipeParser(options, model, UdpipeTokenizer(model, options) if own else default_tokenizer(options))


def fingerprint(options: ParserOptions) -> str:
    """The name of the model file, a digest of its content, and the version of UDPipe."""
    path = _path(options)
    return f"{path.name}, {file_sha256(path)[:16]}, UDPipe {version('ufal.udpipe')}"


def languages_of_models(options: ParserOptions) -> set[str]:
    """The language in the name of a published model; the file itself does not name it."""
    from stanza.models.common.constant import lang2lcode

    match = _NAME.match(_path(options).name)
    names = {name.lower(): code for name, code in lang2lcode.items()}
    return {names.get(match[1], "")} if match is not None else set()


def _path(options: ParserOptions) -> Path:
    if options.model_dir is None:
        hint = "give its file, such as english-ewt-ud-2.5-191206.udpipe (in a recipe: models)"
        raise SyntaxDataError("the parser udpipe needs a model", option="--model-dir", hint=hint)
    if not Path(options.model_dir).is_file():
        raise SyntaxDataError("is not a UDPipe model, which is a file", path=options.model_dir)
    return Path(options.model_dir)


class UdpipeTokenizer(Tokenizer):
    """The tokenizer of a UDPipe model, with multi-word tokens if the model has them."""

    def __init__(self, model: Any, options: ParserOptions) -> None:
        how = Model.DEFAULT if options.split_sentences else Model.TOKENIZER_PRESEGMENTED
        self.model, self.tokenizer = model, model.newTokenizer(how)

    def tokenize(self, lines: Sequence[str]) -> list[TokenizedLine]:
        result: list[TokenizedLine] = []
        for number, line in enumerate(lines, start=1):
            line, sentences, forms = single_spaced(line), [], list[str]()
            self.tokenizer.setText(line)
            sentence, error = Sentence(), ProcessingError()
            while self.tokenizer.nextSentence(sentence, error):
                sentences.append(_tokens(sentence))
                forms += [form for form, _ in sentences[-1]]
                sentence = Sentence()
            if error.occurred():
                raise SyntaxDataError(f"UDPipe's tokenizer: {error.message}", line=number)
            surfaces = iter(spell_out(line, forms, number))
            result.append([list(islice(surfaces, len(tokens))) for tokens in sentences])
            for tokens, spelled in zip(sentences, result[-1]):
                for (form, words), surface in zip(tokens, spelled):
                    surface.words = words if words != [form] else [surface.form]
        return result


def _tokens(sentence: Any) -> list[tuple[str, list[str]]]:
    """The surface tokens of a sentence and their words; the first word of UDPipe's sentences is the root."""
    words = [word.form for word in sentence.words]
    ranges = {token.idFirst: (token.idLast, token.form) for token in sentence.multiwordTokens}
    tokens, at = [], 1
    while at < len(words):
        last, form = ranges.get(at, (at, words[at]))
        tokens.append((form, words[at : last + 1]))
        at = last + 1
    return tokens


class UdpipeParser(Parser):
    """A parser with the tagger and parser of a UDPipe model."""

    def __init__(self, options: ParserOptions, model: Any, tokenizer: Tokenizer) -> None:
        super().__init__(options, tokenizer)
        self.model = model

    def parse_sentences(self, sentences: list[list[str]]) -> list[SentenceParse]:
        parses: list[SentenceParse] = []
        for words in sentences:
            sentence, error = Sentence(), ProcessingError()
            for word in words:
                sentence.addWord(word)
            if not (
                self.model.tag(sentence, Model.DEFAULT, error) and self.model.parse(sentence, Model.DEFAULT, error)
            ):
                message = f"UDPipe does not parse: {error.message or 'the model has no tagger or no parser'}"
                raise SyntaxDataError(message, path=self.options.model_dir, hint="name another model as --model-dir")
            parsed = list(sentence.words)[1:]
            heads, labels = one_root([word.head for word in parsed], [word.deprel or "dep" for word in parsed])
            upos, xpos = [word.upostag or "_" for word in parsed], [word.xpostag or "_" for word in parsed]
            parses.append(SentenceParse(heads, labels, upos, xpos))
            if len(parses) % _REPORT_EVERY == 0:
                partly_done(len(parses) / len(sentences))
        return parses

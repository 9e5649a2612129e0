"""SuPar's biaffine parser (``pip install supar``), the parser of the LDD paper.

SuPar does not tag, so UPOS and XPOS are ``_``. Its checkpoints are pickles, which can run code when loaded, so use only
files that you trust.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import supar
import torch

from fairseq_syntax.corpus.parsing.distributions import arcs_of_scores
from fairseq_syntax.corpus.parsing.parser import Parser, ParserOptions, SentenceParse, default_tokenizer
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.console import partly_done
from fairseq_syntax.runtime.digests import file_sha256


def load(options: ParserOptions) -> Parser:
    """Load the SuPar parser ``model_dir``. Raises SyntaxDataError if it is not a biaffine dependency parser."""
    path = _checkpoint(options)
    try:
        # Like supar.Parser.load, except for weights_only (checkpoints are pickled with dill) and the device.
        state = torch.load(path, map_location="cpu", weights_only=False)
        kind = supar.PARSER[state["name"]]
        model = kind.MODEL(**state["args"])
        model.load_pretrained(state["pretrained"])
        model.load_state_dict(state["state_dict"], False)
    except Exception as error:  # unpickling and loading can raise anything
        raise SyntaxDataError(f"SuPar cannot load this: {type(error).__name__}: {error}", path=path) from error
    if not (hasattr(model, "arc_attn") and hasattr(model, "rel_attn")) or hasattr(model, "sib_attn"):
        raise SyntaxDataError(f"a {state['name']} model is not a first-order biaffine dependency parser", path=path)
    if isinstance(state["transform"].FORM, tuple) and state["transform"].CPOS is not None:
        raise SyntaxDataError("this SuPar model needs part-of-speech tags", path=path, hint="use one of words alone")
    return SuparParser(options, model.to(options.device).eval(), state["transform"])


def check(options: ParserOptions) -> None:
    """Raise SyntaxDataError if there is no checkpoint."""
    default_tokenizer(options)
    _checkpoint(options)


def fingerprint(options: ParserOptions) -> str:
    """The SHA-256 of the checkpoint."""
    return file_sha256(_checkpoint(options))


def _checkpoint(options: ParserOptions) -> Path:
    if options.model_dir is None or not Path(options.model_dir).is_file():
        hint = "give its file as --model-dir"
        raise SyntaxDataError("is not a SuPar checkpoint", path=options.model_dir or "<none>", hint=hint)
    return Path(options.model_dir)


class SuparParser(Parser):
    """A parser that computes trees, decoded by SuPar, and arcs from the same scores of the model."""

    def __init__(self, options: ParserOptions, model: Any, transform: Any) -> None:
        super().__init__(options)
        self.model = model
        form = transform.FORM if isinstance(transform.FORM, tuple) else (transform.FORM,)
        # FORM consists of words, the raw text (not an input of the model), and the features used in training.
        self.fields = [field for field in form if field is not None and field.name != "texts"]
        for field in self.fields:
            if not (hasattr(field, "transform") and getattr(field, "use_vocab", False)):
                raise SyntaxDataError(f"SuPar models with {field.name} as input are not supported here")
        self.labels: list[str] = [transform.DEPREL.vocab[index] for index in range(len(transform.DEPREL.vocab))]
        self.bos = self.labels.index(transform.DEPREL.bos)

    @torch.inference_mode()
    def parse_sentences(self, sentences: list[list[str]]) -> list[SentenceParse]:
        batches: list[list[int]] = [[]]
        for index in sorted(range(len(sentences)), key=lambda index: len(sentences[index])):
            # Padded to this sentence, the longest so far, plus the artificial root.
            if batches[-1] and (len(batches[-1]) + 1) * (len(sentences[index]) + 1) > self.options.batch_size:
                batches.append([])
            batches[-1].append(index)
        parses: dict[int, SentenceParse] = {}
        for batch in batches:
            parses.update(zip(batch, self._batch([sentences[index] for index in batch])))
            partly_done(len(parses) / len(sentences))
        return [parses[index] for index in range(len(sentences))]

    def _batch(self, sentences: list[list[str]]) -> list[SentenceParse]:
        # On the parser's device, since SuPar would use any visible GPU.
        texts = [field.compose(list(field.transform(sentences))) for field in self.fields]
        words, *features = [text.to(self.options.device) for text in texts]
        heads, labels = self.model(words, features)  # [B, N+1, N+1] and [B, N+1, N+1, L], [b, dependent, head]
        labels[..., self.bos] = -torch.inf
        lengths = torch.tensor([len(sentence) for sentence in sentences], device=heads.device)
        mask = torch.arange(heads.shape[1], device=heads.device) <= lengths.view(-1, 1)
        mask[:, 0] = False
        trees, relations = self.model.decode(heads, labels, mask, tree=True, proj=False)
        # SuPar's softmax assigns mass to a word as its own head, which is masked here because no tree contains it.
        wanted = self.options.distributions
        arcs = arcs_of_scores(heads, labels, lengths, self.labels, self.options) if wanted else [None] * len(sentences)
        parses = []
        for tree, relation, sentence, sparse in zip(trees.tolist(), relations.tolist(), sentences, arcs):
            n = len(sentence)
            names = [self.labels[label] for label in relation[1 : n + 1]]
            parses.append(SentenceParse(tree[1 : n + 1], names, ["_"] * n, ["_"] * n, sparse))
        return parses

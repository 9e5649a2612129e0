"""SuPar's biaffine parser (``pip install supar``): the parser of the LDD paper, and a model of a third one.

SuPar tags nothing, so UPOS and XPOS stay ``_``. Its checkpoints are pickles, which can run code when they are loaded:
use only files you trust.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import supar
import torch
from torch import Tensor

from fairseq_syntax.corpus.parsing.base import Parser, ParserOptions, SentenceParse
from fairseq_syntax.corpus.parsing.distributions import arcs_of_scores
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.console import partly_done
from fairseq_syntax.runtime.files import file_sha256


def load(options: ParserOptions) -> Parser:
    """The SuPar parser at ``model_dir``. Raises SyntaxDataError where that is no biaffine dependency parser."""
    path = _checkpoint(options)
    try:
        # What supar.Parser.load does, but for weights_only (its checkpoints are pickled with dill) and the device.
        state = torch.load(path, map_location="cpu", weights_only=False)
        kind = supar.PARSER[state["name"]]
        model = kind.MODEL(**state["args"])
        model.load_pretrained(state["pretrained"])
        model.load_state_dict(state["state_dict"], False)
    except Exception as error:  # unpickling and loading raise whatever they meet
        raise SyntaxDataError(f"SuPar cannot load this: {type(error).__name__}: {error}", path=path) from error
    if not (hasattr(model, "arc_attn") and hasattr(model, "rel_attn")) or hasattr(model, "sib_attn"):
        raise SyntaxDataError(f"a {state['name']} model is not a first-order biaffine dependency parser", path=path)
    if isinstance(state["transform"].FORM, tuple) and state["transform"].CPOS is not None:
        raise SyntaxDataError("this SuPar model needs part-of-speech tags", path=path, hint="use one of words alone")
    return SuparParser(options, model.to(options.device).eval(), state["transform"])


def fingerprint(options: ParserOptions) -> str:
    """A digest of the checkpoint."""
    return file_sha256(_checkpoint(options))


def _checkpoint(options: ParserOptions) -> Path:
    if options.model_dir is None or not Path(options.model_dir).is_file():
        raise SyntaxDataError(
            "is not a SuPar checkpoint", path=options.model_dir or "<none>", hint="give its file as --model-dir"
        )
    return Path(options.model_dir)


class SuparParser(Parser):
    """Scores from one call of the model; trees as SuPar decodes them, arcs from the same scores."""

    def __init__(self, options: ParserOptions, model: Any, transform: Any) -> None:
        super().__init__(options)
        self.model = model
        form = transform.FORM if isinstance(transform.FORM, tuple) else (transform.FORM,)
        # FORM is words, the raw text (no input of the model), then the features that the model was trained with.
        self.fields = [field for field in form if field is not None and field.name != "texts"]
        self.labels: list[str] = [transform.DEPREL.vocab[index] for index in range(len(transform.DEPREL.vocab))]
        self.bos = self.labels.index(transform.DEPREL.bos)

    @torch.inference_mode()
    def parse_sentences(self, sentences: list[list[str]]) -> list[SentenceParse]:
        batches: list[list[int]] = [[]]
        for index in sorted(range(len(sentences)), key=lambda index: len(sentences[index])):
            # Padded to this sentence, the longest so far, and the artificial root.
            if batches[-1] and (len(batches[-1]) + 1) * (len(sentences[index]) + 1) > self.options.batch_size:
                batches.append([])
            batches[-1].append(index)
        parses: dict[int, SentenceParse] = {}
        for batch in batches:
            parses.update(zip(batch, self._batch([sentences[index] for index in batch])))
            partly_done(len(parses) / len(sentences))
        return [parses[index] for index in range(len(sentences))]

    def _batch(self, sentences: list[list[str]]) -> list[SentenceParse]:
        words, *features = self._inputs(sentences)
        heads, labels = self.model(words, features)  # [B, N+1, N+1] and [B, N+1, N+1, L], [b, dependent, head]
        labels[..., self.bos] = -torch.inf
        lengths = torch.tensor([len(sentence) for sentence in sentences], device=heads.device)
        mask = torch.arange(heads.shape[1], device=heads.device) <= lengths.view(-1, 1)
        mask[:, 0] = False
        trees, relations = self.model.decode(heads, labels, mask, tree=True, proj=False)
        # SuPar's own softmax leaves a word some mass on itself; here that is masked, as no tree can have it.
        wanted = self.options.distributions
        arcs = arcs_of_scores(heads, labels, lengths, self.labels, self.options) if wanted else [None] * len(sentences)
        parses = []
        for tree, relation, sentence, sparse in zip(trees.tolist(), relations.tolist(), sentences, arcs):
            n = len(sentence)
            names = [self.labels[label] for label in relation[1 : n + 1]]
            parses.append(SentenceParse(tree[1 : n + 1], names, ["_"] * n, ["_"] * n, sparse))
        return parses

    def _inputs(self, sentences: list[list[str]]) -> list[Tensor]:
        """Padded tensors of the fields; SuPar itself puts them on any GPU it sees, so their device is set here."""
        tensors = []
        for field in self.fields:
            if hasattr(field, "transform") and getattr(field, "use_vocab", False):
                tensors.append(field.compose(list(field.transform(sentences))).to(self.options.device))
            else:
                raise SyntaxDataError(f"SuPar models with {field.name} as input are not supported here")
        return tensors

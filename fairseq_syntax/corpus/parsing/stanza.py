"""Stanza's tagger and graph parser, with the distributions behind its trees.

Models come from a folder with ``pos.pt`` and ``depparse.pt`` (and, if the models were trained with them,
``tokenize.pt``, ``mwt.pt``, ``lemma.pt``, ``pretrain.pt``, ``forward_charlm.pt`` and ``backward_charlm.pt``), or from
Stanza's own resources folder. Nothing is downloaded.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import stanza
import torch
import torch.nn.functional as F
from stanza.models.common.chuliu_edmonds import chuliu_edmonds_one_root
from stanza.models.common.utils import unsort
from stanza.models.common.vocab import VOCAB_PREFIX_SIZE
from stanza.models.depparse import head_constraints
from stanza.models.depparse.data import DataLoader
from stanza.models.depparse.model import EnsembleGraphParser, GraphParser
from stanza.models.depparse.trainer import unpack_batch

from fairseq_syntax.corpus.cycles import cycle_through
from fairseq_syntax.corpus.parsing.distributions import Arc, arcs_of_scores
from fairseq_syntax.corpus.parsing.parser import Parser, ParserOptions, SentenceParse, default_tokenizer
from fairseq_syntax.corpus.parsing.stanza_models import (
    configured_languages,
    language,
    model_folder,
    resources,
    uses_tokenizer,
)
from fairseq_syntax.corpus.parsing.tokenizers import TokenizedLine, Tokenizer, spell_out
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.console import partly_done
from fairseq_syntax.runtime.digests import file_sha256, sha256
from fairseq_syntax.runtime.files import files_below

_PROCESSORS = ("tokenize", "mwt", "pos", "lemma", "depparse")
_EXTRAS = {
    "pretrain.pt": "pretrain_path",
    "forward_charlm.pt": "forward_charlm_path",
    "backward_charlm.pt": "backward_charlm_path",
}
# Stanza treats these characters as white space and would drop them; to Python and this package, they are characters.
_CONTROLS = re.compile(r"[\x80-\x84\x86-\x9f]")
_PLACEHOLDER = "\ufffd"  # a single character, so that offsets do not change


def load(options: ParserOptions) -> Parser:
    """Load the Stanza parser described by options. Raises SyntaxDataError if models are missing."""
    own = uses_tokenizer(options.tokenizer, options.lang, options.model_dir)
    return StanzaParser(options, StanzaTokenizer(options) if own else default_tokenizer(options))


def fingerprint(options: ParserOptions) -> str:
    """A digest of the model files and Stanza's version, independent of the location of the files."""
    folder = model_folder(options.lang, options.model_dir)
    if folder is None:
        lang = language(options.lang, options.model_dir)
        files = sorted(files_below(resources(options.model_dir) / lang, "*.pt"))
    else:
        names = [f"{processor}.pt" for processor in _PROCESSORS] + list(_EXTRAS)
        files = [folder / name for name in names if (folder / name).exists()]
    content = [file.name.encode() + bytes.fromhex(file_sha256(file)) for file in files]
    return sha256(stanza.__version__.encode(), *content)


def languages_of_models(options: ParserOptions) -> set[str]:
    """The languages in the configuration of the models."""
    return configured_languages(options.lang, options.model_dir)


def _pipeline(options: ParserOptions, processors: Iterable[str], **settings: Any) -> stanza.Pipeline:
    """A pipeline of those of the processors for which there are models."""
    folder = model_folder(options.lang, options.model_dir)
    common = {"lang": options.lang, "device": options.device, "download_method": None, "verbose": False, **settings}
    try:
        if folder is None:
            # Not every language has multi-word tokens, and some lemmatizers have no file.
            index = json.loads((resources(options.model_dir) / "resources.json").read_text(encoding="utf-8"))
            packages = index[language(options.lang, options.model_dir)]["packages"]["default"]
            available = [processor for processor in processors if processor in packages]
            return stanza.Pipeline(dir=str(resources(options.model_dir)), processors=",".join(available), **common)
        available = [p for p in processors if (folder / f"{p}.pt").exists() or (p == "tokenize" and settings)]
        for processor in available:
            common[f"{processor}_model_path"] = str(folder / f"{processor}.pt")
            for name, setting in _EXTRAS.items():
                if (folder / name).exists():
                    common[f"{processor}_{setting}"] = str(folder / name)
        # Without a lemmatizer, the parser was trained without lemmas.
        common |= {"depparse_check_requirements": False, "allow_unknown_language": True}
        # Stanza reads the index of its resources folder even if all models are given by paths.
        with tempfile.TemporaryDirectory() as empty:
            (Path(empty) / "resources.json").write_text("{}")
            return stanza.Pipeline(dir=empty, processors=",".join(available), **common)
    except Exception as error:
        # Stanza raises various exceptions: unpickling errors for a damaged file, KeyError for another processor's file,
        # its own exceptions for missing resources.
        message = f"Stanza cannot load these models: {type(error).__name__}: {error}"
        raise SyntaxDataError(message, path=folder or resources(options.model_dir)) from error


class StanzaTokenizer(Tokenizer):
    """Stanza's own tokenizer, with multi-word tokens if the language has them."""

    def __init__(self, options: ParserOptions) -> None:
        self.pipeline = _pipeline(options, ("tokenize", "mwt"), tokenize_no_ssplit=not options.split_sentences)

    def tokenize(self, lines: Sequence[str]) -> list[TokenizedLine]:
        filled = [index for index, line in enumerate(lines) if line.strip()]
        # To Stanza, an empty line ends a paragraph, and it puts one between the texts of a batch.
        shown = [_CONTROLS.sub(_PLACEHOLDER, lines[index].replace("\n", " ")) for index in filled]
        documents = self.pipeline.bulk_process(shown) if filled else []
        result: list[TokenizedLine] = [[] for _ in lines]
        for index, document in zip(filled, documents, strict=True):
            # Not token.text, which Stanza replaces if a token is very long.
            # Stanza 1.8 and later give no position to some tokens of several words.
            forms = [
                token.text if token.start_char is None else lines[index][token.start_char : token.end_char]
                for sentence in document.sentences
                for token in sentence.tokens
            ]
            surfaces = iter(spell_out(lines[index], forms, index + 1))
            result[index] = [list(islice(surfaces, len(sentence.tokens))) for sentence in document.sentences]
            for sentence, spelled in zip(document.sentences, result[index]):
                for token, surface in zip(sentence.tokens, spelled):
                    words = [word.text for word in token.words]
                    surface.words = words if words != [token.text] else [surface.form]
        return result


class StanzaParser(Parser):
    """Tags with the pipeline, and computes trees and distributions in one pass of a model that scores arcs."""

    def __init__(self, options: ParserOptions, tokenizer: Tokenizer) -> None:
        super().__init__(options, tokenizer)
        self.pipeline = _pipeline(
            options,
            ("tokenize", "pos", "lemma", "depparse"),
            tokenize_pretokenized=True,
            pos_batch_size=max(1, options.batch_size // 20),  # in sentences; the parser's batch size is in words
            depparse_batch_size=options.batch_size,
        )
        self.depparse = self.pipeline.processors["depparse"]
        labels = self.depparse.vocab["deprel"]
        self.labels = [labels.id2unit(index) for index in range(VOCAB_PREFIX_SIZE, len(labels))]
        self.by_graph = isinstance(self.depparse.trainer.model, (GraphParser, EnsembleGraphParser))

    def parse_sentences(self, sentences: list[list[str]]) -> list[SentenceParse]:
        document: Any = sentences
        for name, processor in self.pipeline.processors.items():
            if name != "depparse":
                document = processor.process(document)
        if self.by_graph:
            parses = self._parse(document)
        else:
            parses = [
                SentenceParse([word.head for word in sentence.words], [word.deprel for word in sentence.words], [], [])
                for sentence in self.depparse.process(document).sentences
            ]
        for parse, sentence in zip(parses, document.sentences, strict=True):
            parse.upos = [word.upos or "_" for word in sentence.words]
            parse.xpos = [word.xpos or "_" for word in sentence.words]
        return parses

    @torch.inference_mode()
    def _parse(self, document: Any) -> list[SentenceParse]:
        """Trees as from the pipeline's own processor, and, if requested, arcs from the same scores."""
        config, trainer = self.depparse.config, self.depparse.trainer
        # With the options and defaults of Stanza's DepparseProcessor.
        loader = DataLoader(
            document,
            self.options.batch_size,
            config,
            self.depparse.pretrain,
            vocab=self.depparse.vocab,
            evaluation=True,
            sort_during_eval=config.get("sort_during_eval", True),
            min_length_to_batch_separately=config.get("min_length_to_batch_separately", 150),
        )
        trainer.model.eval()
        backwards = trainer.args.get("reversed", False)
        constrained = config.get("resolve_head_constraints", True)
        parses: list[SentenceParse] = []
        for batch in loader:
            inputs, order, word_order, lengths, word_lengths, text = unpack_batch(batch, trainer.model.get_device())
            heads, labels = _scores(trainer.model, (*inputs, word_order, lengths, word_lengths, text))
            trees = best_trees(self.depparse.vocab["deprel"], heads, labels, lengths, constrained)
            arcs: Sequence[list[Arc] | None] = [None] * len(lengths)
            if self.options.distributions:
                words = torch.tensor(lengths, device=heads.device) - 1  # without the artificial root
                arcs = arcs_of_scores(heads, labels, words, self.labels, self.options)
            if backwards:
                trees = trainer.reverse_predictions(trees)
                arcs = [run and _reversed(run, length - 1) for run, length in zip(arcs, lengths)]
            batch_parses = [
                SentenceParse([int(head) for head, _ in tree], [label for _, label in tree], [], [], sparse)
                for tree, sparse in zip(trees, arcs)
            ]
            parses += unsort(batch_parses, order)
            partly_done(len(parses) / len(document.sentences))
        return parses if loader.data_orig_idx is None else unsort(parses, loader.data_orig_idx)


def best_trees(
    vocabulary: Any, heads: torch.Tensor, labels: torch.Tensor, lengths: Sequence[int], constrained: bool
) -> list[list[list[Any]]]:
    """The same trees as Stanza's ``GraphParser.decode_graph_predictions``, which takes half of the parsing time.

    If the most probable heads of a sentence form a tree with one root, as in most sentences, this is the best tree.
    Labels are decoded only along the tree, unless it violates a constraint.

    Args:
        vocabulary: the labels
        heads: scores [B, N+1, N+1], [b, dependent, head], where 0 is the root; padding columns are ignored
        labels: scores [B, N+1, N+1, L]
        lengths: N+1 of each sentence
        constrained: whether a head may have at most one subject and one object

    Returns:
        for each sentence, [head, label] of each word
    """
    log_heads = F.log_softmax(heads, 2)
    size = torch.tensor(lengths, device=heads.device)
    places = torch.arange(heads.size(1), device=heads.device)
    # Neither padding nor the word itself.
    no_head = (places >= size[:, None])[:, None, :] | (places == places[:, None])
    likeliest = log_heads.masked_fill(no_head, -torch.inf).argmax(dim=2)
    trees = likeliest.tolist()
    log_probabilities = log_heads.cpu().numpy()
    for i, length in enumerate(lengths):
        tree = [0, *trees[i][1:length]]
        # A tree has two zeros: that of the artificial root itself, and that of the single word below it.
        if tree.count(0) != 2 or cycle_through(tree) is not None:
            tree = chuliu_edmonds_one_root(log_probabilities[i, :length, :length]).tolist()
        trees[i] = tree + [0] * (len(places) - length)
    chosen = torch.tensor(trees, device=heads.device)[:, :, None, None].expand(-1, -1, 1, labels.size(3))
    best = F.log_softmax(labels.gather(2, chosen).squeeze(2), 2).argmax(dim=2).tolist()
    parses = []
    for i, length in enumerate(lengths):
        tree, ids = trees[i][1:length], best[i][1:length]
        names = vocabulary.unmap([index + VOCAB_PREFIX_SIZE for index in ids])
        if constrained and head_constraints.find_head_constraint_violations([0, *tree], names):
            log_labels = F.log_softmax(labels[i, :length, :length], 2).cpu().numpy()
            tree, ids = head_constraints.resolve_head_constraint_violations(
                log_probabilities[i, :length, :length], log_labels, np.array([0, *tree]), vocabulary
            )
            tree, names = tree[1:], vocabulary.unmap([index + VOCAB_PREFIX_SIZE for index in ids])
        parses.append([[head, name] for head, name in zip(tree, names, strict=True)])
    return parses


def _scores(model: Any, inputs: tuple[Any, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores [B, N+1, N+1] and [B, N+1, N+1, L], [b, dependent, head]; summed over an ensemble, as in Stanza."""
    members = model.models if isinstance(model, EnsembleGraphParser) else [model]
    scores = [member.forward_scores(*inputs)[:2] for member in members]
    return sum(heads for heads, _ in scores), sum(labels for _, labels in scores)


def _reversed(arcs: list[Arc], n: int) -> list[Arc]:
    """The arcs of a sentence of ``n`` words that was parsed from right to left."""
    turned = [(n + 1 - dependent, n + 1 - head if head else 0, label, p) for dependent, head, label, p in arcs]
    return sorted(turned, key=lambda arc: (arc[0], -arc[3]))

"""Translation with PyTorch models, from raw text or parses.

.. code-block:: python

    translator = Translator.load("checkpoints/checkpoint_best.pt", "data-bin", parser_dir="parsers/en")
    print(translator.translate("A man in an orange hat."))
"""

from __future__ import annotations

import copy
import os
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any

import numpy as np
import torch
from fairseq import utils

from fairseq_syntax.corpus.conllu import ParsedLine, text_of
from fairseq_syntax.corpus.parsing.parser import Parser
from fairseq_syntax.corpus.words import words_of
from fairseq_syntax.errors import SyntaxDataError, naming_parameters
from fairseq_syntax.inference.alignment import Gold, WordAlignment, align, align_by_each, check_gold, spell
from fairseq_syntax.inference.alignment_head import (
    Aligner,
    AlignmentHead,
    attention_weights,
    cut,
    default_head,
    load_head,
    source_attention,
)
from fairseq_syntax.inference.interactive import InteractiveInput
from fairseq_syntax.inference.search_control import OnStep, SearchControl
from fairseq_syntax.inference.sentences import Sentence, is_empty
from fairseq_syntax.inference.spelling import pieces_of, places_of_pieces
from fairseq_syntax.inference.text_input import EncodedLine
from fairseq_syntax.runtime.console import progress
from fairseq_syntax.use.alignment_choice import Ranked, candidate_heads, choose
from fairseq_syntax.use.base_translator import (
    SEARCH_OPTIONS,
    BaseTranslator,
    LoadOptions,
    Translation,
    check_lengths,
    search_options,
)
from fairseq_syntax.use.ctranslate2_translator import CTranslate2Translator
from fairseq_syntax.use.exported import CHECKPOINT, Exported, checkpoint_of, ctranslate2_folder
from fairseq_syntax.use.loading import load_models, setup_task
from fairseq_syntax.use.plain import registered_name, systems_of_model

__all__ = ["Translator"]


class Translator(BaseTranslator):
    """Translates sentences with a PyTorch model or an ensemble; :meth:`load` also loads models for CTranslate2.

    Args:
        models: models of one task, on one device
        task: the task that they were trained for
        parser: the parser for raw text (default: the one named by the task's options, loaded when first needed)
        source_tag: for multi-task models, the piece at both ends of each source sentence; empty for none
        alignment_heads: for each model, the attention head that aligns words (default: fairseq's)
        generation: search options, named as in fairseq-generate (``beam``, ``lenpen``, ``nbest``, …). ``max_len_a``
            multiplies the length of each sentence in pieces with ``</s>``; in fairseq-generate, that of the longest
            sentence of the batch.

    Raises:
        SyntaxDataError: an option does not exist or has an invalid value
    """

    _input: InteractiveInput
    _exported: Exported | None = None

    def __init__(
        self,
        models: Sequence[torch.nn.Module],
        task: Any,
        *,
        parser: Parser | None = None,
        batch_size: int = 32,
        source_tag: str = "",
        alignment_heads: Sequence[AlignmentHead] | None = None,
        **generation: Any,
    ) -> None:
        self.models: tuple[Any, ...] = tuple(models)  # the search has them too: another in its place would do nothing
        for model in self.models:
            model.eval()  # returns None for a model that has been prepared for inference already
        self.task = task
        self.batch_size = batch_size
        self._aligner = Aligner(self.models, alignment_heads or [default_head(m) for m in self.models])
        self._input = InteractiveInput(task, parser, source_tag)
        self._set_search(generation)

    @classmethod
    @naming_parameters()
    def load(
        cls,
        path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        data: str | os.PathLike[str] | None = None,
        *,
        parser: Parser | None = None,
        parser_name: str = "",
        parser_lang: str = "",
        parser_dir: str | os.PathLike[str] | None = None,
        missing_parse: str = "error",
        device: str | None = None,
        user_dir: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
        search_rules: str = "fairseq",
        source_name: str = "",
        target_name: str = "",
        **options: Any,
    ) -> BaseTranslator:
        """Load checkpoints, or a folder that ``fairseq-syntax export`` wrote.

        .. code-block:: python

            Translator.load("checkpoints")  # its checkpoint_best.pt
            Translator.load(["seed1/checkpoint_best.pt", "seed2/checkpoint_best.pt"], beam=8)
            Translator.load("exported")

        Args:
            path: a checkpoint, or several for an ensemble; a folder with ``checkpoint_best.pt``; or an exported folder
            data: the binarized data directory, with dictionaries, label inventory and segmentation (default: the
                training data)
            parser: a parser object, instead of the next three options
            parser_name, parser_lang, parser_dir: as ``--parser``, ``--lang`` and ``--model-dir`` of
                ``fairseq-syntax parse`` (default: parse as the training text was parsed)
            missing_parse: what to do with text that cannot be parsed: ``error``, or ``neutral`` to translate it
                without a parse
            device: default: a GPU if available
            user_dir: folders of plugins with the code of the model, to import first
            search_rules: when a search ends, as ``--search-rules``
            source_name, target_name: for an imported multilingual model, the languages to translate from and into, as
                the model names them (default: those with which it was imported)
            options: further arguments of :class:`Translator`

        Raises:
            SyntaxDataError: the checkpoint or its data do not exist, or CTranslate2 does not support an option
        """
        how = LoadOptions(
            data=data,
            parser=parser,
            parser_name=parser_name,
            parser_lang=parser_lang,
            parser_dir=parser_dir,
            missing_parse=missing_parse,
            device=device,
            user_dir=user_dir,
            search_rules=search_rules,
            source_name=source_name,
            target_name=target_name,
        )
        if (folder := ctranslate2_folder(path)) is not None:
            return CTranslate2Translator.load(folder, how, **options)
        overrides = how.of_task
        paths = [checkpoint_of(p) for p in ([path] if isinstance(path, (str, os.PathLike)) else path)]
        task, exported = None, None
        if (source_name or target_name) and not all(map(os.path.isdir, paths)):
            message = "applies to a folder that fairseq-syntax import wrote"
            raise SyntaxDataError(message, option="--source-name, --target-name")
        # A folder without checkpoint_best.pt should be an exported one.
        if any(map(os.path.isdir, paths)):
            folder = next(filter(os.path.isdir, paths))
            if len(paths) > 1:
                hint = "give the checkpoint that was exported"
                raise SyntaxDataError("an exported model cannot be part of an ensemble", path=folder, hint=hint)
            exported = Exported.load(folder, data)
            if source_name or target_name:
                overrides |= exported.language_options(source_name, target_name)
            task = setup_task(**{**vars(exported), "data": folder, **overrides})
            paths = [os.path.join(folder, CHECKPOINT)]
            options["source_tag"] = exported.source_tag
        models, _, task = load_models(paths, data, task=task, device=device, user_dir=user_dir, **overrides)
        # Not as overrides, because old checkpoints lack these options.
        task.cfg.missing_parse, task.cfg.search_rules = missing_parse, search_rules
        if "alignment_heads" not in options:  # not read if the caller chooses the heads, so a damaged file does no harm
            options["alignment_heads"] = [load_head(p, m) for p, m in zip(paths, models)]
        translator = cls(models, task, parser=parser, **options)
        translator._exported = exported
        translator.languages = exported.languages if exported is not None else {}
        return translator

    def with_languages(self, source_name: str = "", target_name: str = "") -> Translator:
        """See the base class."""
        if not self.languages or self._exported is None:
            return super().with_languages(source_name, target_name)
        tokens = self._exported.language_options(source_name, target_name)
        dictionaries = self.task.source_dictionary, self.task.target_dictionary
        other = copy.copy(self)
        other.models = tuple(model.with_languages(tokens, *dictionaries) for model in self.models)
        other._aligner = Aligner(other.models, self._aligner.heads)
        other._set_search(self._generation)
        return other

    def _set_search(self, generation: dict[str, Any]) -> None:
        self._generation = search_options(generation, SEARCH_OPTIONS, "fairseq", self.batch_size)
        options = Namespace(**self._generation)
        self.beam, self.nbest = options.beam, options.nbest
        for model in self.models:
            # As in fairseq-generate; LSTMs, for example, then skip their attention maps.
            model.prepare_for_inference_(Namespace(generation=options))
        self._generator = self.task.build_generator(self.models, options)
        self._generator.model.keeps_attention = False  # alignments are computed from the translations
        self._control = SearchControl(self._generator)

    def _about(self) -> list[str]:
        size = sum(p.numel() for model in self.models for p in model.parameters())
        names = [
            " with ".join(filter(None, [registered_name(m), " and ".join(systems_of_model(m))])) for m in self.models
        ]
        several = f"{len(names)} models: " if len(names) > 1 else ""
        count = f"{size / 1e6:.1f} million" if size >= 1e6 else f"{size:,}"
        return [several + "; ".join(dict.fromkeys(names)), f"{count} parameters"]

    @torch.no_grad()
    def _search(
        self, encoded: list[EncodedLine], alignments: bool, on_step: OnStep | None
    ) -> Iterator[tuple[int, list[Translation]]]:
        for batch in self._batches(encoded):
            numbers = batch["id"].tolist()
            limits = {number: self._most_pieces(len(encoded[number].tokens)) for number in numbers}
            # fairseq asserts this for the batch, by its longest source.
            if min(limits.values()) < self._generator.min_len:
                message = f"{self._generator.min_len} is more than max_len_a, max_len_b and the model allow"
                raise SyntaxDataError(message, option="min_len")
            with self._control.search(limits, on_step):
                hypotheses = [h[: self.nbest] for h in self.task.inference_step(self._generator, self.models, batch)]
            weights: Any = repeat(())  # no weights for any hypothesis
            if alignments:
                weights = self._aligner.of_hypotheses(
                    batch["net_input"], [[h["tokens"] for h in best] for best in hypotheses]
                )
            for number, best, of_best in zip(numbers, hypotheses, weights):
                translations = [self._translation(h, limits[number], encoded[number].real_parse) for h in best]
                source = self._input.text(encoded[number]) if alignments else None
                for translation, of_one in zip(translations, of_best):
                    target = spell(translation.pieces, self._decode)
                    translation.alignment = align(of_one, source, target)  # type: ignore[arg-type]
                yield number, translations

    @torch.no_grad()
    def read(
        self, dataset: Any, sentence: int, on_step: OnStep | None = None
    ) -> tuple[Translation, dict[str, list[np.ndarray]]]:
        """See the base class."""
        (batch,) = self.batched(dataset, [[sentence]])
        length = batch["net_input"]["src_lengths"].item()
        # No limits, since fairseq's limit depends on this sentence alone.
        with self._control.search({}, on_step):
            best = self.task.inference_step(self._generator, self.models, batch)[0][0]
        translation = self._translation(best, self._most_pieces(length), None)
        translation.pieces = [self.task.target_dictionary[i] for i in best["tokens"].tolist()]
        weights = attention_weights(self.models[0], batch["net_input"], [best["tokens"].long()])
        return translation, {kind: [w[0].cpu().numpy() for w in layers] for kind, layers in weights.items()}

    @naming_parameters()
    def align(self, sentences: Sequence[Sentence], translations: Sequence[str]) -> list[WordAlignment]:
        """See the base class."""
        (head, *_) = self._aligner.heads
        return [by_head[head] for by_head in self._aligned(sentences, translations, head)]

    def rank_heads(
        self, sentences: Sequence[Sentence], translations: Sequence[str], gold: Sequence[Gold] | None = None
    ) -> list[Ranked]:
        """See the base class."""
        by_head = self._aligned(sentences, translations, None)
        if gold is not None:
            check_gold(gold, (next(iter(alignments.values()), None) for alignments in by_head))
        # A pair with an empty side has no links to count.
        kept = [i for i, alignments in enumerate(by_head) if alignments]
        return choose([by_head[i] for i in kept], None if gold is None else [gold[i] for i in kept])

    @torch.no_grad()
    def _aligned(
        self, sentences: Sequence[Sentence], translations: Sequence[str], head: AlignmentHead | None
    ) -> list[dict[AlignmentHead, WordAlignment]]:
        """The alignments of each sentence pair by one head, or by all heads of the first model."""
        if len(sentences) != len(translations):
            raise SyntaxDataError(f"{len(sentences)} sentences, but {len(translations)} translations")
        filled = [i for i, sentence in enumerate(sentences) if not is_empty(sentence) and translations[i].strip()]
        aligned = [{} if head is None else {head: _no_links(*pair)} for pair in zip(sentences, translations)]
        if not filled:
            return aligned
        pieces, targets = zip(*(self.encode_target(translations[i]) for i in filled))
        encoded = self._input.encode([sentences[i] for i in filled], filled)
        check_lengths([len(line.tokens) for line in encoded], map(len, targets), self.max_positions(), filled)
        sources = [self._input.text(line) for line in encoded]
        model, dictionary = self.models[0], self.task.target_dictionary
        bar = progress(total=len(filled), of="aligning", unit="sentences")
        for batch in self._batches(encoded):
            numbers, src_tokens = batch["id"].tolist(), batch["net_input"]["src_tokens"]
            of_batch = [torch.from_numpy(targets[number]).to(src_tokens.device) for number in numbers]
            if head is not None:
                by_head = {head: self._aligner.weights(batch["net_input"], of_batch)}
            else:
                layers = source_attention(model, batch["net_input"], of_batch)
                by_head = {
                    one: list(cut(one.pick(layers), src_tokens, of_batch, one.shift, dictionary))
                    for one in candidate_heads(layers, default_head(model).layer is None)
                }
            for place, number in enumerate(numbers):
                # From the pieces themselves, since some may be <unk> in the dictionary.
                spelt = [pieces[number][piece] for piece in places_of_pieces(targets[number], dictionary)]
                target = spell(spelt, self._decode)
                weights = [of_head[place] for of_head in by_head.values()]
                aligned[filled[number]] = dict(zip(by_head, align_by_each(weights, sources[number], target)))
            bar.update(len(numbers))
        bar.close()
        return aligned

    def max_positions(self) -> tuple[int, int]:
        """See the base class."""
        most: tuple[int, int] = utils.resolve_max_positions(
            self.task.max_positions(), *(model.max_positions() for model in self.models)
        )
        return most

    def _batches(self, encoded: list[EncodedLine]) -> Iterator[dict[str, Any]]:
        """Encoded lines in batches on the models' device."""
        if not encoded:
            return iter(())
        dataset = self._input.dataset(encoded)
        return self.batched(dataset, dataset.batch_by_size(dataset.ordered_indices(), max_sentences=self.batch_size))

    def batched(self, dataset: Any, batches: Iterable[Any]) -> Iterator[dict[str, Any]]:
        """A dataset's sentences, in batches on the models' device."""
        device = next(self.models[0].parameters()).device
        # not with fairseq's iterator, whose loader pins memory and warns if there is no GPU
        for numbers in batches:
            batch = dataset.collater([dataset[number] for number in numbers])
            yield utils.move_to_cuda(batch, device) if device.type == "cuda" else batch

    def _most_pieces(self, source_length: int) -> int:
        """The maximum length of a translation, without ``</s>``; the source length includes it."""
        search: Any = self._generator
        # As in SequenceGenerator._generate, which uses the longest source of the batch.
        most = (
            source_length - 1 if search.match_source_len else int(search.max_len_a * source_length + search.max_len_b)
        )
        return int(min(most, search.max_len - 1))

    def _translation(self, hypothesis: dict[str, Any], most: int, parse: ParsedLine | None) -> Translation:
        pieces = pieces_of(hypothesis["tokens"], self.task.target_dictionary)
        # The tokens end with </s>, which the model may have generated or the limit forced.
        ended = len(hypothesis["tokens"]) > most
        return Translation(self._decode(pieces), pieces, float(hypothesis["score"]), cut=ended, parse=parse)


def _no_links(sentence: Sentence, translation: str) -> WordAlignment:
    """The alignment with an empty sentence or translation."""
    source = text_of(sentence) if isinstance(sentence, ParsedLine) else sentence.strip()
    target = translation.strip()
    return WordAlignment(source, target, words_of(source), words_of(target), [])

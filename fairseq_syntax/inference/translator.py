"""A trained model from Python, with its dictionaries, segmentation and parser.

.. code-block:: python

    translator = Translator.load("checkpoints/checkpoint_best.pt", "data-bin", parser_dir="parsers/en")
    translator.translate(["A man in an orange hat."])
"""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from fairseq import checkpoint_utils, utils

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.inference.alignment import WordAlignment
from fairseq_syntax.inference.interactive import InteractiveInput
from fairseq_syntax.parsing.base import Parser
from fairseq_syntax.text.conllu import ParsedLine, flatten


@dataclass
class Translation:
    """One translation.

    Attributes:
        text, pieces: what the model said
        score: the mean log-probability of its pieces (base e)
        alignment: its words and those of the source, where they are asked for
    """

    text: str
    pieces: list[str]
    score: float
    alignment: WordAlignment | None = None


class Translator:
    """Translates sentences with one model, or an ensemble.

    Args:
        models: of one task, on one device
        task: the task that they were trained for
        parser: parses raw text; by default the one that the task's options name, made when it is first needed
        batch_size: sentences at a time
        generation: options of the search, as fairseq-generate's (``beam``, ``lenpen``, ``nbest``, …)
    """

    def __init__(
        self,
        models: Sequence[torch.nn.Module],
        task: Any,
        *,
        parser: Parser | None = None,
        batch_size: int = 32,
        **generation: Any,
    ) -> None:
        self.models = [m.eval() for m in models]
        self.task = task
        self.batch_size = batch_size
        self.nbest = generation.setdefault("nbest", 1)
        generation["beam"] = max(generation.get("beam", 4), self.nbest)
        self._input = InteractiveInput(task, parser)
        options = Namespace(**generation)
        for model in self.models:
            # As fairseq-generate does: an LSTM, for one, then builds no map of its attention at every step.
            model.prepare_for_inference_(Namespace(generation=options))
        self._generator = task.build_generator(self.models, options)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        data: str | os.PathLike[str] | None = None,
        *,
        parser: Parser | None = None,
        parser_name: str = "stanza",
        parser_lang: str = "",
        parser_dir: str | os.PathLike[str] | None = None,
        device: str | None = None,
        **options: Any,
    ) -> Translator:
        """Load checkpoints.

        Args:
            path: one checkpoint, or several for an ensemble
            data: the binarized data directory, with dictionaries, label inventory and segmentation; by default the
                one that the model was trained on
            parser: a parser object, in place of the three options that follow
            parser_name, parser_lang, parser_dir: as ``--parser``, ``--lang`` and ``--model-dir`` of
                ``fairseq-syntax parse``
            device: default: the GPU where there is one
            options: of :class:`Translator`

        Raises:
            SyntaxDataError: no such checkpoint or data
        """
        paths = [os.fspath(p) for p in ([path] if isinstance(path, (str, os.PathLike)) else path)]
        for p in paths:
            if not os.path.exists(p):
                raise SyntaxDataError("no such checkpoint", path=p)
        overrides: dict[str, Any] = {
            "syntax_parser": parser_name,
            "syntax_parser_lang": parser_lang,
            "syntax_parser_dir": os.fspath(parser_dir) if parser_dir else "",
            "eval_bleu": False,
        }
        if data is not None:
            overrides["data"] = os.fspath(data)
        models, _, task = checkpoint_utils.load_model_ensemble_and_task(paths, arg_overrides=overrides)
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        return cls([m.to(device) for m in models], task, parser=parser, **options)

    def parse(self, sentences: Sequence[str]) -> list[ParsedLine]:
        """The parses of raw sentences, by this translator's parser."""
        return self._input.parse(list(sentences))

    def translate(self, sentences: Sequence[str | ParsedLine]) -> list[str]:
        """The best translation of each sentence, as text.

        Args:
            sentences: raw text, CoNLL-U flattened by ``fairseq-syntax parse --one-line``, or parsed lines

        Raises:
            SyntaxDataError: the model needs a parse, and there is no parser; or a sentence is too long for it
        """
        return [best[0].text for best in self.translations(sentences)]

    @torch.no_grad()
    def translations(self, sentences: Sequence[str | ParsedLine]) -> list[list[Translation]]:
        """The ``nbest`` translations of each sentence, best first."""
        lines = [flatten(s) if isinstance(s, ParsedLine) else s for s in sentences]
        found: list[list[Translation]] = [[] for _ in lines]
        filled = [i for i, line in enumerate(lines) if line.strip()]
        for i in set(range(len(lines))) - set(filled):
            found[i] = [Translation("", [], 0.0)]
        if not filled:
            return found
        tokens, lengths = self._input.encode([lines[i] for i in filled])
        self._check_lengths(lengths)
        dataset = self._input.dataset(tokens, lengths)
        batches = self.task.get_batch_iterator(
            dataset, max_sentences=self.batch_size, max_positions=self._max_positions(), disable_iterator_cache=True
        )
        device = next(self.models[0].parameters()).device
        for batch in batches.next_epoch_itr(shuffle=False):
            if device.type == "cuda":
                batch = utils.move_to_cuda(batch, device)
            for number, hypotheses in zip(
                batch["id"].tolist(), self.task.inference_step(self._generator, self.models, batch)
            ):
                found[filled[number]] = [self._translation(h) for h in hypotheses[: self.nbest]]
        return found

    def _translation(self, hypothesis: dict[str, Any]) -> Translation:
        dictionary = self.task.target_dictionary
        ignored = {dictionary.eos(), dictionary.pad(), dictionary.bos()}
        pieces = [dictionary[t] for t in hypothesis["tokens"].tolist() if t not in ignored]
        segmenter = self.task.target_segmenter
        text = segmenter.decode(pieces) if segmenter else " ".join(pieces)
        return Translation(text, pieces, float(hypothesis["score"]))

    def _check_lengths(self, lengths: Sequence[int]) -> None:
        longest, most = max(lengths) - 1, self._max_positions()[0] - 1  # without </s>
        if longest > most:
            raise SyntaxDataError(f"a sentence has {longest} pieces, and the model takes {most}", hint="split it")

    def _max_positions(self) -> Any:
        return utils.resolve_max_positions(self.task.max_positions(), *(m.max_positions() for m in self.models))

"""``--task syntax_translation``: translation of text whose parse comes along."""

# No postponed annotations here: fairseq makes options out of the configuration's types, which must not be strings.

import copy
import os
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq.data import ConcatDataset
from fairseq.dataclass import ChoiceEnum
from fairseq.tasks import register_task
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from fairseq.utils import convert_padding_direction
from omegaconf import II
from torch import Tensor

from fairseq_syntax import systems  # noqa: F401  (whose searches have options of the task)
from fairseq_syntax.compat import ignore_syntax, name_dropouts
from fairseq_syntax.corpus.segmentation import Segmenter, load_segmenter
from fairseq_syntax.corpus.store import SyntaxStore, store_path
from fairseq_syntax.corpus.store.schema import STORE_SUFFIX
from fairseq_syntax.corpus.title import check_controls, controls, without_control
from fairseq_syntax.data.binarize import file_fingerprint, segmentation_path, tokens_fingerprint
from fairseq_syntax.data.dataset import SideSyntax, SyntaxPairDataset, check_against_tokens
from fairseq_syntax.data.epochs import TrainingBatches
from fairseq_syntax.data.labels import LabelInventory, labels_path
from fairseq_syntax.data.parse_dropout import drop_parses
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.model.options import REMEMBERED_NAMES, REMEMBERED_TEXTS
from fairseq_syntax.model.search import SEARCHES
from fairseq_syntax.runtime.files import fingerprint
from fairseq_syntax.tasks.refusals import ModelTraits, check_criterion, check_model, check_task, check_training


@dataclass
class SyntaxTranslationConfig(*(search.config for search in SEARCHES), TranslationConfig):  # type: ignore[misc]
    """Options of the task beyond fairseq's, with those of the systems' searches."""

    syntax_input: ChoiceEnum(["auto", "text", "conllu"]) = field(  # type: ignore[valid-type]
        default="auto",
        metadata={
            "help": "what fairseq-interactive reads: raw text, CoNLL-U sentences each ended by a blank line, or "
            "(auto) one line per input, raw or a CoNLL-U parse with its rows joined by \\n"
        },
    )
    syntax_parser: str = field(
        default="",
        metadata={
            "help": "parser for raw text in fairseq-interactive, as in fairseq-syntax parse (default: that of the "
            "training text, with its options)"
        },
    )
    syntax_parser_lang: str = field(
        default="", metadata={"help": "language of the parser's models (default: as for the training text)"}
    )
    syntax_parser_dir: str = field(
        default="", metadata={"help": "directory of the parser's models, as --model-dir of fairseq-syntax parse"}
    )
    missing_parse: ChoiceEnum(["error", "neutral"]) = field(  # type: ignore[valid-type]
        default="error",
        metadata={
            "help": "what to do with raw input that cannot be parsed (no parser, another language): stop, or "
            "translate it in each system's neutral form"
        },
    )
    seed: int = II("common.seed")
    cpu: bool = II("common.cpu")
    tpu: bool = II("common.tpu")
    fp16: bool = II("common.fp16")
    memory_efficient_fp16: bool = II("common.memory_efficient_fp16")
    ddp_backend: str = II("distributed_training.ddp_backend")
    update_freq: list[int] = II("optimization.update_freq")  # noqa: RUF009
    parse_dropout: float = field(
        default=0.0,
        metadata={
            "help": "in training, the probability that a sentence goes without its parse, drawn anew each epoch: for "
            "models that are to translate with --missing-parse neutral, too"
        },
    )
    alignment_head: str = field(
        default="",
        metadata={
            "help": "for --print-alignment: what fairseq-syntax align --choose wrote, a file for each model of --path, "
            "with colons (default: the layer and heads that fairseq takes)"
        },
    )


@register_task("syntax_translation", dataclass=SyntaxTranslationConfig)
class SyntaxTranslationTask(TranslationTask):
    """Translation with the syntax of the source, and of the target where a criterion wants it.

    Batches bring what the model and the criterion need, and nothing else; a plain Transformer trains on the same
    data as fast as ever.
    """

    cfg: SyntaxTranslationConfig

    def __init__(self, cfg: SyntaxTranslationConfig, src_dict, tgt_dict) -> None:
        super().__init__(cfg, src_dict, tgt_dict)
        check_task(cfg)
        # What batches must bring of each side; None until a model says so, and then batches bring the tree.
        self._dictionaries = {
            "source": fingerprint(src_dict.symbols),
            "target": fingerprint(tgt_dict.symbols),
        }
        self._needs: dict[str, frozenset[str] | None] = {"source": None, "target": None}
        self._training_needs: frozenset[str] = frozenset()
        self._target_needs: frozenset[str] = frozenset()
        self._traits = ModelTraits()
        # What the training text was parsed with: of the checkpoint that was read last, and of each loaded model that
        # reads a parse.
        self._last_parsed_with: Mapping[str, Any] | None = None
        self._models_parsed_with: list[Mapping[str, Any] | None] = []
        self._printed_alignment: Any = None
        self._searches = [search(self) for search in SEARCHES]
        self._epoch_iterator: Callable[[TrainingBatches], TrainingBatches] | None = None

    @cached_property
    def _input(self) -> Any:
        """The reader of raw and parsed sentences, imported with parsers and alignments when the first one comes."""
        from fairseq_syntax.inference.interactive import InteractiveInput

        return InteractiveInput(self)

    # -- what a checkpoint remembers -------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """fairseq's, with the fingerprints of the dictionaries, by side, and what the source was parsed with."""
        known = {"dictionaries": self._dictionaries, "source_parsed_with": dict(self.source_parsed_with or {})}
        return {**super().state_dict(), **known}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """fairseq's.

        Raises:
            SyntaxDataError: the model was trained with another dictionary
        """
        state = dict(state_dict)
        trained = state.pop("dictionaries", self._dictionaries)
        self._last_parsed_with = state.pop("source_parsed_with", None)
        super().load_state_dict(state)
        self._check_dictionaries(
            trained, "--data, or fairseq's first argument, is the directory that it was trained on"
        )

    def _check_dictionaries(self, trained: Mapping[str, str], hint: str) -> None:
        for side, own in self._dictionaries.items():
            if trained.get(side, own) != own:
                raise SyntaxDataError(
                    f"the model was trained with another dictionary of the {side} than that of these data",
                    path=self.data_dir,
                    hint=hint,
                )

    def check_checkpoint(self, state: Mapping[str, Any], model: Any, path: str) -> None:
        """Whether training may go on from a checkpoint: its numbers must mean the words and labels of these data.

        Args:
            state: the checkpoint
            model: the options of the model that is trained
            path: of the checkpoint, for errors

        Raises:
            SyntaxDataError: the dictionaries, labels or tags are others
        """
        trained = (state.get("task_state") or {}).get("dictionaries", {})
        self._check_dictionaries(
            trained, "give fairseq-preprocess --srcdict and --tgtdict, those of the first training"
        )
        before = (state.get("cfg") or {}).get("model") or state.get("args") or {}
        before, now = (
            vars(options) if isinstance(options, Namespace) else dict(options) for options in (before, model)
        )
        for name, what in REMEMBERED_TEXTS.items():
            if None not in (before.get(name), now.get(name)) and before[name] != now[name]:
                raise SyntaxDataError(f"this model was trained with other {what}", path=path, hint="give the same file")
        for name, side in REMEMBERED_NAMES.items():
            names, own = before.get(name), now.get(name)
            if names is not None and own is not None and list(names) != list(own):
                raise SyntaxDataError(
                    f"this model was trained with {len(names)} names of labels or tags of the {side} that are not the "
                    f"{len(own)} of these data",
                    path=path,
                    hint=f"binarize the data with the labels of the first training (--{side}-labels)",
                )

    # -- what the data directory holds -----------------------------------------------------------------------------

    @property
    def data_dir(self) -> str:
        """The first data directory: the one with the dictionaries."""
        return self.cfg.data.split(os.pathsep)[0]

    @cached_property
    def source_labels(self) -> dict[str, list[str]]:
        """Label names by column (``deprel``, ``upos``, ``xpos``) of the source."""
        return LabelInventory.load(labels_path(self.data_dir, self.cfg.source_lang)).labels

    @cached_property
    def source_parsed_with(self) -> Mapping[str, Any] | None:
        """The parser's options of the source, where the data directory knows them."""
        path = labels_path(self.data_dir, self.cfg.source_lang)
        return LabelInventory.load(path).parsed_with if os.path.exists(path) else None

    @property
    def trained_with(self) -> list[Mapping[str, Any] | None]:
        """The parser's options of the training text of each loaded model that reads a parse; {}: none were known.

        Of a checkpoint that is older than this knowledge, and of a model in training, those of the data directory.
        """
        known = [self.source_parsed_with if own is None else own for own in self._models_parsed_with]
        return known or [self.source_parsed_with]

    def check_parsed_with(self, given: Mapping[str, Any] | None, path: str | os.PathLike[str]) -> None:
        """Make sure that parses are of the kind that the models which read them were trained on.

        Args:
            given: what they were parsed with, where it is known
            path: of the parses, for errors

        Raises:
            SyntaxDataError: a model was trained on control parses, and these are real, or other controls
        """
        for trained in self.trained_with:
            check_controls(trained, given, path)

    @property
    def parse_raw_with(self) -> Mapping[str, Any] | None:
        """The parser's options for raw text: the first model's, or those of one that knows control parses alone.

        Where no model reads a parse, it does not matter that one learned from control parses.
        """
        known = [*filter(controls, self.trained_with), *filter(None, self.trained_with), self.source_parsed_with][0]
        return known if self.needs("source") else without_control(known)

    @cached_property
    def target_labels(self) -> dict[str, list[str]]:
        """Label names by column of the target."""
        return LabelInventory.load(labels_path(self.data_dir, self.cfg.target_lang)).labels

    @cached_property
    def source_segmenter(self) -> Segmenter | None:
        """The source's segmentation, where the data directory has it."""
        return self._segmenter(self.cfg.source_lang)

    @cached_property
    def target_segmenter(self) -> Segmenter | None:
        """The target's segmentation, where the data directory has it."""
        return self._segmenter(self.cfg.target_lang)

    def _segmenter(self, lang: str) -> Segmenter | None:
        path = segmentation_path(self.data_dir, lang)
        return load_segmenter(path) if os.path.exists(path) else None

    # -- what is needed --------------------------------------------------------------------------------------------

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """fairseq's, noting what of the syntax the model needs (in training, or at inference from a checkpoint).

        Raises:
            SyntaxDataError: training in a way that fairseq offers, and that does not run, or with an option that would
                do nothing
        """
        if not from_checkpoint:
            check_training(self.cfg, cfg, one_dictionary=self.source_dictionary == self.target_dictionary)
        model = super().build_model(cfg, from_checkpoint)
        name_dropouts(model)
        self._traits = ModelTraits.of(model)
        self._training_needs = self._traits.training_needs
        if not from_checkpoint:
            check_model(self.cfg, self._traits)
        self._target_needs = getattr(model, "target_training_needs", frozenset())
        self.add_need("source", self._traits.inference_needs if from_checkpoint else self._training_needs)
        if from_checkpoint and self._traits.inference_needs:
            self._models_parsed_with.append(self._last_parsed_with)
        if from_checkpoint:
            ignore_syntax(model)
        elif self._target_needs:
            self.add_need("target", self._target_needs)
        if self.cfg.eval_bleu and self.cfg.eval_bleu_detok == "space" and self.target_segmenter:
            self.tokenizer = SegmentationDecoder(self.target_segmenter)
            self.cfg.eval_bleu_remove_bpe = None  # which would be done twice
        return model

    def build_criterion(self, cfg: Any) -> Any:
        """fairseq's, noting what of the syntax the criterion needs: its ``source_needs`` and ``target_needs``.

        A criterion may have its own order of training batches: ``epoch_iterator(base)`` gives the iterator over
        epochs in place of the task's.

        Raises:
            SyntaxDataError: the criterion and the model do not go together
        """
        criterion = super().build_criterion(cfg)
        check_criterion(criterion, self._traits)
        self._epoch_iterator = getattr(criterion, "epoch_iterator", None)
        # In fairseq-validate the model comes from a checkpoint, and its losses are those of training.
        self.add_need("source", self._training_needs)
        self.add_need("target", self._target_needs)
        for side in ("source", "target"):
            self.add_need(side, getattr(criterion, f"{side}_needs", frozenset()))
        return criterion

    def needs(self, side: str) -> frozenset[str] | None:
        """What batches must bring of a side (``source``, ``target``), of ``"tree"`` and ``"arcs"``; None: not known."""
        return self._needs[side]

    def add_need(self, side: str, needs: frozenset[str]) -> None:
        """Let batches bring more of a side, as :meth:`needs` has it."""
        self._needs[side] = (self._needs[side] or frozenset()) | needs

    # -- datasets --------------------------------------------------------------------------------------------------

    def load_dataset(self, split: str, epoch: int = 1, combine: bool = False, **kwargs) -> None:
        """fairseq's, with the syntax that the model and the criterion need.

        Raises:
            SyntaxDataError: there is no such split; or syntax is needed and missing, or not that of the tokens
        """
        if self.cfg.num_batch_buckets:
            raise SyntaxDataError("--num-batch-buckets does not run on NumPy 2", hint="leave it out")
        # fairseq's default of -1 would make a dataset of negative length where there are several parts.
        self.cfg.upsample_primary = max(1, self.cfg.upsample_primary)
        paths = self.cfg.data.split(os.pathsep) if split == self.cfg.train_subset else [self.data_dir]
        directory = paths[(epoch - 1) % len(paths)]
        try:
            super().load_dataset(split, epoch, combine, **kwargs)
        except FileNotFoundError as error:
            if not str(error).startswith("Dataset not found"):
                raise
            pair = {self.cfg.source_lang, self.cfg.target_lang}
            found = (os.fspath(path.name).split(".") for path in Path(directory).glob("*.*-*.*.idx"))
            there = sorted({name for name, langs, *_ in found if set(langs.split("-")) == pair})
            hint = f"there are {', '.join(there)}" if there else "make it with fairseq-preprocess"
            raise SyntaxDataError(f"there is no split {split}", path=directory, hint=hint) from None
        base = self.datasets[split]
        if directory != self.data_dir:
            self._check_numbers(directory)
        self.datasets[split] = SyntaxPairDataset(
            base.src,
            base.src_sizes,
            base.src_dict,
            base.tgt,
            base.tgt_sizes,
            base.tgt_dict,
            left_pad_source=base.left_pad_source,
            left_pad_target=base.left_pad_target,
            align_dataset=base.align_dataset,
            eos=base.eos,
            shuffle=base.shuffle,
            pad_to_multiple=base.pad_to_multiple,
            source_syntax=self._side_syntax("source", base.src, directory, split),
            target_syntax=self._side_syntax("target", base.tgt, directory, split) if base.tgt is not None else None,
        )

    def get_batch_iterator(self, dataset: Any, *args: Any, epoch: int = 1, **kwargs: Any) -> Any:
        """fairseq's; that of the training data is cut as in epoch 1, whatever the epoch in which it is made.

        And it is the criterion's, where that has one. Validation on the training data has an iterator of its own:
        fairseq takes that of training, and so ends the epoch.
        """
        if dataset is not self.datasets.get(self.cfg.train_subset):
            return super().get_batch_iterator(dataset, *args, epoch=epoch, **kwargs)
        if "grouped_shuffling" not in kwargs:  # which is asked of training alone
            before = dataset.epoch
            own = super().get_batch_iterator(dataset, *args, epoch=epoch, **{**kwargs, "disable_iterator_cache": True})
            dataset.set_epoch(before)
            return own
        once = not kwargs.get("disable_iterator_cache") and not kwargs.get("update_epoch_batch_itr")
        # With --update-ordered-indices-seed the epoch is in it. (A task by itself has no seed, but its name.)
        if once and isinstance(self.cfg.seed, int) and kwargs.get("seed") == self.cfg.seed + epoch:
            kwargs["seed"] += 1 - epoch
        base = super().get_batch_iterator(dataset, *args, epoch=1 if once else epoch, **kwargs)
        if isinstance(base, TrainingBatches):
            return base
        dataset.set_epoch(epoch)
        groups = self.cfg.update_freq
        if isinstance(groups, str):  # the name of fairseq's option, in a configuration of the task alone
            groups = [1]
        own = TrainingBatches(base, epoch, groups)
        if self._epoch_iterator is not None:
            own = self._epoch_iterator(own)
        if self.dataset_to_epoch_iter.get(dataset) is base:  # kept for later epochs
            self.dataset_to_epoch_iter[dataset] = own
        return own

    def train_step(
        self, sample: dict[str, Any], *args: Any, ignore_grad: bool = False, **kwargs: Any
    ) -> tuple[Any, Any, dict[str, Any]]:
        """fairseq's, with ``--parse-dropout``; a filler counts nothing in what the update is divided by and is logged.

        Nor does it draw the dropout of the batches that follow: which batch fairseq runs as the filler depends on
        whether the run was resumed.
        """
        if self.cfg.parse_dropout and "src_syntax" in sample["net_input"]:
            epoch = self.datasets[self.cfg.train_subset].epoch
            sample = drop_parses(sample, self.cfg.parse_dropout, seed=int(self.cfg.seed), epoch=epoch)
        if not ignore_grad:
            return super().train_step(sample, *args, **kwargs)
        with torch.random.fork_rng():
            loss, size, log = super().train_step(sample, *args, ignore_grad=True, **kwargs)
        return loss, 0 * size, {name: 0 * value for name, value in log.items()}

    def _check_numbers(self, directory: str) -> None:
        """Whether the pieces of another directory of training data have the numbers of the first."""
        for side, own in self._dictionaries.items():
            path = os.path.join(directory, f"dict.{getattr(self.cfg, f'{side}_lang')}.txt")
            if os.path.exists(path) and fingerprint(self.load_dictionary(path).symbols) != own:
                raise SyntaxDataError(
                    "is another dictionary than that of the first directory: its pieces would be taken for others",
                    path=path,
                    hint="give fairseq-preprocess --srcdict and --tgtdict, those of the first directory",
                )

    def _side_syntax(self, side: str, tokens: Any, directory: str, split: str) -> SideSyntax | None:
        lang, needs = getattr(self.cfg, f"{side}_lang"), self._needs[side]
        parts = tokens.datasets if isinstance(tokens, ConcatDataset) else [tokens]
        repeats = [int(r) for r in tokens.sample_ratios] if isinstance(tokens, ConcatDataset) else [1]
        paths = [self._store_path(directory, f"{split}{number or ''}", lang) for number in range(len(parts))]
        if needs is None:
            needs = frozenset({"tree"}) if all(map(os.path.exists, paths)) else frozenset()
        if not needs:
            return None
        if side == "source" and self.cfg.truncate_source:
            raise SyntaxDataError(
                "--truncate-source would cut sentences and leave their parses whole",
                hint="leave long sentences out with --max-source-positions and --skip-invalid-size-inputs-valid-test",
            )
        stores = [SyntaxStore(path) for path in paths]
        if side == "source":
            self.check_parsed_with(self.source_parsed_with, paths[0])
        dictionary = os.path.join(directory, f"dict.{lang}.txt")
        fingerprint = file_fingerprint(dictionary) if os.path.exists(dictionary) else None
        labels = getattr(self, f"{side}_labels")
        segmenter = self._segmenter(lang)
        segmentation = segmenter.fingerprint if segmenter else None
        for store, part in zip(stores, parts):
            content = tokens_fingerprint(store.path.removesuffix(STORE_SUFFIX))
            check_against_tokens(
                store, np.asarray(part.sizes), fingerprint, labels, content=content, segmentation=segmentation
            )
        if "arcs" in needs and not all(s.has_arcs for s in stores):
            raise SyntaxDataError(
                "holds 1-best trees only, and the model needs the parser's distributions",
                path=next(s.path for s in stores if not s.has_arcs),
                hint="parse with fairseq-syntax parse --distributions and binarize again",
            )
        return SideSyntax(stores, repeats, arcs="arcs" in needs)

    def _store_path(self, directory: str, split: str, lang: str) -> str:
        """The store of a split; token datasets of the opposite direction are used as fairseq does."""
        pair = (self.cfg.source_lang, self.cfg.target_lang)
        straight, reverse = store_path(directory, split, *pair, lang), store_path(directory, split, *pair[::-1], lang)
        return reverse if os.path.exists(reverse) and not os.path.exists(straight) else straight

    # -- raw input -------------------------------------------------------------------------------------------------

    @classmethod
    def setup_task(cls, cfg: SyntaxTranslationConfig, **kwargs) -> "SyntaxTranslationTask":
        """fairseq's; with ``--syntax-input conllu``, fairseq-interactive reads blocks in place of lines."""
        task = super().setup_task(cfg, **kwargs)
        if cfg.syntax_input == "conllu":
            from fairseq_syntax.inference.interactive import read_blocks_in_interactive

            read_blocks_in_interactive(task._input.check_parses)
        return task

    def build_bpe(self, args: Any) -> Any:
        """fairseq's ``--bpe``, else the data's own segmentation, so that detokenized output is text."""
        bpe = super().build_bpe(args)
        return SegmentationDecoder(self.target_segmenter) if bpe is None and self.target_segmenter else bpe

    def get_interactive_tokens_and_lengths(self, lines: list[str], encode_fn: Any) -> tuple[list, list]:
        """Parse, where needed, and segment raw input."""
        return self._input.encode(lines)

    def build_dataset_for_inference(self, src_tokens, src_lengths, constraints=None) -> SyntaxPairDataset:
        """A dataset of the user's sentences, with the syntax that was found when they were encoded."""
        return self._input.dataset(src_tokens, src_lengths, constraints, rebuilt=True)

    def build_generator(
        self, models, args, seq_gen_cls=None, extra_gen_cls_kwargs=None, prefix_allowed_tokens_fn=None
    ) -> Any:
        """fairseq's; with ``--print-alignment`` its translations bring the alignment of their words.

        fairseq's own runs the model without its syntax, and aligns pieces.
        """
        kind = getattr(args, "print_alignment", None)
        if not kind or seq_gen_cls is not None or getattr(args, "score_reference", False):
            self._printed_alignment = None
        else:
            from fairseq_syntax.inference.alignment_head import PrintedAlignment

            args = copy.copy(args)
            args.print_alignment = None
            self._printed_alignment = PrintedAlignment(models, self, str(kind), self.cfg.alignment_head)
        taken = seq_gen_cls is not None
        for search in self._searches:
            if (own := search.generator(models, args, taken)) is not None:
                seq_gen_cls, extra_gen_cls_kwargs = own.cls, {**(extra_gen_cls_kwargs or {}), **own.arguments}
        return super().build_generator(models, args, seq_gen_cls, extra_gen_cls_kwargs, prefix_allowed_tokens_fn)

    def inference_step(self, generator, models, sample, prefix_tokens=None, constraints=None):
        """fairseq's; a batch of fairseq-interactive, which passes tokens only, gets its syntax and its numbers back.

        Targets that are padded on the left (``--left-pad-target``) are moved there: fairseq counts the columns of what
        it scores, and of ``--prefix-size``, from the first one.
        """
        if "src_syntax" not in sample["net_input"]:
            self._input.attach(sample)
        if self.cfg.left_pad_target and sample.get("target") is not None:
            sample, prefix_tokens = self._padded_right(sample, prefix_tokens)
        hypotheses = super().inference_step(generator, models, sample, prefix_tokens, constraints)
        for search in self._searches:
            search.found(generator, sample, hypotheses)
        if self._printed_alignment is not None:
            self._printed_alignment.add(sample, hypotheses)
        return hypotheses

    def _padded_right(self, sample: dict[str, Any], prefix: Tensor | None) -> tuple[dict[str, Any], Tensor | None]:
        def moved(tokens: Tensor) -> Tensor:
            return convert_padding_direction(tokens, self.target_dictionary.pad(), left_to_right=True)

        net_input, target = dict(sample["net_input"]), moved(sample["target"])
        if "prev_output_tokens" in net_input:
            net_input["prev_output_tokens"] = moved(net_input["prev_output_tokens"])
        prefix = None if prefix is None else target[:, : prefix.size(1)]
        return {**sample, "net_input": net_input, "target": target}, prefix


class SegmentationDecoder:
    """A segmentation of the target as fairseq's ``--bpe``. Raw input is segmented by the task, with its parse."""

    def __init__(self, segmenter: Segmenter) -> None:
        self._segmenter = segmenter

    def encode(self, x: str) -> str:
        """The pieces of a target text: fairseq-interactive asks for those of the words of ``--constraints``."""
        return " ".join(self._segmenter.encode_text(x))

    def decode(self, x: str) -> str:
        return self._segmenter.decode(x)

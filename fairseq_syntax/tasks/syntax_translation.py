"""``--task syntax_translation``: translation of parsed text."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from fairseq.data import ConcatDataset
from fairseq.data.data_utils import infer_language_pair
from fairseq.logging import metrics
from fairseq.tasks import register_task
from fairseq.tasks.translation import TranslationTask
from torch import Tensor

from fairseq_syntax.compat.models import forget_embedding_files, ignore_syntax, name_dropouts
from fairseq_syntax.compat.shards import generation_shard
from fairseq_syntax.data.dataset import SideSyntax, SyntaxPairDataset
from fairseq_syntax.data.directory import DataDirectory, language_pair
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.model.options import check_options
from fairseq_syntax.tasks.checkpoint_checks import Vocabularies, check_trained
from fairseq_syntax.tasks.config import SyntaxTranslationConfig
from fairseq_syntax.tasks.refusals import (
    check_criterion,
    check_model,
    check_one_shard,
    check_training,
    hold_save_dir,
    is_set,
)

if TYPE_CHECKING:
    from fairseq_syntax.data.epochs import TrainingBatches
    from fairseq_syntax.data.parse_origins import ParseOrigins
    from fairseq_syntax.inference.generation import Generation
    from fairseq_syntax.inference.spelling import SegmentationDecoder

NOTHING: frozenset[str] = frozenset()


def bleu_of_meters(meters: Mapping[str, Any]) -> float:
    """BLEU from the counts that fairseq logs; 0 if there are none."""
    if "_bleu_counts" not in meters:
        return 0.0
    import sacrebleu

    counts, totals, system, reference = (meters[f"_bleu_{n}"].sum for n in ("counts", "totals", "sys_len", "ref_len"))
    bleu = sacrebleu.BLEU.compute_bleu(
        counts.tolist(), totals.tolist(), int(system), int(reference), smooth_method="exp"
    )
    return round(bleu.score, 2)


@register_task("syntax_translation", dataclass=SyntaxTranslationConfig)
class SyntaxTranslationTask(TranslationTask):
    """Translation with the syntax of the source, and of the target if a criterion or decoder system needs it.

    Batches contain only the syntax that the model and the criterion need, so that a plain Transformer trains on the
    same data at its usual speed.
    """

    cfg: SyntaxTranslationConfig

    def __init__(self, cfg: SyntaxTranslationConfig, src_dict: Any, tgt_dict: Any) -> None:
        super().__init__(cfg, src_dict, tgt_dict)
        # The only option of the task with a range.
        check_options(SyntaxTranslationConfig, {"parse_dropout": cfg.parse_dropout})
        # What batches must contain of each side's syntax. None while unknown: batches then contain trees, if any.
        self._needs: dict[str, frozenset[str] | None] = {"source": None, "target": None}
        self._model: Any = None  # the last one that was built
        self._last_parsed_with: Mapping[str, Any] | None = None  # from the last loaded checkpoint
        self._criterion_built = False  # True in training and fairseq-validate
        self._reorder: Callable[[TrainingBatches], TrainingBatches] | None = None

    # -- data ------------------------------------------------------------------------------------------------------

    def _directory(self, path: str) -> DataDirectory:
        return DataDirectory(path, self.cfg.source_lang, self.cfg.target_lang)

    @cached_property
    def directory(self) -> DataDirectory:
        """The first data directory, the one with the dictionaries."""
        return self._directory(self.cfg.data.split(os.pathsep)[0])

    @cached_property
    def _vocabularies(self) -> Vocabularies:
        return Vocabularies(self.directory, self.src_dict, self.tgt_dict)

    @property
    def data_dir(self) -> str:
        """The path of the first data directory."""
        return self.directory.path

    def labels(self, side: str) -> dict[str, list[str]]:
        """Label names of a side (``source``, ``target``) by column (``deprel``, ``upos``, ``xpos``)."""
        return self.directory.inventory(side).labels

    def segmenter(self, side: str) -> Any:
        """The segmentation of a side; None if there is none, an error if a model was trained on its pieces."""
        return self._vocabularies.segmenter(side)

    @cached_property
    def parse_origins(self) -> ParseOrigins:
        """How the training text of the loaded models was parsed."""
        from fairseq_syntax.data.parse_origins import ParseOrigins

        return ParseOrigins(self.directory.parsed_with("source"))

    def load_dataset(self, split: str, epoch: int = 1, combine: bool = False, **kwargs: Any) -> None:
        """Load a split as fairseq does, with the syntax that the model and the criterion need.

        Raises:
            SyntaxDataError: there is no such split, or needed syntax is missing or does not belong to the tokens
        """
        # With several parts, fairseq's default of −1 would give a dataset of negative length.
        self.cfg.upsample_primary = max(1, self.cfg.upsample_primary)
        training = split == self.cfg.train_subset
        paths = self.cfg.data.split(os.pathsep) if training else [self.data_dir]
        directory = self._directory(paths[(epoch - 1) % len(paths)])  # in fairseq's order
        checksums = directory.check_files(split, combine=combine)
        try:
            super().load_dataset(split, epoch, combine, **kwargs)
        except FileNotFoundError as error:
            if not str(error).startswith("Dataset not found"):  # fairseq's error for a missing split
                raise
            splits = directory.splits()
            hint = f"the folder has these splits: {', '.join(splits) or 'none'}"
            if split in splits:
                is_text = os.path.exists(directory.prefix(split, "source"))
                rest = "give raw, as it is text" if is_text else "without the option, fairseq sees its kind"
                hint = f"it is not of --dataset-impl {self.cfg.dataset_impl}: {rest}"
            raise SyntaxDataError(f"there is no split {split}", path=directory.path, hint=hint) from None
        if directory.path != self.data_dir:
            self._vocabularies.check_directory(directory)
        dataset = self.datasets[split]
        syntax = {
            f"{side}_syntax": self._side_syntax(side, tokens, directory, split, checksums)
            for side, tokens in (("source", dataset.src), ("target", dataset.tgt))
            if tokens is not None
        }
        self.datasets[split] = SyntaxPairDataset.of(dataset, **syntax)
        self.datasets[split].fills_batches = training and self.cfg.fill_batches

    def _side_syntax(
        self, side: str, tokens: Any, directory: DataDirectory, split: str, checksums: Mapping[str, str]
    ) -> SideSyntax | None:
        """The syntax of a side of a split; None if none is needed or, while the needs are unknown, if it has none."""
        parts = len(tokens.datasets) if isinstance(tokens, ConcatDataset) else 1  # train, train1, …
        paths = [directory.store_path(f"{split}{number or ''}", side) for number in range(parts)]
        needs = self.needs(side)
        if needs is None and all(map(os.path.exists, paths)):
            needs = frozenset({"tree"})
        if not needs:
            return None
        if side == "source":
            if self.cfg.truncate_source:
                raise SyntaxDataError(
                    "would cut sentences, but not their parses",
                    option="--truncate-source",
                    hint="skip long sentences with --max-source-positions and --skip-invalid-size-inputs-valid-test",
                )
            self.parse_origins.check(directory.parsed_with(side), paths[0])
        syntax = SideSyntax.load(paths, tokens, self.labels(side), checksums, "arcs" in needs)
        directory.check_stores(paths)
        return syntax

    # -- models and criteria, and their needs ----------------------------------------------------------------------

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """Build a model as fairseq does, and record what syntax it needs, in training or at inference."""
        if from_checkpoint:
            forget_embedding_files(cfg)
        else:
            check_training(self.cfg, cfg, one_dictionary=self.source_dictionary == self.target_dictionary)
        model = super().build_model(cfg, from_checkpoint)
        name_dropouts(model)
        self._model = model
        if from_checkpoint:
            ignore_syntax(model)
            needs = getattr(model, "inference_needs", NOTHING)
            self.add_need("source", needs)
            if needs:
                self.parse_origins.add(self._last_parsed_with)
        else:
            check_model(self.cfg, model)
            self.add_need("source", getattr(model, "training_needs", NOTHING))
            # Without a need it stays unknown, and batches contain what there is.
            if needs := getattr(model, "target_training_needs", NOTHING):
                self.add_need("target", needs)
        # With the default, "space", fairseq would score pieces.
        if self.cfg.eval_bleu and self.cfg.eval_bleu_detok == "space" and (joining := self._joining_pieces()):
            self.tokenizer = joining
            self.cfg.eval_bleu_remove_bpe = None  # otherwise pieces would be joined twice
        return model

    def build_criterion(self, cfg: Any) -> Any:
        """Build a criterion as fairseq does, and record its ``target_needs``.

        A criterion may have its own order of training batches: its ``epoch_iterator(base)`` replaces the task's
        iterator over epochs.
        """
        check_one_shard(self.cfg)
        self._criterion_built = True
        criterion = super().build_criterion(cfg)
        check_criterion(criterion, self._model)
        self._reorder = getattr(criterion, "epoch_iterator", None)
        # In fairseq-validate the model comes from a checkpoint, but its losses need what training needs.
        self.add_need("source", getattr(self._model, "training_needs", NOTHING))
        of_model = getattr(self._model, "target_training_needs", NOTHING)
        self.add_need("target", of_model | getattr(criterion, "target_needs", NOTHING))
        return criterion

    def needs(self, side: str) -> frozenset[str] | None:
        """The syntax that batches must contain on a side: of ``"tree"`` and ``"arcs"``; None if unknown."""
        return self._needs[side]

    def add_need(self, side: str, needs: frozenset[str]) -> None:
        """Require additional syntax in batches; see :meth:`needs`."""
        self._needs[side] = (self._needs[side] or NOTHING) | needs

    # -- checkpoints -----------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """fairseq's, with fingerprints of dictionaries and segmentations, and how the source was parsed."""
        parsed_with = dict(self.directory.parsed_with("source") or {})
        return {**super().state_dict(), **self._vocabularies.recorded, "source_parsed_with": parsed_with}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """fairseq's; checks that the model was trained with these dictionaries and segmentations."""
        self._last_parsed_with = state_dict.get("source_parsed_with")
        ours = ("dictionaries", "segmentations", "source_parsed_with")  # not part of fairseq's state
        super().load_state_dict({name: value for name, value in state_dict.items() if name not in ours})
        hint = "--data, or fairseq's first argument, is the directory that it was trained on"
        self._vocabularies.add_model(state_dict, hint)

    def begin_training(self) -> None:
        """Lock ``--save-dir``, before fairseq's trainer looks for a checkpoint in it; see :func:`hold_save_dir`."""
        hold_save_dir(self.cfg)

    def check_checkpoint(self, state: Mapping[str, Any], model: Any, path: str) -> None:
        """Check that training can resume from a checkpoint, or start from its parameters; see :func:`check_trained`."""
        hint = "give fairseq-preprocess --srcdict and --tgtdict, those of the first training"
        self._vocabularies.check(state.get("task_state") or {}, hint)
        new = check_trained(state, model, path)
        if hasattr(self._model, "new_systems"):
            self._model.new_systems = new

    def reduce_metrics(self, logging_outputs: list[dict[str, Any]], criterion: Any) -> None:
        """fairseq's; if nothing was translated, BLEU is logged as 0 (fairseq would not log it)."""
        super().reduce_metrics(logging_outputs, criterion)
        if self.cfg.eval_bleu and not sum(float(log.get("_bleu_sys_len", 0)) for log in logging_outputs):
            metrics.log_derived("bleu", bleu_of_meters)

    # -- training --------------------------------------------------------------------------------------------------

    def get_batch_iterator(self, dataset: Any, *args: Any, epoch: int = 1, **kwargs: Any) -> Any:
        """fairseq's; in training :meth:`_training_batches`, in generation the share of this process.

        Raises:
            SyntaxDataError: a sentence is longer than a batch may be
        """
        try:
            return self._batch_iterator(dataset, *args, epoch=epoch, **kwargs)
        except AssertionError as error:
            limit = kwargs.get("max_tokens")
            if "max_tokens" not in str(error) or not limit:
                raise
            longest = int(dataset.sizes.max(axis=1).argmax())
            split = next((name for name, one in self.datasets.items() if one is dataset), "the data")
            message = (
                f"sentence {longest + 1} of {split} has {dataset.sizes[longest].max()} tokens, and a batch {limit}"
            )
            option = "--max-tokens" if split == self.cfg.train_subset else "--max-tokens or --max-tokens-valid"
            raise SyntaxDataError(message, option=option, hint="raise it, or leave the sentence out") from error

    def _batch_iterator(self, dataset: Any, *args: Any, epoch: int, **kwargs: Any) -> Any:
        purpose = self._purpose(dataset, kwargs)
        if purpose == "training":
            return self._training_batches(dataset, *args, epoch=epoch, **kwargs)
        if purpose == "validation on the training data":
            # It gets its own iterator. fairseq would reuse that of training and so end its epoch.
            before = dataset.epoch
            kwargs["disable_iterator_cache"] = True
            batches = super().get_batch_iterator(dataset, *args, epoch=epoch, **kwargs)
            dataset.set_epoch(before)
            return batches
        if purpose == "generation":
            from fairseq_syntax.inference.generation import warn_if_pieces_are_scored

            warn_if_pieces_are_scored(self.cfg, self.directory.segmenter("target"))
            # fairseq-generate would translate all sentences in each process of torchrun.
            given = kwargs["num_shards"], kwargs.get("shard_id", 0)
            kwargs["num_shards"], kwargs["shard_id"] = generation_shard(self.cfg, given)
        return super().get_batch_iterator(dataset, *args, epoch=epoch, **kwargs)

    def _purpose(self, dataset: Any, kwargs: Mapping[str, Any]) -> str:
        """What batches are for, which fairseq does not tell a task: its callers differ only in what they pass.

        Of those that name shards, only fairseq-generate has built no criterion. Of those that ask for batches of the
        training data with a criterion, only training shuffles them in groups.
        """
        if "num_shards" in kwargs and not self._criterion_built:
            return "generation"
        if dataset is self.datasets.get(self.cfg.train_subset):
            return "training" if "grouped_shuffling" in kwargs else "validation on the training data"
        return "anything else"

    def _training_batches(self, dataset: Any, *args: Any, epoch: int, **kwargs: Any) -> Any:
        """The training batches, in the criterion's order if it has one.

        They are always composed as in epoch 1, so that a resumed run has the same batches as an uninterrupted one.
        """
        from fairseq_syntax.data.epochs import TrainingBatches

        once = not kwargs.get("disable_iterator_cache") and not kwargs.get("update_epoch_batch_itr")
        # --update-ordered-indices-seed adds the epoch to the seed. (Outside fairseq's commands, cfg.seed is not a
        # number but the string of a reference.)
        if once and isinstance(self.cfg.seed, int) and kwargs.get("seed") == self.cfg.seed + epoch:
            kwargs["seed"] += 1 - epoch
        base = super().get_batch_iterator(dataset, *args, epoch=1 if once else epoch, **kwargs)
        if isinstance(base, TrainingBatches):
            return base
        dataset.set_epoch(epoch)
        batches = TrainingBatches(base, epoch, self.cfg.update_freq if is_set(self.cfg.update_freq) else [1])
        if self._reorder is not None:
            batches = self._reorder(batches)
        if self.dataset_to_epoch_iter.get(dataset) is base:  # kept for later epochs
            self.dataset_to_epoch_iter[dataset] = batches
        return batches

    def train_step(
        self, sample: dict[str, Any], *args: Any, ignore_grad: bool = False, **kwargs: Any
    ) -> tuple[Any, Any, dict[str, Any]]:
        """fairseq's, with ``--parse-dropout``; a filler adds nothing to the sample size and the logging output.

        (fairseq runs a filler in a process that has no batch left for an update.) It does not advance the random
        generators either, since the choice of the filler depends on whether the run was resumed.
        """
        if self.cfg.parse_dropout and "src_syntax" in sample["net_input"]:
            from fairseq_syntax.data.parse_dropout import drop_parses

            epoch = self.datasets[self.cfg.train_subset].epoch
            sample = drop_parses(sample, self.cfg.parse_dropout, seed=int(self.cfg.seed), epoch=epoch)
        if not ignore_grad:
            return super().train_step(sample, *args, **kwargs)
        # Only the device in use: by default PyTorch forks the generators of all GPUs, and warns if there are several.
        device = sample["net_input"]["src_tokens"].device
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            loss, size, log = super().train_step(sample, *args, ignore_grad=True, **kwargs)
        # Multiplied by 0, they keep the types that they have in other processes, with which fairseq adds them.
        return loss, 0 * size, {name: 0 * value for name, value in log.items()}

    def valid_step(self, sample: dict[str, Any], model: Any, criterion: Any) -> tuple[Any, Any, dict[str, Any]]:
        """fairseq's; in fairseq-validate, a process that has a batch less than another gets an empty one."""
        return super().valid_step(sample, model, criterion) if sample else (0.0, 0, {})

    # -- raw input -------------------------------------------------------------------------------------------------

    @cached_property
    def _input(self) -> Any:
        """The reader of raw and parsed sentences; it imports parsers and alignments, so it waits until needed."""
        from fairseq_syntax.inference.interactive import InteractiveBatches, InteractiveInput

        return InteractiveBatches(InteractiveInput(self))

    @cached_property
    def _generation(self) -> Generation:
        """The task's work before and after fairseq's search."""
        from fairseq_syntax.inference.generation import Generation

        return Generation(self, lambda number: self._input.text_of(number))

    @classmethod
    def setup_task(cls, cfg: SyntaxTranslationConfig, **kwargs) -> SyntaxTranslationTask:
        """fairseq's; checks the languages' files, and lets fairseq-interactive read its input by this package."""
        path = cfg.data.split(os.pathsep)[0]
        if cfg.source_lang is None or cfg.target_lang is None:
            cfg.source_lang, cfg.target_lang = language_pair(path) or infer_language_pair(path)
        if cfg.source_lang is not None and cfg.target_lang is not None:
            DataDirectory(path, cfg.source_lang, cfg.target_lang).check_language_files()
        copies = None
        if is_set(cfg.replace_unk):
            from fairseq_syntax.inference.generation import copies_for_unknown

            copies = copies_for_unknown(cfg)
        task = super().setup_task(cfg, **kwargs)
        if copies is not None:
            task._generation.copies = copies
        # The second name is fairseq-interactive under python -m.
        for name in ("fairseq_cli.interactive", "__main__"):
            if hasattr(program := sys.modules.get(name), "buffered_read"):
                from fairseq_syntax.inference.interactive import read_input_in

                read_input_in(program, task._input.source)
        return task

    def build_bpe(self, args: Any) -> Any:
        """fairseq's ``--bpe``, otherwise the segmentation of the data, so that output is text."""
        bpe = super().build_bpe(args)
        joins = bool(self.cfg.post_process) and is_set(self.cfg.post_process)
        if bpe is not None or (joins and self.directory.segmenter("target") is None):
            return bpe
        return self._joining_pieces()

    def _joining_pieces(self) -> SegmentationDecoder | None:
        """Joins the target's pieces into text; None if the data have no segmentation of the target."""
        from fairseq_syntax.inference.spelling import SegmentationDecoder

        segmenter = self.segmenter("target")
        return SegmentationDecoder(segmenter) if segmenter else None

    def get_interactive_tokens_and_lengths(self, lines: list[str], encode_fn: Any) -> tuple[list, list]:
        """Segment raw input, and parse it if needed."""
        return self._input.encode(lines)

    def encode_raw(self, sentences: Sequence[str]) -> list[Tensor]:
        """Tokens [T] of texts, parsed if the model reads a parse; pass them to :meth:`build_dataset_for_inference`."""
        return self._input.encode(list(sentences))[0]

    def build_dataset_for_inference(self, src_tokens, src_lengths, constraints=None) -> SyntaxPairDataset:
        """A dataset of the user's sentences, with the syntax from their encoding."""
        return self._input.dataset(src_tokens, constraints)

    def build_generator(
        self, models, args, seq_gen_cls=None, extra_gen_cls_kwargs=None, prefix_allowed_tokens_fn=None
    ) -> Any:
        """Build a generator as fairseq does; ``--print-alignment`` gives word alignments.

        fairseq's own implementation runs the model without its syntax and aligns pieces.
        """
        options = self._generation.generator_options(models, args, seq_gen_cls, extra_gen_cls_kwargs)
        return super().build_generator(models, *options, prefix_allowed_tokens_fn)

    def inference_step(self, generator, models, sample, prefix_tokens=None, constraints=None):
        """fairseq's; batches of fairseq-interactive, which contain only tokens, get their syntax and numbers back."""
        if constraints is None and getattr(getattr(generator, "search", None), "supports_constraints", False):
            message = "are read from the lines of fairseq-interactive, after a tab; there are none here"
            raise SyntaxDataError(message, option="--constraints")
        if "src_syntax" not in sample["net_input"]:
            self._input.attach(sample)
        printed = sample  # fairseq-generate prints from it afterwards
        sample, prefix_tokens = self._generation.for_search(sample, prefix_tokens)
        hypotheses = super().inference_step(generator, models, sample, prefix_tokens, constraints)
        self._generation.observe(generator, sample, hypotheses)
        self._generation.print_whole_references(printed)
        return hypotheses

"""Rehearsal of a recipe's trainings and searches: what fairseq and the systems refuse, before any work.

Each model is built with the recipe's options and vocabulary sizes over a corpus of a few sentences, on PyTorch's meta
device, where parameters have shapes but no values. Optimizer, schedule, criterion, data and search are set up as
fairseq-train and fairseq-generate do, so their own checks run; that takes a second for each system.
"""

from __future__ import annotations

import contextlib
import io
import logging
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from fairseq_syntax import register
from fairseq_syntax.corpus.conllu import read_conllu, write_conllu
from fairseq_syntax.lab.controls import Control
from fairseq_syntax.lab.recipes.layout import Run
from fairseq_syntax.lab.recipes.plan import Plan
from fairseq_syntax.lab.recipes.schema import ParseSide
from fairseq_syntax.lab.recipes.stages import In, Out, Stage, Word

SENTENCES = ("w0 w1 w2", "w1 w0 w2", "w0 w1", "w1 w0")  # two of each length, so that `shuffled` has partners
CANDIDATES = 6  # options that may be to blame for an error, each tried in a second


class Refused(Exception):
    """The message of fairseq's argument parser, and the names of all options that it accepts."""

    def __init__(self, message: str, known: Sequence[str]) -> None:
        super().__init__(message)
        self.message, self.known = message, known


@dataclass
class Rehearsed:
    """A training as fairseq-train would begin it: fairseq's configuration, its task, and the model without values."""

    cfg: Any
    task: Any
    model: Any
    criterion: Any
    known: Sequence[str]

    @property
    def parameters(self) -> int:
        """The number of parameters."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    @property
    def checkpoint_bytes(self) -> int:
        """The size of a checkpoint: float32 parameters and, with Adam, two moments of each."""
        has_moments = "adam" in str(self.cfg.optimizer._name) and not self.cfg.checkpoint.no_save_optimizer_state
        return self.parameters * (12 if has_moments else 4)


class Rehearsal:
    """The trainings and searches of a plan, over placeholder data in a temporary folder."""

    def __init__(self, plan: Plan) -> None:
        # The plugins of all systems, since they define names and options.
        register(list(dict.fromkeys(folder for name in (None, *plan.recipe.systems) for folder in plan.plugins(name))))
        self.plan = plan
        self._folder = tempfile.TemporaryDirectory()
        self.folder = Path(self._folder.name)
        self.data = cache(self._data)
        self.parsed = cache(self._parsed)  # half a second each

    def close(self) -> None:
        """Remove the placeholder data."""
        self._folder.cleanup()

    # ------------------------------------------------------------------------------------------------------------ data

    def _words(self, lang: str) -> list[str]:
        """A language's dictionary: the one that the recipe names, otherwise placeholders; of a guessed size if open."""
        pieces = self.plan.recipe.pieces
        if lang in pieces.dictionaries:
            from fairseq_syntax.data.tokens import load_dictionary  # here, as it imports fairseq

            dictionary = load_dictionary(self.plan.place(pieces.dictionaries[lang]))
            return list(dictionary.symbols[dictionary.nspecial :])
        size = pieces.size.get(lang) if isinstance(pieces.size, dict) else pieces.size
        letter = "w" if pieces.joint or lang == self.plan.langs[0] else "v"  # two dictionaries are equal only if joint
        return [f"{letter}{number}" for number in range(size or 8000)]

    def _data(self, parse: str) -> Path:
        """Placeholder data with the parse or a control parse, binarized as the recipe's are."""
        from fairseq import options
        from fairseq_cli import preprocess

        recipe, langs = self.plan.recipe, self.plan.langs
        text, sides = self.folder / parse, self.plan.sides()
        text.mkdir()
        for lang in langs:
            words = self._words(lang)
            (text / f"dict.{lang}").write_text("".join(f"{word} 1\n" for word in words), encoding="utf-8")
            sentences = [" ".join(words[int(word[1:])] for word in line.split()) for line in SENTENCES]
            for split in ("train", "valid"):
                path = text / f"{split}.{lang}"
                path.write_text("".join(f"{line}\n" for line in sentences), encoding="utf-8")
                if lang in sides:
                    control = recipe.parse.controls.get(parse) if lang == langs[0] else None
                    _write_parse(path.with_name(f"{path.name}.conllu"), sentences, self._has_arcs(sides[lang]), control)
        words = ["-s", langs[0], "-t", langs[1], "--task", "syntax_translation", "--workers", "1"]
        words += [
            "--trainpref",
            str(text / "train"),
            "--validpref",
            str(text / "valid"),
            "--destdir",
            str(text / "bin"),
        ]
        words += ["--srcdict", str(text / f"dict.{langs[0]}")]
        words += ["--joined-dictionary"] if recipe.pieces.joint else ["--tgtdict", str(text / f"dict.{langs[1]}")]
        with _quiet():
            args = options.get_preprocessing_parser().parse_args(words)  # it also extends ``preprocess.main``
            preprocess.main(args)
        return text / "bin"

    def _has_arcs(self, side: ParseSide) -> bool:
        """Whether a side's parse has probabilities; an existing parse that is not there yet is assumed to."""
        if side.files is None:
            return side.distributions
        path = self.plan.place(side.files, split="train")
        if not path.exists():
            return True
        first = next(iter(read_conllu(path)), None)
        return first is None or first.arcs is not None

    # --------------------------------------------------------------------------------------------------- what is tried

    def _parsed(self, arguments: tuple[str, ...]) -> tuple[Any, list[str]]:
        """fairseq's configuration of a training, and the names of all options that fairseq-train accepts for it."""
        from fairseq import options
        from fairseq.dataclass.utils import convert_namespace_to_omegaconf

        fixed = ["--save-dir", str(self.folder / "save"), "--no-save", "--cpu"]
        with _quiet() as said:
            parser = options.get_training_parser()
            with _refusals(said, parser):
                args = options.parse_args_and_arch(parser, input_args=["data", *arguments, *fixed])
            return convert_namespace_to_omegaconf(args), _names(parser)

    def train(self, run: Run, without: Sequence[str] = (), *, real: bool = False) -> Rehearsed:
        """Begin the training of a run.

        Args:
            without: options of the recipe to leave out
            real: give the parameters values

        Raises:
            Refused: fairseq's argument parser rejects an option
            Exception: whatever fairseq and the systems raise, including SyntaxDataError
        """
        from fairseq import optim, tasks
        from fairseq.optim import lr_scheduler

        system = self.plan.recipe.systems[run.system]
        cfg, known = self.parsed(self.arguments(self.plan.train(run), without))
        if self.plan.recipe.device == "cuda":
            cfg.common.fp16 = cfg.task.fp16 = False  # for which this machine may lack the GPU
        cfg.task.data = str(self.data(system.parse if system.data is None else "parse"))
        with _quiet():
            task = tasks.setup_task(cfg.task)
            with torch.device("cpu" if real else "meta"):
                model = task.build_model(cfg.model)
                criterion = task.build_criterion(cfg.criterion)
            optimizer = optim.build_optimizer(cfg.optimizer, [p for p in model.parameters() if p.requires_grad])
            lr_scheduler.build_lr_scheduler(cfg.lr_scheduler, optimizer)
            if system.data is None:
                task.load_dataset("train")
        return Rehearsed(cfg, task, model, criterion, known)

    def translate(self, run: Run, rehearsed: Rehearsed | None, without: Sequence[str] = ()) -> list[str]:
        """Begin the translations of a run; ``rehearsed`` is its training, without which only options are parsed.

        Returns:
            the names of all options of fairseq-generate

        Raises:
            as :meth:`train`
        """
        parsers = [parser for parser, _ in self._search_options(run, without)]
        if rehearsed is not None:
            for _ in self._generators(run, rehearsed, without):
                pass
        return _names(parsers[0]) if parsers else []

    def _generators(self, run: Run, rehearsed: Rehearsed, without: Sequence[str]) -> Iterator[Any]:
        """fairseq's generators of a run's searches."""
        for _, args in self._search_options(run, without):
            with _quiet():
                yield rehearsed.task.build_generator([rehearsed.model], args)

    def _search_options(self, run: Run, without: Sequence[str]) -> Iterator[tuple[Any, Any]]:
        """The parser and the parsed options of each of a run's searches."""
        from fairseq import options

        for arguments in self._searches(run, without):
            with _quiet() as said:
                parser = options.get_generation_parser()
                with _refusals(said, parser):
                    yield parser, options.parse_args_and_arch(parser, input_args=list(arguments))

    def _searches(self, run: Run, without: Sequence[str]) -> list[tuple[str, ...]]:
        """The different searches of a run, as arguments of fairseq-generate."""
        data = str(self.data(self.plan.recipe.systems[run.system].parse))
        searches = [
            (data, *self.arguments(stage, without))
            for stage in self.plan.translations(run)
            if stage.commands[0].words[0] == "fairseq-generate"
        ]
        return list({tuple(a for a in one if not a.startswith("test")): one for one in searches}.values())

    @staticmethod
    def arguments(stage: Stage, without: Sequence[str] = ()) -> tuple[str, ...]:
        """The arguments of a stage's fairseq command after its data, without options whose file is still to be made."""
        words: list[Word] = []
        for word in stage.commands[0].words[2:]:
            if isinstance(word, In) and not word.path.exists() and word.path.suffix != ".pt":
                words.pop()
            else:
                words.append(word)
        arguments: list[str] = []
        left_out = False
        for argument in type(stage.commands[0])(["fairseq-train", Out(Path()), *words]).arguments()[4:]:
            if argument.startswith("--"):
                left_out = argument.removeprefix("--") in without
            if not left_out:
                arguments.append(argument)
        return tuple(arguments)

    def first_update(self, run: Run, without: Sequence[str] = ()) -> Rehearsed:
        """Make the first update and validation of a training with random parameters, of which it returns the model.

        Raises what fairseq and the systems raise.
        """
        from fairseq.trainer import Trainer

        from fairseq_syntax.compat.validation import check_best_metric

        one = self.train(run, without, real=True)
        common = one.cfg.common
        # The precisions of a GPU, which this machine may lack.
        common.fp16 = common.bf16 = common.amp = common.memory_efficient_fp16 = common.memory_efficient_bf16 = False
        (self.folder / "save").mkdir(exist_ok=True)  # for what fairseq saves where an update fails
        with _quiet():
            for split in ("train", "valid"):
                one.task.load_dataset(split)
            trainer = Trainer(one.cfg, one.task, one.model, one.criterion)
            check_best_metric(trainer)
            trainer.begin_epoch(1)
            trainer.train_step([_batch(one)])
        return one

    def first_search(self, run: Run, rehearsed: Rehearsed, without: Sequence[str] = ()) -> None:
        """Translate a batch with a model whose parameters have values. Raises what fairseq and the systems raise."""
        for generator in self._generators(run, rehearsed, without):
            generator.max_len_a, generator.max_len_b = 0, 3
            with _quiet():
                rehearsed.task.inference_step(generator, [rehearsed.model.eval()], _batch(rehearsed))


def _batch(rehearsed: Rehearsed) -> Any:
    """All sentences of the training data as a batch."""
    dataset = rehearsed.task.dataset("train")
    return dataset.collater([dataset[number] for number in range(len(dataset))])


def blamed(error: Exception, attempt: Callable[[Sequence[str]], Any], values: Mapping[str, Any]) -> str | None:
    """The option without which an attempt does not fail so; None if none of the most likely ones is to blame.

    Args:
        error: what the attempt raises with all options
        attempt: fails or succeeds without the options that it is given
        values: the options that may be to blame
    """
    text = f"{error} {getattr(error, 'text', '')}"  # a SyntaxError has the text that Python could not evaluate

    def likely(name: str) -> tuple[bool, int]:
        shared = set(re.findall("[a-z]+", name)) & set(re.findall("[a-z]+", text))
        return (len(str(values[name])) > 1 and str(values[name]) in text, len(shared))

    for name in sorted(values, key=likely, reverse=True)[:CANDIDATES]:
        try:
            attempt([name])
        except Exception as other:
            if str(other) == str(error) or name in ("optimizer", "criterion"):  # which others need
                continue
        return name  # if there is another error now, that is of another option
    return None


def _write_parse(path: Path, sentences: Sequence[str], arcs: bool, control: Any) -> None:
    """Write a parse of some sentences, in which each word attaches to the first, or a control parse of it."""
    rows = [f"# lines = {len(sentences)}"]
    for number, sentence in enumerate(sentences, 1):
        rows.append(f"# line = {number}")
        for word, form in enumerate(sentence.split(), 1):
            # Labels that Universal and Stanford Dependencies share: the real ones are unknown before the parse.
            head, label, tag = (0, "root", "VERB") if word == 1 else (1, "nsubj", "NOUN")
            misc = f"Arcs={head}:{label}:1" if arcs else "_"
            rows.append(f"{word}\t{form}\t_\t{tag}\t{tag}\t_\t{head}\t{label}\t_\t{misc}")
        rows.append("")
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    if control is not None:
        lines = list(Control(tuple(control.make), control.seed, wrong_arcs=control.wrong_arcs)(read_conllu(path)))
        with path.open("w", encoding="utf-8") as file:
            file.write(f"{rows[0]}\n")
            for line in lines:
                write_conllu(file, line)


def _names(parser: Any) -> list[str]:
    """The names of a parser's options."""
    return [option.lstrip("-") for option in parser._option_string_actions]


@contextlib.contextmanager
def _refusals(said: io.StringIO, parser: Any) -> Iterator[None]:
    """A context in which the exit of an argument parser raises :class:`Refused`."""
    try:
        yield
    except SystemExit:
        raise Refused(said.getvalue(), _names(parser)) from None


@contextlib.contextmanager
def _quiet() -> Iterator[io.StringIO]:
    """A context without logging, whose output is collected."""
    before, said = logging.root.manager.disable, io.StringIO()
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            yield said
    finally:
        logging.disable(before)

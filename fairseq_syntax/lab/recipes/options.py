"""Checks of the fairseq options in a recipe, by fairseq's own parsers and the systems, before the work starts."""

from __future__ import annotations

import contextlib
import io
import logging
import re
from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path

from fairseq_syntax import register
from fairseq_syntax.errors import SyntaxDataError, meant
from fairseq_syntax.lab.recipes import stages
from fairseq_syntax.lab.recipes.layout import Run
from fairseq_syntax.lab.recipes.plan import SEARCH, Plan
from fairseq_syntax.lab.recipes.reading import read

_OF_BATCHES = ("batch-size", "max-tokens", "fp16")  # how translations are made, not which
_SECTIONS = (("size",), ("train",), ("translate",))  # `train` overrides `size`


def check_options(plan: Plan) -> None:
    """Raise SyntaxDataError for an option of training or translation that fairseq, or a system, does not accept.

    The plugins of the recipe are imported, since they define names and options.
    """
    _check_folder(plan)
    register(list(dict.fromkeys(folder for name in (None, *plan.recipe.systems) for folder in plan.plugins(name))))
    for run in plan.runs[: len(plan.recipe.systems)]:  # each system with its first seed
        # The training and the first translation; the others only differ in test sets or variants.
        for stage in plan.of_run(run)[:2]:
            program = str(stage.commands[0].words[0])
            if program in ("fairseq-train", "fairseq-generate"):
                try:
                    args = _parsed(program, stage.commands[0].arguments()[3:])
                except _RefusedError as refusal:
                    raise _located(refusal.message, refusal.known, program, run, plan) from None
                if program == "fairseq-train":
                    check_names(args, run, plan)
        _check_without_parse(run, plan)


def _check_folder(plan: Plan) -> None:
    """Raise SyntaxDataError if fairseq would read the name of the result folder as several names."""
    if re.search("[:,]", stages.shown(plan.folder)):  # data and checkpoints are split at colons, prefixes at commas
        message = "fairseq takes a colon or a comma in a name for the end of it"
        raise SyntaxDataError(message, path=plan.folder, option="--output", hint="name another folder")


def _check_without_parse(run: Run, plan: Plan) -> None:
    """Raise SyntaxDataError for an option that a translation without a parse would leave out, and so differ in it."""
    for name, variant in plan.variants(run.system).items():
        values = plan.search_options(run, variant) if variant.without_parse else {}
        for key, value in values.items():
            if stages.options({key: value}) and key not in (*SEARCH, *_OF_BATCHES):
                message = f"translate.variants.{name}: {key} does not apply without a parse"
                hint = f"of the options, {', '.join(SEARCH)} do; `{key}: null` in the variant's leaves it out"
                raise SyntaxDataError(message, path=plan.path, hint=hint)


def check_names(args: Namespace, run: Run, plan: Plan) -> None:
    """Check the systems that a model's options name, and the options of these systems, by their declared ranges.

    Raises:
        SyntaxDataError: there is no such system, or an option has an invalid value; it names the line of the recipe
    """
    from fairseq.models import ARCH_MODEL_REGISTRY

    check = getattr(ARCH_MODEL_REGISTRY[args.arch], "check_options", None)
    try:
        if check is not None:
            check(args)
    except SyntaxDataError as error:
        where, line = _place([(error.option or "").lstrip("-")], run, plan)
        message = f"{run.system}: {error.option + ': ' if error.option else ''}{error.message}"
        raise SyntaxDataError(message, path=where, line=line, hint=error.hint) from None


class _RefusedError(Exception):
    """fairseq's parser has rejected options: its message, and the names of all its options."""

    def __init__(self, message: str, known: list[str]) -> None:
        super().__init__(message)
        self.message, self.known = message, known


def _parsed(program: str, arguments: list[str]) -> Namespace:
    """The options of a command, parsed by fairseq. Raises _RefusedError if it rejects them."""
    from fairseq import options

    message = io.StringIO()
    # fairseq's parsers log imports, and exit if an option is invalid.
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stderr(message), contextlib.redirect_stdout(message):
            parser = options.get_training_parser() if program == "fairseq-train" else options.get_generation_parser()
            return options.parse_args_and_arch(parser, input_args=arguments)
    except SystemExit:
        known = [option.lstrip("-") for option in parser._option_string_actions]
        raise _RefusedError(message.getvalue(), known) from None
    finally:
        logging.disable(before)


def _place(names: Iterable[str], run: Run, plan: Plan) -> tuple[Path, int | None]:
    """The file and line of the recipe that has the last of these options of a run."""
    where, line = plan.path, None
    places = read(plan.path).places
    for name in names:
        for section in (*_SECTIONS, *(("systems", run.system, *part) for part in ((), ("options",), *_SECTIONS))):
            where, line = places.get((*section, name), (where, line))
    return where, line


def _located(message: str, known: list[str], program: str, run: Run, plan: Plan) -> SyntaxDataError:
    """The error of a refusal, with the line of the recipe that has the option."""
    # argparse prints: usage, then "PROGRAM: error: argument --arch: invalid choice: 'x' (choose from …)".
    why, _, choices = message.strip().rpartition("error: ")[2].partition(" (choose from ")
    hint, names = None, re.findall(r"--([\w-]+)", why)
    where, line = _place(names, run, plan)
    for name in names:
        wrong, right = (why.split("'")[-2], re.findall(r"[\w.+-]+", choices)) if choices else (name, known)
        hint = hint if wrong in right else meant(wrong, right)
    return SyntaxDataError(f"{program}, {run.system}: {why}", path=where, line=line, hint=hint)

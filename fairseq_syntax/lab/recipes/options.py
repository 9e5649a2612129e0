"""Options of fairseq in a recipe, looked at by fairseq's own parsers before anything is made."""

from __future__ import annotations

import contextlib
import difflib
import io
import logging
import os

from fairseq_syntax import register
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.lab.recipes.layout import Run
from fairseq_syntax.lab.recipes.plan import Plan
from fairseq_syntax.lab.recipes.reading import Document, read
from fairseq_syntax.lab.recipes.stages import Command


def check_options(plan: Plan) -> None:
    """Raises SyntaxDataError for an option of a system's training or translation that fairseq does not take."""
    register()
    document = read(plan.path) if plan.path.exists() else Document({})
    first: dict[str, Run] = {}
    for run in plan.runs:
        first.setdefault(run.system, run)
    for run in first.values():
        for stage in plan.of_run(run)[:2]:
            command = stage.commands[0]
            if command.words[0] in ("fairseq-train", "fairseq-generate"):
                _check(command, run, plan, document)


def _check(command: Command, run: Run, plan: Plan, document: Document) -> None:
    from fairseq import options

    training = command.words[0] == "fairseq-train"
    words = command.arguments()[3:]
    said = io.StringIO()
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            parser = options.get_training_parser() if training else options.get_generation_parser()
            options.parse_args_and_arch(parser, input_args=words)
    except SystemExit:
        pass
    else:
        return
    finally:
        logging.disable(before)
    message = said.getvalue().strip().rpartition("error: ")[2]
    where, line, hint = plan.path, None, None
    known = [one.lstrip("-") for one in parser._option_string_actions]
    for word in message.replace(",", " ").replace("/", " ").split():
        name = word.lstrip("-")
        places = [("systems", run.system, part) for part in ("options", "size", "train", "translate")]
        for keys in (*places, ("train",), ("size",), ("translate",)):
            for key in (name, name.replace("-", "_")):
                place = document.places.get((*keys, key))
                if word.startswith("--") and place is not None:
                    where, line = place
        close = difflib.get_close_matches(name, known, n=1)
        if word.startswith("--") and close and name not in known:
            hint = f"did you mean {close[0]}?"
    of = f"{os.fspath(command.words[0])}, {run.system}" if isinstance(command.words[0], str) else run.system
    raise SyntaxDataError(f"{of}: {message}", path=where, line=line, hint=hint)

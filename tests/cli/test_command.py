"""The ``fairseq-syntax`` command itself: what it imports, and when this package is known to fairseq."""

import argparse
import logging
import re
import shlex
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from matrix_part import in_a_process

import fairseq_syntax
from fairseq_syntax.cli import main
from fairseq_syntax.cli.command import GROUPS, _Help, commands
from fairseq_syntax.runtime.bounds import Range

SUBCOMMANDS = commands()
ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import sys
sys.argv[0] = "bin/fairseq-syntax"
from fairseq_syntax.cli import main
try:
    main()
finally:
    print(sorted({"fairseq", "fairseq_syntax.tasks", "torch"} & set(sys.modules)), file=sys.stderr)
"""


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, cwd=ROOT, timeout=120)


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """As the console script does it; says at the end what has been imported."""
    return python("-c", SCRIPT, *arguments)


@pytest.mark.matrix(5)
@pytest.mark.slow
@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_help_waits_for_nothing(name):
    done = command(name, "--help")
    assert done.stdout.startswith(f"usage: fairseq-syntax {name} ")
    assert done.stderr == "[]\n"


@in_a_process
@pytest.mark.slow
def test_a_subcommand_that_needs_no_model_does_not_wait_for_fairseq(tmp_path):
    (tmp_path / "a").write_text("one line\n")
    done = command("score", "--ref", str(tmp_path / "a"), "--sys", f"A={tmp_path / 'a'}")
    assert "100.00" in done.stdout and done.stderr == "[]\n"


def test_missing_files_are_told_without_waiting_for_fairseq(tmp_path, monkeypatch, capsys):
    """And what was perhaps meant. Of several models, of an ensemble, of data, and of an input."""
    for name in ("model.pt", "test.en", "train.en", "train.de"):
        (tmp_path / name).write_text("a\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fairseq_syntax.cli.register", lambda *args: pytest.fail("fairseq is imported"))
    monkeypatch.setattr("fairseq_syntax.lab.recipes.start.first_recipe", lambda *args, **more: pytest.fail("likewise"))
    of_text = ["-s", "en", "-t", "de", "--valid", "train", "--test", "train"]
    for missing, meant, *argv in (
        ("modle.pt", "model.pt", "translate", "modle.pt"),
        ("modle.pt", "model.pt", "translate", "model.pt,modle.pt"),
        ("modle.pt", "model.pt", "serve", "one=model.pt", "two=modle.pt"),
        ("tset.en", "test.en?", "translate", "model.pt", "--input", "tset.en"),
        ("nowhere", "", "tree", "model.pt", "--data", "nowhere"),
        ("trian.en", "train.en?", "init", "--train", "trian", *of_text),
    ):
        assert main(argv) == 1
        said = capsys.readouterr().err
        assert f"{missing}: " in said and meant in said and said.count("\n") == 1, argv


def test_a_training_in_the_same_process_keeps_its_log(tmp_path, capsys):
    log = logging.getLogger("fairseq")
    level = log.level
    assert main(["translate", str(tmp_path / "model.pt"), "--input", str(tmp_path / "text")]) == 1
    assert log.level == level


@in_a_process
@pytest.mark.slow
def test_a_subcommand_that_needs_fairseq_registers_first(tmp_path):
    for name in ("model.pt", "text"):
        (tmp_path / name).touch()
    done = command("translate", str(tmp_path / "model.pt"), "--input", str(tmp_path / "text"))
    assert "['fairseq', 'fairseq_syntax.tasks', 'torch']" in done.stderr
    assert "DEBUG" not in done.stderr  # fairseq's imports configure logging; registering leaves it alone


@pytest.mark.parametrize("module", ["numpy.core.multiarray", "numpy._core.multiarray"])  # before NumPy 2, and since
def test_checkpoints_may_come_from_another_numpy(tmp_path, module):
    saved = {"count": np.int64(4), "loss": np.float64(2.5), "all": np.arange(3)}
    torch.save(saved, tmp_path / "here.pt")
    named = 0
    with zipfile.ZipFile(tmp_path / "here.pt") as here, zipfile.ZipFile(tmp_path / "there.pt", "w") as there:
        for name in here.namelist():
            actual = re.sub(rb"numpy\._?core\.multiarray\n", module.encode() + b"\n", here.read(name))
            named += actual.count(module.encode())
            there.writestr(name, actual)
    assert named
    loaded = torch.load(tmp_path / "there.pt", weights_only=True)
    assert loaded["count"] == 4 and loaded["loss"] == 2.5 and loaded["all"].tolist() == [0, 1, 2]


def test_version():
    done = command("--version")
    assert done.stdout == f"fairseq-syntax {fairseq_syntax.__version__}\n" and done.stderr == "[]\n"


def test_without_a_subcommand_all_are_listed(capsys):
    assert main([]) == 2
    said = capsys.readouterr()
    assert not said.out and all(f"  {name}" in said.err for name in SUBCOMMANDS)


def options_of(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Every option, those of the figures of ``plot`` as well."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from options_of(below)
        elif action.option_strings and not isinstance(action, argparse._HelpAction):
            yield action


def parser_of(subcommand: str) -> argparse.ArgumentParser:
    """The whole command's parser, with this subcommand alone."""
    parser = argparse.ArgumentParser(prog="fairseq-syntax")
    SUBCOMMANDS[subcommand].COMMAND.add_to(parser.add_subparsers(), subcommand)
    return parser


@pytest.mark.parametrize("subcommand", SUBCOMMANDS)
def test_options_of_several_values_add_up_when_they_are_repeated(subcommand):
    for option in options_of(parser_of(subcommand)):
        if option.nargs in ("+", "*"):
            assert isinstance(option, argparse._ExtendAction), f"{option.option_strings}: the last one wins"
            assert not option.default, f"{option.option_strings}: the default would stay with what is given"


@pytest.mark.parametrize("subcommand", SUBCOMMANDS)
def test_every_number_has_a_range_that_help_shows(subcommand):
    for option in options_of(parser_of(subcommand)):
        assert option.type not in (int, float), option.option_strings
        if isinstance(option.type, Range):
            assert str(option.type) in _Help(prog="")._expand_help(option)
            bounds = option.type
            for text in (
                str(bounds.low - 1),
                "nan",
                "inf",
                "x",
                "" if bounds.high is None else str(bounds.high * 2 + 1),
            ):
                with pytest.raises(argparse.ArgumentTypeError):
                    bounds(text)
            if "--workers" in option.option_strings:
                assert bounds.low == 1


def words_of(example: str) -> list[str]:
    """What the command gets of an example; in one for fairseq's commands, what is between $( and )."""
    example = example.replace("\\\n", " ")
    command = re.findall(r"\$\((.*?)\)", example) or [example]
    words = shlex.split(command[0])
    assert words[0] == "fairseq-syntax"
    return words[1:]


def examples_of(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    """The examples below the help of every subcommand in a parser, with the words that call for that help."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield name, below.epilog.removeprefix("example:")
                yield from ((f"{name} {names}", example) for names, example in examples_of(below))


@pytest.mark.parametrize("subcommand", SUBCOMMANDS)
def test_every_example_is_understood_by_its_parser(subcommand, capsys):
    parser = parser_of(subcommand)
    for name, example in examples_of(parser):
        words = words_of(example)
        assert words[: len(name.split())] == name.split()
        parser.parse_args(words)
        with pytest.raises(SystemExit):
            parser.parse_args([*name.split(), "--help"])
        assert example in capsys.readouterr().out
        for text in example.splitlines():
            assert len(text) <= 118, "with its indentation, a line of the help"
        with pytest.raises(SystemExit):
            parser.parse_args([*words, "--no-such-option"])


COMMAND_IN_TEXT = re.compile(r"(?:fairseq-syntax|python -m fairseq_syntax) ([a-z-]+)( [^\n`|;>#]*)")


@pytest.mark.checkout
def test_documents_and_recipes_use_options_that_there_are():
    options = {name: {o for a in options_of(parser_of(name)) for o in a.option_strings} for name in SUBCOMMANDS}
    wrong = []
    patterns = ("*.md", "docs/*.md", "examples/**/README.md", "examples/**/*.yaml")
    for path in {path for pattern in patterns for path in ROOT.glob(pattern)}:
        if path.name == "CHANGELOG.md":
            continue  # it tells of old names
        for name, rest in COMMAND_IN_TEXT.findall(path.read_text("utf-8").replace("\\\n", " ")):
            if unknown := set(re.findall(r"(?<!\S)--[a-z][a-z-]*", rest)) - options.get(name, set()):
                wrong += [(str(path), name, option) for option in unknown if name in options]
    assert not wrong


def test_errors_name_options_that_there_are():
    """Also where a hint names a subcommand alone: ``parse --merge``."""
    options = {name: {o for a in options_of(parser_of(name)) for o in a.option_strings} for name in SUBCOMMANDS}
    named = re.compile(rf"(?<![\w.-])({'|'.join(SUBCOMMANDS)}) (--[a-z][a-z-]*)")
    package = Path(fairseq_syntax.__file__).parent
    # A wheel also has the programs of the toy corpora, with options of their own.
    modules = [path for path in package.rglob("*.py") if path.parent != package / "toy"]
    actual = {match for path in modules for match in named.findall(path.read_text("utf-8"))}
    assert len(actual) > 10
    assert sorted(" ".join(match) for match in actual if match[1] not in options[match[0]]) == []


def test_help_lists_every_subcommand_in_its_group(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    groups = {block.partition(":")[0]: block for block in capsys.readouterr().out.split("\n\n")}
    for name, module in SUBCOMMANDS.items():
        assert f"\n  {name} " in groups[module.COMMAND.group]
    assert set(GROUPS) <= set(groups)


@pytest.mark.parametrize(
    ("wrong", "meant"), [(["plto"], "plot"), (["score", "--ref", "a", "--sys", "b", "--metric5", "bleu"], "--metrics")]
)
def test_what_is_misspelt_is_answered_by_what_was_perhaps_meant(wrong, meant, capsys):
    with pytest.raises(SystemExit) as end:
        main(wrong)
    assert end.value.code == 2 and f"did you mean {meant}?" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(("name", "continues"), [("run r.yaml", True), ("tree m.pt --input a.conllu", False)])
def test_ctrl_c_says_whether_the_same_command_continues(name, continues, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for file in ("m.pt", "a.conllu"):
        Path(file).touch()

    def interrupted(args: argparse.Namespace) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(SUBCOMMANDS[name.split()[0]], "main", interrupted)
    assert main(name.split()) == 130
    assert len(capsys.readouterr().err.splitlines()) == 1 + continues


def test_module_and_script_are_the_same(capsys):
    assert python("-m", "fairseq_syntax", "--help").stdout == command("--help").stdout
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "fairseq-syntax" in capsys.readouterr().out


def test_the_next_command_can_be_typed_whatever_the_folder_is_called(tmp_path, capsys):
    folder = tmp_path / "my data; it's mine"
    folder.mkdir()
    for lang in ("en", "de"):
        (folder / f"train.{lang}").write_text("a house\n" * 9)
    text, pieces, kept = (str(folder / name) for name in ("train.en", "pieces", "kept"))
    assert main(["segment", "--lang", "en", "--input", text, "--output", pieces, "--train", "words"]) == 0
    assert main(["filter", "--input", text, str(folder / "train.de"), "--output", f"{kept}.en", f"{kept}.de"]) == 0
    segmented, filtered = (
        shlex.split(line) for line in capsys.readouterr().out.splitlines() if line.startswith("next: ")
    )
    assert f"{pieces}/TRAIN" in segmented
    assert f"{kept}.en" in filtered and f"{kept}.en.conllu" in filtered

"""Killed around any commit and given again, every step ends with the files of one undisturbed run."""

from pathlib import Path

import kills
import pytest
import toy_data

from fairseq_syntax.corpus import multitask as doubling
from fairseq_syntax.corpus import segmentation_files


@pytest.fixture(scope="module")
def raw(tmp_path_factory) -> Path:
    """A small parsed corpus."""
    folder = tmp_path_factory.mktemp("raw")
    toy_data.write_raw(folder, {name: lines[:24] for name, lines in toy_data.corpus(seed=2).items()})
    return folder


def run(*arguments: object) -> None:
    assert toy_data.syntax_command(*arguments) == 0


def segment(raw: Path, out: Path) -> None:
    train = ["--train", "subword_nmt", "--vocab-size", 80]
    run("segment", "--lang", "en", "--input", raw / "train.en.conllu", raw / "test.en.conllu", "--output", out, *train)


def segment_text(raw: Path, out: Path) -> None:
    run(
        "segment",
        "--lang",
        "de",
        "--input",
        raw / "test.de",
        "--output",
        out,
        "--train",
        "subword_nmt",
        "--vocab-size",
        60,
    )


def multitask(raw: Path, out: Path) -> None:
    # reads what segment writes; the plain words do as well
    given = raw / "given"
    if not given.exists():
        given.mkdir()
        segment(raw, given)
        segment_lines = (raw / "train.de").read_text(encoding="utf-8")
        (given / "train.de").write_text(segment_lines, encoding="utf-8")
    run("multitask", "-s", "en", "-t", "de", "--train", given / "train", "--output", out)


def filtered(raw: Path, out: Path) -> None:
    pair = ["--input", raw / "train.en.text", raw / "train.de", "--output", out / "en", out / "de"]
    parse = ["--conllu", raw / "train.en.conllu", "--conllu-output", out / "en.conllu"]
    run("filter", *pair, *parse, "--max-length", 12, "--removed", out / "removed.tsv")


def controls(raw: Path, out: Path) -> None:
    run("control", "linear", "--input", raw / "train.en.conllu", "--output", out / "linear.conllu")


@pytest.mark.matrix(1)
@pytest.mark.slow
@pytest.mark.parametrize("step", [segment, segment_text, multitask, filtered, controls], ids=lambda step: step.__name__)
def test_killed_around_any_commit(raw, tmp_path, monkeypatch, step):
    monkeypatch.setattr(segmentation_files, "PART_LINES", 7)
    monkeypatch.setattr(doubling, "PART_LINES", 7)
    given = tmp_path / "raw"
    given.symlink_to(raw)
    least = {"segment": 20, "segment_text": 12, "multitask": 12, "filtered": 8, "controls": 2}[step.__name__]
    assert kills.check_every_kill(lambda out: step(raw, out), tmp_path / "runs") >= least

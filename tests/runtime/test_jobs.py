"""Steps and their parts: done is what has not changed since, and a kill costs the parts that were being made."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime import parts
from fairseq_syntax.runtime.console import partly_done
from fairseq_syntax.runtime.files import atomic_open
from fairseq_syntax.runtime.jobs import RecordedStep, record_path
from fairseq_syntax.runtime.parts import Parts, map_parts, part_spans

LINES = [f"line {number}\n" for number in range(23)]


def shout(lines: list[str]) -> tuple[dict, bytes]:
    return {"letters": sum(map(len, lines)), "process": os.getpid()}, "".join(lines).upper().encode()


def run(step: RecordedStep, source: Path, **options):
    """Writes a text in capitals, in parts of five lines; the note has the letters."""
    lines = source.read_text().splitlines(keepends=True)
    tasks = ((span, lines[slice(*span)]) for span in part_spans(len(lines), 5))

    def merge(made):
        with atomic_open(step.outputs[0]) as file:
            file.writelines(body.decode() for _, body in made)
        return {"letters": sum(note["letters"] for note in made.notes()), "lines": (made.lines,)}

    return map_parts(step, tasks, shout, merge, part_lines=5, total=len(lines), **options)


@pytest.fixture
def source(tmp_path) -> Path:
    path = tmp_path / "source"
    path.write_text("".join(LINES))
    return path


def test_a_step_is_known_by_what_it_is_made_from_and_not_by_names(tmp_path, source):
    step = RecordedStep.of("shout", [tmp_path / "a"], [source], loud=True)
    copy = tmp_path / "copy"
    copy.write_bytes(source.read_bytes())
    assert step.made_from == RecordedStep.of("shout", [tmp_path / "b"], [copy], loud=True).made_from
    others = [
        RecordedStep.of("shout", [tmp_path / "a"], [source], loud=False),
        RecordedStep.of("say", [], [source], loud=True),
    ]
    copy.write_text("another\n")
    others.append(RecordedStep.of("shout", [tmp_path / "a"], [copy], loud=True))
    others.append(RecordedStep.of("shout", [tmp_path / "a"], [source, source], loud=True))
    assert len({step.made_from, *(other.made_from for other in others)}) == 5


def test_outputs_that_swap_their_names_are_made_anew(tmp_path):
    """The step itself is the same, as are the digests by name."""
    stamp, one, two = (tmp_path / name for name in ("stamp", "one", "two"))
    for path in (stamp, one, two):
        path.write_text(path.name)
    step = RecordedStep((stamp, one, two), "what they are made from")
    step.finish()
    assert step.record() is not None
    assert RecordedStep((stamp, two, one), step.made_from).record() is None


def test_outputs_that_are_not_what_was_made_are_named(tmp_path):
    one, _, three = paths = [tmp_path / name for name in ("one", "two", "three")]
    for path in paths:
        path.write_text(path.name)
    step = RecordedStep(tuple(paths), "what they are made from")
    assert step.changed() == [], "nothing is recorded yet"
    step.finish()
    assert step.changed() == []
    one.write_text("eno")
    three.unlink()
    assert step.changed() == [one, three] and step.record() is None
    step.begin()
    assert step.changed() == [], "they are incomplete in any case"


@pytest.mark.parametrize("workers", [1, 2])
def test_parts_are_merged_and_a_step_that_is_done_is_not_made_again(tmp_path, source, workers):
    step = RecordedStep.of("shout", [tmp_path / "out"], [source])
    note, was_done = run(step, source, workers=workers)
    assert (tmp_path / "out").read_text() == "".join(LINES).upper()
    assert note == {"letters": sum(map(len, LINES)), "lines": [len(LINES)]} and not was_done
    before = (tmp_path / "out").stat().st_mtime_ns
    assert run(step, source) == (note, True) and (tmp_path / "out").stat().st_mtime_ns == before
    assert run(step, source, again=True) == (note, False)
    assert sorted(os.listdir(tmp_path)) == [".out.made.json", "out", "source"]


def test_only_parts_that_are_missing_or_damaged_are_made(tmp_path, source, monkeypatch):
    step = RecordedStep.of("shout", [tmp_path / "out"], [source])
    commit, made = Parts.commit, []

    def killed(parts, span, body):
        if len(made) == 3:
            raise KeyboardInterrupt
        made.append(span)
        commit(parts, span, body)

    monkeypatch.setattr(Parts, "commit", killed)
    with pytest.raises(KeyboardInterrupt):
        run(step, source)
    assert made == [(0, 5), (5, 10), (10, 15)] and step.record() is None
    monkeypatch.setattr(Parts, "commit", lambda parts, span, body: (made.append(span), commit(parts, span, body)))
    part = Parts.of(step, 5).path((5, 10))
    part.write_bytes(part.read_bytes()[:-1])
    run(step, source)
    assert made[3:] == [(5, 10), (15, 20), (20, 23)]
    assert (tmp_path / "out").read_text() == "".join(LINES).upper()


def test_what_another_step_made_is_replaced_only_where_that_is_allowed(tmp_path, source):
    step, other = (RecordedStep.of("shout", [tmp_path / "out"], [source], loud=loud) for loud in (True, False))
    run(step, source)
    whole = (tmp_path / "out").read_bytes()
    with pytest.raises(SyntaxDataError) as error:
        run(other, source, replace=False)
    assert error.value.path == tmp_path / "out" and step.record() is not None
    (tmp_path / "out").write_text("mine\n")
    with pytest.raises(SyntaxDataError):
        run(step, source, replace=False)
    assert (tmp_path / "out").read_text() == "mine\n"
    run(other, source)
    assert (tmp_path / "out").read_bytes() == whole and step.record() is None
    other.begin()  # as a run that was killed before the end leaves it
    run(other, source, replace=False)
    assert other.record() is not None


def test_outputs_of_one_name_in_two_folders_and_outputs_without_a_record(tmp_path, source):
    outputs = [tmp_path / "a" / "out", tmp_path / "b" / "out"]
    step = RecordedStep.of("two", outputs, [source])
    with step.making():
        for path in outputs:
            path.write_text(path.parent.name)
        step.finish()
    assert step.record() is not None
    outputs[1].write_text("changed")
    assert step.record() is None
    nowhere = RecordedStep.of("shout", ["/dev/null"], [source])
    assert not run(nowhere, source)[1] and not run(nowhere, source)[1]
    assert not record_path("/dev/null").exists() and not Parts.of(nowhere, 5).folder.exists()


@pytest.mark.parametrize("workers", [1, 2])
def test_the_bar_moves_within_a_part_that_is_made_here(tmp_path, source, monkeypatch, workers):
    places: list[int] = []

    class Bar:
        n = 0

        def update(self, count: int) -> None:
            self.n += count
            places.append(self.n)

    monkeypatch.setattr(parts, "progress", lambda **_: nullcontext(Bar()))
    monkeypatch.setattr(sys.modules[__name__], "shout", shout_slowly)
    run(RecordedStep.of("shout", [tmp_path / "a"], [source]), source, workers=workers)
    assert places == sorted(places) and places[-1] == len(LINES)
    assert (2 in places) == (workers == 1)


def shout_slowly(lines: list[str]) -> tuple[dict, bytes]:
    partly_done(0.5)
    return {"letters": 0}, b""

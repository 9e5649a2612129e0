"""The table of sizes says what a step needs, and not what the program needs that measures it."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "scale.py"

spec = importlib.util.spec_from_file_location("scale", TOOL)
assert spec and spec.loader
scale = importlib.util.module_from_spec(spec)
spec.loader.exec_module(scale)

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux says what a process needs")


def test_memory_is_that_of_the_command(tmp_path):
    """Of the largest of its processes, with what is mapped and without, while this process is larger."""
    here = b"x" * (300 << 20)
    mapped = tmp_path / "file"
    mapped.write_bytes(bytes(60 << 20))
    code = (
        "import mmap, sys, time\n"
        "with open(sys.argv[1], 'rb') as file: pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)\n"
        "read = sum(pages[::4096])\n"
        "own = b'x' * (100 << 20)\n"
        "time.sleep(1)"
    )
    child = [sys.executable, "-c", code, str(mapped)]
    parent = [sys.executable, "-c", "import subprocess, sys; subprocess.run(sys.argv[1:], check=True)", *child]
    seconds, peak, alone = scale.measured(parent, tmp_path / "log", tmp_path / "spent")
    assert seconds > 1 and 160 < peak < 220 and 100 < alone < 130 and len(here) > peak * (1 << 20)


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on(tmp_path, monkeypatch):
    """The steps that were finished are not repeated, and the one that was cut counts all of its attempts."""
    ran, spent = tmp_path / "ran", tmp_path / "10" / "spent"
    fails = tmp_path / "fails"
    fails.touch()
    note = f"import sys; open({str(ran)!r}, 'a').write(sys.argv[1])"
    fail = f"{note}; import os; sys.exit(os.path.exists({str(fails)!r}))"
    steps = [("filter", note), ("", note), ("parse", fail), ("segment", note)]
    commands = [(name, [sys.executable, "-c", code, name[:1] or "-"]) for name, code in steps]
    monkeypatch.setattr(scale, "steps", lambda folder, workers: iter(commands))
    monkeypatch.setattr(scale, "circumstances", dict)
    monkeypatch.setattr(scale, "WORDS", 30)  # spelling them takes longer than all else
    rows = []
    with pytest.raises(subprocess.CalledProcessError):
        rows.extend(scale.run(10, tmp_path, 1))
    spent.write_text("[100.0, 5000.0, 4000.0]")  # what a minute's count leaves behind
    fails.unlink()
    rows = list(scale.run(10, tmp_path, 1))
    assert ran.read_text() == "f-pps" and [row["step"] for row in rows] == ["parse", "segment"]
    assert 100 < rows[0]["seconds"] < 200 and (rows[0]["mb"], rows[0]["own_mb"]) == (5000, 4000)
    assert rows[1]["seconds"] < 100 and not spent.parent.exists()


def test_a_table_without_some_rows(tmp_path):
    row = {"seconds": 1.0, "mb": 20, "own_mb": 10, "workers": 1, "cores": 2, "device": "x", "python": "3.11"}
    rows = [row | {"step": "filter", "pairs": 10}, row | {"step": "filter", "pairs": 2000, "note": "busy"}]
    page = scale.table([*rows, row | {"step": "parse", "pairs": 10}])
    assert "| filter | 1 s, 20 MB (10) | 1 s, 20 MB (10) |\n| parse | 1 s, 20 MB (10) | not run |" in page
    assert page.endswith("2,000 pairs: 2 cores (x), 1 worker(s), Python 3.11; busy.\n")


def test_a_run_of_no_size_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["scale.py", "--work", str(tmp_path)])
    with pytest.raises(SystemExit):
        scale.main()
    assert "--pairs" in capsys.readouterr().err

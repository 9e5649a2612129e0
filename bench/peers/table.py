"""The systems that are compared, the records of their measures, and the table on the page of results."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_syntax.runtime.files import atomic_open, read_lines

BENCH = Path(__file__).resolve().parents[1]
RECORDS, PAGE = BENCH / "peers.jsonl", BENCH.parent / "docs" / "results.md"
BEGIN, END = "<!-- by bench/peers -->\n", "<!-- to here -->\n"


class System(NamedTuple):
    """A row of the table: its name there, the program beside this one that runs it, and what pip is to install."""

    title: str
    program: str
    packages: tuple[str, ...] = ()


SYSTEMS = {
    "plain": System("plain Transformer, our loss", "of_fairseq.py"),
    "pascal": System("PASCAL", "of_fairseq.py"),
    "supervised_heads": System("supervised heads", "of_fairseq.py"),
    "fairseq": System("fairseq", "of_fairseq.py"),
    # What a toolkit imports without naming it among its requirements is installed as well.
    "eole": System("eole", "of_eole.py", ("eole", "aiohttp")),
    "huggingface": System("Hugging Face transformers", "of_huggingface.py", ("transformers", "accelerate")),
    "joeynmt": System("Joey NMT", "of_joeynmt.py", ("joeynmt", "importlib_metadata")),
}


def record(
    name: str, rounds: Sequence[Mapping[str, Any]], about: Mapping[str, Any], missing: str | None = None
) -> dict[str, Any]:
    """A line of ``peers.jsonl``: of each measure the median over rounds, and of times the rounds, too.

    Args:
        rounds: what a system measured: of ``training`` target ``tokens``, processor ``seconds`` and the peak ``memory``
            in bytes, of ``search`` the last two
        about: of the run, kept with the record
        missing: why the system could not be measured
    """
    if missing:
        return {"system": name, **about, "missing": missing}
    training, search = ([one[work] for one in rounds] for work in ("training", "search"))
    speeds = [round(one["tokens"] / one["seconds"], 1) for one in training]
    seconds = [round(one["seconds"], 2) for one in search]
    return {
        "system": name,
        **about,
        "version": training[0]["version"],
        "torch": training[0]["torch"],
        "tokens_per_second": statistics.median(speeds),
        "tokens_per_second_of_rounds": speeds,
        "tokens_per_update": round(statistics.mean(one["tokens"] for one in training) / about["updates"]),
        "training_mb": round(statistics.median(one["memory"] for one in training) / 2**20),
        "search_seconds": statistics.median(seconds),
        "search_seconds_of_rounds": seconds,
        "search_mb": round(statistics.median(one["memory"] for one in search) / 2**20),
    }


def records(path: Path = RECORDS) -> list[dict[str, Any]]:
    """The records of the last run."""
    rows = [json.loads(line) for line in read_lines(path)]
    return [row for row in rows if row["run"] == rows[-1]["run"]]


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The records of a run as a table, with the lowest and the highest round, and a line on where it was run."""
    about = rows[0]
    lines = [
        f"| system | version | target tokens a second | of fairseq's | tokens an update | memory | "
        f"search of {about['sentences']} sentences | memory |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    measured = {row["system"]: row for row in rows if "missing" not in row}
    for row in rows:
        title = SYSTEMS[row["system"]].title
        if "missing" in row:
            lines.append(f"| {title} | – | {row['missing'].replace('|', '/')} | | | | | |")
            continue
        speeds, plain = (of.get("tokens_per_second_of_rounds", []) for of in (row, measured.get("fairseq", {})))
        # Of each round: the two are measured minutes apart, and the rounds at other loads of the machine.
        ratios = [one / other for one, other in zip(speeds, plain)]
        cells = [
            title,
            row["version"],
            f"{row['tokens_per_second']:,.0f}{spread(speeds, 0)}",
            f"{statistics.median(ratios):.2f}{spread(ratios, 2)}" if ratios else "–",
            f"{row['tokens_per_update']:,}",
            f"{row['training_mb']:,} MB",
            f"{row['search_seconds']:.1f} s{spread(row['search_seconds_of_rounds'], 1)}",
            f"{row['search_mb']:,} MB",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    torch = next((row["torch"] for row in measured.values()), "not measured")
    commits = " and ".join(dict.fromkeys(str(row["commit"]) for row in rows))
    lines += [
        "",
        f"{about['device']}, one thread, PyTorch {torch}; rounds: {about['rounds']}, of {about['updates']} updates "
        f"after {about['warmup']}; {about['date']}; commit {commits}; load {about['load']} on {about['cores']} cores",
    ]
    return "\n".join(lines) + "\n"


def spread(values: Sequence[float], digits: int) -> str:
    """The lowest and the highest of several values, in brackets."""
    return f" ({min(values):,.{digits}f} to {max(values):,.{digits}f})" if len(set(values)) > 1 else ""


def renew(page: Path, made: str) -> None:
    """Put a table into a page, between its marks."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    with atomic_open(page) as file:
        file.write(f"{before}{BEGIN}{made}{END}{after}")

"""A server under load: many clients at a time against one that waits for each answer, every answer checked.

``python -m bench serve/`` takes an untrained PASCAL model and sends parses. By hand, for longer, with a model and a
parser of one's own::

    python -m bench.serve --clients 200 --seconds 60 --model MODEL --model-dir PARSER --text corpus/test.src
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from bench.corpus import LABELS, model, task
from bench.harness import measure, record, temporary_folder
from fairseq_syntax.corpus.conllu import ParsedLine, Token, format_conllu
from fairseq_syntax.use.translator import Translator

PAIRS, CLIENTS = 3, 64


@dataclass
class Load:
    """What some clients saw: answers that were right, wrong and lost, and the seconds that each right one took."""

    seconds: float
    right: int = 0
    wrong: list[Any] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        """Figures for a report."""
        found = sorted(self.latencies)
        return {
            "answers": self.right,
            "wrong": len(self.wrong),
            "lost": len(self.lost),
            "per_second": round(self.right / self.seconds, 2),
            "p50_seconds": round(statistics.median(found), 3) if found else None,
            "p95_seconds": round(found[int(0.95 * len(found))], 3) if found else None,
        }


async def load(port: int, requests: list[tuple[bytes, str]], clients: int, seconds: float) -> Load:
    """Clients that send one request after another for some seconds, each on a connection of its own.

    Args:
        requests: body and the translation that is right
    """
    found = Load(seconds)
    begin = time.perf_counter()

    async def client(number: int) -> None:
        rng = random.Random(number)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while time.perf_counter() - begin < seconds:
            body, expected = rng.choice(requests)
            sent = time.perf_counter()
            writer.write(_head(body) + body)
            try:
                status, answer = await _answer(reader)
            except (OSError, asyncio.IncompleteReadError) as error:
                found.lost.append(repr(error))
                return
            if status != 200:
                found.lost.append(f"{status} {answer!r}")
            elif (said := answer["translations"][0]["text"]) != expected:
                found.wrong.append((said, expected))
            else:
                found.right += 1
                found.latencies.append(time.perf_counter() - sent)
        writer.close()

    await asyncio.gather(*(client(i) for i in range(clients)))
    found.seconds = time.perf_counter() - begin
    return found


async def _answer(reader: asyncio.StreamReader) -> tuple[int, Any]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    length = int(head.split("content-length:")[1].split("\r\n")[0])
    return int(head.split()[1]), json.loads(await reader.readexactly(length))


@contextmanager
def server(path: str, *options: str) -> Iterator[tuple[int, int]]:
    """``fairseq-syntax serve model=MODEL``; its port and process id. It must end by itself when it is told to."""
    command = [sys.executable, "-m", "fairseq_syntax", "serve", f"model={path}", *options, "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line.startswith("http"):
            raise RuntimeError("the server does not start")
        yield int(line.rstrip("/\n").rsplit(":", 1)[1]), process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)


def resident(pid: int) -> float:
    """MB of memory that a process has (Linux)."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def _untrained(dim: int = 256, layers: int = 3, most: int = 30) -> str:
    """A checkpoint of a PASCAL model of some size, whose translations are as long as they may be."""
    sizes = [
        f"--{side}-{name}"
        for side in ("encoder", "decoder")
        for name in (f"embed-dim={dim}", f"ffn-embed-dim={4 * dim}", f"layers={layers}")
    ]
    built, args = model(task(), "pascal_transformer", *sizes, f"--max-target-positions={most}")
    path = str(temporary_folder() / "model.pt")
    history = {"criterion_name": "", "optimizer_name": "", "lr_scheduler_state": {}, "num_updates": 0}
    extra = {"epoch": 1, "train_iterator": {"epoch": 1, "iterations_in_epoch": 0}}
    state = {"args": args, "model": built.state_dict(), "optimizer_history": [history], "extra_state": extra}
    torch.save({**state, "last_optimizer_state": None}, path)
    return path


def _sentences(count: int, length: int | None = None) -> list[str]:
    """Random words with random trees, in CoNLL-U: so many, or about 13."""
    rng = random.Random(1)
    lines = []
    for _ in range(count):
        n = length or max(2, round(rng.gauss(13, 3)))
        words = [f"w{rng.randrange(6000)}" for _ in range(n)]
        line = ParsedLine(words=words, heads=[0, *(rng.randrange(i) for i in range(1, n))], sentences=[(0, n)])
        line.deprels, line.upos, line.xpos = [rng.choice(LABELS) for _ in words], ["T1"] * n, ["T1"] * n
        line.tokens = [Token(word, True, i, i, i) for i, word in enumerate(words)]
        lines.append(format_conllu(line, comments=False))
    return lines


def _requests(path: str, parser: str | None, text: list[str] | None) -> list[tuple[bytes, str]]:
    """Bodies, and what the model says of them offline."""
    from fairseq_syntax.corpus.conllu import parse_conllu_block

    translator = Translator.load(path, parser_dir=parser, parser_lang="en" if parser else "")
    if text is None:
        sentences = _sentences(200)
        said = map(str, translator.translate([parse_conllu_block(sentence) for sentence in sentences]))
        return [(json.dumps({"conllu": s}).encode(), t) for s, t in zip(sentences, said)]
    said = map(str, translator.translate(text))
    return [(json.dumps({"text": s}).encode(), t) for s, t in zip(text, said)]


@measure(f"serve/throughput@{CLIENTS}")
def throughput() -> None:
    """Answers a second for 64 clients at a time against one at a time."""
    run(None, None, None, clients=CLIENTS, seconds=8.0, pairs=PAIRS)


@measure("serve/beside")
def beside() -> None:
    """The seconds of a short request beside a large one, to the same model and to another; of what comes after the
    large one's deadline, until the server is idle; and of SIGTERM beside one, with a short request just accepted.

    The large one is 20 texts of 120 words at beam 16 to a model that repeats itself, the worst case. The other model
    ends a short translation after 15 pieces.
    """
    timeout, grace = 20.0, 10.0
    path, other = _untrained(dim=512, layers=4, most=1024), _untrained(dim=512, layers=4, most=15)
    large = json.dumps({"conllu": "\n".join(_sentences(20, 120)), "beam": 16}).encode()
    short = {"conllu": _sentences(1, 8)[0], "beam": 4}
    names = ("model", "other")
    seconds: dict[str, list[float]] = {f"{name}{how}": [] for name in names for how in (" alone", "")}
    detail: dict[str, Any] = {"load_average": os.getloadavg()[0]}
    options = ["--parser", "none", "--timeout", f"{timeout:g}", "--grace", f"{grace:g}"]
    with server(path, f"other={other}", *options) as (port, pid):
        for _ in range(2):
            for name in names:
                seconds[f"{name} alone"].append(_ask(port, {**short, "model": name}))
        begin = time.perf_counter()
        with _sent(port, large) as client:
            time.sleep(2.0)
            for _ in range(5):
                for name in names:
                    seconds[name].append(_ask(port, {**short, "model": name}))
                    time.sleep(0.2)
            detail["large_one"] = client.recv(65536).split(b"\r\n")[0].decode()
            if " 504 " not in detail["large_one"]:
                raise SystemExit(f"the large request was to run until its deadline: {detail['large_one']}")
            detail["large_one_seconds"] = round(time.perf_counter() - begin, 2)
        begin = time.perf_counter()
        while _processor_seconds(pid) < _processor_seconds(pid, after=0.1) - 0.02:
            pass
        detail["idle_after_seconds"] = round(time.perf_counter() - begin - 0.1, 2)
        with _sent(port, large), _sent(port, json.dumps({**short, "model": "other"}).encode(), after=2.0) as client:
            time.sleep(0.05)
            begin = time.perf_counter()
            os.kill(pid, signal.SIGTERM)
            detail["accepted_before_sigterm"] = client.recv(65536).split(b"\r\n")[0].decode()
            while Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z":  # until it is waited for
                time.sleep(0.02)
        detail["sigterm_seconds"] = round(time.perf_counter() - begin, 2)
    detail |= {f"{name}_seconds": [round(s, 3) for s in found] for name, found in seconds.items()}
    print(json.dumps(detail, indent=1))
    record("serve/beside", seconds["model"], unit="seconds of a short request beside a large one", detail=detail)


@contextmanager
def _sent(port: int, body: bytes, after: float = 0.0) -> Iterator[socket.socket]:
    """A connection with a request that is not answered yet, sent after some seconds."""
    time.sleep(after)
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        client.sendall(_head(body) + body)
        yield client


def _processor_seconds(pid: int, after: float = 0.0) -> float:
    """What a process has used of the processors, in some seconds from now (Linux)."""
    time.sleep(after)
    ticks = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def _ask(port: int, body: dict[str, Any]) -> float:
    """Seconds to an answer, which must be a translation."""
    data = json.dumps(body).encode()
    begin = time.perf_counter()
    with _sent(port, data) as client:
        answer = client.recv(65536)
    if not answer.startswith(b"HTTP/1.1 200"):
        raise SystemExit(f"no translation: {answer[:300]!r}")
    return time.perf_counter() - begin


def _head(body: bytes) -> bytes:
    lines = ["POST /translate HTTP/1.1", "host: localhost", "content-type: application/json"]
    return "\r\n".join([*lines, f"content-length: {len(body)}", "", ""]).encode()


def run(
    path: str | None, parser: str | None, text: list[str] | None, *, clients: int, seconds: float, pairs: int
) -> None:
    """Measure and record; where an answer was wrong or lost, it ends the program instead."""
    about = "given" if path else "untrained"
    path = path or _untrained()
    requests = _requests(path, parser if text else None, text)
    options = ["--model-dir", parser, "--lang", "en"] if parser and text else ["--parser", "none"]
    ratios, many, one, memory = [], [], [], []
    with server(path, *options, "--timeout", "120") as (port, pid):
        asyncio.run(load(port, requests, 8, 3.0))  # warm
        memory.append(resident(pid))
        for _ in range(pairs):
            one.append(asyncio.run(load(port, requests, 1, seconds)))
            many.append(asyncio.run(load(port, requests, clients, seconds)))
            memory.append(resident(pid))
            if bad := [found for found in (many[-1], one[-1]) if found.wrong or found.lost]:
                raise SystemExit(f"answers were wrong or lost: {[(found.wrong[:3], found.lost[:3]) for found in bad]}")
            ratios.append((many[-1].right / many[-1].seconds) / (one[-1].right / one[-1].seconds))
    detail = {
        "clients": clients,
        "model": about,
        "seconds": seconds,
        "together": [found.summary() for found in many],
        "one_by_one": [found.summary() for found in one],
        "resident_mb": [round(m) for m in memory],
        "input": "text, parsed by the server" if text else "CoNLL-U",
    }
    # A measure of its own where the server parses too: nobody takes it for that of translation alone.
    name = f"serve/{'text' if text else 'throughput'}@{clients}"
    record(name, ratios, unit="answers a second, many clients over one", detail=detail)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--pairs", type=int, default=1)
    parser.add_argument("--model", help="a checkpoint")
    parser.add_argument("--model-dir", help="of the parser's models")
    parser.add_argument("--text", type=Path, help="a sentence a line; without it, CoNLL-U is sent")
    args = parser.parse_args()
    text = args.text.read_text(encoding="utf-8").splitlines()[:200] if args.text else None
    run(args.model, args.model_dir, text, clients=args.clients, seconds=args.seconds, pairs=args.pairs)
    return 0


if __name__ == "__main__":
    sys.exit(main())

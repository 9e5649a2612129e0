"""Damages files in many ways, and says what became of each: told, no harm, or (never) silent or a raw traceback.

    python tools/damage.py stores [--count 3000] [--seed 1]
    python tools/damage.py data [--count 620]
    python tools/damage.py models [--count 500]

``data`` damages a data directory, and does with it what training does, and what ``inspect --check`` does; ``models``
damages checkpoints and exported folders, and translates. All were loaded whole before. A damage is silent if nothing
is said and the batches, the pieces of raw text or the translations are others than those of the whole files, or if the
check finds nothing wrong where training does.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "helpers")]

from bench.corpus import LABELS, random_sentence  # noqa: E402
from fairseq_syntax.corpus.store.flat import FlatSyntax  # noqa: E402
from fairseq_syntax.corpus.store.reader import SyntaxStore  # noqa: E402
from fairseq_syntax.corpus.store.writer import write_sentences  # noqa: E402
from fairseq_syntax.errors import SyntaxDataError  # noqa: E402
from fairseq_syntax.runtime.manifest import COMPARED  # noqa: E402

TOLD, HARMLESS, SILENT, RAW = OUTCOMES = ("told", "harmless", "silent", "raw")
CHECK = "inspect --check"
REMEMBERED_AFTER = 2.5  # seconds after a file's last change, from which on its comparison is remembered
KINDS = ("truncated", "a bit", "several bits", "a byte", "zeros", "two blocks swapped", "a block doubled", "longer")


def damaged(raw: bytes, kind: str, rng: random.Random) -> bytes:
    """The file with damage of a kind."""
    changed, size = bytearray(raw), len(raw)
    at = rng.randrange(size)
    if kind == "truncated":
        del changed[at:]
    elif kind in ("a bit", "several bits"):
        for _ in range(1 if kind == "a bit" else rng.randint(2, 20)):
            changed[rng.randrange(size)] ^= 1 << rng.randrange(8)
    elif kind == "a byte":
        changed[at] = rng.randrange(256)
    elif kind == "zeros":
        length = min(rng.choice((8, 64, 512, 4096)), size - at)
        changed[at : at + length] = bytes(length)
    elif kind == "longer":
        changed += rng.randbytes(rng.randint(1, 200))
    else:
        length = rng.choice((8, 64, 512))
        one, other = (rng.randrange(max(1, size - length)) for _ in range(2))
        first, second = raw[one : one + length], raw[other : other + length]
        changed[one : one + len(second)] = second
        if kind == "two blocks swapped":
            changed[other : other + len(first)] = first
    return bytes(changed)


def numbers(flat: FlatSyntax[np.ndarray]) -> list:
    """All that a batch holds, to be compared."""
    columns = [value for name, value in vars(flat).items() if name != "arcs"]
    columns += vars(flat.arcs).values() if flat.arcs is not None else ()
    return [column.tolist() if isinstance(column, np.ndarray) else column for column in columns]


def outcome(run: Callable[[], object], right: object) -> str:
    """What becomes of a run on damaged files whose result is ``right`` on whole ones."""
    try:
        return HARMLESS if run() == right else SILENT
    except SyntaxDataError:
        return TOLD
    except Exception as error:
        print(f"  {type(error).__name__}: {str(error)[:150]}", file=sys.stderr)
        return RAW


def damage_stores(count: int, seed: int, folder: Path) -> dict[str, Counter[str]]:
    """What became of so many damaged stores, by the kind of damage."""
    rng = random.Random(seed)
    found: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
    for number in range(count):
        if number % 500 == 0:  # another store now and then: with arcs or without, of one chunk or several
            with_arcs = number % 1000 == 0
            path = folder / "whole.arrow"
            sentences = [random_sentence(rng, rng.randint(1, 20)) for _ in range(40)]
            for sentence in sentences:
                sentence.arcs = sentence.arcs if with_arcs else None
            metadata = {"labels": {"deprel": ["<unk>", *LABELS]}, "mass": 0.5}
            write_sentences(path, sentences, metadata, with_arcs=with_arcs, chunk=rng.choice((16, 64)))
            whole, ids, raw = SyntaxStore(path), np.arange(40), path.read_bytes()
        copy = folder / "damaged.arrow"

        def read(path: Path, with_arcs: bool = with_arcs) -> object:
            store = SyntaxStore(path)
            store.verify()
            return numbers(store.fetch(np.arange(40), arcs=with_arcs)), store.metadata

        kind = KINDS[number % len(KINDS)]
        copy.write_bytes(damaged(raw, kind, rng))
        right = numbers(whole.fetch(ids, arcs=with_arcs)), whole.metadata
        found[kind][outcome(partial(read, copy), right)] += 1
        copy.unlink()
    return found


# ------------------------------------------------------------------------------------ folders of several files


def damage_folder(folder: Path, names: Sequence[str], number: int, rng: random.Random) -> str:
    """Damages one of the files of a folder; says how. Each file meets each kind in turn."""
    name = names[number % len(names)]
    path = folder / name
    kind = (*KINDS, "missing", "empty", "of another file", "two lines swapped")[number // len(names) % (len(KINDS) + 4)]
    raw = path.read_bytes()
    if kind == "missing":
        path.unlink()
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "of another file":  # of its kind, where there is one: another split, or the other side
        alike = [n for n in names if n != name and n.rsplit(".", 1)[1] == name.rsplit(".", 1)[1]] or list(names)
        path.write_bytes((folder / rng.choice(alike)).read_bytes())
    elif kind == "two lines swapped" and name.endswith((".txt", ".json")):
        rows = raw.splitlines(keepends=True)
        one, other = rng.randrange(len(rows)), rng.randrange(len(rows))
        rows[one], rows[other] = rows[other], rows[one]
        path.write_bytes(b"".join(rows))
    else:
        path.write_bytes(damaged(raw, kind if kind in KINDS else "a byte", rng))
    return kind


def damage_in_turn(
    whole: Path, names: Sequence[str], count: int, seed: int, uses: dict[str, Callable[[Path], object]]
) -> dict[str, Counter[str]]:
    """What became of so many damages to a folder that had been in use before, by how it is used.

    One folder is damaged and mended in turn, so that what an earlier use remembers of its files is there to be wrong.
    """
    rng = random.Random(seed)
    time.sleep(REMEMBERED_AFTER)
    right = {use: run(whole) for use, run in uses.items()}
    became: dict[str, Counter[str]] = {use: Counter() for use in uses}
    for number in range(count):
        name = names[number % len(names)]
        before = (whole / name).read_bytes()
        kind = damage_folder(whole, names, number, rng)
        same = (whole / name).is_file() and (whole / name).read_bytes() == before
        results = {use: HARMLESS if same else outcome(partial(run, whole), right[use]) for use, run in uses.items()}
        for use, result in results.items():
            if use == CHECK and result == HARMLESS and set(results.values()) != {HARMLESS}:
                result = SILENT  # it promises to find what another use finds
            became[use][result] += 1
            if result in (SILENT, RAW):
                print(f"{use}: {name}, {kind}: {result}", file=sys.stderr)
        (whole / name).write_bytes(before)
    if any(outcome(partial(run, whole), right[use]) != HARMLESS for use, run in uses.items()):
        raise SystemExit(f"{whole}: is mended, and not as before")
    return became


def batches_of(data: Path) -> object:
    """All that training and fairseq-interactive take from a data directory."""
    from argparse import Namespace

    from fairseq import tasks

    values = {"source_lang": "en", "target_lang": "de", "dataset_impl": None, "train_subset": "train", "seed": 1}
    values["required_seq_len_multiple"] = 1
    task = tasks.setup_task(Namespace(task="syntax_translation", data=str(data), **values))
    task.add_need("source", frozenset({"tree", "arcs"}))
    found: list[object] = [task.segmenter("source").encode_text("the dog"), task.segmenter("target").decode("▁a b")]
    for split in ("train", "valid"):
        task.load_dataset(split, combine=True)
        dataset = task.dataset(split)
        for number in range(len(dataset)):
            batch = dataset.collater([dataset[number]])
            found.append([batch["net_input"]["src_tokens"].tolist(), batch["target"].tolist()])
            found.append(batch["net_input"]["src_syntax"]["packed"].tolist())
    return [*found, task.labels("source")]


def checked(data: Path) -> object:
    """Whether ``inspect --check`` finds nothing."""
    from fairseq_syntax.cli import main as command

    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        if command(["inspect", str(data), "--check"]):
            raise SyntaxDataError("is wrong", path=data)
    return "right"


def damage_data(count: int, seed: int, folder: Path) -> dict[str, Counter[str]]:
    """What became of so many damaged data directories, in training and in the check."""
    import toy_data

    data = toy_data.make(folder).data
    names = sorted(p.name for p in data.iterdir() if not p.name.startswith((".", "test")) and p.suffix != ".log")
    names.append(COMPARED)
    return damage_in_turn(data, names, count, seed, {"training": batches_of, CHECK: checked})


def damage_models(count: int, seed: int, folder: Path) -> dict[str, Counter[str]]:
    """What became of so many damaged checkpoints and exported folders, in translating with them."""
    import toy_data
    from untrained import untrained

    from fairseq_syntax.corpus.conllu import flatten
    from fairseq_syntax.use.export import export
    from fairseq_syntax.use.translator import Translator

    toy = toy_data.make(folder)
    toy_data.train(toy.data, folder / "checkpoints" / "trained", max_epoch=2)
    lines = [flatten(line) for line in toy.lines["test"][:2]]
    found: dict[str, Counter[str]] = {}

    def translate(path: Path, data: Path | None = None) -> object:
        best = [t[0] for t in Translator.load(path, data, device="cpu", max_len_b=9).translations(lines)]
        return [(t.text, t.pieces, round(t.score, 5)) for t in best]

    whole = folder / "checkpoints" / "trained"
    uses = {"checkpoint": lambda path: translate(path / "checkpoint_last.pt", toy.data)}
    found |= damage_in_turn(whole, ["checkpoint_last.pt"], count // 5, seed, uses)
    labels = untrained(toy.data, "sennrich_haddow_transformer", "--label-features", "deprel:4")
    exports = {"fairseq": untrained(toy.data, "transformer"), "ctranslate2": labels}
    for kind, loaded in exports.items():
        whole = folder / "exports" / kind
        whole.parent.mkdir(exist_ok=True)
        export(loaded, kind, whole)
        names = sorted(path.name for path in whole.iterdir() if path.name != "README.md")
        found |= damage_in_turn(whole, names, 2 * count // 5, seed, {f"export for {kind}": translate})
    return found


WHAT = {"stores": (damage_stores, 3000), "data": (damage_data, 620), "models": (damage_models, 500)}


def main() -> int:
    """Try, and print the table; 1 if anything passed in silence, or as a raw traceback."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=WHAT)
    parser.add_argument("--count", type=int, metavar="N")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    damage, usual = WHAT[args.what]
    if args.what != "stores":
        import fairseq_syntax

        fairseq_syntax.register()
        logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        found = damage(args.count or usual, args.seed, Path(folder))
    total: Counter[str] = sum(found.values(), Counter())
    for kind, counts in [*found.items(), ("all", total)]:
        print(f"{kind:22}" + " ".join(f"{counts[name]:5} {name}" for name in OUTCOMES))
    return 1 if total[SILENT] or total[RAW] else 0


if __name__ == "__main__":
    sys.exit(main())

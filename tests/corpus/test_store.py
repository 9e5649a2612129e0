"""The store gives back what was put in, from any process, and a file that is not whole is never taken for one."""

import json
import multiprocessing
import os
import pickle
import random
import subprocess
import sys
import textwrap
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import torch
from data_errors import data_error
from full_disk import files_no_larger_than
from hypothesis import given, settings
from hypothesis import strategies as st
from matrix_part import examples
from random_parses import numbers

from fairseq_syntax.corpus.store import store_format
from fairseq_syntax.corpus.store.chunk import pack_chunk
from fairseq_syntax.corpus.store.flat import ARC_FIELDS, WORD_FIELDS
from fairseq_syntax.corpus.store.memory import MemoryStore
from fairseq_syntax.corpus.store.reader import SyntaxStore
from fairseq_syntax.corpus.store.store_format import StoredSentence
from fairseq_syntax.corpus.store.writer import write_sentences, write_store
from fairseq_syntax.data.dataset import SideSyntax, check_against_tokens
from fairseq_syntax.data.directory import file_fingerprint
from fairseq_syntax.data.labels import LabelInventory
from fairseq_syntax.data.packing import unpack
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.manifest import sealed

LABELS = {"deprel": ["<unk>", "a"], "upos": ["<unk>"], "xpos": ["<unk>"]}


def sentence(rng: random.Random, arcs: bool, max_words: int = 6) -> StoredSentence:
    """Anything that the format holds: empty lines, and words without arcs, among them."""
    n = rng.randint(0, max_words)
    return StoredSentence(
        pieces=[rng.choice([1, 1, 2, 300]) for _ in range(n)],
        head=[rng.randrange(n) for _ in range(n)],
        deprel=[rng.choice([0, 1, 1023]) for _ in range(n)],
        upos=[rng.choice([0, 63]) for _ in range(n)],
        xpos=[rng.randrange(1000) for _ in range(n)],
        arcs=[
            (w, h, rng.randrange(100), rng.random()) for w in range(n) for h in range(n) if arcs and rng.random() < 0.5
        ]
        if arcs
        else None,
    )


def write(path, sentences, with_arcs=False, chunk=store_format.SENTENCES_PER_CHUNK, **metadata):
    write_sentences(path, sentences, {"labels": LABELS, **metadata}, with_arcs=with_arcs, chunk=chunk)
    return SyntaxStore(path)


def by_loops(sentences, ids, arcs):
    """What a batch must hold, appended sentence by sentence."""
    of_arcs = [f"arcs.{name}" for name in ARC_FIELDS] if arcs else []
    flat = {name: [] for name in ("n_pieces", "n_words", *WORD_FIELDS, *of_arcs)}
    tree = expanded = 0
    for s in (sentences[i] for i in ids):
        flat["n_pieces"].append(sum(s.pieces))
        flat["n_words"].append(len(s.pieces))
        for name in WORD_FIELDS:
            flat[name] += getattr(s, name)
        for w, h in enumerate(s.head):
            tree += s.pieces[w] * s.pieces[h]
        if arcs:
            of_sentence = sorted(s.arcs or [])
            flat["arcs.n_arcs"].append(len(of_sentence))
            for dependent, head, label, p in of_sentence:
                for name, value in zip(of_arcs[1:], (dependent, head, label, p)):
                    flat[name].append(value)
                expanded += s.pieces[dependent] * s.pieces[head]
    return flat, tree, expanded


def check(actual, sentences, ids, arcs):
    flat, tree, expanded = by_loops(sentences, ids, arcs)
    for name, expected in flat.items():
        array = np.asarray(attrgetter(name)(actual))
        assert array.tolist() == (pytest.approx(expected, abs=8e-6) if name == "arcs.prob" else expected), name
        whole = np.int64 if isinstance(actual.head, torch.Tensor) else np.int32  # packed ones are widened at once
        assert array.dtype == (np.float32 if name == "arcs.prob" else whole)
    assert actual.n_tree_arcs == tree
    assert (actual.arcs is not None) == arcs
    if arcs:
        assert actual.arcs.n_piece_arcs == expanded


@settings(max_examples=examples(60))
@given(
    seed=st.integers(0, 2**32),
    n=st.integers(1, 30),
    chunk=st.sampled_from([1, 2, 3, 7, 100]),
    arcs=st.booleans(),
)
def test_round_trip(tmp_path_factory, seed, n, chunk, arcs):
    """Any ids in any order, repeated or not, over the seams of the chunks; from memory as from the file."""
    rng = random.Random(seed)
    sentences = [sentence(rng, arcs) for _ in range(n)]
    store = write(tmp_path_factory.mktemp("store") / "a.arrow", sentences, arcs, chunk)
    assert len(store) == n and store.has_arcs == arcs and store.labels == LABELS
    assert store.metadata["words"] == sum(len(s.pieces) for s in sentences)
    assert store.metadata["pieces"] == sum(sum(s.pieces) for s in sentences)
    assert store.metadata["arcs"] == (sum(len(s.arcs) for s in sentences) if arcs else None)
    for ids in (list(range(n)), [rng.randrange(n) for _ in range(rng.randint(1, 12))], [n - 1, 0, n - 1]):
        for wanted in {arcs, False}:
            check(store.fetch(np.array(ids), arcs=wanted), sentences, ids, wanted)
            check(MemoryStore(sentences).fetch(np.array(ids), arcs=wanted), sentences, ids, wanted)


def test_arcs_are_sorted_by_their_dependent(tmp_path):
    """The file keeps no dependents, only how many arcs each word has: the order of what comes in must not matter."""
    mixed = StoredSentence(
        [1, 2, 1], [1, 1, 1], [0] * 3, [0] * 3, [0] * 3, [(2, 0, 5, 0.5), (0, 1, 4, 0.25), (2, 1, 3, 1.0)]
    )
    store = write(tmp_path / "a.arrow", [mixed], with_arcs=True)
    check(store.fetch(np.array([0]), arcs=True), [mixed], [0], True)
    check(MemoryStore([mixed]).fetch(np.array([0]), arcs=True), [mixed], [0], True)


@pytest.mark.parametrize("wrong", [[-1], [0, 3], [2**40]])
def test_a_number_out_of_range(tmp_path, wrong):
    store = write(tmp_path / "a.arrow", [sentence(random.Random(i), False) for i in range(3)])
    with data_error(f"{wrong[-1]}", path="a.arrow"):
        store.fetch(np.array(wrong))


def test_arcs_of_a_store_without(tmp_path):
    store = write(tmp_path / "a.arrow", [sentence(random.Random(0), False)])
    with data_error("--distributions", path="a.arrow"):
        store.fetch(np.array([0]), arcs=True)


# -- other processes ------------------------------------------------------------------------------------------------


def _fetch(store, ids, queue):
    if isinstance(store, bytes):
        store = pickle.loads(store)
    queue.put(numbers(store.fetch(np.array(ids), arcs=True)))


@pytest.mark.parametrize("pickled", [False, True])
def test_other_processes(tmp_path, pickled):
    """A store that has been read is handed to a worker that is forked from this process, or pickled for another."""
    rng = random.Random(1)
    sentences = [sentence(rng, True) for _ in range(9)]
    store = write(tmp_path / "a.arrow", sentences, True, chunk=4)
    ids = [8, 0, 4, 4]
    here = store.fetch(np.array(ids), arcs=True)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    worker = context.Process(target=_fetch, args=(pickle.dumps(store) if pickled else store, ids, queue))
    worker.start()
    there = queue.get(timeout=120)
    worker.join()
    assert there == numbers(here)


def test_a_pickled_store_is_its_name(tmp_path):
    store = write(tmp_path / "a.arrow", [sentence(random.Random(i), False) for i in range(500)])
    store.fetch(np.arange(500))
    pickled = pickle.dumps(store)
    assert len(pickled) < 500
    assert len(pickle.loads(pickled)) == 500


# -- files that are not a whole store ---------------------------------------------------------------------------------


def test_cut_anywhere(tmp_path):
    """A file cut at any byte is an error, which names the file and what to run."""
    rng = random.Random(3)
    path = tmp_path / "a.arrow"
    write(path, [sentence(rng, True) for _ in range(12)], True, chunk=5)
    whole = path.read_bytes()
    cut = tmp_path / "cut.arrow"
    # Every byte near the ends, where the magic, the schema and the footer are; every 97th between.
    for size in sorted({*range(24), *range(len(whole) - 300, len(whole)), *range(0, len(whole), 97)}):
        cut.write_bytes(whole[:size])
        with data_error(path="cut.arrow"):
            SyntaxStore(cut)


def test_foreign_arrow_files(tmp_path):
    path = tmp_path / "a.arrow"
    table = pa.table({"words": [1, 2]})
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)
    with data_error(path="a.arrow"):
        SyntaxStore(path)
    names = ("chunk", "sentences", "words", "pieces", "arcs", "tokens", "labels", "checksum")
    complete = {**dict.fromkeys(names, 1), "version": store_format.VERSION, "checksums": ["0"]}
    for metadata in (
        {"version": store_format.VERSION},
        complete,  # other columns
        {**complete, "sentences": 2},  # record batches are lost
        {**complete, "checksums": []},
    ):
        metadata = (
            sealed({k: v for k, v in metadata.items() if k != "checksum"}) if "checksum" in metadata else metadata
        )
        marked = table.replace_schema_metadata({store_format.METADATA_KEY: json.dumps(metadata)})
        with pa.ipc.new_file(path, marked.schema) as writer:
            writer.write_table(marked)
        with data_error(path=path):
            SyntaxStore(path)


@pytest.mark.parametrize("seed", range(8))
def test_changed_bytes(tmp_path, seed):
    """Whatever bits are flipped, bytes changed or blocks overwritten: an error, or not one number is another.

    Never the end of the process: what lies outside the checksums (padding, the copy of the schema in front) is either
    not read or checked by Arrow.
    """
    rng = random.Random(seed)
    sentences = [sentence(rng, seed % 2 == 0) for _ in range(40)]
    whole = write(tmp_path / "a.arrow", sentences, seed % 2 == 0, chunk=7, label_mass={"a": 0.25})
    ids = np.arange(len(sentences))
    right = numbers(whole.fetch(ids, arcs=whole.has_arcs))
    raw = (tmp_path / "a.arrow").read_bytes()
    path = tmp_path / "b.arrow"
    errors = 0
    for _ in range(60):
        changed = bytearray(raw)
        for _ in range(rng.choice([1, 1, 2, 3])):
            at = rng.randrange(len(raw))
            how = rng.randrange(4)
            if how == 0:
                changed[at] ^= 1 << rng.randrange(8)
            elif how == 1:
                changed[at] = rng.randrange(256)
            elif how == 2:
                changed[at : at + 64] = bytes(len(changed[at : at + 64]))
            else:
                other = rng.randrange(len(raw))
                changed[at], changed[other] = changed[other], changed[at]
        path.write_bytes(changed)
        try:
            store = SyntaxStore(path)
            store.verify()
            flat = store.fetch(ids, arcs=store.has_arcs)
        except SyntaxDataError as error:
            assert "b.arrow" in str(error)
            errors += 1
            continue
        assert store.metadata == whole.metadata
        assert numbers(flat) == right
    assert errors > 30


def test_a_damaged_chunk_is_found_when_it_is_used(tmp_path):
    """The loader reads no more than its batch needs, and says which sentences are lost."""
    store = write(tmp_path / "a.arrow", [sentence(random.Random(i), False) for i in range(40)], chunk=10)
    places = store._begin["words"]
    store.verify()
    raw = bytearray((tmp_path / "a.arrow").read_bytes())
    raw[8 * int(places[2]) + 3] ^= 4
    (tmp_path / "a.arrow").write_bytes(raw)
    damaged = SyntaxStore(tmp_path / "a.arrow")
    damaged.fetch(np.array([0, 19, 35]))
    for use in (lambda: damaged.fetch(np.array([0, 20])), damaged.verify, lambda: damaged.spans(25)):
        with data_error("21", "30", path="a.arrow"):
            use()


@pytest.mark.parametrize("content", [b"", b"ARROW1\0\0", b"text\n", b"\0" * 4096, b"PAR1" + b"\0" * 64 + b"PAR1"])
def test_other_files(tmp_path, content):
    path = tmp_path / "a.arrow"
    path.write_bytes(content)
    with data_error():
        SyntaxStore(path)


def test_no_file_and_a_directory(tmp_path):
    with data_error(path="none.arrow"):
        SyntaxStore(tmp_path / "none.arrow")
    with data_error():
        SyntaxStore(tmp_path)


def test_another_version(tmp_path, monkeypatch):
    path = tmp_path / "a.arrow"
    monkeypatch.setattr(store_format, "VERSION", store_format.VERSION + 1)
    write(path, [sentence(random.Random(0), False)])
    monkeypatch.undo()
    with data_error(f"{store_format.VERSION + 1}", path="a.arrow"):
        SyntaxStore(path)


def test_other_tokens(tmp_path):
    """A store belongs to one text, segmentation, dictionary and label inventory."""
    sentences = [StoredSentence([2, 1], [1, 1], [1, 1], [0, 0], [0, 0]), StoredSentence([1], [0], [1], [0], [0])]
    dictionary = tmp_path / "dict.en.txt"
    dictionary.write_text("a 1\n")
    fingerprint = file_fingerprint(dictionary)
    store = write(tmp_path / "a.en.syntax.arrow", sentences, dictionary_fingerprint=fingerprint)
    check_against_tokens(store, np.array([4, 2]))
    for sizes in ([4], [4, 2, 1], [2, 4], [4, 3]):
        with data_error("binarize", path="a.en.syntax.arrow"):
            check_against_tokens(store, np.array(sizes))
    with data_error(path="a.en.syntax.arrow"):
        check_against_tokens(store, np.array([4, 2]), {**LABELS, "deprel": ["<unk>", "b"]})
    dictionary.write_text("b 1\n")
    with data_error("binarize", path="a.en.syntax.arrow"):
        check_against_tokens(store, np.array([4, 2]))
    dictionary.unlink()
    check_against_tokens(store, np.array([4, 2]))


def test_several_stores(tmp_path):
    """train, train1, … with the first one repeated: numbers as in fairseq's ConcatDataset."""
    rng = random.Random(5)
    parts = [[sentence(rng, True) for _ in range(n)] for n in (3, 2, 4)]
    stores = [write(tmp_path / f"{i}.arrow", part, True) for i, part in enumerate(parts)]
    side = SideSyntax(stores, [2, 1, 1], arcs=True)
    everything = [*parts[0], *parts[0], *parts[1], *parts[2]]
    ids = list(range(len(everything)))
    rng.shuffle(ids)
    for chosen in (ids, [5], [6, 5, 8, 0, 0]):
        check(unpack(side.collate(torch.tensor(chosen))), everything, chosen, True)


def test_distributions_are_missed_before_the_first_batch(tmp_path):
    """Otherwise a validation would end a training after its first epoch, without a checkpoint."""
    path = tmp_path / "a.arrow"
    write(path, [sentence(random.Random(5), False)])
    with data_error("--distributions", path="a.arrow"):
        SideSyntax.load([str(path)], SimpleNamespace(sizes=[4]), LABELS, {}, True)


# -- writing that fails -----------------------------------------------------------------------------------------------


def test_an_error_while_writing_leaves_the_old_store(tmp_path):
    path = tmp_path / "a.arrow"
    write(path, [sentence(random.Random(0), False)])
    before = path.read_bytes()

    def fail():
        yield sentence(random.Random(1), False)
        raise KeyError

    with pytest.raises(KeyError):
        write(path, fail())
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["a.arrow"]


@pytest.mark.parametrize(
    "field, number", [("deprel", 1024), ("upos", 64), ("pieces", 32_768), ("head", -1), ("words", 65_536)]
)
def test_a_number_that_does_not_fit(tmp_path, field, number):
    numbers = {"pieces": 1, "head": 0, "deprel": 0, "upos": 0, "xpos": 0}
    n = number if field == "words" else 1
    too_large = StoredSentence(**{k: [number if k == field else v] * n for k, v in numbers.items()})
    with data_error(path="a.arrow"):
        write(tmp_path / "a.arrow", [too_large])
    assert os.listdir(tmp_path) == []


def test_no_such_directory(tmp_path):
    with data_error(path="a.arrow"):
        write(tmp_path / "none" / "a.arrow", [sentence(random.Random(0), False)])


def test_a_full_disk_under_the_labels(tmp_path):
    path = tmp_path / "labels.en.json"
    inventory = LabelInventory()
    inventory.save(path)
    before = path.read_bytes()
    for i in range(10_000):
        inventory.id("xpos", f"label {i}")
    with files_no_larger_than(10_000), data_error(path=path):
        inventory.save(path)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["labels.en.json"]
    with data_error(path=tmp_path / "none" / "labels.en.json"):
        inventory.save(tmp_path / "none" / "labels.en.json")


@pytest.mark.parametrize("limit", [200, 2_000, 60_000])
def test_a_full_disk(tmp_path, limit):
    """The disk is full at the header, at a batch, and while the batches are copied behind the final header."""
    path = tmp_path / "a.arrow"
    sentences = [sentence(random.Random(i), False, 60) for i in range(300)]
    write(path, sentences, chunk=50)
    assert os.path.getsize(path) > 60_000
    os.remove(path)
    with (
        files_no_larger_than(limit),
        data_error(path=path),
    ):
        write(path, sentences, chunk=50)
    assert os.listdir(tmp_path) == []


def test_two_at_once(tmp_path):
    """Two commands that write the same store do not write the same temporary file: the later one stands."""
    one, other = ([sentence(random.Random(i), False) for i in range(n)] for n in (3, 4))
    path = tmp_path / "a.arrow"

    def interrupted():
        """The batches of one; before the last time that they are gone through, the other store is written."""
        batches.append(pack_chunk(one, with_arcs=False))
        if len(batches) == 2:
            assert len(write(path, other)) == 4
        return iter(batches[:1])

    batches = []
    write_store(path, interrupted, {"labels": LABELS}, with_arcs=False, chunk=10)
    check(SyntaxStore(path).fetch(np.arange(3)), one, range(3), False)
    assert os.listdir(tmp_path) == ["a.arrow"]


@pytest.mark.slow
def test_killed_while_writing(tmp_path):
    """After a kill there is no file of that name, or the old one; what is left is not taken for a store."""
    path = tmp_path / "a.arrow"
    program = """
        import sys, time
        from fairseq_syntax.corpus.store.store_format import StoredSentence
        from fairseq_syntax.corpus.store.chunk import pack_chunk
        from fairseq_syntax.corpus.store.writer import write_store
        def batches(times=[]):
            yield pack_chunk([StoredSentence([1], [0], [0], [0], [0])] * 10, with_arcs=False)
            times.append(1)
            if len(times) == 2:
                print("writing", flush=True)
                time.sleep(600)
        write_store(sys.argv[1], batches, {"labels": {}}, with_arcs=False, chunk=10)
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(path)]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert writer.stdout.readline() == "writing\n"
    writer.kill()
    writer.wait()
    assert not path.exists()
    assert len(write(path, [sentence(random.Random(0), False)])) == 1
    assert os.listdir(tmp_path) == ["a.arrow"]


def test_killed_between_the_copy_and_the_name(tmp_path, monkeypatch):
    """Only the last step, an atomic rename, makes the name; until then the old store is there."""
    path = tmp_path / "a.arrow"
    write(path, [sentence(random.Random(0), False)])
    seen = []
    replace = os.replace

    def watched(source, target):
        seen.append(len(SyntaxStore(target)))
        assert len(SyntaxStore(source)) == 2
        replace(source, target)

    monkeypatch.setattr(os, "replace", watched)
    assert len(write(path, [sentence(random.Random(i), False) for i in range(2)])) == 2
    assert seen == [1]


def test_size(tmp_path):
    """At most 16 bytes a piece without arcs, at the piece to word ratio of running text."""
    rng = random.Random(0)
    words = [[rng.choice([1, 1, 1, 1, 2]) for _ in range(14)] for _ in range(3000)]
    sentences = [StoredSentence(w, *([0] * 14 for _ in range(4))) for w in words]
    path = tmp_path / "a.arrow"
    write(path, sentences)
    assert os.path.getsize(path) / sum(map(sum, words)) < 10


def test_more_than_is_read_at_once(tmp_path):
    """Chunks are mapped when they are asked for, and not before."""
    store = write(tmp_path / "a.arrow", [sentence(random.Random(i), False) for i in range(40)], chunk=10)
    store.fetch(np.array([35, 12]))
    assert np.flatnonzero(store._verified).tolist() == [1, 3]
    assert not store._words64.flags.owndata  # a view of the mapped file


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="only Linux says which pages are in memory")
def test_a_pass_over_a_store_stays_small(tmp_path):
    """What is in memory of the file after each step of a pass does not grow with the file; and it is still right."""

    def resident():
        result, is_of_store = 0, False
        for line in Path("/proc/self/smaps").read_text().splitlines():
            is_of_store = str(path) in line if "-" in line.split(" ")[0] else is_of_store
            result += int(line.split()[1]) if is_of_store and line.startswith("Rss:") else 0
        return result

    rng, path = random.Random(1), tmp_path / "a.arrow"
    sentences = [sentence(rng, True, 40) for _ in range(4000)]
    store = write(path, sentences, True, 1000)
    size = path.stat().st_size // 1024
    store.fetch(np.arange(4000), arcs=True)
    assert resident() > 0.8 * size > 1000
    store.release()
    assert resident() < 0.1 * size
    check(store.fetch(np.array([3999, 0]), arcs=True), sentences, [3999, 0], True)
    SyntaxStore(path).verify()
    assert resident() < 0.2 * size


def test_spans_of_sentences(tmp_path):
    """A line of several sentences keeps where each begins; one of a single sentence, or of none, needs no mention."""
    line = StoredSentence([1, 2, 1], [0, 1, 1], [0] * 3, [0] * 3, [0] * 3, None, [0, 1])
    one = StoredSentence([1, 2], [1, 1], [0] * 2, [0] * 2, [0] * 2)
    sentences = [line, StoredSentence(), one]
    store = write(tmp_path / "a.arrow", sentences, chunk=2)
    assert [store.spans(i) for i in range(3)] == [[(0, 1), (1, 3)], [], [(0, 2)]]
    assert store.fetch(np.array([0])).pieces.tolist() == [1, 2, 1]


def test_a_trial_of_damaged_stores(tmp_path):
    """``tools/damage.py`` with few of them: nothing passes in silence, or as a raw traceback."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    try:
        from tools.damage import KINDS, damage_stores
    finally:
        sys.path.pop(0)
    actual = damage_stores(20 * len(KINDS), 2, tmp_path)
    assert not any(counts["silent"] or counts["raw"] for counts in actual.values())
    assert all(actual[kind]["told"] > 0 for kind in ("truncated", "several bits", "zeros", "two blocks swapped"))

"""On a GPU: every system's training step makes all tensors there, and the host waits for it at known places only.

There is no GPU here. A step on PyTorch's ``meta`` device, which computes nothing, shows where tensors are made and who
asks for their values; a whole search on the CPU shows who asks there.
"""

import random

import lstm_models
import numpy as np
import pytest
import tiny_syntax
import torch
from devices import Recorder
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.sequence_generator import SequenceGenerator
from random_parses import EOS, PAD, Line, pad, random_line

from fairseq_syntax.corpus.store.memory import MemoryStore
from fairseq_syntax.corpus.store.store_format import StoredSentence
from fairseq_syntax.criterions.chunked_cross_entropy import SupervisedHeadCriterion
from fairseq_syntax.criterions.lasyn_em import LaSynEMCriterion
from fairseq_syntax.data.packing import pack
from fairseq_syntax.model.encoder import ENCODER_SYSTEMS
from fairseq_syntax.systems.lasyn.generator import LatentGenerator
from fairseq_syntax.systems.lasyn.templates import OPEN

GROUPS = {"ldd_label_groups_text": "root: root\na: a\nb: b c\nd: d\n", "encoder_attention_heads": 4}
TRANSFORMERS = {
    "pascal": {"parent_ignoring": 0.5},
    "pascal ldd": {},
    "supervised_heads": {},
    "lisa": {},
    "sennrich_haddow": {},
    **{
        f"ldd {variant} {form}": GROUPS
        for variant in ("LDD", "LDA", "LDP", "UDD", "UDP", "ULDD")
        for form in ("linear", "dense")
    },
}
LSTMS = [
    ("dlaa_lstm", {"dlaa_alignment": "interpolate"}),
    ("dlaa_lstm", {"dlaa_alignment": "hard"}),
    ("dlaa_lstm", {"dlaa_alignment": "gaussian"}),
    ("local_attention_lstm", {"local_attention": "monotonic"}),
    ("local_attention_lstm", {"local_attention": "predictive"}),
    ("sdrnmt1_lstm", {}),
    ("sdrnmt2_lstm", {}),
    ("senmt_lstm", {}),
    ("tree2seq_lstm", {}),
    ("gcn_lstm", {}),
]
# The test for padding that fairseq's own encoder makes too.
PADDING = {"model/encoder.py:forward"}
# What is there for the host: lengths by which cuDNN packs a batch, and the number of words of each level of the trees.
ON_HOST = {
    "model/lstm.py:forward",
    "model/lstm.py:run",
    "model/lstm.py:run_sorted",
    "systems/senmt.py:traverse",
    "model/neighbourhoods.py:word_counts",
}
LEVELS = {
    f"model/trees.py:{name}"
    for name in ("level_sizes", "path_sum", "depth", "is_root", "_ancestors", "parents_without_cycles")
}


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch):
    """Searches take the forms that they have on GPUs: those for CPUs ask for values."""
    monkeypatch.setattr("fairseq_syntax.compat.search.has_heap", lambda x: False)


def some_lines(seed: int = 1) -> list[Line]:
    rng = random.Random(seed)
    return [random_line(rng, max_words=3, max_sentences=2) for _ in range(4)] + [Line([], [], [], [EOS])]


def packed(lines: list[Line]) -> dict:
    """What the loader makes of the lines, with arcs."""
    stored = []
    for line in lines:
        labels = [list(column) for column in zip(*line.labels)] or [[], [], []]
        arcs = [(w, h, 1 + w % 4, 0.5) for w, head in enumerate(line.heads) for h in {head, 0}]
        stored.append(StoredSentence(line.pieces, line.heads, *labels, arcs))
    return pack(MemoryStore(stored).fetch(np.arange(len(stored)), arcs=True))


def batch(lines: list[Line], device: str = "cpu") -> dict:
    """A batch of the loader on a device, with the syntax of both sides: the target is the source."""
    sample = tiny_syntax.sample(lines, left=True, syntax=False)
    sample["target"] = pad(lines, False)
    sample["net_input"]["prev_output_tokens"] = pad([Line([], [], [], [EOS, *l.tokens[:-1]]) for l in lines], False)
    sample["ntokens"] = int(sample["target"].ne(PAD).sum())
    sample["net_input"]["src_syntax"], sample["tgt_syntax"] = packed(lines), packed(lines)

    def move(value):
        if isinstance(value, dict):
            return {k: move(v) for k, v in value.items()}
        return value.to(device) if torch.is_tensor(value) else value

    return move(sample)


def encoder_model(name: str):
    system, *rest = name.split()
    options = dict(TRANSFORMERS.get(name, {}))
    if system.startswith("predicted"):
        options |= {"parent_layer": 0, "child_layer": 0}
        system = f"supervised_heads,{system}"
    if system == "ldd":
        options |= {"ldd_variant": rest[0], "ldd_form": rest[1], "ldd_layers": "0,1"}
    if name == "pascal ldd":
        return tiny_syntax.tiny_model("syntax_transformer", encoder_syntax="pascal,ldd", **GROUPS)
    return tiny_syntax.tiny_model("syntax_transformer", encoder_syntax=system, **options)


def training_step(model, criterion) -> Recorder:
    """One step on ``meta``; the second, as a first may check what it is given."""
    model = model.to("meta").train()
    sample = batch(some_lines(), "meta")
    for _ in range(2):
        with Recorder("meta") as recorder:
            loss, _, _ = criterion(model, sample)
            loss.backward()
    assert all(p.grad is None or p.grad.device.type == "meta" for p in model.parameters())
    return recorder


def check(recorder: Recorder, waits: set[str], strays: set[str] = frozenset()) -> None:
    """It waits where it says, once each, and has no tensors elsewhere but those."""
    assert set(recorder.waits) - {"fairseq"} == waits
    assert not {name: n for name, n in recorder.waits.items() if name != "fairseq" and n > 1}
    assert {name for name, _ in recorder.strays} - {"fairseq"} <= strays, recorder.strays


@pytest.mark.matrix(5)
@pytest.mark.parametrize("name", sorted({*TRANSFORMERS, *ENCODER_SYSTEMS} - {"ldd"}))
def test_training_of_encoder_systems(name):
    task = tiny_syntax.tiny_task()
    check(
        training_step(encoder_model(name), SupervisedHeadCriterion(task, False, 0.1)),
        PADDING,
        LEVELS if name == "relative_depth" else frozenset(),
    )


@pytest.mark.matrix(1)
@pytest.mark.slow
@pytest.mark.parametrize("arch, options", LSTMS, ids=lambda x: x if isinstance(x, str) else "-".join(x.values()))
def test_training_of_lstms(arch, options):
    """They wait for nothing; local attention for the lengths, as fairseq's own LSTM does: it reads no parse."""
    criterion = LabelSmoothedCrossEntropyCriterion(tiny_syntax.tiny_task(), False, 0.1)
    recorder = training_step(lstm_models.model(arch, scale=1, **options), criterion)
    waits = {"model/lstm.py:forward"} if arch == "local_attention_lstm" else set()
    check(recorder, waits, ON_HOST | LEVELS if arch == "tree2seq_lstm" else ON_HOST)


def test_training_of_lasyn():
    """It asks once a step whether anything can underflow, whatever the number of positions."""
    model = tiny_syntax.tiny_model("lasyn_transformer")
    criterion = LaSynEMCriterion(tiny_syntax.tiny_task(), 1, 0.5, 0.1, False)
    check(training_step(model, criterion), PADDING | {"systems/lasyn/softmax.py:tag_tables"})


def searched(model, generator) -> Recorder:
    sample = {**batch(some_lines()), "id": torch.arange(5)}
    sample["net_input"].pop("prev_output_tokens")
    with Recorder("cpu") as recorder, torch.no_grad():
        generator.generate([model], sample)
    return recorder


@pytest.mark.parametrize("name", ["relative_depth", "structural_positions", "gcn", "dbsa", "pascal", "ldd LDD linear"])
def test_search_with_encoder_systems(name):
    """The host waits for nothing but what fairseq's own search asks for; on a CPU the levels of trees are counted."""
    model = encoder_model(name).eval()
    recorder = searched(model, SequenceGenerator([model], tiny_syntax.dictionary(), beam_size=2, max_len_b=6))
    levels = {"model/trees.py:level_sizes"} if name == "relative_depth" else set()
    assert set(recorder.waits) - {"fairseq"} == PADDING | levels


@pytest.mark.parametrize("arch, options", LSTMS, ids=lambda x: x if isinstance(x, str) else "-".join(x.values()))
def test_search_with_lstms(arch, options):
    """As for the encoder systems; sorting by lengths is a matter of the host."""
    model = lstm_models.model(arch, scale=1, **options)
    recorder = searched(model, SequenceGenerator([model], tiny_syntax.dictionary(), beam_size=2, max_len_b=6))
    levels = {"model/trees.py:level_sizes"} if arch == "tree2seq_lstm" else set()
    assert set(recorder.waits) - {"fairseq", "test", *ON_HOST} == levels


@pytest.mark.parametrize(
    "mode, waits",
    [
        ("marginal", set()),
        ("joint", {"systems/lasyn/joint.py:step"}),
        ("template", {"systems/lasyn/generator.py:_check_lengths"}),
    ],
)
def test_search_with_lasyn(mode, waits):
    """finalize_hypos waits where hypotheses end, as fairseq's own does; joint search asks whether it may stop."""
    model = tiny_syntax.tiny_model("lasyn_transformer").eval()
    given = [[1, OPEN, 2], [1], [2, 3], [1, 2, 3], [OPEN]]
    templates = (lambda sample: given) if mode == "template" else None
    generator = LatentGenerator(
        [model], tiny_syntax.dictionary(), mode=mode, templates=templates, beam_size=2, max_len_b=6
    )
    recorder = searched(model, generator)
    always = {"systems/lasyn/softmax.py:tag_tables", "systems/lasyn/generator.py:finalize_hypos"}
    assert set(recorder.waits) - {"fairseq"} == waits | always | PADDING

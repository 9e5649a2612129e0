"""Forced decoding gives what ``fairseq-generate --score-reference`` gives, whatever else is in the batch."""

from __future__ import annotations

import json
import math
import re
import shutil
from argparse import Namespace
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
import toy_data
from data_errors import data_error, refused
from untrained import untrained

from fairseq_syntax.cli import main as command
from fairseq_syntax.corpus.conllu import ParsedLine, text_of, write_conllu
from fairseq_syntax.use.forced_decoding import ForcedDecoder, TargetScore
from fairseq_syntax.use.translator import Translator


@pytest.fixture(scope="module")
def translator(toy, trained) -> Translator:
    return Translator.load(trained, toy.data, device="cpu")


def scores(decoder: ForcedDecoder, sources, targets) -> list[list[TargetScore]]:
    """The scores of each source's targets."""
    rows = [(source, text) for source, texts in enumerate(targets) for text in texts]
    actual = dict(decoder.scores(sources, rows))
    assert sorted(actual) == list(range(len(rows)))
    return [[actual[row] for row, (of, _) in enumerate(rows) if of == source] for source in range(len(sources))]


def lines_and_targets(toy, split: str = "test") -> tuple[list[ParsedLine], list[str]]:
    return toy.lines[split], (toy.raw / f"{split}.de").read_text(encoding="utf-8").splitlines()


def test_scores_are_those_of_fairseq_generate(toy, trained, translator):
    lines, german = lines_and_targets(toy)
    options = ["--task", "syntax_translation", "--path", trained, "--score-reference", "--gen-subset", "test", "--cpu"]
    printed = toy_data.fairseq("generate", toy.data, *options, "--max-tokens", 300)
    generated = {int(n): float(score) for n, score in re.findall(r"^H-(\d+)\t(\S+)\t", printed, re.MULTILINE)}
    assert len(generated) == len(lines)
    actual = scores(ForcedDecoder(translator), lines, [[text] for text in german])
    for number, (score,) in enumerate(actual):
        assert score.mean == pytest.approx(generated[number] * math.log(2), abs=2e-5)
        assert score.total == pytest.approx(score.mean * score.tokens)


@pytest.mark.parametrize("left", [False, True])
def test_given_targets_are_found_on_either_side_of_their_padding(toy, trained, left):
    """--score-reference and --prefix-size of fairseq, which count from the first column: in any batch as alone."""
    translator = Translator.load(trained, toy.data, device="cpu")
    task, models = translator.task, translator.models
    task.cfg.left_pad_target = left
    task.load_dataset("test")
    dataset = task.datasets["test"]
    lengths = [len(dataset[n]["target"]) for n in range(len(dataset))]
    numbers = sorted((n for n, length in enumerate(lengths) if length > 3), key=lengths.__getitem__)[::3]
    assert len({lengths[n] for n in numbers}) > 1
    scorer = task.build_generator(models, Namespace(score_reference=True))
    search = task.build_generator(models, Namespace(beam=2, prefix_size=2, max_len_b=9))
    actual = {}
    for batch in [numbers, *([n] for n in numbers)]:
        sample = dataset.collater([dataset[n] for n in batch])
        scored = task.inference_step(scorer, models, sample)
        begun = task.inference_step(search, models, sample, prefix_tokens=sample["target"][:, :2])
        for number, *both in zip(sample["id"].tolist(), scored, begun):
            actual.setdefault(number, []).append([pair[0] for pair in both])
            assert both[1][0]["tokens"][:2].tolist() == dataset[number]["target"][:2].tolist()
    for together, alone in actual.values():
        for a, b in zip(together, alone):
            assert a["tokens"].tolist() == b["tokens"].tolist()
            assert float(a["score"]) == pytest.approx(float(b["score"]), abs=1e-4)


@pytest.mark.parametrize("left", [False, True])
def test_a_score_does_not_depend_on_the_rest_of_the_batch(toy, trained, left):
    translator = Translator.load(trained, toy.data, device="cpu")
    translator.task.cfg.left_pad_target = left
    lines, german = lines_and_targets(toy)
    lines, german = lines[:12], german[:12]
    targets = [[text, german[(i + 1) % 12], ""][: i % 4] for i, text in enumerate(german)]
    large = ForcedDecoder(translator, max_tokens=10_000)
    together = scores(large, lines, targets)
    alone = [[scores(large, [line], [[text]])[0][0] for text in texts] for line, texts in zip(lines, targets)]
    small = scores(ForcedDecoder(translator, max_tokens=1), lines, targets)
    for others in (alone, small):
        for one, other in zip(together, others, strict=True):
            for a, b in zip(one, other, strict=True):
                assert a.total == pytest.approx(b.total, abs=1e-4) and a.tokens == b.tokens


@pytest.mark.slow
def test_an_ensemble_is_the_mean_of_the_probabilities(toy, trained):
    lines, german = lines_and_targets(toy)
    one = scores(ForcedDecoder(Translator.load(trained, toy.data, device="cpu")), lines[:3], [[t] for t in german[:3]])
    two = Translator.load([trained, trained], toy.data, device="cpu")
    both = scores(ForcedDecoder(two), lines[:3], [[t] for t in german[:3]])
    for (a,), (b,) in zip(one, both):
        assert a.total == pytest.approx(b.total, abs=1e-4)


def test_fairseqs_own_model_is_scored_with_one_that_reads_the_parse(toy, trained, tmp_path):
    """In either order; the mean of two probabilities is not below their geometric mean."""
    toy_data.train(toy.data, tmp_path, arch="transformer", max_epoch=1)
    plain = tmp_path / "checkpoint_last.pt"
    lines, german = lines_and_targets(toy)
    sources, targets = lines[:5], [[text] for text in german[:5]]
    first, second, both, turned = (
        [
            score.total
            for (score,) in scores(ForcedDecoder(Translator.load(paths, toy.data, device="cpu")), sources, targets)
        ]
        for paths in (trained, plain, [trained, plain], [plain, trained])
    )
    assert both == pytest.approx(turned, abs=1e-4)
    for a, b, joint in zip(first, second, both):
        assert (a + b) / 2 - 1e-4 <= joint <= max(a, b) + 5 and abs(joint - a) > 1e-3


@pytest.mark.parametrize("arch", ["transformer", "lstm", "pascal_transformer"])
def test_a_copy_of_a_loaded_model_computes_with_its_own_parameters(toy, tmp_path, arch):
    """fairseq's own models, too, which are given batches with syntax."""
    built = untrained(toy.data, arch)
    model, task = built.model, built.task
    task.add_need("source", frozenset({"tree"}))  # as in an ensemble
    task.load_dataset("test")
    data = task.datasets["test"]
    batch = data.collater([data[0], data[1]])["net_input"]
    before = model(**batch)[0]
    copy = deepcopy(model)
    torch.save(model, tmp_path / "whole.pt")
    for parameter in copy.parameters():
        torch.nn.init.zeros_(parameter)
    assert "src_syntax" in batch and copy(**batch)[0].abs().max() == 0 < before.abs().max()
    assert torch.equal(torch.load(tmp_path / "whole.pt", weights_only=False)(**batch)[0], before)
    inputs = {name: value for name, value in batch.items() if name != "prev_output_tokens"}
    assert copy.encoder.forward_torchscript(inputs) is not None, "as search encodes"


def test_translations_of_the_same_pieces_tie_exactly(toy, translator):
    lines, german = lines_and_targets(toy)
    ((first, _, second, unknown, other),) = scores(
        ForcedDecoder(translator, max_tokens=1), lines[:1], [[german[0], german[1], german[0], "Ω", "Ж"]]
    )
    assert first == second and unknown == other


def test_the_parse_counts(toy, translator):
    """Lines 7 and 8 of the toy corpus are one text with two parses."""
    lines, german = lines_and_targets(toy)
    assert text_of(lines[7]) == text_of(lines[8])
    (first,), (second,) = scores(ForcedDecoder(translator), lines[7:9], [[german[7]], [german[7]]])
    assert abs(first.total - second.total) > 1e-4


def test_a_sentence_that_is_too_long_is_named(toy, translator):
    lines, _ = lines_and_targets(toy)
    with data_error(line=2):
        scores(ForcedDecoder(translator), lines[:2], [["a"], ["a " * 3000]])


@pytest.mark.slow
def test_the_command_scores_pairs_with_the_parse_that_is_given(toy, trained, tmp_path, capsys, monkeypatch):
    lines, german = lines_and_targets(toy)
    kept = [i for i, line in enumerate(lines) if line.words][:20]
    with open(tmp_path / "set.tsv", "w", encoding="utf-8") as table:
        table.write("source\tcorrect\tincorrect\tdistance\n")
        for i in kept:
            table.write(f"{text_of(lines[i])}\t{german[i]}\t{german[kept[kept.index(i) - 1]]}\t{i % 3}\n")
    with open(tmp_path / "p.conllu", "w", encoding="utf-8") as parse:
        for number, i in enumerate(kept):
            write_conllu(parse, replace(lines[i], line_number=number))
    argv = ["contrast", f"pascal={trained}", "--set", f"{tmp_path}/set.tsv", "--data", toy.data]
    argv += ["--device", "cpu", "--write-scores", tmp_path / "scores"]
    assert command([*map(str, argv), "--conllu", f"{tmp_path}/p.conllu", "--json", f"{tmp_path}/r.json"]) == 0
    written = [float(x) for x in (tmp_path / "scores/pascal.scores").read_text().split()]
    report = json.loads((tmp_path / "r.json").read_text())
    pairs = list(zip(written[::2], written[1::2]))
    assert report["groups"]["all"]["all"]["systems"]["pascal"]["right"] == sum(a > b for a, b in pairs)
    decoder = ForcedDecoder(Translator.load(trained, toy.data, device="cpu"))
    expected = scores(decoder, [lines[i] for i in kept], [[german[i]] for i in kept])
    assert [a for a, _ in pairs] == pytest.approx([pair[0].total for pair in expected], abs=1e-4)
    capsys.readouterr()
    with pytest.raises(SystemExit):
        command([*map(str, argv), "--conllu", f"{tmp_path}/p.conllu", "--max-tokens", "-5"])
    trees = tmp_path / "trees.conllu"
    with open(trees, "w", encoding="utf-8") as parse:
        for number, i in enumerate(kept):
            write_conllu(parse, replace(lines[i], line_number=number, arcs=None))
    with monkeypatch.context() as patch:
        patch.setattr(Translator, "needs", property(lambda self: frozenset({"arcs"})))
        refused([*map(str, argv), "--conllu", str(trees)], option="--conllu")
    # A model that knows control parses is not given real ones, nor has it a parser.
    controlled, real = tmp_path / "controlled", f"{tmp_path}/p.conllu"
    shutil.copytree(toy.data, controlled)
    (controlled / "manifest.json").unlink(missing_ok=True)  # which would notice that labels change
    labels = controlled / "labels.en.json"
    labels.write_text(json.dumps({**json.loads(labels.read_text()), "parsed_with": {"control": ["linear"]}}))
    # The checkpoint is of before they remembered that: the data directory says it.
    state = torch.load(trained, weights_only=True)
    del state["task_state"]["source_parsed_with"]
    trained = tmp_path / "older.pt"
    torch.save(state, trained)
    replaced = {str(toy.data): str(controlled), argv[1]: f"pascal={trained}"}
    of_controls = [replaced.get(str(x), str(x)) for x in argv]
    capsys.readouterr()
    refused([*of_controls, "--conllu", real], "(linear)")
    refused([*of_controls, "--model-dir", str(tmp_path)], "(linear)")
    assert command(["control", "linear", "--input", real, "--output", f"{tmp_path}/linear.conllu"]) == 0
    assert command([*of_controls, "--conllu", f"{tmp_path}/linear.conllu"]) == 0
    loaded = Translator.load(trained, controlled, device="cpu")
    loaded.check_parses(f"{tmp_path}/linear.conllu")
    with data_error("linear"):
        loaded.check_parses(real)
    capsys.readouterr()
    with open(tmp_path / "p.conllu", "w", encoding="utf-8") as parse:
        for number, i in enumerate(reversed(kept)):
            write_conllu(parse, replace(lines[i], line_number=number))
    refused([*map(str, argv), "--conllu", f"{tmp_path}/p.conllu"], path="p.conllu", line=1)

"""LaSyn's criterion and its K steps per batch, in the pieces and through fairseq's own commands."""

import json
import random
import re
import shutil
from argparse import Namespace
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from data_errors import data_error, refused
from fairseq import checkpoint_utils
from fairseq.criterions.cross_entropy import CrossEntropyCriterion
from fairseq.data import Dictionary
from random_parses import EOS, Line, flat, pad, random_line
from tiny_syntax import tiny_model, tiny_task
from toy_data import fairseq, logged

from fairseq_syntax.criterions.lasyn_em import LaSynEMCriterion
from fairseq_syntax.lab.scoring.diversity import Diversifier, training_bigrams
from fairseq_syntax.systems.lasyn.edits import EDGE, TagBigrams, is_within, neighbours, random_variation
from fairseq_syntax.systems.lasyn.model import UNKNOWN
from fairseq_syntax.tasks.refusals import check_criterion

from_data = pytest.mark.matrix(1, of="LaSyn from data to translations")
TAGS = ["DET", "NOUN", "VERB"]

# ---------------------------------------------------------------------------------------------- the criterion


def criterion(tag_weight=0.5, smoothing=0.1, **options):
    return LaSynEMCriterion(tiny_task(), 1, tag_weight, smoothing, False, **options)


def batch(lines: list[Line], left: bool = False) -> dict:
    """A batch that translates each line into itself."""
    tokens = pad(lines, left)
    previous = pad([Line([], [], [], [EOS, *line.tokens[:-1]]) for line in lines], left)
    lengths = torch.tensor([len(line.tokens) for line in lines])
    return {
        "net_input": {"src_tokens": tokens, "src_lengths": lengths, "prev_output_tokens": previous},
        "target": tokens,
        "tgt_syntax": flat(lines),
        "ntokens": int(lengths.sum()),
        "id": torch.arange(len(lines)),
    }


def some_lines(count: int = 4) -> list[Line]:
    rng = random.Random(5)
    return [random_line(rng, max_words=3, max_sentences=2) for _ in range(count)]


@pytest.mark.parametrize("left", [False, True])
def test_loss_and_logs_by_loops(left):
    model, lines = tiny_model("lasyn_transformer").double(), some_lines()
    sample = batch(lines, left)
    loss, size, log = criterion(tag_weight=0.5, smoothing=0.0)(model, sample)
    decoder, nll, tag_loss = model.decoder, 0.0, 0.0
    hidden = model(**sample["net_input"], features_only=True)[0]
    weight, embed = decoder.output_projection.weight, decoder.tag_embedding.weight
    for row, line in enumerate(lines):
        tags = [label[1] for label, n in zip(line.labels, line.pieces) for _ in range(n)] + [0]
        start = sample["target"].size(1) - len(line.tokens) if left else 0
        for n, (word, tag) in enumerate(zip(line.tokens, tags)):
            h = hidden[row, start + n]
            prior = torch.softmax(decoder.tag_projection.weight @ h, 0)
            nll -= torch.log(sum(p * torch.softmax(weight @ (h + e), 0)[word] for p, e in zip(prior, embed))).item()
            tag_loss -= torch.log(prior[tag]).item()
    assert size == sum(len(line.tokens) for line in lines)
    assert log["nll_loss"].item() == pytest.approx(nll, rel=1e-6)
    assert log["tag_loss"].item() == pytest.approx(tag_loss, rel=1e-6)
    assert loss.item() == pytest.approx(nll + 0.5 * tag_loss, rel=1e-6)


@pytest.mark.parametrize("left", [False, True])
def test_a_sentence_alone_and_in_a_batch(left):
    model, lines = tiny_model("lasyn_transformer"), some_lines()
    together = criterion()(model, batch(lines, left))[2]
    alone = [criterion()(model, batch([line], not left))[2] for line in lines]
    for key in ("loss", "nll_loss", "tag_loss", "tag_correct", "tag_total"):
        assert float(together[key]) == pytest.approx(sum(float(log[key]) for log in alone), rel=1e-5)


def test_every_piece_has_its_words_tag_and_the_end_its_own():
    lines = [Line([2, 1], [0, 0], [(1, 2, 1), (1, 0, 1)], [4, 5, 6, EOS]), Line([1], [0], [(1, 3, 1)], [7, EOS])]
    values = tiny_model("lasyn_transformer").decoder.target_values(pad(lines, False), flat(lines))
    assert values.tolist() == [[2, 2, UNKNOWN, 0], [3, 0, UNKNOWN, UNKNOWN]]
    xpos = tiny_model("lasyn_transformer", tags="xpos").decoder
    assert xpos.latent_names == ["</s>", "n", "v"]
    assert xpos.target_values(pad(lines, False), flat(lines)).tolist()[0] == [1, 1, 1, 0]


def test_tags_are_observed_for_so_many_updates_of_training():
    """Then P(y, z) of each word and its tag is the loss, and after that minus the log of its sum over the tags."""
    model, lines = tiny_model("lasyn_transformer").double(), some_lines()
    sample, decoder = batch(lines), model.decoder
    given = criterion(tag_weight=0.5, smoothing=0.0, observed_updates=2)
    hidden = model(**sample["net_input"], features_only=True)[0]
    tags = decoder.target_values(sample["target"], sample["tgt_syntax"])
    marginal = observed = tag_loss = 0.0
    for b, line in enumerate(lines):
        for j, word in enumerate(line.tokens):
            prior = torch.log_softmax(decoder.tag_projection.weight @ hidden[b, j], dim=0)
            embedded = hidden[b, j] + decoder.tag_embedding.weight  # one row per value
            joint = prior + torch.log_softmax(embedded @ decoder.output_projection.weight.t(), dim=1)[:, word]
            tag = int(tags[b, j])
            marginal -= joint.logsumexp(dim=0)
            observed -= joint[tag] if tag != UNKNOWN else joint.logsumexp(dim=0)
            tag_loss -= prior[tag] if tag != UNKNOWN else 0.0
    # fairseq's own criterions take log P(y), the sum over the tags.
    task = Namespace(target_dictionary=Namespace(pad=lambda: 1))
    torch.testing.assert_close(
        CrossEntropyCriterion(task, False)(model, sample)[0].double(), marginal, rtol=1e-5, atol=0
    )
    for training, updates, words in ((True, 1, observed), (True, 2, marginal), (False, 1, marginal)):
        given.train(training)
        model.set_num_updates(updates)
        torch.testing.assert_close(given(model, sample)[0], words + 0.5 * tag_loss)


def test_without_tags_no_parse_is_asked_for():
    model, sample = tiny_model("lasyn_transformer", latent_values=7), batch(some_lines())
    del sample["tgt_syntax"]
    unsupervised = criterion(tag_weight=0)
    loss, _, log = unsupervised(model, sample)
    assert unsupervised.target_needs == frozenset() and model.decoder.tag_embedding.weight.shape[0] == 7
    loss.backward()
    assert model.decoder.tag_projection.weight.grad.abs().max() > 0 and "tag_loss" not in log


def test_what_cannot_be_trained_on():
    sample = batch(some_lines())
    unnamed = tiny_model("lasyn_transformer", latent_values=7)
    for option, given in (("--tag-weight", {}), ("--observed-updates", {"tag_weight": 0, "observed_updates": 2})):
        with data_error(f"{option} 0", option=option):
            check_criterion(criterion(**given), unnamed)
    check_criterion(criterion(tag_weight=0), unnamed)
    with data_error("--arch", "lasyn_transformer"):
        check_criterion(criterion(), tiny_model("transformer"))
    sample["tgt_syntax"].upos[:] = 0
    with data_error("UPOS"):
        criterion()(tiny_model("lasyn_transformer"), sample)
    del sample["tgt_syntax"]
    with data_error("target"):
        criterion()(tiny_model("lasyn_transformer"), sample)


def test_a_store_without_tags(monkeypatch):
    import tiny_syntax

    monkeypatch.setitem(tiny_syntax.LABELS, "upos", ["<unk>"])
    task = tiny_task()
    task.data_dir, task.cfg = "bin", Namespace(target_lang="de")
    monkeypatch.setattr(tiny_syntax, "tiny_task", lambda: task)
    with data_error(path="labels.de.json"):
        tiny_model("lasyn_transformer")


# ---------------------------------------------------------------------------------------------- variations


@cache
def edit_distance(a: tuple, b: tuple) -> int:
    """By enumeration of all edits."""
    if not a or not b:
        return len(a) + len(b)
    substituted = edit_distance(a[1:], b[1:]) + (a[0] != b[0])
    return min(edit_distance(a[1:], b) + 1, edit_distance(a, b[1:]) + 1, substituted)


def test_edit_distance_by_enumeration():
    rng = random.Random(1)
    for _ in range(200):
        a, b = (tuple(rng.choices(range(3), k=rng.randrange(8))) for _ in range(2))
        for limit in range(9):
            assert is_within(a, b, limit) == (edit_distance(a, b) <= limit)


def test_pairs_of_neighbours():
    """Two sentences, one of which has a word of two pieces and one without a tag, and an empty one between them."""
    tags, pieces, lengths = np.array([1, 2, 3, 0, 3]), np.array([1, 2, 1, 1, 1]), np.array([2, 0, 3])
    pairs = TagBigrams.pairs_of_words(tags, pieces, lengths)
    assert pairs == {(EDGE, 1), (1, 2), (2, 2), (2, EDGE), (EDGE, 3), (3, EDGE)}


def test_variations_are_valid_and_at_their_distance():
    rng, sequence = random.Random(2), [1, 2, 3, 1, 2]
    bigrams = TagBigrams({(EDGE, 1), (1, 2), (2, 3), (3, 1), (2, 2), (2, EDGE), (1, 3), (3, 2)})
    actual = set()
    for distance in (0, 1, 2, 4):
        for _ in range(20):
            varied = random_variation(sequence, distance, bigrams, rng)
            if varied is None and distance == 4:
                continue  # edits can lead to where no other is valid
            assert edit_distance(tuple(sequence), tuple(varied)) == distance
            assert bigrams.pairs.issuperset(neighbours(varied))
            actual.add(tuple(varied))
    assert len(actual) > 20
    assert random_variation([1], 1, TagBigrams({(EDGE, 1), (1, EDGE)}), rng) is None


# ---------------------------------------------------------------------------------------------- fairseq's commands


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Sentences of three words, whose translation is themselves; only the target is parsed, the source is not."""
    folder, rng = tmp_path_factory.mktemp("lasyn"), random.Random(1)
    words = {"DET": ["the", "a"], "NOUN": ["dog", "cat", "duck"], "VERB": ["runs", "ducks"]}
    for split, count in (("train", 40), ("test", 8)):
        lines = [[rng.choice(words[tag]) for tag in TAGS] for _ in range(count)]
        text = "".join(" ".join(line) + "\n" for line in lines)
        (folder / f"{split}.src").write_text(text)
        (folder / f"{split}.tgt").write_text(text)
        rows = [
            "".join(
                f"{i + 1}\t{w}\t_\t{t}\t_\t_\t{(2, 3, 0)[i]}\t{('det', 'nsubj', 'root')[i]}\t_\t_\n" for i, (w, t) in e
            )
            for e in (list(enumerate(zip(line, TAGS))) for line in lines)
        ]
        (folder / f"{split}.tgt.conllu").write_text("\n".join(rows) + "\n")
    run("preprocess", "-s", "src", "-t", "tgt", "--trainpref", folder / "train", "--validpref", folder / "test",
        "--testpref", folder / "test", "--destdir", folder / "bin")  # fmt: skip
    return folder / "bin"


def run(command, *arguments) -> str:
    """What one of fairseq's commands prints."""
    return fairseq(command, *arguments, "--task", "syntax_translation")


OPTIONS = (
    "--arch lasyn_transformer_tiny --encoder-embed-dim 16 --decoder-embed-dim 16 --encoder-ffn-embed-dim 16 --cpu "
    "--decoder-ffn-embed-dim 16 --dropout 0 --optimizer adam --lr 0.01 --lr-scheduler inverse_sqrt --warmup-updates 5 "
    "--batch-size 8 --criterion lasyn_em --log-format simple --log-interval 1 --no-epoch-checkpoints"
)
MODEL = OPTIONS.split()


def train(data, directory, *arguments):
    with logged("fairseq.logging.progress_bar") as log:
        run("train", data, *MODEL, "--save-dir", directory, *arguments)
    return log.getvalue()


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    directory = tmp_path_factory.mktemp("lasyn-model")
    log = train(data, directory, "--max-epoch", "6", "--em-steps", "3", "--update-freq", "2")
    return directory / "checkpoint_last.pt", log


@from_data
@pytest.mark.slow
def test_k_updates_per_group_of_batches(trained):
    """40 sentences in batches of 8, two batches an update: 3 groups, each visited 3 times, six epochs."""
    checkpoint, log = trained
    state = checkpoint_utils.load_checkpoint_to_cpu(str(checkpoint))
    assert state["optimizer_history"][-1]["num_updates"] == 3 * 3 * 6
    sizes = [int(bsz) for bsz in re.findall(r" bsz=(\d+),", log)]
    assert sizes[:9] == [16] * 6 + [8] * 3  # the last group has one batch, which counts once
    assert re.search(r"valid .* nll_loss [\d.]+ .* tag_loss [\d.]+ .* tag_accuracy [\d.]+ .* ppl [\d.]+", log)


@from_data
@pytest.mark.slow
def test_validation_on_the_training_data_sees_each_sentence_once(data, trained):
    """Neither K times nor with the empty batches that fill an update up."""
    checkpoint, _ = trained
    options = ["--path", checkpoint, "--batch-size", "8", "--valid-subset", "train", "--log-format", "simple", "--cpu"]
    with logged("fairseq.logging.progress_bar") as log:
        run("validate", data, *options)
    assert re.search(r"valid on 'train' subset .*\| bsz 40$", log.getvalue(), re.MULTILINE)


@from_data
@pytest.mark.slow
def test_resume_equals_training_in_one_go(data, tmp_path):
    options = ["--em-steps", "2", "--tag-weight", "0.5"]
    train(data, tmp_path / "whole", "--max-update", "14", *options)
    train(data, tmp_path / "parts", "--max-update", "7", *options)
    train(data, tmp_path / "parts", "--max-update", "14", *options)
    whole, parts = (checkpoint_utils.load_checkpoint_to_cpu(str(tmp_path / d / "checkpoint_last.pt"))["model"]
                    for d in ("whole", "parts"))  # fmt: skip
    for name, value in whole.items():
        torch.testing.assert_close(value, parts[name], msg=name)


def lines_of(output, letter):
    actual = re.findall(rf"^{letter}-(\d+)\t(.*)$", output, re.M)
    return {int(i): row.split("\t") for i, row in actual}


@from_data
@pytest.mark.slow
def test_generate_and_interactive(data, trained, tmp_path):
    path = ["--path", trained[0], "--cpu", "--beam", "2", "--print-tags", "--batch-size", "4"]
    output = run("generate", data, *path, "--tag-search", "joint")
    tags, translations = lines_of(output, "Z"), lines_of(output, "H")
    assert len(tags) == 8
    for i, (score, sequence) in tags.items():
        assert len(sequence.split()) == len(translations[i][1].split())
        assert float(score) == pytest.approx(float(translations[i][0]), abs=1e-4)

    output = run("generate", data, *path, "--tag-search", "template", "--tag-templates", "reference")
    assert all(sequence == " ".join(TAGS) for _, sequence in lines_of(output, "Z").values())
    by_reference = lines_of(output, "H")

    templates = tmp_path / "tags"
    templates.write_text("DET NOUN VERB\n" * 8)
    given = ["--tag-search", "template", "--tag-templates", templates]
    assert lines_of(run("generate", data, *path, *given), "H") == by_reference

    templates.write_text("DET NOUN VERB\nDET NOUN\n_ _ _ _\n")
    (tmp_path / "text").write_text("the dog runs\na cat ducks\nthe duck runs\n")
    source = ["--input", tmp_path / "text", "--path", trained[0], "--cpu", "--beam", "2", "--print-tags"]
    output = run("interactive", data, *source, *given)
    assert [len(lines_of(output, "H")[i][1].split()) for i in range(3)] == [3, 2, 4]
    assert lines_of(output, "Z")[1][1] == "DET NOUN"

    with data_error("3", "8", path=templates):
        run("generate", data, *path, *given)


def test_diversify_makes_its_folder_first(tmp_path):
    """Not after hours of translating."""

    for name in ("file", "no.pt"):
        (tmp_path / name).touch()
    refused(["diversify", str(tmp_path / "no.pt"), "--output", str(tmp_path / "file" / "out")], path="out")


def test_diversify_looks_at_its_options_first(tmp_path, capsys):
    from fairseq_syntax.cli import main

    (tmp_path / "no.pt").touch()
    argv = ["diversify", str(tmp_path / "no.pt"), "--output", str(tmp_path / "out")]
    refused([*argv, "--tokenize", "nosuch"], "nosuch")
    for option in ("--beam", "--samples", "--random"):
        with pytest.raises(SystemExit):
            main([*argv, option, "0"])
        assert f"{option}: " in capsys.readouterr().err


def test_diversify_writes_its_texts_as_translations_are_written():
    dictionary = Dictionary()
    tokens = dictionary.encode_line("我 喜欢 它 。", add_if_not_exist=True)
    cfg = SimpleNamespace(target_lang="zh")
    task = SimpleNamespace(target_dictionary=dictionary, segmenter=lambda side: None, cfg=cfg)
    assert Diversifier.text(SimpleNamespace(task=task), tokens) == "我喜欢它。"


@from_data
@pytest.mark.slow
def test_diversify(data, trained, tmp_path, capsys, monkeypatch):
    from fairseq_syntax.cli import main

    argv = ["diversify", str(trained[0]), "--data", str(data), "--split", "test", "--random", "5", "--samples", "2"]
    assert main([*argv, "--distances", *"001122", "--output", str(tmp_path / "out")]) == 0
    assert {p.name for p in (tmp_path / "out").iterdir()} == {
        "translations.tsv",
        "diversity.json",
        "diversity.md",
        "diversity.png",
    }
    rows = [r.split("\t") for r in (tmp_path / "out" / "translations.tsv").read_text().splitlines()[1:]]
    base = {int(line): tags.split() for line, distance, tags, _ in rows if distance == "0"}
    assert len(base) == 5
    measured = json.loads((tmp_path / "out/diversity.json").read_text())
    assert measured[0]["translations"] == 10
    for line, distance, tags, _ in rows:
        assert edit_distance(tuple(base[int(line)]), tuple(tags.split())) == int(distance)
    assert "distinct-1" in capsys.readouterr().out

    _, _, task = checkpoint_utils.load_model_ensemble_and_task([str(trained[0])], arg_overrides={"data": str(data)})
    assert training_bigrams(task, "upos").pairs == {(EDGE, 1), (1, 2), (2, 3), (3, EDGE)}
    refused([*argv, "--sentences", "9", "--output", str(tmp_path / "no")], option="--sentences")
    argv[argv.index("test")] = "nope"
    refused([*argv, "--output", str(tmp_path / "no")], "nope")
    argv[argv.index("nope")] = "test"

    monkeypatch.setattr("fairseq_syntax.lab.scoring.diversity.measure_diversity", lambda *given: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main([*argv, "--distances", "0", "--output", str(tmp_path / "translated")])
    assert [p.name for p in (tmp_path / "translated").iterdir()] == ["translations.tsv"], "before they are measured"
    without = tmp_path / "without"
    shutil.copytree(data, without)
    pair = next(without.glob("test.*.idx")).name.split(".")[1]
    for path in without.glob(f"test.{pair}.{pair.split('-')[1]}.*"):
        path.unlink()
    (without / "manifest.json").unlink()
    argv[argv.index(str(data))] = str(without)
    refused([*argv, "--output", str(tmp_path / "no")], option="--split")

"""The LSTM family by fairseq's commands: train, resume, validate, generate and translate interactively."""

import re

import lstm_models
import pytest
import toy_data
from data_errors import data_error
from toy_data import fairseq

from fairseq_syntax.corpus.conllu import flatten

pytestmark = pytest.mark.slow
LSTM = {
    "encoder_layers": 2,
    "decoder_layers": 2,
    "decoder_out_embed_dim": 16,
    "encoder_ffn_embed_dim": None,
    "decoder_ffn_embed_dim": None,
    "encoder_attention_heads": None,
    "decoder_attention_heads": None,
}
ARCHS = {
    "dlaa_lstm": ["--dlaa-block-size", 2],
    "local_attention_lstm": ["--local-attention", "monotonic", "--local-window", 2],
    "sdrnmt1_lstm": ["--sdrnmt-channels", 8],
    "sdrnmt2_lstm": ["--sdrnmt-channels", 8, "--sdrnmt-weight", 0.7],
    "senmt_lstm": [],
    "tree2seq_lstm": [],
    "gcn_lstm": [],
}
WITHOUT_TREES = ("dlaa_lstm", "local_attention_lstm")


def hypotheses(output: str) -> dict[int, tuple[float, str]]:
    return {int(n): (float(score), text) for n, score, text in re.findall(r"^D-(\d+)\t(\S+)\t(.*)$", output, re.M)}


@pytest.mark.matrix(1)
@pytest.mark.parametrize("arch", ARCHS)
def test_commands(arch, toy, tmp_path):
    options = ["--encoder-bidirectional", *ARCHS[arch]]
    toy_data.train(toy.data, tmp_path, *options, arch=arch, max_epoch=1, **LSTM)
    state = toy_data.train(toy.data, tmp_path, *options, arch=arch, **LSTM)  # resumes
    assert state["extra_state"]["train_iterator"]["epoch"] == 3
    task = ["--task", "syntax_translation", "-s", "en", "-t", "de", "--cpu"]
    checkpoint = tmp_path / "checkpoint_last.pt"
    fairseq("validate", toy.data, *task, "--path", checkpoint, "--batch-size", 5)

    def translate(command: str, *more) -> dict[int, tuple[float, str]]:
        return hypotheses(fairseq(command, toy.data, *task, "--path", checkpoint, "--beam", 3, *more))

    generated = translate("generate", "--batch-size", 5)
    assert len(generated) == toy_data.SIZES["test"]
    source = tmp_path / "source"
    source.write_text("".join(flatten(line) + "\n" for line in toy.lines["test"]), encoding="utf-8")
    one_by_one = translate("interactive", "--input", source)
    aligned = translate("generate", "--batch-size", 3, "--print-alignment", "soft")
    for n, (score, text) in generated.items():
        assert one_by_one[n][1] == aligned[n][1] == text
        assert one_by_one[n][0] == pytest.approx(score, abs=2e-4)
        assert aligned[n][0] == pytest.approx(score, abs=2e-4)
    # Lines 7 and 8 of the corpus differ in their parse alone; a block holds all words of so short a line anyway.
    assert (abs(generated[7][0] - generated[8][0]) > 1e-5) == (arch not in WITHOUT_TREES)


@pytest.mark.parametrize("arch", ["lstm", "dlaa_lstm"])
def test_targets_padded_on_the_left_are_refused(toy, tmp_path, arch):
    with data_error("--left-pad-target"):
        toy_data.train(toy.data, tmp_path, "--left-pad-target", arch=arch, max_epoch=1, **LSTM)


@pytest.mark.parametrize("arch", ["lstm", "dlaa_lstm"])
def test_embeddings_are_frozen_by_either_side(arch):
    sizes = {"share_all_embeddings": True, "decoder_out_embed_dim": lstm_models.SIZES["decoder_embed_dim"]}
    for side in ("encoder", "decoder"):
        model = lstm_models.model(arch, **sizes, **{f"{side}_freeze_embed": True})
        shared = model.encoder.embed_tokens
        assert shared is model.decoder.embed_tokens and not shared.weight.requires_grad


def test_a_decoder_without_attention_is_refused():
    with data_error("--decoder-attention"):
        lstm_models.model("dlaa_lstm", decoder_attention="0")


def test_ensembles_with_fairseqs_own_lstm(toy, tmp_path):
    """It takes the same batches, which have a parse; in either order, and in any batch."""
    for arch in ("lstm", "tree2seq_lstm"):
        toy_data.train(toy.data, tmp_path / arch, "--encoder-bidirectional", arch=arch, max_epoch=1, **LSTM)
    task = ["--task", "syntax_translation", "-s", "en", "-t", "de", "--cpu", "--beam", 3]
    plain, ours = (str(tmp_path / arch / "checkpoint_last.pt") for arch in ("lstm", "tree2seq_lstm"))
    actual = [
        hypotheses(fairseq("generate", toy.data, *task, "--path", path, "--batch-size", size))
        for path, size in ((f"{plain}:{ours}", 5), (f"{ours}:{plain}", 12), (ours, 5))
    ]
    for n, (score, text) in actual[0].items():
        assert actual[1][n][1] == text
        assert actual[1][n][0] == pytest.approx(score, abs=2e-4)
    assert any(abs(actual[2][n][0] - score) > 1e-3 for n, (score, _) in actual[0].items())

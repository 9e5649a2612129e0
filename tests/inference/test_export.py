"""``fairseq-syntax export``: the same translations by stock fairseq and by CTranslate2, and what cannot be exported."""

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import binarized
import pytest
import torch
import toy_data

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.inference import export
from fairseq_syntax.inference.translator import Translator
from fairseq_syntax.text.conllu import read_conllu

# A process in which this package cannot be imported, as in an environment that never had it.
STOCK = """
import sys
sys.modules["fairseq_syntax"] = None
from fairseq_cli import generate
sys.argv = ["fairseq-generate", *sys.argv[1:]]
generate.cli_main()
"""
SEARCH = ["--beam", 4, "--nbest", 2, "--max-len-b", 30, "--max-tokens", 200, "--cpu", "-s", "en", "-t", "de"]
SEARCH += ["--gen-subset", "valid"]


# Sure of its translations within a few seconds of training.
SMALL = {
    "decoder_attention_heads": 4,
    **dict.fromkeys(("encoder_embed_dim", "decoder_embed_dim"), 32),
    "dropout": 0.0,
    "label_smoothing": 0.0,
    "max_tokens": 150,
    "max_epoch": 18,
}


def trained(data: Path, folder: Path, arch: str, *more, **changed) -> Path:
    toy_data.train(data, folder, *more, **{**SMALL, "arch": arch, **changed})
    return folder / "checkpoint_last.pt"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    """A corpus whose words translate one by one, so that a small model is soon sure."""
    folder = tmp_path_factory.mktemp("corpus")
    binarized.make(folder, train=150, valid=25)
    return folder


@pytest.fixture(scope="module")
def supervised(corpus, tmp_path_factory) -> Path:
    folder, options = tmp_path_factory.mktemp("supervised"), {"criterion": "supervised_head"}
    return trained(corpus / "bin", folder, "supervised_head_transformer", **options)


@pytest.fixture(scope="module")
def labelled(corpus, tmp_path_factory) -> Path:
    """Not trained, but sure of what it says: its logits are large. (Exporting compares probabilities.)"""
    folder, features = tmp_path_factory.mktemp("labelled"), ("--label-features", "deprel:4,upos:3")
    checkpoint = trained(corpus / "bin", folder, "sennrich_haddow_transformer", *features, max_update=1)
    state = torch.load(checkpoint, weights_only=True)
    state["model"]["decoder.output_projection.weight"] *= 20
    torch.save(state, checkpoint)
    return checkpoint


@pytest.fixture(scope="module")
def text() -> list[str]:
    return ["", *binarized.sentences(25, 2)]


def make(checkpoint: Path, kind: str, output: Path, **options) -> Path:
    export.export(export.load(checkpoint), kind, output, **options)
    return output


def hypotheses(generated: str) -> dict[str, list[tuple[str, float]]]:
    """The n best of each sentence, from fairseq-generate's output: pieces, and the score in base e."""
    found: dict[str, list[tuple[str, float]]] = {}
    for line in generated.splitlines():
        if line.startswith("H-"):
            number, score, pieces = line.split("\t")
            found.setdefault(number[2:], []).append((pieces, float(score) * math.log(2)))
    return found


def test_stock_fairseq_gives_the_same_beams_without_this_package(corpus, supervised, tmp_path):
    folder = make(supervised, "fairseq", tmp_path / "out")
    data = corpus / "bin"
    ours = toy_data.fairseq("generate", data, "--task", "syntax_translation", "--path", supervised, *SEARCH)
    # Without the multiple of 1 stock fairseq drops the last batch.
    arguments = [data, "--path", folder / "model.pt", "--required-batch-size-multiple", 1, *SEARCH]
    environment = {**os.environ, "PYTHONPATH": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", STOCK, *map(str, arguments)],
        capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    expected, found = hypotheses(ours), hypotheses(done.stdout)
    assert len(expected) == 25 and len({h[0][0] for h in expected.values()}) > 3
    assert {n: [h[0] for h in hs] for n, hs in found.items()} == {n: [h[0] for h in hs] for n, hs in expected.items()}
    for number, best in expected.items():
        assert [h[1] for h in found[number]] == pytest.approx([h[1] for h in best], abs=1e-4)


def test_the_checkpoint_holds_plain_values_alone(supervised, tmp_path):
    folder = make(supervised, "fairseq", tmp_path / "out")
    allowed = torch.serialization.get_safe_globals()
    torch.serialization.clear_safe_globals()
    try:
        loaded = torch.load(folder / "model.pt", weights_only=True)
    finally:
        torch.serialization.add_safe_globals(allowed)
    assert loaded["cfg"]["model"]["_name"] == "transformer"
    assert str(supervised.parent) not in json.dumps(loaded["cfg"])  # nothing of the machine that trained it


@pytest.mark.parametrize("kind", ["fairseq", "ctranslate2"])
def test_an_exported_folder_translates_as_the_checkpoint(supervised, text, tmp_path, kind):
    pytest.importorskip("ctranslate2") if kind == "ctranslate2" else None
    folder = make(supervised, kind, tmp_path / "out")
    expected = Translator.load(supervised, device="cpu").translations(text)
    found = Translator.load(folder, device="cpu", batch_size=3).translations(text)
    assert [best[0].text for best in found] == [best[0].text for best in expected]
    # CTranslate2 shares what fairseq leaves to the end of an empty translation among the other pieces.
    assert [best[0].score for best in found] == pytest.approx([best[0].score for best in expected], abs=1e-3)
    assert len((folder / "README.md").read_text(encoding="utf-8").splitlines()) == 4


def test_quantized_weights_are_close(supervised, text, tmp_path):
    """The same probabilities but for a little, from fewer bytes (positions stay as they are)."""
    ctranslate2 = pytest.importorskip("ctranslate2")
    plain, folder = make(supervised, "ctranslate2", tmp_path / "float"), tmp_path / "int8"
    make(supervised, "ctranslate2", folder, quantization="int8")
    translator = Translator.load(plain)
    best = [t[0].pieces for t in translator.translations(text[1:])]
    sources = translator._tokens(text[1:])
    scores = [
        torch.tensor([p for r in ctranslate2.Translator(str(f)).score_batch(sources, best) for p in r.log_probs])
        for f in (plain, folder)
    ]
    assert (scores[0] - scores[1]).abs().mean() < 0.15
    assert "int8" in ctranslate2.Translator(str(folder)).compute_type
    assert (folder / "model.bin").stat().st_size < (plain / "model.bin").stat().st_size
    assert Translator.load(folder).translate(text[:1]) == [""]


def test_label_embeddings_become_source_factors(labelled, text, tmp_path):
    pytest.importorskip("ctranslate2")
    folder = make(labelled, "ctranslate2", tmp_path / "out")
    parses = list(read_conllu(binarized.conllu(text[1:]).split("\n")))
    translator = Translator.load(folder, max_len_b=20)
    expected = Translator.load(labelled, device="cpu", max_len_b=20).translations(parses)
    found = translator.translations(parses)
    assert [best[0].pieces for best in found] == [best[0].pieces for best in expected]
    other = translator.translations(
        [replace(p, deprels=["det" if d == "obj" else d for d in p.deprels]) for p in parses]
    )
    assert [best[0].score for best in other] != [best[0].score for best in found]
    with pytest.raises(SyntaxDataError, match="sennrich_haddow reads the parse"):
        make(labelled, "fairseq", tmp_path / "stock")
    assert not (tmp_path / "stock").exists()


@pytest.mark.parametrize(
    "arch, options, reason",
    [
        ("pascal_transformer", {}, "pascal reads the parse"),
        ("ldd_transformer", {}, "ldd reads the parser's distribution"),
        ("lisa_transformer", {"criterion": "lisa"}, "lisa needs no parse, but its encoder"),
        ("local_attention_lstm", {}, "LocalAttentionModel is no model of fairseq's own"),
    ],
)
def test_what_cannot_be_exported_says_why_and_what_to_do(corpus, tmp_path, capsys, arch, options, reason):
    if arch.endswith("lstm"):
        sizes = [name for name in toy_data.MODEL if name not in ("--arch", "--dropout")]
        options = {name[2:].replace("-", "_"): None for name in [*sizes, "--decoder-attention-heads"]}
    checkpoint = trained(corpus / "bin", tmp_path / "model", arch, max_update=1, **options)
    arguments = ["export", str(checkpoint), "--to", "ctranslate2", "--output", str(tmp_path / "out")]
    assert toy_data.syntax_command(*arguments) == 1
    said = capsys.readouterr().err
    assert reason in said and "--distil" in said and "Traceback" not in said
    assert not (tmp_path / "out").exists() and not list(tmp_path.glob(".out*"))


def test_bad_folders_and_options(supervised, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    with pytest.raises(SyntaxDataError, match="not empty"):
        make(supervised, "fairseq", tmp_path / "full")
    with pytest.raises(SyntaxDataError, match="for --to ctranslate2"):
        make(supervised, "fairseq", tmp_path / "out", quantization="int8")
    with pytest.raises(SyntaxDataError, match="the source dictionary has no <2de>"):
        make(supervised, "fairseq", tmp_path / "out", source_tag="<2de>")
    with pytest.raises(SyntaxDataError, match=r"has no export\.json"):
        Translator.load(tmp_path / "full")
    folder = make(supervised, "fairseq", tmp_path / "out")
    with pytest.raises(SyntaxDataError, match="no part in an ensemble"):
        Translator.load([folder, supervised])
    (folder / "export.json").write_text('{"kind": "fairseq", "source_lang": "en", "target_lang": "de", "format": 9}')
    with pytest.raises(SyntaxDataError, match="format 9"):
        Translator.load(folder)

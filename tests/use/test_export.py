"""``fairseq-syntax export``: the same translations by stock fairseq and by CTranslate2, and what cannot be exported."""

import json
import math
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import binarized
import numpy as np
import pytest
import torch
import toy_data
from data_errors import data_error
from fairseq.models import ARCH_MODEL_REGISTRY
from full_disk import files_no_larger_than
from kills import ended, forked
from untrained import untrained

from fairseq_syntax.cli import main as command
from fairseq_syntax.corpus.conllu import read_conllu
from fairseq_syntax.inference.alignment_head import AlignmentHead
from fairseq_syntax.runtime.files import write_json
from fairseq_syntax.runtime.manifest import sealed
from fairseq_syntax.use import export
from fairseq_syntax.use.exported import Exported
from fairseq_syntax.use.forced_decoding import ForcedDecoder
from fairseq_syntax.use.translator import Translator

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
    toy_data.train(data, folder, *more, each_epoch=False, **{**SMALL, "arch": arch, **changed})
    return folder / "checkpoint_last.pt"


pytestmark = [pytest.mark.slow, pytest.mark.matrix(4, of="exports")]  # models are trained and exported


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
    export.export(export.load_exported_folder(checkpoint), kind, output, **options)
    return output


def hypotheses(generated: str) -> dict[str, list[tuple[str, float]]]:
    """The n best of each sentence, from fairseq-generate's output: pieces, and the score in base e."""
    result: dict[str, list[tuple[str, float]]] = {}
    for line in generated.splitlines():
        if line.startswith("H-"):
            number, score, pieces = line.split("\t")
            result.setdefault(number[2:], []).append((pieces, float(score) * math.log(2)))
    return result


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
    expected, actual = hypotheses(ours), hypotheses(done.stdout)
    assert len(expected) == 25 and len({h[0][0] for h in expected.values()}) > 3
    assert {n: [h[0] for h in hs] for n, hs in actual.items()} == {n: [h[0] for h in hs] for n, hs in expected.items()}
    for number, best in expected.items():
        assert [h[1] for h in actual[number]] == pytest.approx([h[1] for h in best], abs=1e-4)


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
    actual = Translator.load(folder, device="cpu", batch_size=3).translations(text)
    assert [best[0].text for best in actual] == [best[0].text for best in expected]
    # CTranslate2 shares what fairseq leaves to the end of an empty translation among the other pieces.
    assert [best[0].score for best in actual] == pytest.approx([best[0].score for best in expected], abs=1e-3)
    assert len((folder / "README.md").read_text(encoding="utf-8").splitlines()) == 4


def test_quantized_weights_are_close(supervised, text, tmp_path):
    """The same probabilities but for a little, from fewer bytes (positions stay as they are)."""
    ctranslate2 = pytest.importorskip("ctranslate2")
    plain, folder = make(supervised, "ctranslate2", tmp_path / "float"), tmp_path / "int8"
    make(supervised, "ctranslate2", folder, quantization="int8")
    translator = Translator.load(plain)
    best = [t[0].pieces for t in translator.translations(text[1:])]
    sources = list(map(translator._pieces, translator._input.encode(text[1:])))
    scores = [
        torch.tensor([p for r in ctranslate2.Translator(str(f)).score_batch(sources, best) for p in r.log_probs])
        for f in (plain, folder)
    ]
    assert (scores[0] - scores[1]).abs().mean() < 0.15
    assert "int8" in ctranslate2.Translator(str(folder)).compute_type
    assert (folder / "model.bin").stat().st_size < (plain / "model.bin").stat().st_size
    assert Translator.load(folder).translate(text[0]).text == ""


def test_label_embeddings_become_source_factors(labelled, text, tmp_path):
    pytest.importorskip("ctranslate2")
    folder = make(labelled, "ctranslate2", tmp_path / "out")
    parses = list(read_conllu(binarized.conllu(text[1:]).split("\n")))
    translator = Translator.load(folder, max_len_b=20)
    expected = Translator.load(labelled, device="cpu", max_len_b=20).translations(parses)
    actual = translator.translations(parses)
    assert [best[0].pieces for best in actual] == [best[0].pieces for best in expected]
    other = translator.translations(
        [replace(p, deprels=["det" if d == "obj" else d for d in p.deprels]) for p in parses]
    )
    assert [best[0].score for best in other] != [best[0].score for best in actual]
    with data_error("sennrich_haddow"):
        make(labelled, "fairseq", tmp_path / "stock")
    assert not (tmp_path / "stock").exists()
    # One that was trained on control parses takes no others, also where no model of PyTorch asks for them.
    labels, description = folder / "labels.en.json", Exported.load(folder)
    labels.write_text(json.dumps({**json.loads(labels.read_text()), "parsed_with": {"control": ["linear"]}}))
    description.save(folder)
    translator = Translator.load(folder, parser_name="chain_parser")
    (tmp_path / "real.conllu").write_text(binarized.conllu(text[1:]), encoding="utf-8")
    with data_error("linear"):
        translator.check_parses(tmp_path / "real.conllu")
    with data_error("linear"):
        translator.translate(["the dog sees"])
    assert translator.translate(parses[:1])
    loaded = export.load_exported_folder(labelled)
    loaded.task.parse_origins.add({"control": ["linear"]})
    with data_error("linear"):
        export.export(loaded, "ctranslate2", tmp_path / "of-real")


def test_what_cannot_be_exported_says_why_and_what_to_do(corpus, tmp_path, capsys):
    checkpoint = trained(corpus / "bin", tmp_path / "model", "pascal_transformer", max_update=1)
    arguments = ["export", str(checkpoint), "--to", "ctranslate2", "--output", str(tmp_path / "out")]
    assert toy_data.syntax_command(*arguments) == 1
    said = capsys.readouterr().err
    assert "pascal" in said and "examples/distillation" in said and "Traceback" not in said
    assert not (tmp_path / "out").exists() and not list(tmp_path.glob(".out*"))


# Architecture: what the refusal names, for either kind; or by kind, where they differ; None: it is exported. Others of
# this package are refused by their name without _transformer.
WHY_NOT: dict[str, str | dict[str, str | None] | None] = {
    "syntax_transformer": None,
    "supervised_head_transformer": None,
    "tree_planting_transformer": None,
    "parser_free_pascal_transformer": "predicted_pascal",
    "parser_free_ldd_transformer": "predicted_ldd",
    "sennrich_haddow_transformer": {"fairseq": "sennrich_haddow", "ctranslate2": None},
    "lasyn_transformer": "LaSynDecoder",
    # fairseq's own
    "transformer": None,
    "transformer_align": None,
    "lstm": {"fairseq": None, "ctranslate2": "lstm"},
    "fconv": {"fairseq": None, "ctranslate2": "fconv"},
}
OURS = {name for name, kind in ARCH_MODEL_REGISTRY.items() if kind.__module__.startswith("fairseq_syntax.")}
OURS = {name for name in OURS if not name.endswith(("_tiny", "_iwslt_de_en"))}


@pytest.mark.matrix(4)
@pytest.mark.parametrize("arch", sorted(OURS | WHY_NOT.keys()))
def test_each_architecture_is_exported_or_says_why_not(corpus, tmp_path, arch):
    pytest.importorskip("ctranslate2")
    shutil.copytree(corpus / "bin", tmp_path / "bin")
    shutil.copyfile(corpus / "bin" / "labels.en.json", tmp_path / "bin" / "labels.de.json")  # for LaSyn
    actual = WHY_NOT.get(arch, arch.removesuffix("_transformer"))
    for kind in ("fairseq", "ctranslate2"):
        reason, folder = actual[kind] if isinstance(actual, dict) else actual, tmp_path / kind
        loaded = untrained(tmp_path / "bin", arch)
        if reason is None:
            export.export(loaded, kind, folder)
            if kind == "fairseq":
                text = ["the dog sees the man.", "children"]
                expected = Translator([loaded.model], loaded.task, beam=2, max_len_b=10).translations(text)
                again = Translator.load(folder, device="cpu", beam=2, max_len_b=10).translations(text)
                # scores: a model with random weights has ties
                assert [b[0].score for b in again] == pytest.approx([b[0].score for b in expected], abs=1e-3)
        else:
            with data_error(reason) as error:
                export.export(loaded, kind, folder)
            assert "distillation" in (error.value.hint or "") and not folder.exists()


@pytest.mark.parametrize("kind", ["fairseq", "ctranslate2"])
def test_a_multi_task_model_is_asked_for_a_translation(corpus, tmp_path, kind):
    """Its source begins and ends with a tag, by the model's own search and by that of the exported folder."""
    pytest.importorskip("ctranslate2")
    data, tag = tmp_path / "bin", "<translate>"
    shutil.copytree(corpus / "bin", data)
    (data / "manifest.json").unlink()
    with open(data / "dict.en.txt", "a", encoding="utf-8") as file:
        file.write(f"{tag} 1\n")
    loaded = untrained(data, "transformer", sure=20)
    export.export(loaded, kind, tmp_path / "out", source_tag=tag)
    text, search = ["the dog sees the man.", "children"], {"beam": 1, "max_len_b": 10}
    expected = Translator([loaded.model], loaded.task, source_tag=tag, **search).translations(text)
    actual = Translator.load(tmp_path / "out", device="cpu", **search).translations(text)
    assert [best[0].pieces for best in actual] == [best[0].pieces for best in expected]
    bare = Translator([loaded.model], loaded.task, **search).translations(text)
    scores = [best[0].score for best in expected]
    assert [best[0].score for best in bare] != pytest.approx(scores, abs=2e-2), "the tag is read"
    assert tag in (tmp_path / "out" / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", ["fairseq", "ctranslate2"])
def test_an_exported_model_knows_how_long_a_sentence_it_takes(corpus, tmp_path, kind):
    """Learned positions end: beyond them CTranslate2 gives up all sentences, and does so in its own search."""
    pytest.importorskip("ctranslate2")
    learned = ["--encoder-learned-pos", "--decoder-learned-pos"]
    positions = {"max_source_positions": 40, "max_target_positions": 40}
    data, folder = corpus / "bin", tmp_path / "model"
    make(trained(data, folder, "transformer", *learned, **positions, max_update=1), kind, tmp_path / "out")
    translator = Translator.load(tmp_path / "out", device="cpu", max_len_b=500)
    for beam in (1, 4):
        short, long = translator.with_search(beam=beam).translations(["children", "dog " * 60])
        assert short[0].error is None and len(short[0].pieces) < 40
        assert " 39" in long[0].error


def test_a_model_of_fairseqs_own_task_is_loaded_and_exported(corpus, tmp_path, capsys):
    """A student or a multi-task model is trained by fairseq's own task."""
    student = trained(corpus / "bin", tmp_path / "st", "transformer", task="translation", max_update=2)
    words = ["the dog sees the man.", "children"]
    expected = Translator.load(student, device="cpu", beam=2).translate(words)
    folder = make(student, "fairseq", tmp_path / "out")
    assert Translator.load(folder, device="cpu", beam=2).translate(words) == expected
    assert command(["export", str(student), "--to", "fairseq", "--output", str(tmp_path / "by")]) == 0
    state = torch.load(student, weights_only=True)
    state["cfg"]["task"]["_name"] = "language_modeling"
    torch.save(state, tmp_path / "lm.pt")
    with data_error("language_modeling", path="lm.pt"):
        Translator.load(tmp_path / "lm.pt", device="cpu")


def test_given_translations_are_scored_with_the_tag_too(corpus, tmp_path):
    data, tag = tmp_path / "bin", "<translate>"
    shutil.copytree(corpus / "bin", data)
    (data / "manifest.json").unlink()
    with open(data / "dict.en.txt", "a", encoding="utf-8") as file:
        file.write(f"{tag} 1\n")
    loaded = untrained(data, "transformer", sure=20)
    export.export(loaded, "fairseq", tmp_path / "out", source_tag=tag)
    translator = Translator.load(tmp_path / "out", device="cpu", beam=1, max_len_b=10)
    text = "the dog sees the man."
    ((best,),) = translator.translations([text])
    ((_, score),) = ForcedDecoder(translator).scores([text], [(0, best.text)])
    of_model = Translator([loaded.model], loaded.task, beam=1)
    ((_, bare),) = ForcedDecoder(of_model).scores([text], [(0, best.text)])
    if score.tokens == len(best.pieces) + 1:  # the search ended by itself
        assert score.mean == pytest.approx(best.score, abs=1e-4)
    assert abs(score.total - bare.total) > 1e-2, "the tag is read"
    pytest.importorskip("ctranslate2")
    export.export(loaded, "ctranslate2", tmp_path / "ct", source_tag=tag)
    with data_error("CTranslate2"):
        ForcedDecoder(Translator.load(tmp_path / "ct"))


def test_exporting_leaves_the_model_as_it_is(corpus, tmp_path):
    """The converter's arrays are the parameters themselves: it quantized them in place, and exchanged their heads."""
    pytest.importorskip("ctranslate2")
    loaded = untrained(corpus / "bin", "transformer")
    loaded = replace(loaded, head=AlignmentHead(1, 3))
    before = {name: value.clone() for name, value in loaded.model.state_dict().items()}
    for number, quantization in enumerate(("int8", "float16", None)):
        export.export(loaded, "ctranslate2", tmp_path / str(number), quantization=quantization)
        assert all(torch.equal(value, before[name]) for name, value in loaded.model.state_dict().items())


@pytest.mark.parametrize("quantization, change", [(None, 0.5), ("int8", 0.5), (None, np.nan)])
def test_another_model_is_not_written(supervised, tmp_path, monkeypatch, quantization, change):
    """The converter is fairseq's and CTranslate2's: what it makes is held against the model, quantized or not."""
    converter = pytest.importorskip("ctranslate2.converters.fairseq")
    original = converter.set_transformer_encoder

    def with_another_bias(spec, module):
        original(spec, module)
        spec.layer[0].ffn.linear_1.bias += change * (np.arange(len(spec.layer[0].ffn.linear_1.bias)) % 2)

    monkeypatch.setattr(converter, "set_transformer_encoder", with_another_bias)
    with data_error("CTranslate2"):
        make(supervised, "ctranslate2", tmp_path / "out", quantization=quantization)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "options, named",
    [
        (["--no-cross-attention"], "no-cross-attention"),
        (["--cross-self-attention"], "not equivalent"),
        (["--adaptive-softmax-cutoff", "10,20"], "cannot take"),
        (["--encoder-normalize-before", "--decoder-normalize-before", "--no-decoder-final-norm"], "layer_norm"),
    ],
)
def test_options_without_a_counterpart_in_ctranslate2_are_refused(corpus, tmp_path, options, named):
    pytest.importorskip("ctranslate2")
    with data_error(named, "CTranslate2"):
        export.export(untrained(corpus / "bin", "transformer", *options), "ctranslate2", tmp_path / "out")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["absolute", "relative", "both"])
def test_positions_in_the_tree_beside_label_embeddings_are_not_lost_in_silence(corpus, tmp_path, kind):
    pytest.importorskip("ctranslate2")
    systems = ("--encoder-syntax", "sennrich_haddow,structural_positions", "--label-features", "deprel:4")
    loaded = untrained(corpus / "bin", "syntax_transformer", *systems, "--structural-positions", kind)
    with data_error("structural_positions", "CTranslate2"):
        export.export(loaded, "ctranslate2", tmp_path / "out", quantization="int8")
    assert not (tmp_path / "out").exists()


def test_bad_folders_and_options(corpus, supervised, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    with data_error(path="full"):
        make(supervised, "fairseq", tmp_path / "full")
    with data_error(option="--quantization"):
        make(supervised, "fairseq", tmp_path / "out", quantization="int8")
    with data_error("<2de>"):
        make(supervised, "fairseq", tmp_path / "out", source_tag="<2de>")
    features = ("--label-features", "deprel:4")
    reads_parses = untrained(corpus / "bin", "sennrich_haddow_transformer", *features)
    with data_error("parse", option="--source-tag"):
        export.export(reads_parses, "ctranslate2", tmp_path / "out", source_tag=reads_parses.task.source_dictionary[9])
    with data_error("export.json", path="full"):
        Translator.load(tmp_path / "full")
    folder = make(supervised, "fairseq", tmp_path / "out")
    with data_error(path="out"):
        Translator.load([folder, supervised])
    write_json(folder / "export.json", sealed({"kind": "fairseq", "source_lang": "", "target_lang": "", "format": 9}))
    with data_error(path="export.json"):
        Translator.load(folder)


def test_what_a_kill_leaves_is_gone_after_the_next_run(corpus, tmp_path, monkeypatch):
    loaded = untrained(corpus / "bin", "supervised_head_transformer")

    def work():
        monkeypatch.setattr(export, "_readme", lambda *_: os._exit(9))
        export.export(loaded, "fairseq", tmp_path / "out")

    assert ended(forked(work)) == 9 and not (tmp_path / "out").exists()
    export.export(loaded, "fairseq", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"] and (tmp_path / "out" / "README.md").exists()


@pytest.mark.parametrize("kind", ["fairseq", "ctranslate2"])
def test_a_folder_that_cannot_be_made_and_what_is_damaged_beside_the_model(corpus, tmp_path, monkeypatch, kind):
    loaded = untrained(corpus / "bin", "supervised_head_transformer")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("empty")
    monkeypatch.chdir(tmp_path / "empty")
    for output, path in (
        (tmp_path / "file" / "x", "file"),
        (Path("."), "empty"),
        (tmp_path / "file", "file"),
    ):
        with data_error(path=path):
            export.export(loaded, kind, output)
    monkeypatch.chdir(tmp_path)
    with files_no_larger_than(20_000), data_error():
        export.export(loaded, kind, tmp_path / "link")
    data = tmp_path / "data"
    shutil.copytree(corpus / "bin", data)
    monkeypatch.setattr(loaded.task.directory, "path", str(data))
    (data / "dict.en.txt").unlink()
    with data_error(path="dict.en.txt"):
        export.export(loaded, kind, tmp_path / "link")
    monkeypatch.undo()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "empty", "file", "link"]
    export.export(loaded, kind, tmp_path / "link")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "empty" / "README.md").exists()

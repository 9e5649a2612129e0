"""``fairseq-syntax import`` of fairseq's own multilingual checkpoints, trained by fairseq's own tasks."""

from __future__ import annotations

import io
import shutil
from argparse import Namespace
from pathlib import Path

import binarized
import pytest
import tiny_pretrained
import torch
import toy_data
from data_errors import data_error
from fairseq import checkpoint_utils
from fairseq.data import Dictionary
from fairseq.tasks.translation_from_pretrained_bart import TranslationFromPretrainedBARTTask
from sentencepiece import SentencePieceProcessor
from untrained import untrained

from fairseq_syntax.cli import main as command
from fairseq_syntax.corpus.segmentation import load_segmenter
from fairseq_syntax.use.exported import CHECKPOINT, Exported
from fairseq_syntax.use.importing import OPTIONS, import_model
from fairseq_syntax.use.plain import checkpoint, write_checkpoint
from fairseq_syntax.use.translator import Translator

pytestmark = pytest.mark.slow
SIZES = [
    f"--{side}-{name}={value}"
    for side in ("encoder", "decoder")
    for name, value in (("layers", 2), ("embed-dim", 16), ("ffn-embed-dim", 24), ("attention-heads", 2))
]
# The languages of the files, which are those of the tokens, and the task's options.
TASKS = {
    "translation_from_pretrained_bart": (
        ("en_XX", "de_DE"),
        ["--langs", "en_XX,de_DE,fr_XX", "--arch", "mbart_base", "--criterion", "label_smoothed_cross_entropy"],
    ),
    "translation_multi_simple_epoch": (
        ("en", "de"),
        ["--langs", "en,de,fr", "--lang-pairs", "en-de", "--encoder-langtok", "src", "--decoder-langtok", "--arch",
         "transformer", "--share-all-embeddings", "--encoder-normalize-before", "--decoder-normalize-before",
         "--sampling-method", "temperature", "--sampling-temperature", "1.5"],
    ),
    "translation_multi_simple_epoch of mBART-50": (
        ("en_XX", "de_DE"),
        ["--langs", "en_XX,de_DE,fr_XX", "--lang-pairs", "en_XX-de_DE", "--encoder-langtok", "src", "--decoder-langtok",
         "--lang-tok-style", "mbart", "--arch", "mbart_base", "--sampling-method", "temperature",
         "--sampling-temperature", "1.5"],
    ),
}  # fmt: skip
tasks = pytest.mark.parametrize("task", TASKS)


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A folder for each task: ``bin``, and ``model`` with checkpoint, dictionary and SentencePiece model."""
    root = tmp_path_factory.mktemp("of_fairseq")
    # In fairseq 0.12 the task reads options of a name that its base class no longer has.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TranslationFromPretrainedBARTTask, "args", property(lambda task: task.cfg), raising=False)
        _train(root)
    return root


def _train(root: Path) -> None:
    for task, (langs, options) in TASKS.items():
        folder, model = root / task, root / task / "model"
        model.mkdir(parents=True)
        symbols = tiny_pretrained.pieces(model / "sentence.bpe.model")
        (model / "dict.txt").write_text("".join(f"{symbol} 1\n" for symbol in symbols), encoding="utf-8")
        processor = SentencePieceProcessor(model_file=str(model / "sentence.bpe.model"))
        for split, count in (("train", 12), ("valid", 4)):
            lines = binarized.sentences(count)
            german = (" ".join(binarized.DE[word] for word in line.split()) for line in lines)
            for lang, texts in zip(langs, (lines, german)):
                rows = (" ".join(processor.encode(text, out_type=str)) for text in texts)
                (folder / f"{split}.{lang}").write_text("\n".join(rows) + "\n", encoding="utf-8")
        toy_data.fairseq(
            "preprocess", "-s", langs[0], "-t", langs[1], "--destdir", folder / "bin", "--trainpref", folder / "train",
            "--validpref", folder / "valid", "--testpref", folder / "valid", "--srcdict", model / "dict.txt",
            "--tgtdict", model / "dict.txt",
        )  # fmt: skip
        of_pair = [] if "--lang-pairs" in options else ["-s", langs[0], "-t", langs[1]]
        toy_data.fairseq(
            "train", folder / "bin", "--task", task.partition(" ")[0], *options, *of_pair, *SIZES, "--save-dir", model,
            "--cpu", "--optimizer", "adam", "--lr", "0.02", "--max-tokens", "400", "--max-update", "6",
            "--disable-validation", "--no-epoch-checkpoints", "--seed", "1",
        )  # fmt: skip


@pytest.mark.matrix(1)
@tasks
def test_it_computes_what_fairseq_computes(trained, tmp_path, task):
    """States and probabilities, which the import compares; and the dictionary, the languages and the search."""
    (source, target), _ = TASKS[task]
    checkpoint = trained / task / "model" / "checkpoint_last.pt"
    imported = import_model(checkpoint, tmp_path / "out", source, target)
    assert imported.comparison is not None and max(vars(imported.comparison).values()) < 1e-5
    state = torch.load(tmp_path / "out" / CHECKPOINT, weights_only=True)["model"]
    theirs = torch.load(checkpoint, weights_only=False)["model"]
    assert all(torch.equal(state[name], theirs[name]) for name in state if not name.endswith("version"))
    exported = Exported.load(tmp_path / "out")
    assert [*exported.languages] == ["en_XX", "de_DE", "fr_XX"] if "_" in source else ["en", "de", "fr"]
    small = import_model(
        checkpoint, tmp_path / "small", source, target, keep_pieces=[trained / task / f"train.{source}"]
    )
    assert small.dropped[0] > 10 and small.comparison is not None


def test_beams_are_those_of_fairseq(trained, tmp_path):
    """Without normalization by length, the probability of the forced language token changes no rank."""
    folder = trained / "translation_multi_simple_epoch"
    import_model(folder / "model" / "checkpoint_last.pt", tmp_path / "out", "en", "de")
    of_pair = {"data": str(folder / "bin"), "source_lang": "en", "target_lang": "de"}
    path = str(folder / "model" / "checkpoint_last.pt")
    models, _, task = checkpoint_utils.load_model_ensemble_and_task([path], arg_overrides=of_pair)
    models[0].eval()
    # The forced token counts in their lengths.
    generator = task.build_generator(models, Namespace(beam=5, unnormalized=True, max_len_b=12, min_len=2))
    pieces = (folder / "valid.en").read_text().splitlines()
    rows = [task.source_dictionary.encode_line(line, add_if_not_exist=False).long() for line in pieces]
    dataset = task.build_dataset_for_inference(rows, [len(row) for row in rows])
    sample = dataset.collater([dataset[i] for i in range(len(rows))])
    best = [beam[0]["tokens"][1:] for beam in task.inference_step(generator, models, sample)]
    theirs = dict(zip(sample["id"].tolist(), map(task.target_dictionary.string, best)))
    processor = SentencePieceProcessor(model_file=str(folder / "model" / "sentence.bpe.model"))
    translator = Translator.load(tmp_path / "out", device="cpu", beam=5, unnormalized=True, max_len_b=11)
    ours = [one.text for one in translator.translate([processor.decode(line.split()) for line in pieces])]
    assert ours == [processor.decode(theirs[i].split()) for i in range(len(rows))] and any(ours)


@pytest.mark.matrix(1)
@tasks
def test_training_goes_on_from_it_with_a_system(trained, tmp_path, task):
    (source, target), _ = TASKS[task]
    import_model(trained / task / "model" / "checkpoint_last.pt", tmp_path / "out", source, target)
    folder = tmp_path / "data"
    folder.mkdir()
    lines = binarized.sentences(12)
    (folder / f"train.{source}.conllu").write_text(binarized.conllu(lines, arcs=False), encoding="utf-8")
    german = (" ".join(binarized.DE[word] for word in line.split()) for line in lines)
    (folder / f"train.{target}").write_text("\n".join(german) + "\n", encoding="utf-8")
    for lang, name in ((source, f"train.{source}.conllu"), (target, f"train.{target}")):
        cut = ["--model", tmp_path / "out" / f"segmentation.{lang}.json", "--output", folder / "pieces"]
        assert toy_data.syntax_command("segment", "--lang", lang, "--input", folder / name, *cut) == 0
    toy_data.fairseq(
        "preprocess", "--task", "syntax_translation", "-s", source, "-t", target, "--destdir", folder / "bin",
        "--trainpref", folder / "pieces" / "train", "--srcdict", tmp_path / "out" / f"dict.{source}.txt",
        "--tgtdict", tmp_path / "out" / f"dict.{target}.txt",
    )  # fmt: skip
    toy_data.fairseq(
        "train", folder / "bin", "--task", "syntax_translation", *(tmp_path / "out" / OPTIONS).read_text().split(),
        "--encoder-syntax", "supervised_heads", "--criterion", "chunked_cross_entropy", "--finetune-from-model",
        tmp_path / "out" / CHECKPOINT, "--save-dir", tmp_path / "save", "--cpu", "--optimizer", "adam", "--lr", "1e-3",
        "--max-tokens", "400", "--max-update", "2", "--disable-validation", "--seed", "2",
    )  # fmt: skip
    translator = Translator.load(tmp_path / "save" / "checkpoint_last.pt", device="cpu")
    assert len(translator.translate(lines[:2])) == 2


def test_an_architecture_of_another_fairseq_is_its_sizes(trained, tmp_path):
    """NLLB's own version of fairseq names architectures that the published one does not have."""
    folder = trained / "translation_multi_simple_epoch" / "model"
    state = torch.load(folder / "checkpoint_last.pt", weights_only=False)
    state["cfg"]["model"].arch = "transformer_of_another_version"
    shutil.copytree(folder, tmp_path / "theirs")
    (tmp_path / "theirs" / "dict.txt").rename(tmp_path / "theirs" / "dictionary.txt")
    torch.save(state, tmp_path / "theirs" / "checkpoint_last.pt")
    imported = import_model(tmp_path / "theirs" / "checkpoint_last.pt", tmp_path / "out", "en", "de")
    assert imported.comparison is not None and max(vars(imported.comparison).values()) < 1e-5


def test_what_cannot_be_imported_says_why(trained, tmp_path):
    folder = trained / "translation_multi_simple_epoch"
    checkpoint = folder / "model" / "checkpoint_last.pt"
    with data_error("xx", option="--source-name"):
        import_model(checkpoint, tmp_path / "out", "xx", "de")
    (alone := tmp_path / "alone").mkdir()
    (alone / "model.pt").write_bytes(checkpoint.read_bytes())
    with data_error("dictionary", path=alone):
        import_model(alone / "model.pt", tmp_path / "out", "en", "de")
    symbols = (folder / "model" / "dict.txt").read_text()
    (alone / "dict.txt").write_text(symbols)
    with data_error("segmentation", path=alone):
        import_model(alone / "model.pt", tmp_path / "out", "en", "de")
    (alone / "spm.model").write_bytes((folder / "model" / "sentence.bpe.model").read_bytes())
    (alone / "dict.txt").write_text(symbols + "".join(f"more{i} 1\n" for i in range(9)))
    with data_error("symbols", path=alone / "model.pt"):
        import_model(alone / "model.pt", tmp_path / "out", "en", "de")
    (alone / "dict.txt").write_text("no count\n")
    with data_error(path=alone / "dict.txt"):
        import_model(alone / "model.pt", tmp_path / "out", "en", "de")
    (alone / "model.pt").write_bytes(b"nothing")
    with data_error(path=alone / "model.pt"):
        import_model(alone / "model.pt", tmp_path / "out", "en", "de")
    assert not (tmp_path / "out").exists()


def test_models_of_wmt19_are_used_where_they_lie(tmp_path, monkeypatch):
    """An ensemble of fairseq's own Transformers with random weights beside dictionaries and codes of fastBPE."""
    pytest.importorskip("sacremoses")
    from subword_nmt.learn_bpe import learn_bpe

    monkeypatch.chdir(tmp_path)
    learn_bpe(tiny_pretrained.text(), codes := io.StringIO(), 60)
    Path("bpecodes").write_text("".join(f"{merge} 7\n" for merge in codes.getvalue().splitlines()[1:]))
    segmenter = load_segmenter("bpecodes")
    lines = [f"{line}." for line in tiny_pretrained.text()[:12]]
    pieces = [segmenter.encode_text(line) for line in lines]
    dictionary = Dictionary()
    for piece in sorted({piece for line in pieces for piece in line}):
        dictionary.add_symbol(piece)
    for lang in ("en", "de"):
        dictionary.save(str(tmp_path / f"dict.{lang}.txt"))
        Path(f"dev.{lang}").write_text("\n".join(lines))
        assert not command(f"segment --lang {lang} --model bpecodes --input dev.{lang} --output pieces".split())
        shutil.copy(f"pieces/segmentation.{lang}.json", ".")
    assert [line.split() for line in Path("pieces/dev.en").read_text().splitlines()] == pieces
    shutil.copy("pieces/segmentation.en.model", "."), shutil.copy("pieces/segmentation.de.model", ".")
    models = []
    for name in ("model1.pt", "model2.pt"):
        model, options = (one := untrained(tmp_path, "transformer")).plain()
        torch.manual_seed(int(name[5]))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(std=0.4)
        write_checkpoint(Path(name), state := checkpoint(model.state_dict(), options, one.task))
        models.append(model)
    generator = one.task.build_generator(models, Namespace(beam=5, max_len_b=12))
    rows = [dictionary.encode_line(" ".join(line), add_if_not_exist=False).long() for line in pieces]
    dataset = one.task.build_dataset_for_inference(rows, [len(row) for row in rows])
    sample = dataset.collater([dataset[i] for i in range(len(rows))])
    best = [beam[0]["tokens"] for beam in one.task.inference_step(generator, models, sample)]
    theirs = dict(zip(sample["id"].tolist(), map(dictionary.string, best)))
    translator = Translator.load(["model1.pt", "model2.pt"], ".", device="cpu", beam=5, max_len_b=12)
    ours = [one.text for one in translator.translate(lines)]
    assert ours == [segmenter.decode(theirs[i].split()) for i in range(len(rows))] and len({*ours}) > 1
    state["cfg"]["task"]["source_lang"] = None  # trained without -s and -t
    write_checkpoint(Path("model1.pt"), state)
    with data_error("languages", path="model1.pt"):
        Translator.load(["model1.pt", "model2.pt"], ".", device="cpu")

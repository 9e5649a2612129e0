"""``fairseq-syntax import``: the states, probabilities and beams of transformers, and what cannot be imported."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path

import binarized
import pytest
import tiny_pretrained
import torch
import toy_data
from data_errors import data_error
from torch.nn.utils.rnn import pad_sequence

from fairseq_syntax.cli.command import check_line
from fairseq_syntax.corpus.conllu import read_conllu
from fairseq_syntax.corpus.segmentation import SentencePieceSegmenter
from fairseq_syntax.lab.recipes.checks import problems
from fairseq_syntax.lab.recipes.plan import Plan
from fairseq_syntax.lab.recipes.reading import load_recipe as load_recipe
from fairseq_syntax.lab.recipes.start import first_recipe
from fairseq_syntax.use.export import export, load_exported_folder
from fairseq_syntax.use.exported import CHECKPOINT, Exported
from fairseq_syntax.use.from_transformers import read_pretrained
from fairseq_syntax.use.hugging_face import import_transformers
from fairseq_syntax.use.importing import OPTIONS, compare_models, import_model, their_source, their_start
from fairseq_syntax.use.translator import Translator

pytestmark = pytest.mark.slow
COUNT = int(os.environ.get("SENTENCES", "60"))
# The languages of files, where they are not those of the folder's tokenizer, and the model's names of them.
LANGS = {"m2m100": ("en", "de"), "nllb": ("eng_Latn", "deu_Latn"), "mbart50": ("en", "de")}
CHAIN = "fairseq_syntax.corpus.parsing.chain"  # a parser that needs no models
families = pytest.mark.parametrize("family", tiny_pretrained.FAMILIES)


@pytest.fixture(scope="module")
def theirs(tmp_path_factory) -> Path:
    """The folders of all families. Do not change their files."""
    pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("theirs")
    for family in tiny_pretrained.FAMILIES:
        tiny_pretrained.make(family, folder)
    return folder


@pytest.fixture(scope="module")
def imported(theirs, tmp_path_factory) -> Path:
    """What was imported of them."""
    folder = tmp_path_factory.mktemp("imported")
    for family in tiny_pretrained.FAMILIES:
        assert import_model(theirs / family, folder / family, *LANGS.get(family, ())).comparison is not None
    return folder


def model_of(folder: Path):
    """transformers' model."""
    cls = import_transformers().AutoModelForSeq2SeqLM
    return cls.from_pretrained(folder, dtype=torch.float32).eval()


def described(theirs: Path, family: str):
    """What the import reads of a folder, with the options of its languages."""
    return read_pretrained(theirs / family, *LANGS.get(family, ()))


def sentences(pretrained, most: int, count: int = COUNT) -> list[list[int]]:
    """The places of random symbols of the source: empty, of one piece, at the limit of length, and others."""
    generator = torch.Generator().manual_seed(2)
    lengths = [0, 1, most, most - 1, *torch.randint(1, 20, (count - 4,), generator=generator).tolist()]
    last = len(pretrained.vocabularies["source"].symbols)
    if isinstance(segmenter := pretrained.segmenters["source"], SentencePieceSegmenter):
        known = segmenter.all_pieces()
        last = sum(symbol in known for symbol in pretrained.vocabularies["source"].symbols)  # pieces come first
    return [torch.randint(4, last, (n,), generator=generator).tolist() for n in lengths]


@families
def test_states_and_probabilities_are_those_of_transformers(theirs, imported, family):
    translator, pretrained = Translator.load(imported / family, device="cpu"), described(theirs, family)
    found = sentences(pretrained, translator.max_positions()[0] - 1)
    ours, model = translator.models[0], model_of(theirs / family)
    # In float64, since the logits of these models are in the hundreds; fairseq's softmax stays in float32, and so does
    # all of transformers' FSMT.
    if family != "fsmt":
        ours, model = ours.double(), model.double()
    result = compare_models(pretrained, ours, model, found)
    assert result.states < 1e-5 and result.log_probabilities < 2e-5


@families
def test_beams_are_those_of_generate(theirs, imported, family):
    pretrained, model = described(theirs, family), model_of(theirs / family)
    search = dict(Exported.load(imported / family).search)
    translator = Translator.load(imported / family, device="cpu", search_rules=search.pop("search_rules"), **search)
    assert translator.task.cfg.search_rules == "transformers"
    end, pad = model.config.eos_token_id, model.config.pad_token_id
    rows, begin = pretrained.vocabularies["target"].rows, len(their_start(pretrained))
    sources, translations = sentences(pretrained, translator.max_positions()[0] - 1), set()
    for at in range(0, COUNT, 20):
        batch = sources[at : at + 20]
        tokens = [torch.tensor([*one, 2]) for one in batch]
        side = "left" if at // 20 % 2 else "right"
        net_input = {
            "src_tokens": pad_sequence(tokens, batch_first=True, padding_value=1, padding_side=side),
            "src_lengths": torch.tensor([len(one) for one in tokens]),
        }
        sample = {"id": torch.arange(at, at + len(batch)), "net_input": net_input}
        ours = translator._generator.generate(translator.models, sample)
        ids = [torch.tensor(their_source(pretrained, one)) for one in batch]
        out = model.generate(
            input_ids=pad_sequence(ids, batch_first=True, padding_value=pad),
            attention_mask=pad_sequence([torch.ones_like(one) for one in ids], batch_first=True),
            forced_eos_token_id=end, bad_words_ids=[[pad]], return_dict_in_generate=True, output_scores=True,
        )  # fmt: skip
        for best, row, score in zip(ours, out.sequences[:, begin:].tolist(), out.sequences_scores.tolist()):
            row = row[: row.index(end) + 1]
            assert [rows[i] for i in best[0]["tokens"].tolist()] == row
            assert best[0]["score"].item() == pytest.approx(score, abs=1e-4)
            translations.add(tuple(row))
    assert len(translations) > 3 and len({len(row) for row in translations}) > 1


@families
def test_text_is_translated_as_by_transformers(theirs, imported, family):
    lines = tiny_pretrained.text()[:20]
    tokenizer = import_transformers().AutoTokenizer.from_pretrained(theirs / family)
    batch, model = tokenizer(lines, return_tensors="pt", padding=True), model_of(theirs / family)
    end = model.config.eos_token_id
    out = model.generate(**batch, bad_words_ids=[[model.config.pad_token_id]], forced_eos_token_id=end)
    search = Exported.load(imported / family).search
    rules = search.pop("search_rules")
    translator = Translator.load(imported / family, device="cpu", search_rules=rules, **search)
    texts = tokenizer.batch_decode(out, skip_special_tokens=True)
    # The forced token of M2M-100 is none of its tokenizer's special tokens.
    expected = [" ".join(one.removeprefix("__de__").split()) for one in texts]
    assert [" ".join(one.text.split()) for one in translator.translate(lines)] == expected


@pytest.mark.parametrize("family", ["marian", "separate"])
def test_there_and_back(theirs, imported, tmp_path, family):
    from safetensors.torch import load_file

    pytest.importorskip("ctranslate2")
    export(load_exported_folder(imported / family / CHECKPOINT), "transformers", tmp_path / "back")
    before, after = (load_file(folder / "model.safetensors") for folder in (theirs / family, tmp_path / "back"))
    assert before.keys() == after.keys()
    assert not [name for name in before if not torch.equal(before[name], after[name])]
    for name in ("vocab.json", "target_vocab.json"):
        if (path := theirs / family / name).exists():
            assert json.loads(path.read_text()) == json.loads((tmp_path / "back" / name).read_text())
    export(load_exported_folder(imported / family / CHECKPOINT), "ctranslate2", tmp_path / "ct2")  # compares the scores
    with data_error("positions-from-zero"):
        export(load_exported_folder(imported / family / CHECKPOINT), "fairseq", tmp_path / "stock")


def test_a_marian_model_that_was_trained_further_is_exported(imported, tmp_path):
    """Label smoothing moves the logit of ``<s>``, which Marian's vocabulary does not have."""
    trained = load_exported_folder(imported / "marian" / CHECKPOINT)
    with torch.no_grad():
        trained.model.decoder.output_projection.weight[0] += 0.1
        trained.model.decoder.output_projection.bias[0] += 0.1
    export(trained, "transformers", tmp_path / "further")
    assert (tmp_path / "further" / "model.safetensors").exists()


@pytest.mark.parametrize("family", ["m2m100", "nllb", "legacy", "mbart", "mbart50", "fsmt"])
def test_other_families_there_and_back(theirs, imported, tmp_path, family):
    """The same parameters, and a tokenizer that gives the same ids."""
    from safetensors.torch import load_file

    export(load_exported_folder(imported / family / CHECKPOINT), "transformers", tmp_path / "back")
    before, after = (load_file(folder / "model.safetensors") for folder in (theirs / family, tmp_path / "back"))
    assert before.keys() == after.keys()
    assert not [name for name in before if not torch.equal(before[name], after[name])]
    tokenizers = (import_transformers().AutoTokenizer.from_pretrained(f) for f in (theirs / family, tmp_path / "back"))
    one, other = (tokenizer(tiny_pretrained.text()[:20]).input_ids for tokenizer in tokenizers)
    assert one == other
    ids = [
        getattr(model_of(f).generation_config, "forced_bos_token_id", None)
        for f in (theirs / family, tmp_path / "back")
    ]
    assert ids[0] == ids[1]


@pytest.fixture(scope="module")
def data(imported, tmp_path_factory) -> Path:
    """A parsed corpus, segmented and binarized by the segmentation and the dictionaries of the Marian model."""
    folder, model = tmp_path_factory.mktemp("data"), imported / "marian"
    for split, count, seed in (("train", 40, 1), ("valid", 8, 2)):
        lines = binarized.sentences(count, seed)
        (folder / f"{split}.en.conllu").write_text(binarized.conllu(lines, arcs=False), encoding="utf-8")
        german = (" ".join(binarized.DE[word] for word in line.split()) for line in lines)
        (folder / f"{split}.de").write_text("\n".join(german) + "\n", encoding="utf-8")
    for lang, ending in (("en", "en.conllu"), ("de", "de")):
        inputs = [folder / f"{split}.{ending}" for split in ("train", "valid")]
        cut = ["--model", model / f"segmentation.{lang}.json", "--output", folder / "pieces"]
        assert toy_data.syntax_command("segment", "--lang", lang, "--input", *inputs, *cut) == 0
    toy_data.fairseq(
        "preprocess", "--task", "syntax_translation", "-s", "en", "-t", "de", "--destdir", folder / "bin",
        "--trainpref", folder / "pieces" / "train", "--validpref", folder / "pieces" / "valid",
        "--srcdict", model / "dict.en.txt", "--tgtdict", model / "dict.de.txt",
    )  # fmt: skip
    return folder / "bin"


SYSTEMS = {
    "": [],
    "pascal": [],
    "supervised_heads": ["--criterion", "supervised_head"],
    "relative_positions": [],
    "sennrich_haddow": [],
}


@pytest.mark.parametrize("system", SYSTEMS)
def test_training_starts_from_it_with_a_system(imported, data, tmp_path, system):
    """The parameters that the two have in common are the imported ones until the first update."""
    model = imported / "marian"
    systems = ["--encoder-syntax", system] if system else []
    toy_data.fairseq(
        "train", data, "--task", "syntax_translation", *(model / OPTIONS).read_text().split(), *systems,
        *SYSTEMS[system], "--finetune-from-model", model / CHECKPOINT, "--save-dir", tmp_path, "--cpu",
        "--optimizer", "sgd", "--lr", "1e-9", "--max-tokens", "400", "--max-update", "1", "--disable-validation",
        "--seed", "2",
    )  # fmt: skip
    before, after = (
        torch.load(p, weights_only=True)["model"] for p in (model / CHECKPOINT, tmp_path / "checkpoint_last.pt")
    )
    assert before.keys() <= after.keys()
    assert all(torch.allclose(before[name], after[name], atol=1e-6) for name in before)
    new = after.keys() - before.keys()
    assert all(name.startswith("encoder.systems.") for name in new)
    assert bool(new) == (system in ("relative_positions", "sennrich_haddow"))
    parses = list(read_conllu(binarized.conllu(binarized.sentences(3, 5), arcs=False).split("\n")))
    assert all(
        t.pieces is not None for t in Translator.load(tmp_path / "checkpoint_last.pt", device="cpu").translate(parses)
    )


def test_init_writes_a_recipe_that_starts_from_it(imported, tmp_path, monkeypatch):
    """Rows of the model as it is, trained further, with the system and with its placebo; all with its vocabulary."""
    (tmp_path / "corpus").mkdir()
    for split, count in (("train", 30), ("valid", 5), ("test", 5)):
        lines = binarized.sentences(count)
        german = [" ".join(binarized.DE[word] for word in line.split()) for line in lines]
        for lang, texts in (("en", lines), ("de", german)):
            (tmp_path / "corpus" / f"{split}.{lang}").write_text("\n".join(texts) + "\n")
    monkeypatch.chdir(tmp_path)
    splits = ["--train", "corpus/train", "--valid", "corpus/valid", "--test", "corpus/test", "-s", "en", "-t", "de"]
    model = imported / "marian"
    assert (
        toy_data.syntax_command("init", "--from", model, *splits, "--system", "supervised_heads", "--parser", CHAIN)
        == 0
    )
    plan = Plan(load_recipe(tmp_path / "recipe.yaml"), tmp_path / "recipe.yaml")
    assert [*plan.recipe.systems] == ["finetuned", "imported", "supervised_heads", "supervised_heads.shuffled"]
    stages = {stage.name: stage for stage in plan.stages(plan.runs)}
    assert str(stages["train imported/1"].commands[0]).startswith("cp ")
    for name in ("finetuned", "supervised_heads", "supervised_heads.shuffled"):
        assert model / CHECKPOINT in stages[f"train {name}/1"].inputs
    assert {model / "dict.en.txt", model / "dict.de.txt"} <= set(stages["binarize"].inputs)
    # Each training makes an update and translates, with the model's dictionaries.
    assert not [*problems(plan, [*stages.values()], check_line)]
    with data_error("en to de", path=model):
        first_recipe(tmp_path / "other", "en", "fr", *[["corpus/train"]] * 2, {}, ["pascal"], pretrained=model)


def broken(theirs: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(theirs / "marian", tmp_path / "broken"))


def change_config(folder: Path, **values) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def change_weights(folder: Path, change) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors")


class Evil:
    def __reduce__(self):
        return os.mkdir, ("evil",)


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with (folder / "pytorch_model.bin").open("wb") as file:
        pickle.dump({"model.shared.weight": Evil()}, file)


LAYER = "model.encoder.layers.0.fc1.weight"
BROKEN = {
    "no config": (lambda f: (f / "config.json").unlink(), "config.json"),
    "not JSON": (lambda f: (f / "config.json").write_text("{"), "config.json"),
    "another family": (lambda f: change_config(f, model_type="t5"), "t5"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "model.safetensors"),
    "cut off": (lambda f: os.truncate(f / "model.safetensors", 900), "model.safetensors"),
    "a parameter missing": (lambda f: change_weights(f, lambda w: w.pop(LAYER)), LAYER),
    "one too many": (lambda f: change_weights(f, lambda w: w.update(other=torch.ones(2))), "other"),
    "another shape": (lambda f: change_weights(f, lambda w: w.update({LAYER: torch.ones(3, 3)})), LAYER),
    "another type": (lambda f: change_weights(f, lambda w: w.update({LAYER: w[LAYER].int()})), LAYER),
    "fewer layers in the configuration": (lambda f: change_config(f, encoder_layers=1), "layers.1"),
    "another activation": (lambda f: change_config(f, activation_function="mish"), "mish"),
    "another vocabulary": (lambda f: change_config(f, vocab_size=20, pad_token_id=19), "vocab.json"),
    "no vocabulary": (lambda f: (f / "vocab.json").unlink(), "vocab.json"),
    "another segmentation": (lambda f: (f / "source.spm").write_bytes(b"nothing"), "source.spm"),
    "a pickle that runs code": (pickled, "pytorch_model.bin"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_cannot_be_imported_says_why(theirs, tmp_path, monkeypatch, what):
    """Nothing is written, and no code of the folder runs."""
    monkeypatch.chdir(tmp_path)
    folder, (damage, named) = broken(theirs, tmp_path), BROKEN[what]
    damage(folder)
    with data_error(named):
        import_model(folder, tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} - {"out.export.lock"} == {"broken"}


def test_weights_pickled_alone_are_read(theirs, tmp_path):
    from safetensors.torch import load_file

    folder = broken(theirs, tmp_path)
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    assert import_model(folder, tmp_path / "out").comparison is not None


@pytest.mark.parametrize("family", ["separate", "nllb"])
def test_only_the_pieces_of_a_text_are_kept(theirs, imported, tmp_path, family):
    """The model computes the same of them, which the import itself compares, and knows no others."""
    text, langs = tmp_path / "text.en", LANGS.get(family, ())
    text.write_text("\n".join(binarized.DE) + "\n")
    cut = import_model(theirs / family, tmp_path / "out", *langs, keep_pieces=[text])
    assert cut.comparison is not None and min(cut.dropped) > 20
    small, whole = (Translator.load(folder, device="cpu") for folder in (tmp_path / "out", imported / family))
    dictionary, segmenter = small.task.source_dictionary, small.task.segmenter("source")
    pieces = {piece for word in binarized.DE for piece in segmenter.encode_text(word)}
    languages = set(small.task.source_dictionary.symbols) & set(Exported.load(tmp_path / "out").languages.values())
    assert set(dictionary.symbols[4:]) == pieces & set(whole.task.source_dictionary.symbols) | languages
    assert len(languages) == (3 if family == "nllb" else 0)


def test_a_model_that_computes_something_else_is_not_saved(theirs, tmp_path):
    """transformers computes nothing that config.json does not say; here it says what the weights are not."""
    folder = broken(theirs, tmp_path)
    (tmp_path / ".out.part").mkdir()  # left by a killed import
    change_config(folder, scale_embedding=False)
    import_model(folder, tmp_path / "out")
    assert Exported.load(tmp_path / "out").kind == "fairseq-syntax"
    with data_error("not empty"):
        import_model(folder, tmp_path / "out")

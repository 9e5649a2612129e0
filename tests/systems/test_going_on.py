"""What training may begin with, and in which tasks: numbers that mean other words are found, and so is a lost loss."""

import pickle
import random
import re
import shutil
import warnings
from argparse import Namespace
from pathlib import Path

import pytest
import torch
import toy_data
from data_errors import data_error
from toy_data import fairseq, preprocess_options

from fairseq_syntax.compat import checkpoints
from fairseq_syntax.runtime.recipe_stage import STAGE_VARIABLE, starts_in

after_a_stop = pytest.mark.matrix(1, of="trainings that go on")
SHORT = {"max_epoch": None, "max_update": 1, "encoder_layers": 1}
LABELS = {"arch": "sennrich_haddow_transformer", "label_features": "deprel:4", **SHORT}


def binarized_again(toy, folder, *options):
    fairseq("preprocess", *preprocess_options(toy.segmented, folder), *options)
    return folder


@pytest.fixture(scope="module")
def of_labels(toy, tmp_path_factory):
    save = tmp_path_factory.mktemp("labels") / "model"
    toy_data.train(toy.data, save, **LABELS)
    return save


@after_a_stop
@pytest.mark.slow
def test_a_run_does_not_go_on_with_other_labels(toy, of_labels, tmp_path):
    """As many labels, two of which have changed places: nothing else would see it."""
    other = toy_data.Toy(toy.raw, tmp_path / "segmented", tmp_path / "data", toy.lines)
    shutil.copytree(toy.segmented, other.segmented)
    swapped = {"nmod:tmod": "obj", "obj": "nmod:tmod"}
    for file in other.segmented.glob("*.en.conllu"):
        text = re.sub(r"nmod:tmod|\bobj\b", lambda m: swapped[m.group()], file.read_text("utf-8"))
        file.write_text(text, encoding="utf-8")
    dictionaries = [
        x for side, lang in (("src", "en"), ("tgt", "de")) for x in (f"--{side}dict", toy.data / f"dict.{lang}.txt")
    ]
    binarized_again(other, other.data, *dictionaries)
    with data_error("--source-labels", path="checkpoint_last.pt"):
        toy_data.train(
            other.data, tmp_path / "new", "--finetune-from-model", of_labels / "checkpoint_last.pt", **LABELS
        )
    shutil.copytree(of_labels, tmp_path / "on")
    with data_error(path="checkpoint_last.pt"):
        toy_data.train(other.data, tmp_path / "on", **{**LABELS, "max_update": 2})
    binarized_again(other, tmp_path / "given", *dictionaries, "--source-labels", toy.data / "labels.en.json")
    assert toy_data.train(tmp_path / "given", tmp_path / "on", **{**LABELS, "max_update": 2})


def test_a_run_does_not_go_on_with_another_dictionary(toy, of_labels, tmp_path):
    words = (toy.data / "dict.en.txt").read_text("utf-8").splitlines()
    (tmp_path / "dict").write_text("\n".join(reversed(words)) + "\n", encoding="utf-8")
    data = binarized_again(toy, tmp_path / "data", "--srcdict", tmp_path / "dict")
    shutil.copytree(of_labels, tmp_path / "on")
    with data_error("--srcdict", path="data"):
        toy_data.train(data, tmp_path / "on", **{**LABELS, "max_update": 2})


@pytest.mark.parametrize("limit", [{}, {"max_update": 2, "stop_time_hours": 1e-9}], ids=["updates", "hours"])
def test_a_training_that_is_done_is_trained_no_further(toy, tmp_path, limit):
    """In the middle of an epoch: fairseq would train one update more each time that it is run."""
    done = toy_data.train(toy.data, tmp_path, **{**SHORT, **limit})
    again = toy_data.train(toy.data, tmp_path, **{**SHORT, **limit})
    assert again["optimizer_history"][-1]["num_updates"] == 1
    assert all(torch.equal(value, again["model"][name]) for name, value in done["model"].items())
    more = toy_data.train(toy.data, tmp_path, **{**SHORT, "max_update": 2})
    assert more["optimizer_history"][-1]["num_updates"] == 2


@after_a_stop
@pytest.mark.slow
def test_patience_counts_what_was_before_an_interruption(toy, tmp_path):
    """No epoch is better than the first, as nothing is learned; --reset-meters begins to count anew."""
    options = {**SHORT, "max_update": None, "lr": 0, "patience": 3}
    for save in (tmp_path / "on", tmp_path / "anew"):
        toy_data.train(toy.data, save, **{**options, "max_epoch": 2})
    on = toy_data.train(toy.data, tmp_path / "on", **{**options, "max_epoch": 9})
    assert on["extra_state"]["train_iterator"]["epoch"] == 1 + 4
    again = toy_data.train(toy.data, tmp_path / "on", **{**options, "max_epoch": 9})
    assert again["extra_state"]["train_iterator"]["epoch"] == 1 + 4, "it has ended"
    anew = toy_data.train(toy.data, tmp_path / "anew", "--reset-meters", **{**options, "max_epoch": 9})
    assert anew["extra_state"]["train_iterator"]["epoch"] == 1 + 6


def test_each_line_of_the_log_is_written_once(toy, tmp_path):
    """fairseq opens the log in each epoch, and writes a line into all that are open."""
    log = "--log-file", tmp_path / "log", "--log-format", "simple"
    toy_data.train(toy.data, tmp_path / "model", *log, encoder_layers=1, max_epoch=3)
    epochs = re.findall(r"epoch 00(\d) \| (?:valid|loss)", (tmp_path / "log").read_text("utf-8"))
    assert epochs == [*"112233"]


def test_a_kill_while_a_checkpoint_is_copied_leaves_the_former_one(tmp_path, monkeypatch):
    """fairseq writes the first of several whole, and the others over the former ones."""
    from fairseq import checkpoint_utils, file_io

    def half(src_path, dst_path, overwrite):
        Path(dst_path).write_bytes(Path(src_path).read_bytes()[:3])
        raise KeyboardInterrupt

    new, last = tmp_path / "checkpoint1.pt", tmp_path / "checkpoint_last.pt"
    new.write_bytes(b"second")
    last.write_bytes(b"first")
    with monkeypatch.context() as patched:
        patched.setattr(file_io.PathManager, "copy", half)
        with pytest.raises(KeyboardInterrupt):
            checkpoint_utils.PathManager.copy(str(new), str(last), overwrite=True)
    assert last.read_bytes() == b"first"
    assert checkpoint_utils.PathManager.copy(str(new), str(last), overwrite=True)
    assert last.read_bytes() == b"second" and sorted(tmp_path.iterdir()) == [new, last]


@pytest.mark.parametrize("part", ["none", "some", "most", "text"])
def test_a_run_does_not_go_on_from_a_part_of_a_checkpoint(toy, of_labels, tmp_path, part):
    shutil.copytree(of_labels, tmp_path / "on")
    file = tmp_path / "on" / "checkpoint_last.pt"
    whole = file.read_bytes()
    file.write_bytes({"none": b"", "some": whole[:1000], "most": whole[:-10], "text": b"no checkpoint"}[part])
    with data_error("--restore-file", path="checkpoint_last.pt"):
        toy_data.train(toy.data, tmp_path / "on", **{**LABELS, "max_update": 2})


@after_a_stop
@pytest.mark.slow
@pytest.mark.parametrize("swapped", ["checkpoint_last.pt", "checkpoint_best.pt"])
def test_a_recipes_training_does_not_go_on_with_the_checkpoint_of_another(toy, tmp_path, monkeypatch, swapped):
    """Of another seed, of the same architecture and data: nothing else would see it."""
    on, other = tmp_path / "on", tmp_path / "other"
    for seed, save in ((1, on), (2, other)):
        monkeypatch.setenv(STAGE_VARIABLE, f"stage{seed}")
        log = tmp_path / f"log{seed}"
        toy_data.train(toy.data, save, "--log-file", log, **SHORT, seed=seed)
        assert starts_in(log.read_text("utf-8")) == [(f"stage{seed}", 0)]
    shutil.copytree(on, tmp_path / "whole")
    shutil.copy(other / swapped, on / swapped)
    monkeypatch.setenv(STAGE_VARIABLE, "stage1")
    with data_error(path=swapped):
        toy_data.train(toy.data, on, **{**SHORT, "max_update": 2}, seed=1)
    log = tmp_path / "log1"
    assert toy_data.train(toy.data, tmp_path / "whole", "--log-file", log, **{**SHORT, "max_update": 2}, seed=1)
    assert starts_in(log.read_text("utf-8")) == [("stage1", 0), ("stage1", 1)]
    (on / swapped).write_bytes((on / swapped).read_bytes()[:1000])
    with data_error(path=swapped):
        toy_data.train(toy.data, on, **{**SHORT, "max_update": 2}, seed=1)
    monkeypatch.delenv(STAGE_VARIABLE)  # elsewhere, anything may be restored
    shutil.copy(other / "checkpoint_last.pt", on / "checkpoint_last.pt")
    assert toy_data.train(toy.data, on, **{**SHORT, "max_update": 2}, seed=1)


def test_a_damaged_checkpoint_is_an_error_whatever_reading_it_meets(tmp_path):
    state, file = {"args": 1, "model": {"w": torch.zeros(50)}}, tmp_path / "c.pt"
    for zipped in (True, False):
        torch.save(state, file, _use_new_zipfile_serialization=zipped)
        whole = file.read_bytes()
        assert checkpoints.load_mapped(str(file))["args"] == 1
        for length in range(0, len(whole), 7):
            file.write_bytes(whole[:length])
            with data_error(path="c.pt"):
                checkpoints.load_mapped(str(file))
    torch.save({"x": random.Random(1)}, file)  # whole, and of a type that is not on the list
    torch.save({"x": random.Random(1)}, tmp_path / "older.pt", _use_new_zipfile_serialization=False)
    (tmp_path / "pickled.pt").write_bytes(pickle.dumps({"x": random.Random(1)}, protocol=2))
    (tmp_path / "another.pt").write_bytes(pickle.dumps({"x": random.Random(1)}, protocol=4))
    for name in ("c.pt", "older.pt", "pickled.pt", "another.pt"):
        with data_error(path=name) as error, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch's, of the protocol
            checkpoints.load_mapped(str(tmp_path / name))
        assert "weights_only" not in str(error.value), "PyTorch advises to load it without safety"
        assert "Random" in str(error.value) or name == "another.pt"


@pytest.mark.parametrize(
    "option, side",
    [("latent_names", "target"), *((f"source_{column}_labels", "source") for column in ("deprel", "upos", "xpos"))],
)
def test_numbers_keep_their_names(toy, option, side):
    from fairseq.tasks import setup_task

    task = setup_task(Namespace(task="syntax_translation", data=str(toy.data), source_lang="en", target_lang="de"))
    state = {"cfg": {"model": Namespace(**{option: ["</s>", "VERB", "NOUN"]})}}
    task.check_checkpoint(state, Namespace(**{option: ["</s>", "VERB", "NOUN"]}), "a.pt")
    task.check_checkpoint(state, Namespace(), "a.pt")
    task.check_checkpoint({"args": Namespace()}, Namespace(**{option: ["</s>"]}), "a.pt")
    with data_error(f"--{side}-labels", path="a.pt"):
        task.check_checkpoint(state, Namespace(**{option: ["</s>", "NOUN", "VERB"]}), "a.pt")


def test_label_groups_stay_those_of_the_first_training(toy):
    from fairseq.tasks import setup_task

    task = setup_task(Namespace(task="syntax_translation", data=str(toy.data), source_lang="en", target_lang="de"))
    state = {"cfg": {"model": Namespace(ldd_label_groups_text="nsubj obj\ndet")}}
    task.check_checkpoint(state, Namespace(ldd_label_groups_text="nsubj obj\ndet"), "a.pt")
    task.check_checkpoint(state, Namespace(), "a.pt")
    with data_error("--ldd-label-groups", path="a.pt"):
        task.check_checkpoint(state, Namespace(ldd_label_groups_text="det\nnsubj obj"), "a.pt")


def test_the_architecture_stays_that_of_the_first_training(toy):
    """Another number of heads has the same parameters: fairseq loads them, and computes something else."""
    from fairseq.tasks import setup_task

    task = setup_task(Namespace(task="syntax_translation", data=str(toy.data), source_lang="en", target_lang="de"))
    trained = {"encoder_layers": 3, "encoder_attention_heads": 4, "decoder_learned_pos": False, "dropout": 0.1}
    trained |= {"share_all_embeddings": False, "share_decoder_input_output_embed": True}
    state = {"cfg": {"model": Namespace(**trained)}}
    task.check_checkpoint(state, Namespace(**trained | {"dropout": 0.3, "pascal_heads": "2"}), "a.pt")
    task.check_checkpoint(state, Namespace(**trained | {"share_decoder_input_output_embed": False}), "a.pt")
    for name, value, hint in (
        ("encoder_layers", 6, "--encoder-layers 3"),
        ("encoder_attention_heads", 8, "--encoder-attention-heads 4"),
        ("decoder_learned_pos", True, "--decoder-learned-pos"),
        ("share_all_embeddings", True, "--share-all-embeddings"),  # two matrices would become the second one
    ):
        with data_error(hint, path="a.pt"):
            task.check_checkpoint(state, Namespace(**trained | {name: value}), "a.pt")


@pytest.mark.parametrize(
    "trained, now, told",
    [
        ({"encoder_syntax": "pascal"}, {"encoder_syntax": "pascal", "pascal_heads": 2}, "its default"),
        ({"encoder_syntax": "pascal", "pascal_heads": 2}, {"encoder_syntax": "gcn, pascal"}, "--pascal-heads was 2"),
        ({"encoder_syntax": "pascal", "pascal_heads": 2}, {"encoder_syntax": "pascal", "pascal_heads": "2"}, None),
        ({}, {"encoder_syntax": "pascal", "pascal_heads": 2}, None),  # from a plain model to PASCAL
        ({"encoder_syntax": "pascal"}, {"arch": "transformer"}, "--encoder-syntax was pascal"),  # and back
        ({"encoder_syntax": "ldd,pascal"}, {"encoder_syntax": "ldd"}, "is ldd now"),
        ({"encoder_syntax": "ldd, pascal"}, {"encoder_syntax": "pascal,ldd"}, None),
        ({"arch": "local_attention_lstm"}, {"arch": "local_attention_lstm", "local_window": 3}, "--local-window was 5"),
    ],
)
def test_other_options_of_a_system_are_reported(toy, caplog, trained, now, told):
    """They have the same parameters, and fairseq loads them into another function."""
    from fairseq.tasks import setup_task

    task = setup_task(Namespace(task="syntax_translation", data=str(toy.data), source_lang="en", target_lang="de"))
    task.check_checkpoint({"cfg": {"model": Namespace(**trained)}}, Namespace(**now), "a.pt")
    (*warnings,) = (r.getMessage() for r in caplog.records if r.levelname == "WARNING")
    assert len(warnings) == (told is not None) and all(told in text for text in warnings)


@after_a_stop
@pytest.mark.slow
def test_a_checkpoint_that_lacks_parameters_is_named(toy, tmp_path):
    plain, small = tmp_path / "plain", {"max_epoch": None, "max_update": 1, "encoder_layers": 1}
    toy_data.train(toy.data, plain, arch="transformer", **small)
    start = "--finetune-from-model", plain / "checkpoint_last.pt"
    toy_data.train(toy.data, tmp_path / "new", *start, arch="gcn_transformer", **small)  # a new system has its own
    state = torch.load(plain / "checkpoint_last.pt")
    del state["model"]["decoder.layers.0.fc1.weight"]
    torch.save(state, plain / "checkpoint_last.pt")
    with pytest.raises(Exception, match=r"parameters from checkpoint .*checkpoint_last\.pt"):
        toy_data.train(toy.data, tmp_path / "other", *start, arch="gcn_transformer", **small)


SYSTEMS = {
    "ldd_transformer": {},
    "parser_free_pascal_transformer": {},
    "lasyn_transformer": {"criterion": "lasyn_em", "label_smoothing": None, "latent_values": 3, "tag_weight": 0},
    "local_attention_lstm": {"guided_updates": 100},
    "gcn_lstm": {},
}


@pytest.mark.parametrize("arch", SYSTEMS)
def test_a_model_with_systems_is_of_this_packages_task(toy, tmp_path, arch):
    """fairseq's own, which is its default, would leave out losses in silence: a start that guides, K steps."""
    options = {**SHORT, "arch": arch, **SYSTEMS[arch], "task": "translation"}
    if arch.endswith("lstm"):
        options |= dict.fromkeys(
            [name for name in toy_data.MODEL if "layers" in name or "heads" in name or "ffn" in name]
        )
        options = {name.lstrip("-").replace("-", "_"): value for name, value in options.items()}
        options |= {"encoder_layers": None, "encoder_hidden_size": 16, "decoder_hidden_size": 16}
    with data_error("--task", "syntax_translation"):
        toy_data.train(toy.data, tmp_path, **options)


def test_each_process_by_itself_is_refused(toy, tmp_path, monkeypatch):
    """fairseq-hydra-train under torchrun without GPUs, with this package in ``common.user_dir`` alone."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    with data_error("install"):
        toy_data.train(toy.data, tmp_path, **SHORT)

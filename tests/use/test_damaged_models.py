"""Damaged checkpoints and exported folders are told, and from_pretrained cuts raw text."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import toy_data
from composed import composed_quickly
from data_errors import data_error
from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from untrained import untrained

from fairseq_syntax.cli import main as command
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.locks import hold_folder
from fairseq_syntax.use.export import export
from fairseq_syntax.use.loading import load_models
from fairseq_syntax.use.translator import Translator


def flip(path: Path, at: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 4
    path.write_bytes(raw)


def inside_a_tensor(path: Path) -> int:
    with zipfile.ZipFile(path) as archive:
        largest = max(archive.infolist(), key=lambda info: info.file_size)
    return largest.header_offset + largest.file_size // 2


def test_a_flipped_bit_of_a_checkpoint_is_told_by_all_that_read_it(toy, trained, tmp_path):
    path = Path(shutil.copy(trained, tmp_path / "checkpoint_last.pt"))
    flip(path, inside_a_tensor(path))
    with pytest.raises(SyntaxDataError) as error:
        load_models([path], toy.data)
    assert error.value.path == str(path)
    options = ["--task", "syntax_translation", "-s", "en", "-t", "de", "--cpu", "--max-tokens", 400]
    with pytest.raises(SyntaxDataError):
        toy_data.fairseq("generate", toy.data, "--path", path, *options)
    with pytest.raises(SyntaxDataError):
        toy_data.train(toy.data, tmp_path, max_epoch=13)


@pytest.mark.parametrize("kind", ["fairseq", "ctranslate2"])
def test_every_file_of_an_exported_folder_is_compared(toy, tmp_path, kind):
    if kind == "ctranslate2":
        pytest.importorskip("ctranslate2")
    whole = tmp_path / "whole"
    export(untrained(toy.data, "transformer"), kind, whole)
    Translator.load(whole, device="cpu").translate(["the dog"])
    names = sorted(path.name for path in whole.iterdir() if path.name != "README.md")
    assert len(names) > 6
    for name in names:
        for damage in (lambda path: flip(path, path.stat().st_size // 2), Path.unlink):
            copy = tmp_path / "copy"
            shutil.copytree(whole, copy)
            damage(copy / name)
            with pytest.raises(SyntaxDataError):
                Translator.load(copy, device="cpu")
            shutil.rmtree(copy)


def test_another_head_may_be_chosen_for_an_exported_folder(toy, tmp_path, capsys):
    export(untrained(toy.data, "transformer"), "fairseq", tmp_path / "out")
    (tmp_path / "en").write_text("the dog sees\n" * 3)
    (tmp_path / "de").write_text("der Hund sieht\n" * 3)
    pair = ["--input", str(tmp_path / "en"), "--translations", str(tmp_path / "de"), "--device", "cpu"]
    assert not command(["align", str(tmp_path / "out"), *pair, "--choose"])
    assert not command(["align", str(tmp_path / "out"), *pair])
    capsys.readouterr()
    for count, data, message in ((2, None, "ensemble"), (1, toy.data, "own data")):
        with pytest.raises(SyntaxDataError, match=message):
            Translator.load([tmp_path / "out"] * count, data, device="cpu")


def test_raw_text_in_the_hub_interface_is_cut_and_parsed(toy, trained):
    """As the package's own translator has it: with a parse that comes along, and raw where no parse is read."""
    from fairseq.models.transformer import TransformerModel

    from fairseq_syntax.corpus.conllu import flatten

    lines = [flatten(line) for line in toy.lines["test"][:3]]
    options = {"checkpoint_file": trained.name, "data_name_or_path": str(toy.data), "user_dir": toy_data.USER_DIR}
    hub = TransformerModel.from_pretrained(str(trained.parent), **options)
    translator = Translator.load(trained, toy.data, device="cpu", beam=5)
    assert hub.translate(lines) == [one.text for one in translator.translate(lines)]
    assert hub.translate(lines[0]) == hub.translate(lines)[0]
    assert len(hub.task._input._batches) == 1  # of the last call: those of all calls would fill the memory
    first, _ = map(hub.encode, lines[:2])
    with data_error("encoded last"):  # there is only the parse of the second
        hub.generate(first)


def test_raw_text_without_a_parse_in_the_hub_interface(toy, tmp_path):
    from fairseq.models.transformer import TransformerModel

    toy_data.train(toy.data, tmp_path, arch="transformer", max_epoch=6)
    options = {"checkpoint_file": "checkpoint_last.pt", "data_name_or_path": str(toy.data)}
    hub = TransformerModel.from_pretrained(str(tmp_path), **options)
    text = "dogs bark and men sleep"
    pieces = hub.task.segmenter("source").encode_text(text)
    assert hub.encode(text).tolist() == hub.src_dict.encode_line(" ".join(pieces), add_if_not_exist=False).tolist()
    translator = Translator.load(tmp_path / "checkpoint_last.pt", beam=5)
    assert hub.translate([text]) == [translator.translate(text).text]


def test_a_second_training_in_one_folder_is_refused(tmp_path):
    hold = (
        "import sys; from fairseq_syntax.runtime.locks import hold_folder; hold_folder(sys.argv[1]);"
        "print('held', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", hold, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout.readline() == "held\n"
    with pytest.raises(SyntaxDataError) as error:
        hold_folder(tmp_path)
    assert error.value.path == tmp_path
    other.communicate("")
    hold_folder(tmp_path)
    hold_folder(tmp_path)  # a second training of one process, after the first


def test_a_model_is_built_in_a_folder_that_another_process_trains_in(toy, tmp_path):
    """The lock is the training's: two programs that only build a model do not meet, and leave none."""
    hold = "import sys; from fairseq_syntax.runtime.locks import hold_folder; hold_folder(sys.argv[1]);"
    hold += "print('held', flush=True); sys.stdin.read()"
    folder, free = tmp_path / "held", tmp_path / "free"
    folder.mkdir()
    argv = [sys.executable, "-c", hold, str(folder)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        for save_dir in (folder, folder, free):
            given = [str(toy.data), "--task", "syntax_translation", "-s", "en", "-t", "de", "--cpu"]
            given += ["--arch", "transformer", "--save-dir", str(save_dir)]
            args = options.parse_args_and_arch(options.get_training_parser(), given)
            with composed_quickly():
                cfg = convert_namespace_to_omegaconf(args)
            assert tasks.setup_task(cfg.task).build_model(cfg.model)
        with data_error(path=folder):
            toy_data.train(toy.data, folder, max_epoch=1)
        other.communicate("")
    assert not free.exists()
    assert toy_data.train(toy.data, folder, max_epoch=1)


@pytest.mark.matrix(1)
@pytest.mark.parametrize("what", ["data", "models"])
def test_a_trial_of_damaged_folders(tmp_path, what):
    """``tools/damage.py`` with few of them: nothing passes in silence, or as a raw traceback."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    try:
        from tools.damage import damage_data, damage_models
    finally:
        sys.path.pop(0)
    actual = damage_data(40, 3, tmp_path) if what == "data" else damage_models(40, 3, tmp_path)
    for use, counts in actual.items():
        assert counts["told"] > 4 and not counts["silent"] and not counts["raw"], use

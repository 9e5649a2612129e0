"""Input that cannot be translated, and models that cannot be loaded: what is said of them, and what is kept."""

import io
import os
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import toy_data
from data_errors import data_error, refused

import fairseq_syntax
from fairseq_syntax.cli import main
from fairseq_syntax.corpus.conllu import ParsedLine
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.use.base_translator import Translation
from fairseq_syntax.use.loading import load_models
from fairseq_syntax.use.translator import Translator


@pytest.fixture(scope="module")
def short(toy, tmp_path_factory) -> Path:
    """The checkpoint of a model that takes 30 pieces."""
    folder = tmp_path_factory.mktemp("short")
    toy_data.train(toy.data, folder, "--max-source-positions", 31, max_epoch=1)
    return folder / "checkpoint_last.pt"


def flat(toy, number: int) -> str:
    from fairseq_syntax.corpus.conllu import flatten

    return flatten(toy.lines["test"][number])


def long_conllu(word: str = "dogs", words: int = 40) -> str:
    return "\n".join(f"{i + 1}\t{word}\t_\tNOUN\tNN\t_\t{i}\t{'nsubj' if i else 'root'}\t_\t_" for i in range(words))


def test_one_long_line_has_its_own_error_and_the_others_their_translations(toy, short, tmp_path, capsys):
    lines = [flat(toy, 0), long_conllu().replace("\n", "\\n"), "", flat(toy, 2)]
    path, out = tmp_path / "in.txt", tmp_path / "out.txt"
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    options = ["--device", "cpu", "--output", str(out), "--alignments", str(tmp_path / "links")]
    assert main(["translate", str(short), "--input", str(path), *options]) == 1
    translator = Translator.load(short, device="cpu")
    alone = [translator.translations([line], alignments=True)[0][0] for line in (lines[0], lines[3])]
    assert out.read_text(encoding="utf-8").split("\n") == [alone[0].text, "", "", alone[1].text, ""]
    links = (tmp_path / "links").read_text(encoding="utf-8").split("\n")
    assert links == [alone[0].alignment.pharaoh(), "", "", alone[1].alignment.pharaoh(), ""]
    error = capsys.readouterr().err
    assert f"{path}:2: " in error and " 30" in error
    assert [str(t) for t in translator.translate(lines)] == [alone[0].text, "", "", alone[1].text]
    only = translator.translations(lines[1:2])[0][0]
    assert only.text == "" and " 30" in only.error


def test_unknown_words_of_a_model_whose_segmentation_is_not_here(tmp_path, monkeypatch, capsys):
    """Data of fairseq's own preprocessing: the text has to be given in pieces."""
    (tmp_path / "text").write_text("dogs\n")
    one = Translation("x", [], 0.0, unknown=[(0, 4)], words=1)
    for segmenter in (None, object()):
        task = SimpleNamespace(segmenter=lambda side, given=segmenter: given, cfg=SimpleNamespace(source_lang="en"))
        model = SimpleNamespace(task=task, check_parses=str, translations=lambda lines, **_: [[one] for _ in lines])
        monkeypatch.setattr(Translator, "load", lambda *args, model=model, **options: model)
        assert main(["translate", str(tmp_path / "text"), "--input", str(tmp_path / "text")]) == 0
        said = capsys.readouterr().err
        assert "unknown words: 1 of 1" in said and ("note: " in said) == (segmenter is None)


def test_errors_have_the_number_of_their_line(toy, short, tmp_path, capsys):
    """Through batches and empty lines; a wrong parse is the error of its own line."""
    wrong = flat(toy, 1).replace("\t0\troot", "\t1\troot", 1)
    lines = [flat(toy, 0), "", "", wrong, *[flat(toy, 2)] * 6, long_conllu().replace("\n", "\\n")]
    path, out = tmp_path / "in.txt", tmp_path / "out.txt"
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    options = ["--device", "cpu", "--batch-size", "2", "--input", str(path)]
    assert main(["translate", str(short), *options, "--output", str(out)]) == 1
    said = capsys.readouterr().err
    assert f"{path}:4: " in said and f"{path}:11: " in said
    empty = [not line for line in out.read_text(encoding="utf-8").splitlines()]
    assert empty == [False, True, True, True, *[False] * 6, True]
    # The parser's messages have it, too.
    path.write_text("a man\n\n" * 5 + "x" * 5000 + "\n", encoding="utf-8")
    with toy_data.logged("fairseq_syntax.corpus.parsing.parser") as warned:
        main(["translate", str(short), *options, "--parser", "chain_parser"])
    assert "line 11: " in warned.getvalue()
    # align takes the file as a whole
    path.write_text("".join(line + "\n" for line in (lines[0], "", lines[-1])), encoding="utf-8")
    out.write_text("a\n\nb\n", encoding="utf-8")
    refused(["align", str(short), *options, "--translations", str(out)], line=3)
    translator = Translator.load(short, device="cpu")
    translator.models[0].decoder.max_target_positions = 9
    with data_error(" 8", line=3):
        translator.align(lines[:1] + lines[1:2] + lines[:1], ["a", "", "a " * 20])
    (nothing,) = translator.align(lines[:1], [""])
    assert nothing.source_text and nothing.source_words and not nothing.links and not nothing.target_words


def test_a_lone_surrogate_is_that_lines_error(toy, trained):
    translator = Translator.load(trained, device="cpu")
    actual = translator.translations([flat(toy, 0), "a \ud800 man", flat(toy, 2)])
    assert [best[0].error is None for best in actual] == [True, False, True]
    assert "surrogates not allowed" in actual[1][0].error
    assert actual[2][0].text == translator.translate(flat(toy, 2)).text
    with data_error(line=2):
        translator.align([flat(toy, 0), "a \ud800 man"], ["a", "a"])
    with data_error():
        translator.align([flat(toy, 0)], ["a \ud800"])


def test_a_parse_with_an_empty_word_is_that_sentences_error(toy, trained):
    translator = Translator.load(trained, device="cpu")
    parse = ParsedLine.of_words(["a", "man"], [2, 0], ["det", "root"])
    parse.words[0] = parse.tokens[0].form = ""
    actual = translator.translations([flat(toy, 0), parse, flat(toy, 2)])
    assert [best[0].error is None for best in actual] == [True, False, True]


def test_standard_input_that_is_not_utf8_is_named(trained, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xef\xbb\xbf\n\xed\xa0\x80 man\n"), "utf-8"))
    refused(["translate", str(trained), "--device", "cpu"], path="<stdin>", line=2)


@pytest.mark.parametrize("content", [b"", b"no checkpoint\n", b"PK\x03\x04 cut off", b"\x80\x02}q\x00."])
def test_what_is_no_checkpoint(tmp_path, content):
    path = tmp_path / "model.pt"
    path.write_bytes(content)
    with pytest.raises(SyntaxDataError) as error:
        load_models([path])
    assert error.value.path == str(path)
    with data_error():
        load_models([tmp_path])
    with data_error("model.pt", path="none.pt"):
        load_models([tmp_path / "none.pt"])
    with data_error(path="none.pt"):
        load_models([tmp_path / "elsewhere" / "none.pt"])
    with data_error(path="model.pt"):
        load_models([f"{path}:{path}"])
    (tmp_path / "report.md").touch()  # of a recipe, whose results may be kept without a model
    with data_error("kept=null", path="none.pt"):
        load_models([tmp_path / "models" / "base" / "1" / "none.pt"])


def test_relative_data_are_found_from_every_folder(toy, trained, tmp_path, monkeypatch):
    state = torch.load(trained, weights_only=True)
    state["cfg"]["task"]["data"] = "data/bin"  # as fairseq-train was given it, in tmp_path/work
    checkpoint = tmp_path / "work" / "models" / "1" / "checkpoint.pt"
    checkpoint.parent.mkdir(parents=True)
    torch.save(state, checkpoint)
    data = tmp_path / "work" / "data" / "bin"
    data.parent.mkdir()
    data.symlink_to(toy.data)
    for folder in (tmp_path / "work", tmp_path, checkpoint.parent):
        monkeypatch.chdir(folder)
        _, _, task = load_models([os.path.relpath(checkpoint)], device="cpu")
        assert os.path.samefile(task.data_dir, data)
    data.unlink()
    with data_error(path="checkpoint.pt"):
        load_models(["checkpoint.pt"], device="cpu")


def test_data_that_are_missing_or_others(toy, trained, tmp_path, without_manifest):
    options = ["--device", "cpu", "--input", str(toy.raw / "test.en.conllu")]
    refused(["translate", str(trained), "--data", str(tmp_path / "none"), *options], str(tmp_path / "none"))
    other = without_manifest
    path = other / "dict.en.txt"
    rows = path.read_text(encoding="utf-8").splitlines()
    for changed in (rows[:-3], rows[::-1]):  # of another size, and of the same
        path.write_text("".join(row + "\n" for row in changed), encoding="utf-8")
        refused(["translate", str(trained), "--data", str(other), *options], path=other)
    # A checkpoint that does not say what its dictionaries were.
    state = torch.load(trained, weights_only=True)
    del state["task_state"]
    torch.save(state, tmp_path / "old.pt")
    path.write_text("".join(row + "\n" for row in rows[:-3]), encoding="utf-8")
    with data_error(path="old.pt"):
        load_models([tmp_path / "old.pt"], other)
    load_models([tmp_path / "old.pt"])


def test_a_word_of_a_hundred_thousand_characters(trained):
    translator = Translator.load(trained, device="cpu")
    assert translator.translations([long_conllu("x" * 100_000, 2)])[0][0].error is None


@pytest.mark.parametrize(
    "options",
    [
        *({name: 1} for name in ("beams", "lm_path", "prefix_size", "retain_dropout", "replace_unk")),
        *({name: 0} for name in ("nbest", "batch_size")),
        {"beam": -1},
        *({name: value} for name, value in (("beam", "4"), ("nbest", True), ("lenpen", "1"), ("sampling", 1))),
        {"missing_parse": "neutrl"},
    ],
)
def test_options_that_no_search_has(trained, options):
    with data_error(*options):
        Translator.load(trained, device="cpu", **options)


def test_python_is_told_its_parameters_and_commands_their_options(trained, tmp_path):
    with data_error("parser_dir", path=tmp_path):
        Translator.load(trained, parser_name="stanza", parser_dir=tmp_path, device="cpu").translate("a man")
    (tmp_path / "text").write_text("a man\n", encoding="utf-8")
    argv = ["translate", trained, "--input", tmp_path / "text", "--parser", "stanza", "--model-dir", tmp_path]
    refused([*map(str, argv), "--lang", "src"], "--lang", path=tmp_path)
    refused([*map(str, argv)], "--model-dir", path=tmp_path)


def test_a_translation_is_shown_on_a_line(trained):
    (best,) = Translator.load(trained, parser_name="chain_parser", device="cpu").translate(["a man"], alignments=True)
    assert "\n" not in repr(best) and len(repr(best)) < 120 and best.text in repr(best) and best.parse is not None
    assert {"Translator", "Translation", "ParsedLine", "register"} <= set(dir(fairseq_syntax))


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["translate", "x", "--beam", "0"], "must be "),
        (["serve", "m=x", "--port", "70000"], "must be "),
        (["show", "m", "--data", "x", "--output", "a.html", "--beam", "0"], "must be "),
        (["show", "m", "--data", "x", "--output", "a.html", "--sentences", "5-3"], "a range without a number in it"),
    ],
)
def test_numbers_that_cannot_be_on_the_command_line(argv, said, capsys):
    with pytest.raises(SystemExit):
        main(argv)
    assert said in capsys.readouterr().err


def test_choosing_a_head_writes_no_links(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("x.pt", "a", "b"):
        Path(name).touch()
    files = ["--input", "a", "--translations", "b", "--output", "c"]
    refused(["align", "x.pt", *files, "--choose"], option="--output")


@pytest.mark.parametrize("device", ["cuda:99", "nosuch"])
def test_a_device_that_is_not_there(device, tmp_path):
    with data_error(device, option="--device"):
        load_models([tmp_path / "no.pt"], device=device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("argv", [["tree", "--input", "text"], ["show", "--data", "bin", "--output", "no.html"]])
def test_a_gpu_that_is_not_there(argv, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("x.pt", "text"):
        Path(name).touch()
    Path("bin").mkdir()
    refused([argv[0], str(tmp_path / "x.pt"), *argv[1:], "--device", "cuda"], option="--device")


@pytest.fixture
def without_manifest(toy, tmp_path) -> Path:
    """A copy of the data that says nothing of what was made."""
    data = tmp_path / "copied"
    shutil.copytree(toy.data, data)
    (data / "manifest.json").unlink()
    return data


@pytest.mark.parametrize("lang", ["en", "de"])
def test_a_missing_segmentation_is_named_before_raw_text_is_cut(toy, trained, without_manifest, lang):
    """Without the source's, text would be cut at spaces; without the target's, pieces would be left as they are."""
    data = without_manifest
    (data / f"segmentation.{lang}.json").unlink()
    with pytest.raises(SyntaxDataError) as error:
        Translator.load(trained, data, device="cpu").translations([flat(toy, 0)])
    assert error.value.path == str(data / f"segmentation.{lang}.json")
    options = ["--path", trained, "--task", "syntax_translation", "-s", "en", "-t", "de", "--cpu", "--max-tokens", 400]
    if lang == "de":
        with pytest.raises(SyntaxDataError):
            toy_data.fairseq("generate", data, *options)
        assert "H-0" in toy_data.fairseq("generate", data, *options, "--post-process", "sentencepiece")


def test_another_segmentation_is_not_taken_for_the_trained_one(trained, without_manifest):
    for ending in ("json", "model"):
        name = f"segmentation.de.{ending}"
        (without_manifest / name).write_bytes((without_manifest / name.replace(".de.", ".en.")).read_bytes())
    about = without_manifest / "segmentation.de.json"
    about.write_text(about.read_text("utf-8").replace("segmentation.en.model", "segmentation.de.model"), "utf-8")
    with pytest.raises(SyntaxDataError) as error:
        load_models([trained], without_manifest)
    assert error.value.path == str(about)

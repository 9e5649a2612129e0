"""Reports of users of fairseq, sentencepiece, Stanza, CTranslate2 and PyTorch, tried here: what was wrong stays mended.

Those of servers are in ``test_libretranslate``.
"""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
import torch
import toy_data
from data_errors import data_error
from fairseq import checkpoint_utils
from untrained import untrained

from fairseq_syntax.corpus.parsing.stanza import StanzaTokenizer
from fairseq_syntax.corpus.segmentation import load_segmenter
from fairseq_syntax.data.tokens import load_dictionary
from fairseq_syntax.use.export import export
from fairseq_syntax.use.translator import Translator

reported = pytest.mark.matrix(1, of="reports about fairseq")


def test_a_checkpoint_that_is_saved_at_the_second_attempt_can_be_read(tmp_path, monkeypatch):
    """fairseq writes it after what there is of the first attempt, and says that it is saved."""
    save, attempts = torch.save, []

    def failing_once(obj, f):
        attempts.append(f)
        if len(attempts) == 1:
            f.write(b"a part")
            raise RuntimeError("the disk was away")
        save(obj, f)

    monkeypatch.setattr(torch, "save", failing_once)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    checkpoint_utils.torch_persistent_save({"model": {"a": torch.ones(2)}}, str(tmp_path / "a.pt"))
    assert torch.load(tmp_path / "a.pt", weights_only=True)["model"]["a"].tolist() == [1, 1] and len(attempts) == 2


def test_a_given_dictionary_keeps_what_fairseq_reads_it_by(toy, tmp_path):
    path = tmp_path / "dict"
    path.write_text((toy.data / "dict.en.txt").read_text("utf-8") + "<s> 5 #fairseq:overwrite\n", "utf-8")
    options = toy_data.preprocess_options(toy.segmented, tmp_path / "data")
    toy_data.fairseq("preprocess", *options, "--srcdict", path)
    made = tmp_path / "data" / "dict.en.txt"
    assert made.read_bytes() == path.read_bytes() and load_dictionary(made).symbols == load_dictionary(path).symbols


def test_tokens_of_stanza_without_their_places():
    """Stanza 1.8 and later leave out ``start_char`` of some tokens of several words."""
    places = {"It": (None, None, ["It"]), '"s': (None, None, ['"', "s"]), "fine": (5, 9, ["fine"])}
    tokens = [
        SimpleNamespace(text=text, start_char=a, end_char=b, words=[SimpleNamespace(text=w) for w in words])
        for text, (a, b, words) in places.items()
    ]
    document = SimpleNamespace(sentences=[SimpleNamespace(tokens=tokens)])
    tokenizer = object.__new__(StanzaTokenizer)
    tokenizer.pipeline = SimpleNamespace(bulk_process=lambda texts: [document])
    ((actual,),) = tokenizer.tokenize(['It"s fine'])
    assert [(s.form, s.space_after, s.words) for s in actual] == [
        ("It", False, ["It"]),
        ('"s', True, ['"', "s"]),
        ("fine", True, ["fine"]),
    ]


def test_null_and_zero_width_characters_come_back(tmp_path):
    text = "ein\u200b Hund\0 ŉ ︰ \u00ad \ufeff x\u2060y \u0083 ﷺ"
    path = tmp_path / "train.de"
    path.write_text(f"{text}\nein Hund sieht\n".replace("\0", "") * 20, "utf-8")  # no NUL is read from a file
    options = ["--lang", "de", "--input", path, "--output", tmp_path / "out", "--train", "sentencepiece"]
    assert not toy_data.syntax_command("segment", *options, "--vocab-size", 40)
    segmenter = load_segmenter(tmp_path / "out/segmentation.de.json")
    assert segmenter.decode(segmenter.encode_text(text)) == text


@reported
@pytest.mark.slow
def test_a_second_run_of_a_process_keeps_its_own_best_checkpoint(toy, tmp_path):
    """As in a sweep of fairseq-hydra-train: the second run is worse than the first."""
    toy_data.train(toy.data, tmp_path / "a", max_epoch=3, arch="transformer", patience=9)
    last = toy_data.train(toy.data, tmp_path / "b", max_epoch=2, arch="transformer", lr=1e-9, patience=1)
    assert (tmp_path / "b/checkpoint_best.pt").exists()
    assert last["extra_state"]["train_iterator"]["epoch"] == 3, "--patience counts from the run's own scores"


@reported
@pytest.mark.slow
def test_a_checkpoint_to_restore_that_is_not_there_is_no_new_training(toy, tmp_path):
    """fairseq only logs it; a name alone is not looked for in the save directory."""
    for path in (tmp_path / "none.pt", "checkpoint_best.pt"):
        with data_error(path=path, option="--restore-file"):
            toy_data.train(toy.data, tmp_path / "a", "--restore-file", path, max_epoch=1)
    with data_error(path=tmp_path / "none.pt", option="--continue-once"):
        toy_data.train(toy.data, tmp_path / "a", "--continue-once", tmp_path / "none.pt", max_epoch=1)
    last = tmp_path / "a/checkpoint_last.pt"  # as a script has it that is run again until it is done
    toy_data.train(toy.data, tmp_path / "a", "--restore-file", last, max_epoch=1)
    assert last.exists()
    toy_data.train(toy.data, tmp_path / "a", "--continue-once", tmp_path / "none.pt", max_epoch=2)  # which has begun


@reported
@pytest.mark.slow
def test_a_prefix_of_an_empty_reference_forces_nothing(toy, tmp_path):
    """fairseq's search waits for more hypotheses than the one that may end at once, and fails."""
    toy_data.train(toy.data, tmp_path / "a", arch="transformer", max_epoch=1)
    options = ["--path", tmp_path / "a/checkpoint_last.pt", "--task", "syntax_translation", "-s", "en", "-t", "de"]
    options += ["--cpu", "--prefix-size", 2, "--max-len-b", 20]
    rows = [line.split("\t") for line in toy_data.fairseq("generate", toy.data, *options).splitlines()]
    rows = {row[0]: row[-1].replace("▁", "").split() for row in rows if row[0][:2] in ("H-", "T-")}
    assert rows["T-5"] == [] and "H-5" in rows
    for number in range(len(toy.lines["test"])):
        assert rows[f"H-{number}"][:2] == rows[f"T-{number}"][:2] or not rows[f"T-{number}"]


@reported
@pytest.mark.slow
def test_a_compiled_model_translates_the_same(toy, trained):
    """In batches of other lengths than the first, where a graph may be of one length."""
    sentences = sorted(toy.lines["test"], key=lambda line: len(line.words))
    plain = Translator.load(trained, toy.data, batch_size=3)
    expected = [(str(one), one.score) for one in plain.translate(sentences)]
    compiled = Translator.load(trained, toy.data, batch_size=3)
    with pytest.raises(TypeError):  # which the search would not see
        compiled.models[0] = torch.compile(compiled.models[0])
    compiled.models[0].compile(backend="eager")
    compiled.models[0].encoder.compile(backend="eager")
    actual = [(str(one), one.score) for one in compiled.translate(sentences)]
    assert [text for text, _ in actual] == [text for text, _ in expected]
    assert [score for _, score in actual] == pytest.approx([score for _, score in expected], abs=1e-5)


def test_a_part_that_ctranslate2_has_no_place_for_is_told(toy, tmp_path):
    pytest.importorskip("ctranslate2")
    with data_error("project_out"):
        export(untrained(toy.data, "transformer", "--decoder-output-dim=8"), "ctranslate2", tmp_path / "out")


def test_the_first_translation_does_not_depend_on_how_many_are_given(toy):
    """Nor are two of them the same pieces."""
    loaded = untrained(toy.data, "transformer", sure=3.0)
    translator = Translator([loaded.model], loaded.task, beam=4)
    texts = ["the man saw dogs", "a", "old dogs near the girl"]
    first = [str(one) for one in translator.translate(texts)]
    several = [list(best) for best in translator.with_search(beam=4, nbest=4).translations(texts)]
    assert [best[0].text for best in several] == first
    assert all(len({tuple(one.pieces) for one in best}) == len(best) == 4 for best in several)

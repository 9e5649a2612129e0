"""Reports of users of fairseq, sentencepiece, Stanza and CTranslate2, tried here: what was wrong stays mended."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
import torch
import toy_data
from fairseq import checkpoint_utils

from fairseq_syntax.corpus.parsing.stanza import StanzaTokenizer
from fairseq_syntax.corpus.segmentation import load_segmenter
from fairseq_syntax.errors import SyntaxDataError


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


def test_a_dictionary_that_fairseq_could_not_read_again_is_refused_before_the_work(toy, tmp_path):
    path = tmp_path / "dict"
    path.write_text((toy.data / "dict.en.txt").read_text("utf-8") + "<s> 5 #fairseq:overwrite\n", "utf-8")
    options = toy_data.preprocess_options(toy.segmented, tmp_path / "data")
    with pytest.raises(SyntaxDataError) as error:
        toy_data.fairseq("preprocess", *options, "--srcdict", path)
    assert error.value.path == str(path) and error.value.line is not None and not (tmp_path / "data").exists()


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
    ((found,),) = tokenizer.tokenize(['It"s fine'])
    assert [(s.form, s.space_after, s.words) for s in found] == [
        ("It", False, ["It"]),
        ('"s', True, ['"', "s"]),
        ("fine", True, ["fine"]),
    ]


def test_null_and_zero_width_characters_come_back(tmp_path):
    text = "ein\u200b Hund\0 ŉ ︰ \u00ad \ufeff x\u2060y \u0083 ﷺ"
    path = tmp_path / "train.de"
    path.write_text(f"{text}\nein Hund sieht\n" * 20, "utf-8")
    options = ["--lang", "de", "--input", path, "--output", tmp_path / "out", "--train", "sentencepiece"]
    assert not toy_data.syntax_command("segment", *options, "--vocab-size", 40)
    segmenter = load_segmenter(tmp_path / "out/segmentation.de.json")
    assert segmenter.decode(segmenter.encode_text(text)) == text


def test_a_second_run_of_a_process_keeps_its_own_best_checkpoint(toy, tmp_path):
    """As in a sweep of fairseq-hydra-train: the second run is worse than the first."""
    toy_data.train(toy.data, tmp_path / "a", max_epoch=3, arch="transformer")
    toy_data.train(toy.data, tmp_path / "b", max_epoch=1, arch="transformer", lr=1e-9)
    assert (tmp_path / "b/checkpoint_best.pt").exists()

"""``serve`` with what ``export`` wrote, for fairseq and for CTranslate2."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import binarized
import numpy as np
import pytest
from data_errors import data_error
from served import running
from untrained import untrained

from fairseq_syntax.corpus.conllu import format_conllu
from fairseq_syntax.corpus.parsing.parser import ParserOptions, load_parser
from fairseq_syntax.data.dictionary import PieceDictionary
from fairseq_syntax.data.tokens import load_dictionary
from fairseq_syntax.inference.alignment import align
from fairseq_syntax.inference.text_input import token_ids
from fairseq_syntax.use import ctranslate2_translator
from fairseq_syntax.use.export import export
from fairseq_syntax.use.serving.messages import PIECES_A, PIECES_B
from fairseq_syntax.use.serving.served_models import Source, load_served
from fairseq_syntax.use.serving.service import Service
from fairseq_syntax.use.translator import Translator

pytestmark = [pytest.mark.slow, pytest.mark.matrix(3, of="exported folders")]
LENGTHS = {"max_len_a": PIECES_A, "max_len_b": PIECES_B}


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, str]:
    pytest.importorskip("ctranslate2")
    place = tmp_path_factory.mktemp("exported")
    data = binarized.make(place / "corpus", train=40, valid=5)
    plain = untrained(data, "supervised_head_transformer", sure=20)
    labels = untrained(data, "sennrich_haddow_transformer", "--label-features", "deprel:4,upos:3", sure=20)
    export(labels, "ctranslate2", place / "labels")
    export(plain, "fairseq", place / "stock")
    export(plain, "ctranslate2", place / "fast")  # last, as it may renumber the heads
    return {name: str(place / name) for name in ("stock", "fast", "labels")}


def test_exported_folders_are_served_as_they_translate_offline(folders):
    parser = load_parser(ParserOptions(parser="chain_parser", distributions=True))
    texts = ["the dog sees the man.", "children", "the river follows the woman."]
    models = load_served(folders)
    assert [sorted(model.needs) for model in models] == [[], [], ["tree"]]
    assert models[0].parameters() > 1000
    assert [model.parameters() for model in models[1:]] == [None, None], "CTranslate2 does not tell"
    with running(Service(models, Source(parser))) as server:
        status, answer = server.translate(text=texts, model=list(folders), alignments=True)
        assert status == 200
        for name, folder in folders.items():
            offline = Translator.load(folder, parser=parser, device="cpu", **LENGTHS)
            expected = offline.translations(texts, alignments=True)
            actual = [t for t in answer["translations"] if t["model"] == name]
            # scores: a model with random weights has ties
            assert [t["score"] for t in actual] == pytest.approx([best[0].score for best in expected], abs=1e-3)
            assert [t["cut"] for t in actual] == [best[0].cut for best in expected]
            assert all(len(t["pieces"]) <= 4 * PIECES_B for t in actual), "bounded by the source"
            assert all(len(t["alignment"]["target_words"]) == len(t["alignment"]["links"]) > 0 for t in actual)
        status, answer = server.translate(text="children", model="fast", attention=True)
        assert status == 422 and "CTranslate2" in answer["detail"]
    with running(Service(load_served(folders), Source(None))) as server:
        assert server.translate(text="children", model="fast")[0] == 200
        status, answer = server.translate(text="children", model="labels")
        assert status == 422 and "labels cannot translate without a parse" in answer["detail"]


def test_data_belong_to_the_checkpoints_among_the_models(folders):
    models = load_served({"plain": f"{folders['stock']}/model.pt", "fast": folders["fast"]}, data=folders["stock"])
    assert [model.task.cfg.data for model in models] == [folders["stock"], folders["fast"]]
    with data_error(option="--data"):
        load_served({"fast": folders["fast"]}, data=folders["stock"])
    with data_error("leave out data", path=folders["fast"]):
        Translator.load(folders["fast"], folders["stock"])


def test_label_factors_without_a_parse(folders):
    """Of S&H in CTranslate2: the labels that stand for none."""
    offline = Translator.load(folders["labels"], parser_name="none", missing_parse="neutral", device="cpu", **LENGTHS)
    models = load_served({"labels": folders["labels"]}, missing_parse="neutral")
    with running(Service(models, Source(None, neutral=True))) as server:
        status, answer = server.translate(text="the dog sees the man.")
        assert status == 200 and answer["without_parse"] == [0]
        expected = offline.translations(["the dog sees the man."])[0][0].score
        assert answer["translations"][0]["score"] == pytest.approx(expected, abs=1e-3)


def test_a_fork_does_not_wait_for_the_threads_of_a_model_that_is_gone(folders):
    """In a fork the threads are not there, and CTranslate2 waits for them where a model is collected."""
    gone = [Translator.load(folders["fast"], device="cpu")]
    gone.append(gone)  # so that only the collector finds it
    del gone
    if (child := os.fork()) == 0:
        gc.collect()
        os._exit(0)
    until, ended = time.monotonic() + 20, (0, 0)
    while time.monotonic() < until and not ended[0]:
        ended = os.waitpid(child, os.WNOHANG)
        time.sleep(0.01)
    if not ended[0]:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert ended == (child, 0)


def test_alignments_where_the_search_ends_by_length(folders):
    """CTranslate2 has no step then that reads the last piece, which an alignment of a step later is read from."""
    fast = Translator.load(folders["fast"], device="cpu", max_len_b=2)
    fast.exported = replace(fast.exported, alignment_shift=1)
    for (best,) in fast.translations(["the dog sees the man.", "children"], alignments=True):
        assert 0 < len(best.alignment.links) <= len(best.alignment.target_words)  # nothing is known of the last piece
    with data_error("checkpoint"):
        fast.align(["children"], ["Kinder"])


def test_attention_is_that_of_a_sentence_alone(folders, monkeypatch):
    """CTranslate2's beam search gives the first step of a sentence in a batch the attention of another one."""
    texts = ["the dog sees the man.", "children", "the river follows the woman.", "the man", "a dog sees", "women see"]
    fast, read = Translator.load(folders["fast"], device="cpu", nbest=2, **LENGTHS), []

    def noting(weights, source, target):
        read.append((source.text, target.text, weights))
        return align(weights, source, target)

    monkeypatch.setattr(ctranslate2_translator, "align", noting)
    fast.translations(texts, alignments=True)
    together, read[:] = sorted(read, key=lambda of_one: of_one[:2]), []
    for text in texts:
        fast.translations([text], alignments=True)
    for ours, alone in zip(together, sorted(read, key=lambda of_one: of_one[:2]), strict=True):
        assert ours[:2] == alone[:2]
        np.testing.assert_allclose(ours[2], alone[2], atol=1e-4, err_msg=ours[0])


def test_rules_of_another_search_are_refused(folders):
    with data_error("rules of its own"):
        Translator.load(folders["fast"], device="cpu", search_rules="transformers")


# What the use of models that CTranslate2 runs imports, besides the standard library: see examples/export.
LIGHT = {"ctranslate2", "fairseq_syntax", "filelock", "numpy", "sentencepiece", "tqdm", "xxhash"}
WITHOUT_TORCH = """
import json, sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "fairseq", "pyarrow", "sklearn", "stanza", "sacrebleu", "omegaconf"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
before = {name.partition(".")[0] for name in sys.modules}
"""
TRANSLATE = """
from fairseq_syntax.cli import main
models, text, parsed, *outputs = sys.argv[1:]
for model, source, output in zip(models.split(","), (text, parsed), outputs):
    assert main(["translate", model, "--input", source, "--output", output, "--device", "cpu"]) == 0
"""
SERVE = """
from fairseq_syntax.use.serving.app import create_app
from fairseq_syntax.use.serving.served_models import Source, examples_of, load_served
from fairseq_syntax.use.serving.service import Service
models = load_served(dict(zip(("fast", "labels"), sys.argv[1].split(","))))
service = Service(models, Source(None))
create_app(service, timeout=1, max_bytes=1, hosts=["localhost"], examples=examples_of(models[0]))
print(json.dumps([best[0].text for best in models[0].translations(["the dog sees the man."], 4)]))
service.close()
"""
IMPORTED = """
import sys
loaded = {name.partition(".")[0] for name, module in sys.modules.items() if getattr(module, "__file__", None)}
print(sorted(loaded - before - set(sys.stdlib_module_names)))
"""


def in_a_new_process(program: str, *arguments: object) -> list[str]:
    """What a program prints where PyTorch, fairseq and others are missing, line by line, and then what it imported."""
    code = f"{WITHOUT_TORCH}{program}{IMPORTED}"
    done = subprocess.run([sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


def test_ctranslate2_folders_are_used_without_pytorch_and_fairseq(folders, tmp_path):
    texts = ["the dog sees the man.", "children"]
    parses = load_parser(ParserOptions(parser="chain_parser")).parse(texts)
    (tmp_path / "text").write_text("".join(f"{text}\n" for text in texts))
    (tmp_path / "text.conllu").write_text("".join(map(format_conllu, parses)))
    both = f"{folders['fast']},{folders['labels']}"
    outputs = tmp_path / "fast.out", tmp_path / "labels.out"
    *_, imported = in_a_new_process(TRANSLATE, both, tmp_path / "text", tmp_path / "text.conllu", *outputs)
    assert {*json.loads(imported.replace("'", '"'))} <= LIGHT
    for name, sources, output in zip(("fast", "labels"), (texts, parses), outputs):
        expected = [t.text for t in Translator.load(folders[name], device="cpu", max_len_b=200).translate(sources)]
        assert output.read_text("utf-8").splitlines() == expected
    translated, imported = in_a_new_process(SERVE, both)
    best = Translator.load(folders["fast"], device="cpu", **LENGTHS).translate(texts[0])
    assert json.loads(translated) == [best.text]
    assert not {"torch", "fairseq", "pyarrow", "sklearn"} & {*json.loads(imported.replace("'", '"'))}


def test_a_checkpoint_says_what_is_missing(folders):
    program = """
from contextlib import redirect_stderr
from fairseq_syntax.cli import main
with redirect_stderr(sys.stdout):
    assert main(["translate", sys.argv[1], "--input", "/dev/null"]) == 1
"""
    message, _ = in_a_new_process(program, f"{folders['stock']}/model.pt")
    assert "fairseq is not installed" in message and "pip install fairseq-syntax" in message


def test_the_dictionary_is_that_of_fairseq(folders, tmp_path):
    for path in [*Path(folders["labels"]).glob("dict.*.txt"), tmp_path / "dict.xx.txt"]:
        if not path.exists():
            path.write_text("a 3\n<unk> 2 #fairseq:overwrite\n\u00a0 1\nb#fairseq:overwrite 1\n", "utf-8")
        ours, theirs = PieceDictionary(path), load_dictionary(path)
        assert (ours.symbols, ours.indices, len(ours)) == (theirs.symbols, theirs.indices, len(theirs))
        names = "bos", "pad", "eos", "unk"
        assert [getattr(ours, name)() for name in names] == [getattr(theirs, name)() for name in names]
        assert (ours.nspecial, ours.eos_word, ours[10**6]) == (theirs.nspecial, theirs.eos_word, theirs[10**6])
        pieces = ["a", "<unk>", "</s>", "nothing", "", "e e", "\u00a0"]
        expected = theirs.encode_line(" ".join(pieces), add_if_not_exist=False).long()
        expected[:-1].masked_fill_(expected[:-1] < theirs.nspecial, theirs.unk())
        assert token_ids(pieces, ours).tolist() == token_ids(pieces, theirs).tolist() == expected.tolist()
    for wrong in ("a\n", "a b\n", "a 1\na 2\n"):
        (tmp_path / "wrong").write_text(wrong)
        with data_error("dictionary", path=tmp_path / "wrong"):
            PieceDictionary(tmp_path / "wrong")

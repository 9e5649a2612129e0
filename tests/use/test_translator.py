"""What the Translator does to its models, and to the words of a parse."""

import io
import os
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import lstm_models
import numpy as np
import pytest
import torch
from data_errors import data_error
from fairseq import checkpoint_utils
from fairseq.data import Dictionary
from tiny_syntax import LABELS, dictionary
from untrained import untrained

import fairseq_syntax
from fairseq_syntax.cli import main as command
from fairseq_syntax.corpus.conllu import ParsedLine, format_conllu
from fairseq_syntax.corpus.segmentation import PARSE, SubwordNmtSegmenter
from fairseq_syntax.data.packing import unpack
from fairseq_syntax.data.parse_origins import ParseOrigins
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.inference.alignment_head import default_head
from fairseq_syntax.inference.interactive import InteractiveInput
from fairseq_syntax.inference.spelling import decoder
from fairseq_syntax.use.base_translator import Translation
from fairseq_syntax.use.translator import Translator


@pytest.mark.parametrize("arch", ["dlaa_lstm", "tree2seq_lstm", "local_attention_lstm"])
def test_an_lstm_builds_no_map_of_its_attention_in_search(arch):
    model = lstm_models.model(arch)
    inputs = lstm_models.net_input(lstm_models.lines(3))
    with torch.no_grad():
        logits, attention = model(**inputs)
        assert attention is not None
        task = SimpleNamespace(build_generator=lambda models, options: mock.MagicMock(eos=2))
        Translator([model], task, alignment_heads=[default_head(model)])
        with mock.patch.object(type(model.decoder.attention), "over_source", side_effect=AssertionError):
            actual, attention = model(**inputs)
    assert attention is None
    torch.testing.assert_close(actual, logits)


def test_a_form_with_a_space_has_two_pieces_without_a_segmentation():
    """Each piece belongs to its own word: the tokens that the encoder reads are as many as the parse's pieces."""
    words = dictionary()
    task = SimpleNamespace(
        segmenter=lambda side: None,
        source_dictionary=words,
        target_dictionary=words,
        labels=lambda side: LABELS,
        needs=lambda side: frozenset({"tree"}),
        cfg=SimpleNamespace(syntax_parser_dir="", syntax_input="auto"),
    )
    rows = [("w4", 2, "a"), ("w5 w6", 0, "root"), ("w7", 2, "b")]
    block = "".join(
        f"{i}\t{form}\t_\tN\tn\t_\t{head}\t{label}\t_\t_\n" for i, (form, head, label) in enumerate(rows, 1)
    )
    given = InteractiveInput(task)
    encoded = given.encode([block])
    assert encoded[0].tokens.tolist() == [4, 5, 6, 7, 2]
    dataset = given.dataset(encoded)
    batch = dataset.collater([dataset[0]])
    syntax = unpack(batch["net_input"]["src_syntax"])
    assert syntax.pieces.tolist() == [1, 2, 1]


def test_text_beside_parses_for_a_model_that_needs_none():
    """Each line is taken as it is given; nobody asks for a parser, unless one was named."""
    words = dictionary()
    cfg = SimpleNamespace(syntax_parser_dir="", syntax_parser="", syntax_parser_lang="", source_lang="en")
    cfg.syntax_input, cfg.missing_parse = "auto", "error"
    task = SimpleNamespace(segmenter=lambda side: None, source_dictionary=words, labels=lambda side: LABELS, cfg=cfg)
    task.needs, task.parse_origins = lambda side: None, ParseOrigins(None)
    block = "1\tw4\t_\tN\tn\t_\t0\troot\t_\t_\n2\tw5 w6\t_\tN\tn\t_\t1\ta\t_\t_\n"
    given = InteractiveInput(task)
    encoded = given.encode(["w7 w8", block, "w9"])
    assert [line.tokens.tolist() for line in encoded] == [[7, 8, 2], [4, 5, 6, 2], [9, 2]]
    assert [line.parse and line.parse.words for line in encoded] == [None, ["w4", "w5 w6"], None]
    assert [given.text(line).text for line in encoded] == ["w7 w8", "w4 w5 w6", "w9"]
    (special,) = given.encode(["w7 <pad> </s>"])
    assert special.tokens.tolist() == [7, 3, 3, 2], "a user's symbols are not the model's"
    (odd,) = given.encode(["w7 xx, w8 yy"])
    assert given.unknown_words(odd) == ([(3, 5), (5, 6), (10, 12)], 5) and given.unknown_words(encoded[0]) == ([], 0)
    with data_error(line=2):
        given.encode(["w7", block.replace("\t1\ta", "\t7\ta")])
    cfg.syntax_parser = "chain_parser"
    named = InteractiveInput(task)
    (parsed,) = named.encode(["w7 w8"])
    assert parsed.parse.deprels == ["root", "dep"], "a parser that was named is used"


def test_a_parse_for_a_model_that_learned_from_text_is_segmented_as_text():
    """Its data have no pieces of a full stop as a word of its own without a space before it."""
    segmenter = SubwordNmtSegmenter(b"#version: 0.2\nx y</w>\n")
    cfg = SimpleNamespace(syntax_parser_dir="", syntax_parser="", syntax_input="auto")
    words = Dictionary()
    for piece in segmenter.encode_text("A dog."):
        words.add_symbol(piece)
    task = SimpleNamespace(segmenter=lambda side: segmenter, source_dictionary=words, cfg=cfg)
    task.needs = lambda side: None
    given = InteractiveInput(task)
    parse = ParsedLine.of_words(["A", "dog", "."], [2, 0, 2], ["det", "root", "punct"], text="A dog.")
    raw, of_parse = given.encode(["A dog.", parse])
    assert of_parse.tokens.tolist() == raw.tokens.tolist() and words.unk() not in raw.tokens
    text = given.text(of_parse)
    assert (text.words, text.pieces) == ([(0, 1), (2, 5), (5, 6)], [(0, 1), (2, 3), (3, 4), (4, 5), (5, 6)])
    segmenter.about["cut_from"] = PARSE
    (cut,) = given.encode([parse])
    assert words.unk() in cut.tokens and given.unknown_words(cut) == ([(2, 5), (5, 6)], 3)


@pytest.mark.slow
def test_the_limit_of_a_length_is_of_each_sentence(toy, trained):
    """fairseq limits all translations of a batch by its longest sentence."""
    for limits in ({"max_len_a": 0.5, "max_len_b": 1}, {"match_source_len": True}):
        translator = Translator.load(trained, device="cpu", batch_size=5, **limits)
        together = translator.translations(toy.lines["test"])
        assert len({len(line.words) for line in toy.lines["test"]}) > 2
        for line, (best, *_) in zip(toy.lines["test"], together):
            ((alone, *_),) = translator.translations([line])
            assert (best.pieces, best.cut) == (alone.pieces, alone.cut)
            assert best.score == pytest.approx(alone.score, abs=1e-4)
    with data_error("min_len", "99"):
        translator.with_search(min_len=99, max_len_b=3).translate(toy.lines["test"])


@pytest.mark.slow
def test_a_diverse_search_does_not_depend_on_the_rest_of_the_batch(toy):
    """fairseq looks up the penalties of a batch's first sentence by its number in the data."""
    model = untrained(toy.data, "transformer", sure=6.0)
    actual = []
    for size in (1, 3, 32):
        options = {"beam": 4, "nbest": 4, "diverse_beam_groups": 2, "max_len_b": 10, "batch_size": size}
        translated = Translator([model.model], model.task, **options).translations(toy.lines["test"])
        actual.append([[translation.pieces for translation in best_first] for best_first in translated])
    assert actual[0] == actual[1] == actual[2] and len({str(best_first) for best_first in actual[0]}) > 2


@pytest.mark.slow
def test_samples_depend_on_pytorchs_generator_alone(toy):
    model = untrained(toy.data, "transformer")
    translator = Translator([model.model], model.task, beam=1, sampling=True, max_len_b=10, batch_size=3)
    actual = []
    for seed in (1, 2):
        np.random.seed(seed)
        state = np.random.get_state()[1].tolist()
        torch.manual_seed(5)
        actual.append([best.pieces for best in translator.translate(toy.lines["test"])])
        assert np.random.get_state()[1].tolist() == state
    assert actual[0] == actual[1]
    sure = translator.with_search(temperature=0.001, max_len_b=3)
    ends = [(len(best.pieces), best.cut) for best in sure.translate(toy.lines["test"])]
    assert (3, True) in ends and all(cut == (pieces == 3) for pieces, cut in ends), "also an end of no probability"


@pytest.mark.slow
def test_searches_of_one_model_keep_their_sentences_apart(toy, trained, monkeypatch):
    """Translators of several threads may share a model."""
    translator, lines = Translator.load(trained, device="cpu"), toy.lines["test"]
    expected, other, encode = (
        translator.translations(lines[:2]),
        translator.with_search(batch_size=1),
        translator._input.encode,
    )
    assert other.batch_size == 1 < translator.batch_size

    def overtaken(*given):
        encoded = encode(*given)
        monkeypatch.setattr(translator._input, "encode", encode)
        other.translations(lines[2:5])
        return encoded

    monkeypatch.setattr(translator._input, "encode", overtaken)
    actual = translator.translations(lines[:2])
    assert [best.pieces for best, *_ in actual] == [best.pieces for best, *_ in expected]
    assert [best.parse.words for best, *_ in actual] == [best.parse.words for best, *_ in expected]
    with data_error("at least 1", option="batch_size"):
        translator.with_search(batch_size=0)
    short = other.with_search(beam=3, max_len_b=2).with_search(batch_size=2)
    assert short.beam == 3 and all(len(best.pieces) <= 2 for best in short.translate(lines)), "the others stay"


@pytest.mark.slow
def test_a_translation_that_is_cut_says_so(toy, trained, caplog, tmp_path, capsys):
    whole = Translator.load(trained, device="cpu")
    line = next(line for line in toy.lines["test"] if len(line.words) > 4)
    (best,) = whole.translations([line])[0]
    assert len(best.pieces) > 3 and not best.cut
    exact, short = (whole.with_search(max_len_b=len(best.pieces) - less) for less in (0, 2))
    (actual,) = short.translations([line])[0]
    assert actual.cut and len(actual.pieces) == len(best.pieces) - 2
    assert exact.translate(line).text == best.text
    caplog.clear()
    short.translate([line])
    assert "sentence 1 " in caplog.text and f" {len(actual.pieces)} " in caplog.text
    text = tmp_path / "in.conllu"
    text.write_text(format_conllu(replace(line, line_number=0)))
    argv = ["translate", str(trained), "--input", str(text), "--output", f"{tmp_path}/out", "--max-len-b"]
    assert command([*argv, str(len(actual.pieces))]) == 0
    warned = capsys.readouterr().err
    assert "in.conllu:1: " in warned and f" {len(actual.pieces)} " in warned and "--max-len-b" in warned
    assert command([*argv, "200"]) == 0
    assert "in.conllu:1: " not in capsys.readouterr().err


@pytest.mark.parametrize("sentences", [[None], ["a", 3], iter(["a"])])
def test_what_is_no_sentence_is_refused(trained, sentences):
    with data_error():
        Translator.load(trained, device="cpu").translate(sentences)


def test_the_commands_options_reach_the_search(trained, monkeypatch, tmp_path):
    seen = {}

    def load(path, data=None, **options):
        seen.update(options)
        raise SyntaxDataError("enough")

    monkeypatch.setattr(Translator, "load", load)
    (tmp_path / "in.txt").write_text("a\n")
    argv = ["translate", str(trained), "--input", f"{tmp_path}/in.txt", "--output", f"{tmp_path}/out"]
    argv += ["--beam", "7", "--lenpen", "0.3", "--max-len-b", "9", "--missing-parse", "neutral", "--device", "cpu"]
    assert (
        command([*argv, "--parser", "chain_parser", "--lang", "xx", "--model-dir", "models", "--batch-size", "3"]) == 1
    )
    wanted = {"beam": 7, "lenpen": 0.3, "max_len_b": 9, "missing_parse": "neutral", "device": "cpu", "batch_size": 3}
    wanted |= {"parser_name": "chain_parser", "parser_lang": "xx", "parser_dir": "models"}
    assert {name: seen[name] for name in wanted} == wanted


def test_on_a_terminal_each_line_is_answered_before_the_next_is_asked_for(monkeypatch, tmp_path, capsys):
    class Typed(io.BytesIO):
        def readline(self, size: int | None = -1) -> bytes:
            shown.append(capsys.readouterr())
            return super().readline(size)

    class Echo:
        task = SimpleNamespace(cfg=SimpleNamespace(source_lang="en"))

        def check_parses(self, path):
            pass

        def translations(self, sentences, **_):
            return [[Translation(sentence.upper(), [], 0.0)] for sentence in sentences]

    shown = []
    monkeypatch.setattr(Translator, "load", lambda *_, **__: Echo())
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=Typed(b"a dog\na cat\n"), isatty=lambda: True))
    (tmp_path / "model.pt").touch()
    assert command(["translate", str(tmp_path / "model.pt")]) == 0
    assert [out for out, _ in shown] == ["", "A DOG\n", "A CAT\n"]
    assert all(err.endswith("en> ") for _, err in shown)


def test_words_of_chinese_and_japanese_are_joined_again():
    assert decoder(None, "ja")(["日本@@", "語", "です", "。", "GPU", "2", "台"]) == "日本語です。 GPU 2 台"
    assert decoder(None, "zh-CN")(["猫", "，", "狗"]) == "猫，狗"
    assert decoder(None, "ko")(["고양이", "와", "개"]) == "고양이 와 개"
    pieces = ["猫", "が", "x", "好き"]
    assert [decoder(None, "ja")(pieces[:n]) for n in range(1, 5)] == ["猫", "猫が", "猫が x", "猫が x 好き"]


class _Ended(Exception):
    """The search is ended."""


@pytest.mark.parametrize("beam", [1, 4])
def test_a_search_is_looked_at_in_every_step(trained, toy, beam):
    """What the callback raises ends it at once, and a sentence that it names ends alone."""
    translator = Translator.load(trained, beam=beam, max_len_b=30, min_len=20)
    lines = [line for line in toy.lines["test"] if len(line.words) > 3][:3]
    free = translator.translations(lines)
    assert min(len(best[0].pieces) for best in free) >= 20
    steps = 0

    def count() -> list[int]:
        nonlocal steps
        steps += 1
        if steps > 5:
            raise _Ended
        return []

    with pytest.raises(_Ended):
        translator.translations(lines, on_step=count)
    assert steps == 6
    steps = 0

    def end_one() -> list[int]:
        nonlocal steps
        steps += 1
        return [1] if steps > 5 else []

    seen = translator.translations(lines, on_step=end_one)
    assert len(seen[1][0].pieces) <= 6
    for alone in (0, 2):
        assert seen[alone][0].pieces == free[alone][0].pieces


@pytest.mark.slow
def test_one_sentence_gives_one_translation_and_a_list_gives_a_list(toy, trained):
    translator = fairseq_syntax.Translator.load(trained, device="cpu", beam=2)
    line = next(line for line in toy.lines["test"] if len(line.words) > 4)
    one = translator.translate(line, alignments=True)
    (same,) = translator.translate([line])
    assert isinstance(one, fairseq_syntax.Translation) and one.text == same.text == str(same)
    assert one.score == pytest.approx(same.score, abs=1e-4) and one.score < 0
    assert one.alignment.links and same.alignment is None
    assert one.parse.words == line.words and one.parse.heads == line.heads
    said = repr(translator)
    parts = ("en → de", "pascal", "parameters", "beam 2")
    assert all(part in said for part in parts) and "beam 5" in repr(translator.with_search(beam=5))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="the system does not list threads")
def test_loading_leaves_no_threads_behind(trained, monkeypatch):
    """They would be more than there are cores, where another thread translates."""
    load, threads = checkpoint_utils.load_checkpoint_to_cpu, torch.get_num_threads()

    def computing(*args, **kwargs):
        torch.ones(1 << 20).add(1)
        return load(*args, **kwargs)

    monkeypatch.setattr(checkpoint_utils, "load_checkpoint_to_cpu", computing)
    torch.set_num_threads(2)
    try:
        before = set(os.listdir("/proc/self/task"))
        Translator.load(trained)
        of_python = {str(thread.native_id) for thread in threading.enumerate()}
        assert set(os.listdir("/proc/self/task")) <= before | of_python and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


@pytest.mark.slow
def test_the_folder_of_a_training_is_its_best_checkpoint(trained):
    best = trained.with_name("checkpoint_best.pt")
    loaded = [fairseq_syntax.Translator.load(path, device="cpu") for path in (trained.parent, best)]
    weights = [translator.models[0].state_dict() for translator in loaded]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])

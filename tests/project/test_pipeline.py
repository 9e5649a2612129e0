"""fairseq's commands with the plugin, from data to translations: whichever way a sentence takes, the same numbers."""

import copy
import gc
import gzip
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
import weakref
from pathlib import Path

import pyarrow as pa
import pytest
import sacrebleu
import torch
import toy_data
from data_errors import data_error
from fairseq import checkpoint_utils
from kills import ended, forked
from matrix_part import of_half_a_minute
from random_parses import numbers
from toy_data import USER_DIR, fairseq

from fairseq_syntax.corpus.conllu import flatten, format_conllu, owner, parse_conllu_block, text_of
from fairseq_syntax.corpus.header import header
from fairseq_syntax.corpus.parsing.parser import ParserOptions
from fairseq_syntax.corpus.store.reader import SyntaxStore
from fairseq_syntax.corpus.store.writer import write_store
from fairseq_syntax.data.packing import unpack
from fairseq_syntax.inference.interactive import InteractiveInput
from fairseq_syntax.inference.sentences import is_parsed, with_written_tabs
from fairseq_syntax.tasks.config import SyntaxTranslationConfig
from fairseq_syntax.tasks.syntax_translation import SyntaxTranslationTask
from fairseq_syntax.use.serving.served_models import ServedModel, load_source
from fairseq_syntax.use.translator import Translator

pytestmark = [pytest.mark.slow, pytest.mark.matrix(8, of="ways of a sentence")]
TASK = ["--task", "syntax_translation"]
SEARCH = ["--beam", 3, "--cpu"]
# Steps that are the gradients themselves: Adam would blow up the rounding of those that are zero.
PLAIN_STEPS = {
    "optimizer": "sgd",
    "lr": 0.5,
    "dropout": 0,
    "max_tokens": None,
    "required_batch_size_multiple": 1,
}


def hypotheses(output: str) -> dict[int, tuple[float, str]]:
    """Score and detokenized text by sentence number, from what fairseq-generate or -interactive prints."""
    return {int(n): (float(score), text) for n, score, text in re.findall(r"^D-(\d+)\t(\S+)\t(.*)$", output, re.M)}


def generate(data, checkpoint, directory: Path, *more, subset: str = "test") -> dict[int, tuple[float, str]]:
    options = [*TASK, "--path", checkpoint, "--gen-subset", subset, "--results-path", directory, *SEARCH, *more]
    fairseq("generate", data, *options)
    return hypotheses((directory / f"generate-{subset}.txt").read_text(encoding="utf-8"))


def interactive(data, checkpoint, source: Path, *more) -> dict[int, tuple[float, str]]:
    options = [*TASK, "-s", "en", "-t", "de", "--path", checkpoint, "--input", source, *SEARCH, *more]
    return hypotheses(fairseq("interactive", data, *options))


def assert_same(actual, expected, tolerance: float = 2e-4) -> None:
    assert actual.keys() == expected.keys()
    for n, (score, text) in expected.items():
        assert actual[n][1] == text, n
        assert actual[n][0] == pytest.approx(score, abs=tolerance), n


def the_task(data, **options) -> SyntaxTranslationTask:
    """A task without a model, whose batches bring the tree."""
    cfg = SyntaxTranslationConfig(data=str(data), source_lang="en", target_lang="de", **options)
    # As the command line has it: these are interpolated from other groups of options.
    cfg.train_subset, cfg.required_seq_len_multiple, cfg.dataset_impl = "train", 1, None
    return SyntaxTranslationTask.setup_task(cfg)


def assert_syntax_is_of(batch: dict, lines: list, at) -> None:
    """Each sentence of a batch has the parse of the line that ``at`` gives for its number, and its own tokens."""
    flat = unpack(batch["net_input"]["src_syntax"])
    start = 0
    for row, number in enumerate(batch["id"].tolist()):
        line = lines[at(number)]
        token_of = {w: t for t, token in enumerate(line.tokens) for w in range(token.first, token.last + 1)}
        end = start + int(flat.n_words[row])
        assert flat.head[start:end].tolist() == [token_of[line.heads[token.word]] for token in line.tokens]
        assert flat.n_pieces[row] == batch["net_input"]["src_lengths"][row] - 1
        start = end
    assert start == len(flat.pieces)


@pytest.fixture(autouse=True)
def no_lasting_changes(monkeypatch):
    """--syntax-input conllu changes how fairseq-interactive reads for the rest of a process; here it must not."""
    from fairseq_cli import interactive as command

    for name in ("buffered_read", "make_batches"):
        monkeypatch.setattr(command, name, getattr(command, name))


def test_fairseq_interactive_keeps_no_task_that_is_gone(trained):
    """Nor its model, where the program is imported, whose input each new task reads."""
    models, _, task = checkpoint_utils.load_model_ensemble_and_task([str(trained)])
    kept = [weakref.ref(task), *map(weakref.ref, models)]
    del models, task
    gc.collect()
    assert not any(one() for one in kept)


@pytest.fixture(scope="module")
def generated(toy, trained, tmp_path_factory) -> dict[int, tuple[float, str]]:
    return generate(toy.data, trained, tmp_path_factory.mktemp("generated"), "--batch-size", 5)


# -- generate, interactive, Python ----------------------------------------------------------------------------------


def test_every_sentence_is_translated(generated):
    """Also those of a last batch that fairseq would drop: 12 is not a multiple of 8, nor is 5."""
    assert sorted(generated) == list(range(12))


@pytest.mark.parametrize("batches", [["--batch-size", 1], ["--batch-size", 12], ["--max-tokens", 70]])
def test_generate_in_any_batch(toy, trained, generated, tmp_path, batches):
    assert_same(generate(toy.data, trained, tmp_path, *batches), generated)


def test_generate_with_padding_on_the_other_side(toy, trained, generated, tmp_path):
    """The option is a switch: it turns fairseq's default off."""
    assert_same(generate(toy.data, trained, tmp_path, "--batch-size", 6, "--left-pad-source"), generated)


def test_the_parse_changes_the_translation_of_the_same_words(toy, trained, generated):
    """Lines 7 and 8 of the corpus differ in their parse alone."""
    assert text_of(toy.lines["test"][7]) == text_of(toy.lines["test"][8])
    assert abs(generated[7][0] - generated[8][0]) > 1e-3


@pytest.mark.parametrize("buffer, batch", [(100, 4), (5, 5), (1, 1)])
def test_interactive_with_flattened_parses(toy, trained, generated, tmp_path, buffer, batch):
    source = tmp_path / "flat"
    source.write_text("".join(flatten(line) + "\n" for line in toy.lines["test"]), encoding="utf-8")
    actual = interactive(toy.data, trained, source, "--buffer-size", buffer, "--batch-size", batch)
    assert_same(actual, generated)


@pytest.mark.parametrize("buffer, batch", [(100, 4), (1, 1)])
def test_interactive_with_conllu_blocks(toy, trained, generated, tmp_path, buffer, batch):
    """A file as fairseq-syntax parse writes it, empty lines included."""
    source = toy.raw / "test.en.conllu"
    options = ["--syntax-input", "conllu", "--buffer-size", buffer, "--batch-size", batch]
    actual = interactive(toy.data, trained, source, *options)
    assert_same(actual, generated)


def test_interactive_with_a_compressed_file_of_blocks(toy, trained, generated, tmp_path):
    source = tmp_path / "test.en.conllu.gz"
    source.write_bytes(gzip.compress((toy.raw / "test.en.conllu").read_bytes()))
    assert_same(interactive(toy.data, trained, source, "--syntax-input", "conllu"), generated)


def test_rows_of_blocks_are_not_taken_for_lines(toy, trained, tmp_path):
    source, block = tmp_path / "blocks.conllu", format_conllu(toy.lines["test"][7])
    for text in ("# lines = 1\n" + block, block, block.partition("\n")[2]):
        source.write_text(text, encoding="utf-8")
        with data_error(option="--syntax-input"):
            interactive(toy.data, trained, source)


def test_words_of_constraints_are_segmented(toy, trained, tmp_path):
    """Uncut a word is unknown, and the search would have to bring ``<unk>`` into the translation."""
    line, source = toy.lines["test"][0], tmp_path / "constrained"
    words = ["GIRL", "TELESCOPES", "OLD"]
    for word, tab in zip(words, ("\\t", "\\t", "\t")):
        source.write_text(flatten(line).replace("\t", tab) + f"\t{word}\n", encoding="utf-8")
        (actual,) = interactive(toy.data, trained, source, "--constraints", "--max-len-b", 100).values()
        assert word in actual[1].split() and "unk" not in actual[1]


def test_constraints_that_the_model_does_not_know_are_told(toy, trained, tmp_path, caplog):
    """Their pieces become ``<unk>``, which the search brings into the translation."""
    source, line = tmp_path / "constrained", flatten(toy.lines["test"][0])
    source.write_text(f"{line}\tGIRL\n{line}\tGIRL\tżółć\n{line}\n", encoding="utf-8")
    printed = interactive(toy.data, trained, source, "--constraints", "--max-len-b", 100, "--buffer-size", 2)
    assert ["unk" in text for _, text in printed.values()] == [False, True, False]
    assert [r.getMessage().partition(":")[0] for r in caplog.records if "<unk>" in r.getMessage()] == ["line 2"]


def test_constraints_need_a_line(toy, trained, tmp_path):
    with data_error("--syntax-input", option="--constraints"):
        interactive(toy.data, trained, toy.raw / "test.en.conllu", "--syntax-input", "conllu", "--constraints")
    source = tmp_path / "blocks.conllu"
    source.write_text(format_conllu(toy.lines["test"][7]).partition("\n")[2], encoding="utf-8")
    with data_error(option="--syntax-input"):  # rather than the columns of each row
        interactive(toy.data, trained, source, "--constraints")


def test_tabs_of_a_parse_are_written(toy):
    for line in toy.lines["test"]:
        if line.words:
            flat = flatten(line)
            assert with_written_tabs(f"{flat}\tA\tB") == flat.replace("\t", r"\t") + "\tA\tB"
            assert with_written_tabs(flat.replace("\t", r"\t") + "\tA") == flat.replace("\t", r"\t") + "\tA"
    slashes = ("1", r"\\t\\n", "_", "_", "_", "_", "0", "root", "_", "_")
    assert with_written_tabs("\t".join((*slashes, "A"))) == r"\t".join(slashes) + "\tA"
    for text in ("a sentence\tA", "1\ttwo", "2\t" + "\t".join(slashes[1:])):
        assert with_written_tabs(text) == text


def test_what_is_taken_for_a_parse(toy):
    block = flatten(toy.lines["test"][0])
    rows = block.replace("\\n", "\n")
    assert is_parsed(block) and is_parsed(rows) and is_parsed(block.replace("\t", "\\t"))
    assert is_parsed(f"# text = x\n# more\n{rows}") and is_parsed(f"# text = x\\n{block}")
    empty = "0.1\te\t_\tX\t_\t_\t_\t_\t1:dep\t_"
    assert is_parsed(f"{empty}\n{rows}") and len(parse_conllu_block(f"# a\n{empty}\n{rows}").words) > 0
    assert not any(map(is_parsed, ["# hello", "1\t2", "#", "", "0.1 is a number", "1-2", "# 1\n2"]))
    task = the_task(toy.data, syntax_input="text", missing_parse="neutral")
    (line,) = InteractiveInput(task).parse(["\t".join("1234567890")])
    assert not line.parsed and [t.form for t in line.tokens][:2] == ["1", "2"]


def test_python_translates_as_the_commands_do(toy, trained, generated):
    translator = Translator.load(trained, toy.data, device="cpu", beam=3, batch_size=5)
    lines = toy.lines["test"]
    for sentences in (lines, [flatten(line) for line in lines]):
        actual = translator.translations(sentences)
        for n, (score, text) in generated.items():
            if lines[n].words:
                assert actual[n][0].text == text
                assert actual[n][0].score / math.log(2) == pytest.approx(score, abs=2e-4)
        assert translator.translate(sentences)[5].text == ""
    assert not translator.task._input._batches  # nothing is kept for ever


def test_raw_text_is_parsed(toy, trained, tmp_path):
    """fairseq-interactive and Python parse text themselves, by any parser; here a chain of the words."""
    text = ["a man saw unbelievable dogs", "he painted"]
    source = tmp_path / "text"
    source.write_text("\n".join(text) + "\n", encoding="utf-8")
    options = ["--syntax-parser", "chain_parser", "--buffer-size", 2, "--batch-size", 2]
    commanded = interactive(toy.data, trained, source, *options)
    translator = Translator.load(trained, toy.data, device="cpu", beam=3, parser_name="chain_parser")
    parsed = translator.parse(text)
    assert parsed[0].heads == [0, 0, 1, 2, 3]
    for sentences in (text, parsed, [flatten(line) for line in parsed]):
        for n, best in enumerate(translator.translations(sentences)):
            assert best[0].text == commanded[n][1]
            assert best[0].score / math.log(2) == pytest.approx(commanded[n][0], abs=2e-4)


def test_raw_text_is_parsed_as_the_training_text_was(toy, trained, tmp_path):
    """The options go from the parse through segmented files to the label inventory, and from there to the parser."""
    shutil.copytree(toy.raw, tmp_path / "raw")
    options = ParserOptions("chain_parser", tokenizer="whitespace", min_prob=0.2, split_sentences=True).of_the_result
    file = tmp_path / "raw/train.en.conllu"
    file.write_text(header(len(toy.lines["train"]), parsed_with=options) + file.read_text("utf-8"), encoding="utf-8")
    toy_data.segment(tmp_path / "raw", tmp_path / "segmented")
    fairseq("preprocess", *toy_data.preprocess_options(tmp_path / "segmented", tmp_path / "data"))
    named = {"device": "cpu", "parser_name": "chain_parser"}
    translator = Translator.load(trained, tmp_path / "data", **named)
    assert translator.input().parser.options.of_the_result == options
    text = ["a man, saw", "he painted dogs. it rains"]
    assert [line.words for line in translator.parse(text)] == [line.split() for line in text]
    other = Translator.load(trained, toy.data, **named)  # where nobody knows
    assert other.input().parser.options.of_the_result == ParserOptions("chain_parser").of_the_result
    served = load_source([ServedModel("m", translator)], "chain_parser", "", None)
    assert served.parser.options.of_the_result == options | {"distributions": True}
    with data_error("chain_parser"):
        Translator.load(trained, tmp_path / "data", device="cpu").translate(text)


def test_a_checkpoint_remembers_the_control_that_it_was_trained_on(toy, trained, tmp_path):
    """Whatever data it is given later: fairseq's own commands, Python and the server refuse parses of another kind."""
    before = {**ParserOptions("chain_parser").of_the_result, "control": ["linear"]}
    shutil.copytree(toy.raw, tmp_path / "raw")
    for split in ("train", "valid", "test"):
        file = tmp_path / "raw" / f"{split}.en.conllu"
        file.write_text(header(len(toy.lines[split]), parsed_with=before) + file.read_text("utf-8"), encoding="utf-8")
    toy_data.segment(tmp_path / "raw", tmp_path / "segmented")
    controlled = tmp_path / "data"
    fairseq("preprocess", *toy_data.preprocess_options(tmp_path / "segmented", controlled))
    toy_data.train(controlled, tmp_path / "model", max_epoch=1)
    checkpoint = tmp_path / "model/checkpoint_last.pt"
    assert len(generate(controlled, checkpoint, tmp_path)) == len(toy.lines["test"])
    with data_error("linear"):
        generate(toy.data, checkpoint, tmp_path)
    with data_error("linear"):
        generate(toy.data, f"{trained}:{checkpoint}", tmp_path)
    real, text = toy.raw / "test.en.conllu", tmp_path / "text"
    text.write_text("he painted\n", encoding="utf-8")
    with data_error("linear", "parser"):
        interactive(toy.data, checkpoint, text, "--syntax-parser", "chain_parser")
    blocks = ["--syntax-input", "conllu"]
    with data_error("linear"):
        interactive(toy.data, checkpoint, real, *blocks)
    assert len(interactive(toy.data, checkpoint, tmp_path / "raw/test.en.conllu", *blocks)) == len(toy.lines["test"])
    with toy_data.logged("fairseq_syntax.corpus.header") as said:  # the other way about it is said
        generate(controlled, trained, tmp_path)
    assert "(linear)" in said.getvalue()
    # The server has one parser for all its models, in whatever order.
    served = [ServedModel(str(path), Translator.load(path, toy.data, device="cpu")) for path in (trained, checkpoint)]
    with data_error("linear", "parser"):
        load_source(served, "chain_parser", "", None)
    # Supervised heads learn from a parse and read none: any parser may say where their words are.
    served[1].needs = served[1].task._needs["source"] = frozenset()
    for models in (served, served[1:]):
        assert load_source(models, "chain_parser", "", None).parser.options.parser == "chain_parser"
    assert not served[1].parsed_with.get("control")


def test_words_that_hold_a_backslash(toy, trained):
    r"""A flattened parse joins rows by \n, which a word such as C:\new holds too."""
    parsed = toy.lines["test"][9]
    odd = type(parsed)(**{name: getattr(parsed, name) for name in parsed.__slots__})
    odd.words = ["C:\\new", *parsed.words[1:]]
    odd.tokens = [
        type(t)(odd.words[t.word] if t.first == t.last else t.form, *[True, t.first, t.last, t.word])
        for t in parsed.tokens
    ]
    translator = Translator.load(trained, toy.data, device="cpu", beam=3)
    assert translator.parse([flatten(odd)])[0].words == odd.words


def test_a_saved_model_reads_the_heads(toy, trained):
    """Other heads for the same words, after saving and loading: another score for each sentence that has any choice."""
    translator = Translator.load(trained, toy.data, device="cpu", beam=3)
    lines = [l for l in toy.lines["train"] if len(l.sentences) == 1 and len(l.words) > 3]
    assert len(lines) > 3
    before = translator.translations(lines)
    lines = copy.deepcopy(lines)
    for line in lines:
        n_words = len(line.words)
        line.heads = [n_words - 1] * n_words if line.heads[0] != n_words - 1 else [0] * n_words
        for token in line.tokens:
            token.word = owner(token.first, token.last, line.heads)
    after = translator.translations(lines)
    assert all(abs(a[0].score - b[0].score) > 1e-5 for a, b in zip(before, after))


def test_batches_that_come_back_without_their_syntax(toy, trained):
    """As fairseq-interactive makes them: each gets its own, also where two have the same tokens; others are refused."""
    task = Translator.load(trained, toy.data, device="cpu").task
    same = [flatten(line) for line in toy.lines["test"][7:9]]
    tokens, lengths = task.get_interactive_tokens_and_lengths(same, None)
    dataset = task.build_dataset_for_inference(tokens, lengths)
    made = [dataset.collater([dataset[i]]) for i in range(2)]
    heads = [unpack(batch["net_input"]["src_syntax"]).head.tolist() for batch in made]
    assert heads[0] != heads[1] and torch.equal(*(batch["net_input"]["src_tokens"] for batch in made))
    for number, expected in enumerate(heads):
        sample = {"net_input": {"src_tokens": made[0]["net_input"]["src_tokens"].clone()}}
        task._input.attach(sample)
        assert unpack(sample["net_input"]["src_syntax"]).head.tolist() == expected
        assert sample["id"].tolist() == [number]
    with data_error():
        task._input.attach({"net_input": {"src_tokens": tokens[0][None]}})


def test_bad_input_to_interactive(toy, trained, tmp_path):
    source = tmp_path / "flat"
    good = flatten(toy.lines["test"][0])
    source.write_text(good + "\n" + good.replace("\t0\troot", "\t1\troot", 1) + "\n", encoding="utf-8")
    with data_error(line=2):
        interactive(toy.data, trained, source, "--buffer-size", 2, "--batch-size", 2)
    source.write_text("a man\n", encoding="utf-8")
    translator = Translator.load(trained, toy.data, device="cpu")
    translator.task.cfg.syntax_input = "conllu"
    with data_error("'a man'", line=1):
        translator.translate(["a man"])


def test_validate_gives_the_loss_of_training(toy, trained):
    expected = torch.load(trained, weights_only=True)["extra_state"]["val_loss"]
    options = ["--path", trained, "--valid-subset", "valid", "--cpu", "--log-format", "simple"]
    with toy_data.logged("fairseq.logging.progress_bar") as log:
        fairseq("validate", toy.data, *TASK, *options, "--batch-size", 5)
    (loss,) = re.findall(r"valid on 'valid' subset \| loss ([0-9.]+)", log.getvalue())
    assert float(loss) == pytest.approx(expected, abs=2e-3)


# -- ensembles ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def second(toy, tmp_path_factory) -> Path:
    """Another model, with other heads scaled in another layer."""
    directory = tmp_path_factory.mktemp("second")
    toy_data.train(toy.data, directory, "--pascal-heads", 2, "--pascal-layers", "0,1", seed=6, max_epoch=6)
    return directory / "checkpoint_last.pt"


def test_ensembles(toy, trained, second, generated, tmp_path):
    assert_same(generate(toy.data, f"{trained}:{trained}", tmp_path), generated)
    both = generate(toy.data, f"{trained}:{second}", tmp_path, "--batch-size", 3)
    assert_same(generate(toy.data, f"{second}:{trained}", tmp_path, "--batch-size", 12), both)
    assert any(abs(both[n][0] - generated[n][0]) > 1e-3 for n in both)
    translator = Translator.load([trained, second], toy.data, device="cpu", beam=3)
    actual = translator.translations(toy.lines["test"])
    for n, line in enumerate(toy.lines["test"]):
        if line.words:
            assert actual[n][0].text == both[n][1]


# -- training -------------------------------------------------------------------------------------------------------


def weights(checkpoint: dict) -> dict[str, torch.Tensor]:
    return checkpoint["model"]


def assert_equal_weights(actual: dict, expected: dict, **tolerance) -> None:
    assert actual.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(actual[name], expected[name], msg=lambda m, n=name: f"{n}: {m}", **tolerance)


def differ(one: dict, other: dict) -> bool:
    return any(not torch.allclose(one[name], other[name], atol=1e-5) for name in one)


def test_the_same_seed_gives_the_same_weights(toy, tmp_path):
    """Whatever the number of worker processes; another seed gives others."""
    options = {"max_epoch": 1, "parent_ignoring": 0.3}
    first = weights(toy_data.train(toy.data, tmp_path / "1", **options))
    assert_equal_weights(weights(toy_data.train(toy.data, tmp_path / "2", **options)), first, atol=0, rtol=0)
    workers = weights(toy_data.train(toy.data, tmp_path / "3", **options, num_workers=1))
    assert_equal_weights(workers, first, atol=0, rtol=0)
    assert differ(weights(toy_data.train(toy.data, tmp_path / "4", **options, seed=6)), first)


def test_update_freq_and_checkpointed_activations(toy, tmp_path):
    """Two batches per update are one of double the size; activations computed twice are the same ones."""
    options = {**PLAIN_STEPS, "max_epoch": 2}
    whole = weights(toy_data.train(toy.data, tmp_path / "1", **options, batch_size=60))
    halves = weights(toy_data.train(toy.data, tmp_path / "2", **options, batch_size=30, update_freq=2))
    assert_equal_weights(halves, whole, atol=2e-5, rtol=1e-4)
    again = toy_data.train(toy.data, tmp_path / "3", "--checkpoint-activations", **options, batch_size=60)
    assert_equal_weights(weights(again), whole, atol=2e-5, rtol=1e-4)
    assert again["optimizer_history"][-1]["num_updates"] == 2


def test_validation_on_the_training_data_leaves_training_alone(toy, tmp_path):
    """fairseq's would take training's iterator: an epoch would end with it, and what is dropped be that of epoch 1."""
    options = {"max_epoch": 3, "max_tokens": 120, "parse_dropout": 0.5, "validate_interval_updates": 2}
    kept = [toy_data.train(toy.data, tmp_path / x, **options, valid_subset=x) for x in ("valid", "valid,train")]
    assert kept[0]["optimizer_history"][-1]["num_updates"] > 6
    assert kept[0]["extra_state"]["train_iterator"] == kept[1]["extra_state"]["train_iterator"]
    assert_equal_weights(*map(weights, kept), atol=0, rtol=0)


@pytest.mark.parametrize("precision", ["--amp", "--memory-efficient-fp16"])
def test_lower_precision(toy, tmp_path, precision):
    state = toy_data.train(toy.data, tmp_path, precision, max_epoch=1, fp16_init_scale=4)
    assert state["extra_state"]["val_loss"] > 0
    assert all(torch.isfinite(w.float()).all() for w in weights(state).values())


def test_checkpoints_with_bleu(toy, tmp_path, monkeypatch):
    """numpy's counts in a checkpoint load with weights_only, which toy_data.train checks; raw text is scored."""
    references, score = set(), sacrebleu.corpus_bleu
    monkeypatch.setattr(
        sacrebleu, "corpus_bleu", lambda sys, refs, **more: references.update(*refs) or score(sys, refs, **more)
    )
    bleu = ["--eval-bleu", "--eval-bleu-args", '{"beam": 2}', "--eval-bleu-detok", "space"]
    bleu += ["--best-checkpoint-metric", "bleu", "--maximize-best-checkpoint-metric"]
    state = toy_data.train(toy.data, tmp_path, *bleu, max_epoch=1)
    assert "bleu" in str(state["extra_state"])
    raw = set((toy.raw / "valid.de").read_text("utf-8").splitlines())
    assert len(references & raw) > len(raw) / 2 and not any("▁" in text for text in references)
    models, _, _ = checkpoint_utils.load_model_ensemble_and_task([str(tmp_path / "checkpoint_best.pt")])
    assert models


def command(data, save_dir, *more, **changed) -> list[str]:
    options = {**toy_data.MODEL, **toy_data.TRAINING, **{"--" + k.replace("_", "-"): v for k, v in changed.items()}}
    given = [x for name, value in options.items() if value is not None for x in (name, value)]
    return [str(x) for x in (data, "--user-dir", USER_DIR, "--save-dir", save_dir, *given, *toy_data.FLAGS, *more)]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}


@of_half_a_minute
def test_killed_and_resumed(toy, tmp_path):
    """A run that is killed in the middle of an epoch and started again ends with the weights of one that was not."""
    more = ["--save-interval-updates", 3, "--keep-interval-updates", 1, "--parent-ignoring", 0.3]
    options, checkpoints = {"max_epoch": 10, "max_tokens": 120}, tmp_path / "killed"
    process = forked(lambda: toy_data.train(toy.data, checkpoints, *more, **options))
    while not (checkpoints / "checkpoint_last.pt").exists() and not os.waitpid(process, os.WNOHANG)[0]:
        time.sleep(0.01)
    os.kill(process, signal.SIGKILL)
    assert ended(process) == -signal.SIGKILL
    stopped = torch.load(checkpoints / "checkpoint_last.pt", weights_only=True)
    updates = stopped["optimizer_history"][-1]["num_updates"]
    resumed = toy_data.train(toy.data, checkpoints, *more, **options)
    whole = toy_data.train(toy.data, tmp_path / "whole", *more, **options)
    assert 0 < updates < whole["optimizer_history"][-1]["num_updates"]
    assert stopped["extra_state"]["train_iterator"]["iterations_in_epoch"] > 0
    assert resumed["optimizer_history"][-1]["num_updates"] == whole["optimizer_history"][-1]["num_updates"]
    assert_equal_weights(weights(resumed), weights(whole), atol=0, rtol=0)


@of_half_a_minute
def test_two_processes(toy, tmp_path):
    """Two processes with half the batch each go on from one, and end with the weights and the loss of one."""
    options = {**PLAIN_STEPS, "max_epoch": 2}
    toy_data.train(toy.data, tmp_path / "one", **options, batch_size=60)
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    options["max_epoch"] = 4
    one = toy_data.train(toy.data, tmp_path / "one", **options, batch_size=60)
    toy_data.train_in_two_processes(command(toy.data, tmp_path / "two", **options, batch_size=30))
    two = torch.load(tmp_path / "two" / "checkpoint_last.pt", weights_only=True)
    assert two["optimizer_history"][-1]["num_updates"] == one["optimizer_history"][-1]["num_updates"] == 4
    assert_equal_weights(weights(two), weights(one), atol=2e-5, rtol=1e-4)
    assert two["extra_state"]["val_loss"] == pytest.approx(one["extra_state"]["val_loss"], abs=2e-3)


@of_half_a_minute
def test_hydra(toy, tmp_path):
    """fairseq-hydra-train, whose task and architecture are given in YAML; also in two processes without a GPU."""
    config = f"""
        common: {{user_dir: {USER_DIR}, cpu: true, seed: 5, log_format: none}}
        task: {{_name: syntax_translation, data: {toy.data}, source_lang: en, target_lang: de}}
        model:
          _name: pascal_transformer
          encoder_layers: 2
          decoder_layers: 1
          encoder_embed_dim: 16
          decoder_embed_dim: 16
          encoder_ffn_embed_dim: 32
          decoder_ffn_embed_dim: 32
          encoder_attention_heads: 4
          decoder_attention_heads: 2
          dropout: 0.1
          pascal_heads: 3
        criterion: {{_name: label_smoothed_cross_entropy, label_smoothing: 0.1}}
        optimizer: {{_name: adam}}
        lr_scheduler: {{_name: fixed}}
        dataset: {{max_tokens: 400, num_workers: 0}}
        optimization: {{lr: [0.01], max_epoch: 1}}
        distributed_training: {{distributed_world_size: 1}}
        checkpoint: {{save_dir: none, no_epoch_checkpoints: true}}
    """
    (tmp_path / "toy.yaml").write_text("# @package _group_\n" + textwrap.dedent(config), encoding="utf-8")
    run = [sys.executable, "-m", "fairseq_cli.hydra_train", "--config-dir", str(tmp_path), "--config-name", "toy"]
    run += ["--multirun", "distributed_training.distributed_world_size=1,2"]
    run += [f"checkpoint.save_dir={tmp_path}/${{distributed_training.distributed_world_size}}"]
    installed = os.pathsep.join(filter(None, [str(Path(USER_DIR).parent), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        run, env={**environment(), "PYTHONPATH": installed}, capture_output=True, text=True, timeout=240, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr[-3000:]
    states = [torch.load(tmp_path / number / "checkpoint_last.pt", weights_only=True) for number in "12"]
    one, two = (state["optimizer_history"][-1]["num_updates"] for state in states)
    assert 0 < two < one, "two processes share the batches"
    checkpoint = tmp_path / "1" / "checkpoint_last.pt"
    by_arguments = toy_data.train(toy.data, tmp_path / "same", "--pascal-heads", 3, max_epoch=1)
    assert_equal_weights(weights(states[0]), weights(by_arguments), atol=0, rtol=0)
    assert len(generate(toy.data, checkpoint, tmp_path)) == 12


# -- data in several parts, and data that does not fit --------------------------------------------------------------


@pytest.fixture
def data(toy, tmp_path) -> Path:
    """A copy of the binarized data that a test may change: without the manifest, which would tell."""
    ignored = shutil.ignore_patterns("manifest.json")
    return Path(shutil.copytree(toy.data, tmp_path / "data", ignore=ignored))


def rename(data: Path, old: str, new: str) -> None:
    for path in data.glob(f"{old}.en-de.*"):
        path.rename(path.with_name(path.name.replace(old, new, 1)))


def batches(task, split: str = "train", **options):
    iterator = task.get_batch_iterator(task.dataset(split), max_sentences=7, **options)
    return list(iterator.next_epoch_itr(shuffle=False))


def test_a_split_that_is_not_there(data):
    rename(data, "valid", "train1")
    with data_error("nope", "train1", path="data"):
        the_task(data).load_dataset("nope")


def test_several_parts_and_upsampling(toy, data, tmp_path):
    """train and train1 as one, the first part three times."""
    rename(data, "valid", "train1")
    task = the_task(data, upsample_primary=3)
    task.load_dataset("train", combine=True)
    lines = [*toy.lines["train"] * 3, *toy.lines["valid"]]
    assert len(task.dataset("train")) == len(lines)
    seen = set()
    for batch in batches(task):
        assert_syntax_is_of(batch, lines, lambda n: n)
        seen.update(batch["id"].tolist())
    assert seen == set(range(len(lines)))
    task = the_task(data)  # fairseq's default is no number of times
    task.load_dataset("train", combine=True)
    ids = [n for batch in batches(task) for n in batch["id"].tolist()]
    assert sorted(ids) == list(range(len(toy.lines["train"]) + len(toy.lines["valid"])))
    rename(data, "test", "valid")
    state = toy_data.train(data, tmp_path / "c", upsample_primary=3, max_epoch=1)
    assert state["extra_state"]["val_loss"] > 0


def test_parts_of_other_labels(data):
    shutil.copy(data / "valid.en-de.en.syntax.arrow", data / "kept")
    rename(data, "valid", "train1")
    store = data / "train1.en-de.en.syntax.arrow"
    kept = SyntaxStore(store)
    labels = {**kept.labels, "deprel": ["nobju" if label == "nsubj" else label for label in kept.labels["deprel"]]}
    assert labels != kept.labels
    with pa.ipc.open_file(pa.memory_map(str(store))) as file:
        chunks = [file.get_batch(i) for i in range(file.num_record_batches)]
        options = {"with_arcs": kept.has_arcs, "chunk": kept.metadata["chunk"]}
        write_store(store, lambda: iter(chunks), {**kept.metadata, "labels": labels}, **options)
    with data_error(path="train1.en-de.en.syntax.arrow"):
        the_task(data).load_dataset("train", combine=True)


def test_several_directories(toy, tmp_path):
    """DIR1:DIR2, an epoch each; the second binarized with the dictionaries and labels of the first."""
    raw, segmented, second = tmp_path / "raw", tmp_path / "segmented", tmp_path / "second"
    raw.mkdir()
    lines = toy_data.corpus(seed=8)["train"]
    toy_data.write_raw(raw, {"train": lines})
    for lang, suffix in (("en", ".en.conllu"), ("de", ".de")):
        model = toy.segmented / f"segmentation.{lang}.json"
        options = ["--lang", lang, "--input", raw / f"train{suffix}", "--output", segmented, "--model", model]
        assert toy_data.syntax_command("segment", *options) == 0
    options = [*TASK, "-s", "en", "-t", "de", "--trainpref", segmented / "train", "--workers", 1]
    options += ["--srcdict", toy.data / "dict.en.txt", "--tgtdict", toy.data / "dict.de.txt"]
    fairseq("preprocess", *options, "--destdir", second, "--source-labels", toy.data / "labels.en.json")
    task = the_task(f"{toy.data}:{second}")
    for epoch, expected in ((1, toy.lines["train"]), (2, lines), (3, toy.lines["train"])):
        task.load_dataset("train", epoch=epoch)
        for batch in batches(task):
            assert_syntax_is_of(batch, expected, lambda n: n)
    task.load_dataset("valid", epoch=2)  # always from the first
    state = toy_data.train(f"{toy.data}:{second}", tmp_path / "c", max_epoch=2)
    assert state["extra_state"]["train_iterator"]["epoch"] == 3
    labels = ["--source-labels", toy.data / "labels.en.json"]
    for lang, kept in (("en", options[-2:]), ("de", options[-4:-2])):  # with a dictionary of its own
        other = tmp_path / f"other{lang}"
        fairseq("preprocess", *options[:-4], *kept, *labels, "--destdir", other)
        with data_error("--srcdict", path=other / f"dict.{lang}.txt"):
            the_task(f"{toy.data}:{other}").load_dataset("train", epoch=2)
    # With labels of its own, its ids would mean other labels.
    fairseq("preprocess", *options, "--destdir", tmp_path / "own")
    task = the_task(f"{toy.data}:{tmp_path / 'own'}")
    with data_error(path=tmp_path / "own/train.en-de.en.syntax.arrow"):
        task.load_dataset("train", epoch=2)


def test_data_of_the_other_direction(toy, tmp_path):
    """Binarized from German to English, used from English to German, as fairseq allows."""
    options = toy_data.preprocess_options(toy.segmented, tmp_path)
    options[2:6] = ["-s", "de", "-t", "en"]
    fairseq("preprocess", *options)
    assert (tmp_path / "train.de-en.en.syntax.arrow").exists()
    task = the_task(tmp_path)
    task.load_dataset("train")
    for batch in batches(task):
        assert_syntax_is_of(batch, toy.lines["train"], lambda n: n)


def test_sentences_that_are_too_long(toy, trained, tmp_path):
    """Those that are left out do not shift the parses of the others."""
    task = the_task(toy.data, max_source_positions=6)
    task.load_dataset("train")
    actual = batches(task, max_positions=(6, 1024), ignore_invalid_inputs=True)
    ids = [n for batch in actual for n in batch["id"].tolist()]
    sizes = task.dataset("train").src_sizes
    assert sorted(ids) == [n for n in range(60) if sizes[n] <= 6] and 10 < len(ids) < 50
    for batch in actual:
        assert_syntax_is_of(batch, toy.lines["train"], lambda n: n)
    with pytest.raises(Exception, match="skip-invalid-size-inputs-valid-test"):
        batches(task, max_positions=(6, 1024), disable_iterator_cache=True)


def test_padding_to_a_multiple(toy):
    task = the_task(toy.data)
    task.cfg.required_seq_len_multiple = 8
    task.load_dataset("train")
    for batch in batches(task):
        assert batch["net_input"]["src_tokens"].shape[1] % 8 == 0
        assert_syntax_is_of(batch, toy.lines["train"], lambda n: n)


def test_truncated_sources_are_refused(toy, tmp_path):
    with data_error("--truncate-source"):
        toy_data.train(toy.data, tmp_path, "--truncate-source", max_source_positions=6)


@pytest.mark.parametrize("split", ["train", "valid"])
def test_no_syntax_in_training(data, tmp_path, split):
    (data / f"{split}.en-de.en.syntax.arrow").unlink()
    with data_error("binarize", path=f"{split}.en-de.en.syntax.arrow"):
        toy_data.train(data, tmp_path)


def test_no_syntax_at_generation(data, trained, tmp_path):
    store = data / "test.en-de.en.syntax.arrow"
    whole = store.read_bytes()
    shutil.copy(data / "valid.en-de.en.syntax.arrow", store)
    with data_error(path=store):
        generate(data, trained, tmp_path)
    store.write_bytes(whole[:-100])
    with data_error(path=store):
        generate(data, trained, tmp_path)
    store.unlink()
    with data_error(path=store):
        generate(data, trained, tmp_path)


def test_a_store_of_other_tokens_or_pieces(data):
    tokens = data / "train.en-de.en.bin"
    whole = tokens.read_bytes()
    tokens.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    with data_error(path="train.en-de.en.syntax.arrow"):
        the_task(data).load_dataset("train")
    tokens.write_bytes(whole)
    the_task(data).load_dataset("train")
    about = data / "segmentation.en.json"
    kept = about.read_bytes()
    shutil.copy(data / "segmentation.de.json", about)
    with data_error(path="train.en-de.en.syntax.arrow"):
        the_task(data).load_dataset("train")
    about.write_bytes(kept)
    path = data / "dict.en.txt"
    first, second, *rest = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join([second, first, *rest]), encoding="utf-8")
    with data_error(path="train.en-de.en.syntax.arrow"):
        the_task(data).load_dataset("train")


def test_another_dictionary(data, trained, tmp_path):
    path = data / "dict.en.txt"
    first, second, *rest = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join([second, first, *rest]), encoding="utf-8")
    with data_error(path=data):
        generate(data, trained, tmp_path)


def test_print_alignment(toy, trained, generated, tmp_path):
    """Alignments come from the attention of the search itself, which had its syntax."""
    assert_same(generate(toy.data, trained, tmp_path, "--print-alignment", "hard"), generated)
    assert len(re.findall(r"^A-", (tmp_path / "generate-test.txt").read_text(encoding="utf-8"), re.M)) == 12


def test_a_plain_transformer_on_the_same_data(toy, data, tmp_path):
    """It needs no syntax, asks for none, and is fairseq's own model up to rounding."""
    # Not Adam, which takes whole steps along gradients that are nothing but rounding, as those of keys' biases.
    options = {"max_epoch": 1, "optimizer": "sgd", "adam_betas": None, "lr": 0.1}
    ours = toy_data.train(toy.data, tmp_path / "ours", arch="syntax_transformer", **options)
    for path in data.glob("*.arrow"):
        path.unlink()
    theirs = toy_data.train(data, tmp_path / "theirs", arch="transformer", **options)
    assert_equal_weights(weights(ours), weights(theirs), atol=1e-6, rtol=0)
    generated = generate(data, tmp_path / "ours" / "checkpoint_last.pt", tmp_path)
    source = tmp_path / "text"
    source.write_text("".join(text_of(line) + "\n" for line in toy.lines["test"]), encoding="utf-8")
    assert len(interactive(data, tmp_path / "ours" / "checkpoint_last.pt", source)) == len(generated) == 12


def test_a_store_read_by_workers_is_not_read_whole(toy):
    """What a worker gets is the store's name; forked or spawned, it maps the file itself."""
    task = the_task(toy.data)
    task.load_dataset("train")
    assert isinstance(task.dataset("train").source_syntax.stores[0], SyntaxStore)
    alone, workers = (batches(task, num_workers=n) for n in (0, 2))
    for one, other in zip(alone, workers, strict=True):
        assert one["id"].tolist() == other["id"].tolist()
        one, other = (numbers(unpack(batch["net_input"]["src_syntax"])) for batch in (one, other))
        assert one == other

"""Sentences without a parse: each system's neutral form, in any batch, and in training by a draw of its own."""

import random
from dataclasses import replace

import lstm_models
import numpy as np
import pytest
import tiny_syntax
import torch
import toy_data
from data_errors import data_error
from random_parses import random_tree
from untrained import untrained

from fairseq_syntax.data.labels import LabelInventory, to_stored
from fairseq_syntax.data.packing import unpack
from fairseq_syntax.data.parse_dropout import uniform
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.inference.interactive import InteractiveInput
from fairseq_syntax.inference.sentences import unparsed
from fairseq_syntax.tasks.syntax_translation import SyntaxTranslationTask
from fairseq_syntax.use.translator import Translator

TRANSFORMERS = {
    "pascal_transformer": {},
    "ldd_transformer": {"ldd_variant": "UDP", "encoder_attention_heads": 4},
    "sennrich_haddow_transformer": {"label_features": "deprel:4,upos:3"},
    "relative_depth_transformer": {},
    "structural_positions_transformer": {},
    "gcn_transformer": {"gcn_layers": 2},
}
LSTMS = {
    "dlaa_lstm": {"dlaa_block_size": 3},
    **{f"{name}_lstm": {} for name in ("sdrnmt1", "sdrnmt2", "senmt", "tree2seq", "gcn")},
}


def models():
    for arch, options in TRANSFORMERS.items():
        yield pytest.param(lambda a=arch, o=options: tiny_syntax.tiny_model(a, **o).eval(), id=arch)
    for arch, options in LSTMS.items():
        yield pytest.param(lambda a=arch, o=options: lstm_models.model(a, **o), id=arch)


def logits(model, lines, parsed, left=True) -> torch.Tensor:
    inputs = lstm_models.net_input(lines, left)
    if not all(parsed):
        inputs["src_syntax"].parsed = torch.tensor(parsed)
    with torch.no_grad():
        return model(**inputs)[0]


@pytest.mark.matrix(8)
@pytest.mark.parametrize("make", list(models()))
@pytest.mark.parametrize("left", [True, False])
def test_only_sentences_without_a_parse_are_neutral_in_any_batch(make, left):
    model, lines = make(), lstm_models.lines(6)
    parsed = [True, False, True, False, True]
    whole, mixed = logits(model, lines, [True] * 5, left), logits(model, lines, parsed, left)
    others = [line if keep else reparsed(line, i) for i, (line, keep) in enumerate(zip(lines, parsed))]
    torch.testing.assert_close(mixed, logits(model, others, parsed, left))  # the parse is not read
    changed = 0
    for i, (line, keep) in enumerate(zip(lines, parsed)):
        torch.testing.assert_close(mixed[i], logits(model, [line], [keep])[0], atol=1e-5, rtol=1e-4)
        if keep:
            torch.testing.assert_close(mixed[i], whole[i], atol=1e-5, rtol=1e-4)
        else:
            changed += not torch.allclose(mixed[i], whole[i], atol=1e-4)
    assert changed


def reparsed(line, seed):
    rng = random.Random(seed)
    heads = random_tree(rng, len(line.heads))
    return type(line)(line.pieces, heads, [(rng.randrange(1, 5), 1, 1) for _ in heads], line.tokens)


@pytest.mark.parametrize("arch, heads", [("pascal_transformer", 4), ("ldd_transformer", 16)])
def test_without_a_parse_scores_are_those_of_a_plain_transformer(arch, heads):
    options = {"encoder_layers": 1, "encoder_attention_heads": heads}
    model, lines = tiny_syntax.tiny_model(arch, **{**TRANSFORMERS[arch], **options}).eval(), lstm_models.lines(7)
    plain = tiny_syntax.tiny_model("transformer", **options).eval()
    plain.load_state_dict({k: v for k, v in model.state_dict().items() if ".systems." not in k})
    inputs = lstm_models.net_input(lines)
    del inputs["src_syntax"]
    with torch.no_grad():
        torch.testing.assert_close(logits(model, lines, [False] * 5), plain(**inputs)[0], atol=1e-5, rtol=1e-4)


def test_relative_positions_beside_relative_depth_need_no_parse():
    """A sentence without one is read as by a model whose depths all mean nothing, in any batch."""
    options = {"encoder_syntax": "relative_depth,relative_positions", "no_token_positional_embeddings": True}
    model, lines = tiny_syntax.tiny_model("syntax_transformer", **options).eval(), lstm_models.lines(8)
    parsed = [False, True, False, True, False]
    mixed = logits(model, lines, parsed)
    for i, (line, keep) in enumerate(zip(lines, parsed)):
        torch.testing.assert_close(mixed[i], logits(model, [line], [keep])[0], atol=1e-5, rtol=1e-4)
    with torch.no_grad():
        for weight in model.encoder.systems["relative_depth"].depth.parameters():
            weight.zero_()
    sequential = logits(model, lines, [True] * 5)
    torch.testing.assert_close(mixed[::2], sequential[::2], atol=1e-5, rtol=1e-4)
    assert not torch.allclose(mixed[1], sequential[1], atol=1e-4)


def test_the_draw_depends_on_the_sentence_and_the_epoch_alone():
    numbers = torch.arange(20_000)
    drawn = uniform(numbers, seed=3, epoch=2)
    assert ((drawn >= 0) & (drawn < 1)).all() and abs((drawn < 0.15).double().mean() - 0.15) < 0.01
    assert torch.equal(uniform(numbers[[7, 5]], 3, 2), drawn[[7, 5]])
    for other in (uniform(numbers, 3, 3), uniform(numbers, 4, 2)):
        assert abs(np.corrcoef(drawn, other)[0, 1]) < 0.03
    for number in (0, 5, 19_999):  # SplitMix64 in Python's whole numbers
        x = (number + ((3 << 32) + 2) * 0x9E3779B97F4A7C15) % 2**64
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
        assert drawn[number] == ((x ^ (x >> 31)) >> 11) / 2**53


@pytest.mark.matrix(1)
@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_other_sentences_go_without_their_parse_in_every_epoch(toy, tmp_path, monkeypatch, workers):
    """With fairseq's default, too, a worker of the loader that lives as long as the run; and none in validation."""
    seen = {}
    train_step, valid_step = SyntaxTranslationTask.train_step, SyntaxTranslationTask.valid_step

    def step(task, sample, *args, **kwargs):
        def forward(model, args, inputs):
            parsed = unpack(inputs["src_syntax"]).parsed.tolist()
            epoch = task.datasets["train"].epoch
            seen.setdefault(epoch, {}).update(zip(sample["id"].tolist(), parsed))

        with kwargs["model"].register_forward_pre_hook(forward, with_kwargs=True):
            return train_step(task, sample, *args, **kwargs)

    def valid(task, sample, *args):
        assert unpack(sample["net_input"]["src_syntax"]).parsed is None
        return valid_step(task, sample, *args)

    monkeypatch.setattr(SyntaxTranslationTask, "train_step", step)
    monkeypatch.setattr(SyntaxTranslationTask, "valid_step", valid)
    options = {"parse_dropout": 0.3, "num_workers": workers, "max_tokens": 150, "max_epoch": 3, "seed": 5}
    toy_data.train(toy.data, tmp_path, **options)
    assert sorted(seen) == [1, 2, 3]
    for epoch, parsed in seen.items():
        numbers = torch.tensor(sorted(parsed))
        assert [parsed[n] for n in numbers.tolist()] == (uniform(numbers, 5, epoch) >= 0.3).int().tolist()
    assert seen[1].keys() == seen[2].keys() and seen[1] != seen[2] != seen[3]


@pytest.mark.slow
def test_training_drops_parses_and_the_losses_keep_theirs(toy, tmp_path):
    """In training only; PASCAL reads what supervised heads learn from."""
    seen = []
    from fairseq_syntax.model.heads import Step

    original = Step.seen_by

    def spy(step, system):
        out = original(step, system)
        seen.append((system.name, system.training, step.syntax.parsed, out is step))
        return out

    Step.seen_by = spy
    try:
        toy_data.train(
            toy.data, tmp_path, "--encoder-syntax", "pascal,supervised_heads", "--parse-dropout", 0.5,
            arch="syntax_transformer", criterion="supervised_head", max_epoch=1,
        )  # fmt: skip
    finally:
        Step.seen_by = original
    training = [s for s in seen if s[1]]
    share = torch.cat([s[2] for s in training if s[0] == "pascal"]).float().mean()
    assert 0.3 < share < 0.7
    assert all(same for name, _, parsed, same in training if name == "supervised_heads" or parsed is None)
    assert all(s[2] is None for s in seen if not s[1])
    with pytest.raises(SyntaxDataError) as refused:
        toy_data.train(toy.data, tmp_path / "bad", "--parse-dropout", 1.5, max_epoch=1)
    assert refused.value.option == "--parse-dropout"


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["supervised_head_transformer", "lisa_transformer"])
def test_dropped_parses_are_nothing_to_a_model_that_reads_none(toy, tmp_path, arch):
    options = {"arch": arch, "criterion": "supervised_head", "max_epoch": 1}
    models = [toy_data.train(toy.data, tmp_path / str(p), "--parse-dropout", p, **options)["model"] for p in (0, 0.5)]
    assert all(torch.equal(parameter, models[1][name]) for name, parameter in models[0].items())


class Picky:
    """A parser that fails on some lines, by an error that is not ours."""

    def __init__(self, inner) -> None:
        self.inner = inner

    def parse(self, lines, *, first_line=0):
        if any("fail" in line for line in lines):
            raise RuntimeError("out of time")
        return self.inner.parse(lines)


class Flat:
    def parse(self, lines, *, first_line=0):
        result = [unparsed(line) for line in lines]
        for line in result:
            line.parsed, line.heads = True, [0] * len(line.heads)
        return result


def test_raw_text_that_cannot_be_parsed(trained):
    """A failure touches its own line only; without --missing-parse neutral it is an error."""
    text = ["a man saw the girl", "fail man saw dogs.", "old dogs"]
    with pytest.raises(RuntimeError, match="out of time"):
        Translator.load(trained, parser=Picky(Flat()), device="cpu").translate(text)
    translator = Translator.load(trained, parser=Picky(Flat()), missing_parse="neutral", device="cpu")
    actual = translator.translations(text)
    alone = [translator.translations([line])[0][0].score for line in text]
    assert [f[0].score for f in actual] == pytest.approx(alone, abs=1e-5)
    parsed = Translator.load(trained, parser=Flat(), device="cpu").translations([text[0], "x", text[2]])
    assert [parsed[i][0].score for i in (0, 2)] == pytest.approx([alone[0], alone[2]], abs=1e-5)

    nothing = Translator.load(trained, parser_name="none", missing_parse="neutral", device="cpu")
    assert nothing.translations(text[1:2])[0][0].score == pytest.approx(alone[1], abs=1e-5)
    with data_error("parser_name"):
        Translator.load(trained, parser_name="none", device="cpu").translate(text)


@pytest.mark.parametrize("variant", ["pascal", "LDD", "LDP"])
def test_raw_text_without_a_parse_is_translated_as_by_a_plain_transformer(toy, variant):
    """All the way from the text: what has no parse is in no batch a parse in which every word is a root."""
    options = () if variant == "pascal" else ("--ldd-variant", variant)
    loaded = untrained(toy.data, "pascal_transformer" if variant == "pascal" else "ldd_transformer", *options)
    plain = untrained(toy.data, "transformer")
    plain.model.load_state_dict({k: v for k, v in loaded.model.state_dict().items() if ".systems." not in k})
    text = ["a man saw the girl", "old dogs"]
    search = {"beam": 2, "max_len_b": 10}
    loaded.task.cfg.missing_parse, loaded.task.cfg.syntax_parser = "neutral", "none"
    actual = Translator([loaded.model], loaded.task, **search).translations(text)
    expected = Translator([plain.model], plain.task, **search).translations(text)
    for (ours, *_), (theirs, *_) in zip(actual, expected):
        assert ours.pieces == theirs.pieces and ours.score == pytest.approx(theirs.score, abs=1e-5)


def test_what_was_translated_is_not_kept(toy):
    """fairseq-interactive asks for an iterator for each buffer; fairseq would keep them all, with their parses."""
    task = untrained(toy.data, "pascal_transformer").task
    task.cfg.missing_parse, task.cfg.syntax_parser = "neutral", "none"
    for _ in range(3):
        dataset = task.build_dataset_for_inference(*task.get_interactive_tokens_and_lengths(["old dogs"], None))
        list(task.get_batch_iterator(dataset, max_tokens=100, max_positions=(100, 100)).next_epoch_itr(shuffle=False))
    assert not task.dataset_to_epoch_iter


@pytest.mark.parametrize(
    "arch, options", [("structural_positions", ("--structural-positions", "relative")), ("relative_depth", ())]
)
def test_a_model_whose_only_positions_are_those_of_the_parse_is_not_trained_without(toy, arch, options):
    given = f"{arch}_transformer", *options, "--no-token-positional-embeddings"
    untrained(toy.data, *given)
    with data_error("--parse-dropout"):
        untrained(toy.data, *given, "--parse-dropout", "0.1")
    untrained(toy.data, f"{arch}_transformer", *options, "--parse-dropout", "0.1")
    with_positions = ("syntax_transformer", "--encoder-syntax", f"{arch},relative_positions", *given[1:])
    untrained(toy.data, *with_positions, "--parse-dropout", "0.1")


def test_bleu_of_validation_is_of_text_whatever_is_to_be_removed(toy):
    """``--eval-bleu-remove-bpe sentencepiece`` and the segmentation's own way back would take every space out."""
    more = ("--eval-bleu", "--eval-bleu-remove-bpe", "sentencepiece")
    loaded = untrained(toy.data, "pascal_transformer", *more)
    dictionary = loaded.task.target_dictionary
    words = [symbol for symbol in dictionary.symbols if symbol[0] == "▁" and len(symbol) > 1][:3]
    tokens = dictionary.encode_line(" ".join(words), add_if_not_exist=False).int()
    assert loaded.task.cfg.eval_bleu_remove_bpe is None, "subword-nmt's pieces would come to its way back as one word"
    text = loaded.task.tokenizer.decode(dictionary.string(tokens, loaded.task.cfg.eval_bleu_remove_bpe))
    assert text.split() == [word[1:] for word in words] and len(words) == 3


def test_words_of_an_unparsed_line():
    line = unparsed("The man, who...")
    assert [t.form for t in line.tokens] == ["The", "man", ",", "who", "..."]
    assert [t.space_after for t in line.tokens] == [True, False, True, False, True]
    assert not line.parsed
    assert not to_stored(line, LabelInventory({"deprel": ["_"], "upos": ["_"], "xpos": ["_"]})).parsed


def test_a_parse_without_the_distributions_that_a_model_reads(toy):
    """Of one sentence among others: it is that sentence's error, or its parse counts as missing."""
    task = untrained(toy.data, "ldd_transformer").task
    reading = InteractiveInput(task)
    line = next(line for line in toy.lines["test"] if line.words)
    bare = replace(line, arcs=None)
    with data_error("--distributions"):
        reading.checked_parse(bare)
    task.cfg.missing_parse = "neutral"
    assert reading.checked_parse(line).parsed and not reading.checked_parse(bare).parsed

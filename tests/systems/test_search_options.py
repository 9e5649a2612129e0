"""What each option of fairseq's search changes in its output, or that it changes nothing."""

from __future__ import annotations

import itertools
import math
from argparse import Namespace
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from functools import partial, wraps
from pathlib import Path
from unittest.mock import Mock

import option_ledger
import pytest
import torch
from data_errors import data_error
from fairseq.dataclass.configs import GenerationConfig
from fairseq.modules import MultiheadAttention
from fairseq.modules.transformer_layer import TransformerDecoderLayerBase
from tiny_syntax import tiny_model
from toy_data import fairseq
from untrained import untrained

from fairseq_syntax.compat import decoder_steps, packed_weights
from fairseq_syntax.compat.search import can_share, checked_at_once, ends_in_a_softmax, last_attention, log_softmax_
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.use.base_translator import SEARCH_OPTIONS

BEAM, LONGEST = 4, 12
# Asserted by other tests, which the ledger names.
ELSEWHERE = {"replace_unk", "print_alignment", "print_step", "retain_iter_history", "constraints", "lm_path"}


class Searches:
    """A model with random weights that is sure of its words, which it likes to repeat, and a batch of the toy's."""

    def __init__(self, data: Path) -> None:
        self.data = data
        made = untrained(data, "transformer", "--dropout", "0.2", sure=3.0)
        self.model, self.task = made.model, made.task
        self.task.load_dataset("test")
        dataset = self.task.dataset("test")
        self.batch = dataset.collater([dataset[i] for i in range(len(dataset)) if i != 5])  # 5 is empty
        self.dictionary, self.sources = self.task.target_dictionary, self.batch["net_input"]["src_lengths"].tolist()
        self.default = self()

    def __call__(self, prefix: torch.Tensor | None = None, more: dict | None = None, **options) -> list[list[dict]]:
        """The hypotheses of each sentence, best first; ``options`` of the search, ``more`` of its generator."""
        options = {"beam": BEAM, "max_len_a": 0, "max_len_b": LONGEST, **options}
        generator = self.task.build_generator([self.model], Namespace(**options), extra_gen_cls_kwargs=more)
        torch.manual_seed(3)
        with torch.no_grad():
            return self.task.inference_step(generator, [self.model], self.batch, prefix_tokens=prefix)

    def best(self, *args, **options) -> list[list[int]]:
        """The words of the best hypothesis of each sentence, without ``</s>``."""
        return [best[0]["tokens"].tolist()[:-1] for best in self(*args, **options)]


@pytest.fixture(scope="module")
def search(toy) -> Searches:
    return Searches(toy.data)


def repeats(words: list[int], n: int) -> bool:
    ngrams = [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
    return len(set(ngrams)) < len(ngrams)


def words_of(hypotheses: list[list[dict]]) -> list[list[list[int]]]:
    return [[h["tokens"].tolist() for h in best] for best in hypotheses]


def beam(search: Searches) -> None:
    assert {len(best) for best in search.default} == {BEAM} and {len(best) for best in search(beam=2)} == {2}
    widest = search(beam=99, max_len_b=1)  # wider than there are words
    assert {len(best) for best in widest} == {len(search.dictionary) - 2}
    greedy, wide = search(beam=1, unnormalized=True), search(beam=16, unnormalized=True)
    assert sum(w[0]["score"] for w in wide) > sum(g[0]["score"] for g in greedy)


def no_repeat_ngram_size(search: Searches) -> None:
    assert all(any(repeats(words, n) for words in search.best()) for n in (1, 2, 3))
    for n in (1, 2, 3):
        actual = search(no_repeat_ngram_size=n)
        assert not any(repeats(h["tokens"].tolist()[:-1], n) for best in actual for h in best)
        assert all(math.isfinite(h["score"]) for best in actual for h in best)
    # The first repetition is what is forbidden: greedy search is as before up to it.
    for free, blocked in zip(search.best(beam=1), search.best(beam=1, no_repeat_ngram_size=2)):
        until = next((i for i in range(len(free)) if repeats(free[: i + 1], 2)), len(free))
        assert blocked[:until] == free[:until]
    # A forced prefix may repeat one.
    twice = torch.full((len(search.sources), 4), 7)
    assert all(words[:4] == [7] * 4 for words in search.best(twice, no_repeat_ngram_size=2))


def max_len(search: Searches) -> None:
    longest = max(search.sources)
    for a, b in ((0, 3), (0.5, 1), (0, 6)):
        most = int(a * longest + b)
        assert max(map(len, search.best(max_len_a=a, max_len_b=b))) == most < max(map(len, search.best(max_len_b=99)))


def min_len(search: Searches) -> None:
    least = LONGEST - 1
    assert min(len(h["tokens"]) for best in search.default for h in best) - 1 < least
    assert all(len(h["tokens"]) - 1 >= least for best in search(min_len=least) for h in best)


def match_source_len(search: Searches) -> None:
    actual = [{len(h["tokens"]) for h in best} for best in search(match_source_len=True)]
    assert actual == [{length} for length in search.sources] != [{len(h["tokens"]) for h in b} for b in search.default]


def test_a_length_that_no_translation_can_have_is_the_nearest(search):
    """Of an empty source, and below ``--min-len``: a search would go on for ever, and fairseq fails."""
    dataset = search.task.dataset("test")
    batch = dataset.collater([dataset[i] for i in range(8)])  # 5 is empty
    lengths = batch["net_input"]["src_lengths"].tolist()
    assert min(lengths) == 1
    other = Searches.__new__(Searches)
    other.__dict__.update({**search.__dict__, "batch": batch})
    for options in ({}, {"min_len": 4}):
        found = [{len(h["tokens"]) for h in best} for best in other(match_source_len=True, **options)]
        assert found == [{max(length, 2)} for length in lengths]


def normalized(search: Searches) -> None:
    """Scores are sums of log-probabilities, divided by the length with ``</s>`` to the power of ``lenpen``."""
    for options, power in (({}, 1), ({"lenpen": 0.5}, 0.5), ({"lenpen": 2.0}, 2), ({"unnormalized": True}, 0)):
        for best in search(**options):
            for h in best:
                score = h["positional_scores"].sum() / len(h["tokens"]) ** power
                assert h["score"].item() == pytest.approx(score.item(), abs=1e-4)
    assert sum(map(len, search.best(unnormalized=True))) < sum(map(len, search.best(lenpen=2.0)))


def unkpen(search: Searches) -> None:
    unknown = search.dictionary.unk()
    assert all(set(words) == {unknown} for words in search.best(unkpen=-99))
    assert not any(unknown in words for words in search.best(unkpen=99))


def temperature(search: Searches) -> None:
    """The distribution is flat at a high one, and certain at a low one."""
    hot, cold = search(temperature=1e4), search(beam=1, temperature=1e-2)
    # Each of V words but padding has log(1/V); what is chosen is among the first.
    flat = -math.log(len(search.dictionary))
    assert torch.cat([h["positional_scores"] for b in hot for h in b]).sub(flat).abs().max() < 0.01
    assert torch.cat([b[0]["positional_scores"][:-1] for b in cold]).mean() > -0.05


def sampling(search: Searches) -> None:
    greedy = search.best(beam=1)
    assert search.best(beam=1, sampling=True) != greedy
    assert search.best(beam=1, sampling=True, sampling_topk=1) == greedy
    assert search.best(beam=1, sampling=True, sampling_topp=1e-6) == greedy


def diverse_groups(search: Searches) -> None:
    """Without a penalty the groups are the same search; with a large one they begin with different words."""
    alike = words_of(search(diverse_beam_groups=BEAM, diverse_beam_strength=0.0))
    apart = words_of(search(diverse_beam_groups=BEAM, diverse_beam_strength=99.0))
    assert all(len({tuple(words) for words in best}) == 1 for best in alike)
    assert all(len({words[0] for words in best}) == BEAM for best in apart)


def siblings(search: Searches) -> None:
    """``--diversity-rate``: at 0 plain beam search; large, a hypothesis has one continuation."""
    plain = words_of(search.default)
    assert words_of(search(diversity_rate=0.0)) == plain
    spread = words_of(search(diversity_rate=99.0))
    assert sum(len({tuple(w[:-2]) for w in b}) for b in spread) > sum(len({tuple(w[:-2]) for w in b}) for b in plain)


def lm_weight(search: Searches) -> None:
    """A language model that wants one word alone gets it."""

    class OneWord(torch.nn.Module):
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return tokens

        def get_normalized_probs(self, tokens: torch.Tensor, log_probs: bool, sample: None) -> torch.Tensor:
            return torch.nn.functional.one_hot(torch.full_like(tokens, 7), len(search.dictionary)).float() - 1

    def found(weight: float) -> list[list[int]]:
        return search.best(more={"lm_model": OneWord(), "lm_weight": weight})

    assert all(set(words) == {7} for words in found(99.0)) and found(0.0) == search.best()


def retain_dropout(search: Searches) -> None:
    def best(**options) -> list[list[int]]:
        other = Searches.__new__(Searches)
        other.__dict__.update(search.__dict__)
        other.model = untrained(Path(search.task.data_dir), "transformer", "--dropout", "0.2", sure=3.0).model
        other.model.prepare_for_inference_(Namespace(generation=Namespace(**options)))
        return other.best()

    plain, layers = search.best(), '["TransformerModel", "TransformerEncoderLayer"]'  # as fairseq's examples have it
    kept = [best(retain_dropout=True, retain_dropout_modules=m) for m in (None, layers, ["TransformerEncoderLayer"])]
    assert best() == plain and plain not in kept and kept[0] != kept[1] == kept[2]
    with pytest.raises(SyntaxDataError):
        best(retain_dropout=True, retain_dropout_modules="TransformerModel")


EFFECTS: dict[Callable[[Searches], None], str] = {
    beam: "beam",
    no_repeat_ngram_size: "no_repeat_ngram_size",
    max_len: "max_len_a max_len_b",
    min_len: "min_len",
    match_source_len: "match_source_len",
    normalized: "unnormalized lenpen",
    unkpen: "unkpen",
    temperature: "temperature",
    sampling: "sampling sampling_topk sampling_topp",
    diverse_groups: "diverse_beam_groups diverse_beam_strength",
    siblings: "diversity_rate",
    lm_weight: "lm_weight",
    retain_dropout: "retain_dropout retain_dropout_modules",
}
OF_COMMAND = {"nbest", "score_reference", "prefix_size"}


@pytest.mark.parametrize("effect", EFFECTS, ids=lambda effect: effect.__name__)
def test_an_option_of_the_search_has_its_effect(search, effect):
    effect(search)


def rows(toy, trained, kind: str, *more) -> list[list[str]]:
    """The columns of the lines of a kind (H-, T-, P-) that fairseq-generate prints."""
    options = ["--task", "syntax_translation", "--cpu", "--max-tokens", 400, "--num-workers", 0, "--max-len-b", 6]
    printed = fairseq("generate", toy.data, "--path", trained, *options, *more)
    return sorted(line.split("\t") for line in printed.splitlines() if line.startswith(f"{kind}-"))


def test_an_option_of_generation_has_its_effect(toy, trained):
    plain = rows(toy, trained, "H")
    assert len(rows(toy, trained, "H", "--nbest", 3)) == 3 * len(plain)
    references = {name[2:]: rest[-1] for name, *rest in rows(toy, trained, "T")}
    scored = {name[2:]: rest[-1] for name, *rest in rows(toy, trained, "H", "--score-reference")}
    assert all(scored[n].replace(" ", "").replace("▁", "") == t.replace(" ", "") for n, t in references.items())
    forced = {name[2:]: rest[-1] for name, *rest in rows(toy, trained, "H", "--prefix-size", 1)}
    assert all(forced[n].split()[0] == scored[n].split()[0] for n in forced if scored[n])
    assert any(row[-1].split()[0] != scored[row[0][2:]].split()[0] for row in plain if scored[row[0][2:]])
    assert rows(toy, trained, "H", "--quiet") == [] and rows(toy, trained, "T", "--gen-subset", "valid") != rows(
        toy, trained, "T"
    )
    with data_error(option="--constraints"):  # as there are no lines to have them
        rows(toy, trained, "H", "--constraints")
    with pytest.raises(Exception, match=r"max_positions=\(1024, 4\)"):  # of the overridden model
        rows(toy, trained, "H", "--model-overrides", "{'max_target_positions': 4}")


@pytest.mark.parametrize("count", [1, 2])
def test_steps_do_only_what_changes_and_find_the_same(search, count, monkeypatch):
    """Against fairseq's ensemble, which reorders the encoder's output in every step."""
    models = [search.model, *(untrained(search.data, "lstm").model for _ in range(count - 1))]
    # sentences of different lengths, so that some end before others
    generator = search.task.build_generator(models, Namespace(beam=BEAM, match_source_len=True))
    ours = generator.model
    reordered = []
    monkeypatch.setattr(type(search.model.encoder), "reorder_encoder_out", _counting(search, reordered))
    actual, counts = [], []
    for ensemble in (ours, type(ours).__mro__[1](models)):
        generator.model = ensemble.eval()
        reordered.clear()
        actual.append(search.task.inference_step(generator, models, search.batch))
        counts.append(len(reordered))
    assert 1 < counts[0] <= 1 + len(search.sources) and counts[0] < counts[1]
    for one, other in zip(*map(itertools.chain.from_iterable, actual)):
        assert one["score"] == pytest.approx(float(other["score"]), rel=1e-6)
        assert torch.equal(one["tokens"], other["tokens"])
        torch.testing.assert_close(one["attention"], other["attention"])
    ours.keeps_attention, generator.model = False, ours
    for one, other in zip(actual[0], search.task.inference_step(generator, models, search.batch)):
        assert all(h["attention"].numel() == 0 for h in other) and words_of([one]) == words_of([other])


def test_hypotheses_share_the_keys_and_values_of_their_source(search, monkeypatch):
    """Projected once for a sentence of several, and only while the search reads them, even if it fails."""
    generator = search.task.build_generator([search.model], Namespace(beam=BEAM, max_len_a=0, max_len_b=LONGEST))
    attentions = [layer.encoder_attn for layer in search.model.decoder.layers]
    projected: list[int] = []
    hooks = [
        a.k_proj.register_forward_hook(lambda _, given, __: projected.append(given[0].size(1))) for a in attentions
    ]

    def found(batch: dict) -> list[list[dict]]:
        projected.clear()
        return search.task.inference_step(generator, [search.model], batch)

    try:
        together = found(search.batch)
        assert projected == [len(search.sources)] * len(attentions) and {a.beam_size for a in attentions} == {1}
        dataset = search.task.dataset("test")
        alone = [found(dataset.collater([dataset[int(i)]]))[0] for i in search.batch["id"]]
        assert projected == [BEAM] * len(attentions)
        assert words_of(together) == words_of(alone)
        for one, other in zip(itertools.chain(*together), itertools.chain(*alone)):
            assert one["score"] == pytest.approx(float(other["score"]), rel=1e-5)
        monkeypatch.setattr(search.model.decoder, "output_layer", lambda features: features / None)
        with pytest.raises(TypeError):
            found(search.batch)
        assert {a.beam_size for a in attentions} == {1}
    finally:
        for hook in hooks:
            hook.remove()


def test_searches_with_one_model_in_several_threads_find_what_each_finds_alone(search):
    """One of them shares the sources of a batch, the others have a sentence each, which they do not share."""
    dataset = search.task.dataset("test")
    batches = [search.batch, *(dataset.collater([dataset[i]]) for i in range(3))]

    def found(batch: dict) -> list[list[list[list[int]]]]:
        generator = search.task.build_generator([search.model], Namespace(beam=BEAM, max_len_a=0, max_len_b=LONGEST))
        return [words_of(search.task.inference_step(generator, [search.model], batch)) for _ in range(4)]

    expected = [found(batch) for batch in batches]
    with ThreadPoolExecutor(len(batches)) as threads:
        assert list(threads.map(found, batches)) == expected


@pytest.mark.parametrize("arch", ["transformer --dropout 0.2", "lasyn_transformer --latent-values 3"])
@pytest.mark.skipif(not packed_weights.has_packing(), reason="needs oneDNN's layouts of weights")
def test_a_search_multiplies_by_packed_weights_that_are_those_of_the_model(search, arch, monkeypatch):
    """They are packed once for all searches, and again for new weights; training and other code never meet them."""
    products, packings = Mock(wraps=packed_weights.multiplied), Mock(wraps=packed_weights.reordered)
    monkeypatch.setattr(packed_weights, "multiplied", products)
    monkeypatch.setattr(packed_weights, "reordered", packings)
    made = untrained(search.data, *arch.split(), sure=3.0)
    layers = [module for module in made.model.decoder.modules() if type(module) is torch.nn.Linear]

    def found(smallest: int) -> tuple[list, list[float]]:
        products.reset_mock(), packings.reset_mock()
        monkeypatch.setattr(packed_weights, "SMALLEST", smallest)
        generator = made.task.build_generator([made.model], Namespace(beam=BEAM, max_len_a=0, max_len_b=LONGEST))
        hypotheses = made.task.inference_step(generator, [made.model], search.batch)
        assert not any("forward" in layer.__dict__ for layer in layers)
        return words_of(hypotheses), [float(h["score"]) for best in hypotheses for h in best]

    def same(one: tuple[list, list], other: tuple[list, list]) -> bool:
        return one[0] == other[0] and one[1] == pytest.approx(other[1], rel=1e-5)

    found(1)
    assert not products.called and not packings.called  # training may follow
    made.model.prepare_for_inference_(Namespace(generation=Namespace(beam=BEAM)))
    expected = found(1 << 30)
    assert not products.called
    with monkeypatch.context() as full:
        full.setattr(packed_weights, "MOST", 0)
        assert same(found(1), expected) and not packings.called and not products.called
    for times in (len(layers), 0):
        assert same(found(1), expected) and packings.call_count == times
        widths = Counter(call.args[1].size(0) for call in products.call_args_list)
        assert widths[len(search.dictionary)] >= LONGEST and len(widths) > 1  # the output layer's in each step
    state = made.model.state_dict()
    rolled = {name: weight.roll(1, 0) for name, weight in state.items() if "out_proj" in name or "fc" in name}
    made.model.load_state_dict({**state, **rolled})
    renewed = found(1)
    assert packings.call_count == len(layers)
    assert not same(renewed, expected) and same(renewed, found(1 << 30))
    copies = {name: value.clone() for name, value in made.model.state_dict().items()}
    with torch.inference_mode():
        made_there = {name: value.clone() for name, value in copies.items()}
        torch.nn.Module.load_state_dict(made.model, made_there, assign=True)
        assert same(found(1), renewed) and products.called
    torch.nn.Module.load_state_dict(made.model, copies, assign=True)
    made.model.double()
    assert same(found(1), renewed) and not products.called


@pytest.mark.parametrize("attention", [False, True])
@pytest.mark.parametrize(
    ("arch", "arguments"),
    [
        ("transformer", ""),
        ("transformer", "--decoder-normalize-before --activation-fn gelu"),
        ("lasyn_transformer", "--latent-values 3"),
        ("pascal_transformer", "--decoder-normalize-before"),
    ],
)
def test_plain_layers_take_steps_that_give_what_the_layers_give(search, monkeypatch, arch, arguments, attention):
    """In batches, whose sources are padded, and for one sentence; not if something was added to a layer."""
    made = untrained(search.data, arch, *arguments.split(), sure=3.0)
    made.task.load_dataset("test")
    dataset = made.task.dataset("test")
    batches = [dataset.collater([dataset[i] for i in sentences]) for sentences in (range(5), [0])]
    layers = made.model.decoder.layers
    taken = []
    over_past = decoder_steps.AttentionStep.over_past

    def found(usual: bool) -> list[list[list[dict]]]:
        taken.clear()
        with monkeypatch.context() as patched:
            patched.setattr(decoder_steps, "is_watched", lambda _: True) if usual else None
            generator = made.task.build_generator([made.model], Namespace(beam=BEAM, max_len_a=0, max_len_b=LONGEST))
            generator.model.keeps_attention = attention
            return [made.task.inference_step(generator, [made.model], batch) for batch in batches]

    def counted(self, x, saved):
        taken.append(x.size(1))
        return over_past(self, x, saved)

    monkeypatch.setattr(decoder_steps.AttentionStep, "over_past", counted)
    usual = found(True)
    assert not taken
    every = torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
    found(False)
    every.remove()
    assert not taken
    for hooked in (False, True):
        hook = layers[0].fc1.register_forward_hook(lambda *_: None) if hooked else None
        steps = found(False)
        # The last layer's attention is fairseq's; so is each layer's first step.
        plain = len(layers) - hooked - attention
        assert len(taken) >= plain * LONGEST if plain else not taken
        for one, other in zip(*(itertools.chain(*itertools.chain(*each)) for each in (usual, steps)), strict=True):
            assert one["tokens"].tolist() == other["tokens"].tolist()
            assert float(one["score"]) == pytest.approx(float(other["score"]), rel=1e-5)
            torch.testing.assert_close(one["attention"], other["attention"])
        assert not any("forward" in layer.__dict__ for layer in layers)
        if hook is not None:
            hook.remove()


def test_layers_take_no_steps_past_what_a_user_has_patched(monkeypatch):
    """A method of fairseq's classes, wrapped or replaced, or one that a subclass of its attention has instead."""
    layer = tiny_model("transformer").decoder.layers[0]
    with monkeypatch.context() as patched:
        masked = type("Masked", (MultiheadAttention,), {"apply_sparse_mask": lambda self, weights, *_: weights + 1})
        patched.setattr(layer.self_attn, "__class__", masked)
        assert not decoder_steps.is_plain(layer)
    for of, name in (
        (TransformerDecoderLayerBase, "forward"),
        (TransformerDecoderLayerBase, "residual_connection"),
        (MultiheadAttention, "forward"),
    ):
        assert decoder_steps.is_plain(layer)
        usual = getattr(of, name)
        with monkeypatch.context() as patched:
            patched.setattr(of, name, wraps(usual)(partial(usual)))
            assert not decoder_steps.is_plain(layer)
            patched.setattr(of, name, partial(usual))
            assert not decoder_steps.is_plain(layer)


@pytest.mark.parametrize("arch", ["transformer", "pascal_transformer", "lasyn_transformer"])
def test_models_of_every_kind_share_their_source(arch):
    """All attention to the source does, and no other; learned keys are those of each row."""
    layers = tiny_model(arch).decoder.layers
    assert all(can_share(layer.encoder_attn) and not can_share(layer.self_attn) for layer in layers)
    layers[0].encoder_attn.bias_k = torch.nn.Parameter(torch.zeros(1, 1, 16))
    assert not can_share(layers[0].encoder_attn)


@pytest.mark.parametrize("step", [0, 3])
@pytest.mark.parametrize("words", [3, 300])
def test_the_best_words_of_each_hypothesis_are_those_of_all(search, step, words):
    """Against fairseq's search, which adds the scores to every word's log-probability first."""
    ours = search.task.build_generator([search.model], Namespace(beam=BEAM)).search
    theirs = type(ours).__mro__[1](search.dictionary)
    log_probs = torch.randn(5, BEAM, words).log_softmax(dim=-1)
    log_probs[0, 1:] = log_probs[1, 2, : words // 2] = log_probs[:, :, 1] = -math.inf
    scores = torch.randn(5, BEAM, 7)
    actual, expected = (one.step(step, log_probs.clone(), scores) for one in (ours, theirs))
    assert torch.equal(actual[0], expected[0])
    possible = ~expected[0].isneginf()
    assert all(torch.equal(a[possible], b[possible]) for a, b in zip(actual, expected)) and possible[1:].any()


def test_values_that_are_not_numbers_are_found_in_each_step(search, monkeypatch):
    """As by fairseq: no hypothesis goes on where a softmax has overflowed, and the others do."""
    original = type(search.model.decoder).output_layer

    def overflowing(self, features):
        logits = original(self, features)
        logits[1, 0, 7] = math.inf
        return logits

    monkeypatch.setattr(type(search.model.decoder), "output_layer", overflowing)
    generator = search.task.build_generator([search.model], Namespace(beam=BEAM, max_len_a=0, max_len_b=LONGEST))
    actual = search.task.inference_step(generator, [search.model], search.batch)
    generator.model = type(generator.model).__mro__[1]([search.model]).eval()
    generator.search = type(generator.search).__mro__[1](search.dictionary)
    expected = search.task.inference_step(generator, [search.model], search.batch)
    assert words_of(actual) == words_of(expected) != words_of(search.default)
    for one, other in zip(itertools.chain(*actual), itertools.chain(*expected)):
        assert one["score"] == pytest.approx(float(other["score"]), rel=1e-5) and math.isfinite(one["score"])


def test_log_probabilities_are_compared_with_themselves():
    """No row is meant without NaN, else one value by one: a part of an adaptive softmax may overflow."""
    for value, mask in ((math.nan, [[False, True], [False, False]]), (-math.inf, [])):
        made = checked_at_once(torch.tensor([[0.0, value], [1.0, 2.0]]))
        assert (made != made).tolist() == mask
        made[made != made] = -5
        assert made.tolist() == [[0, -5 if value != value else value], [1, 2]]
        assert (made != made.clone()).tolist() == [[False] * 2] * 2 and type(made + 1) is torch.Tensor


def test_a_softmax_in_place_and_the_attention_of_the_last_step():
    logits = torch.randn(150, 30)
    expected = logits.log_softmax(dim=-1)
    assert log_softmax_(logits) is logits and torch.equal(logits, expected)
    attention = torch.rand(3, 4, 5)  # of a decoder without a state, which computes all steps anew
    for extra in (attention, {"attn": attention}, {"attn": [attention]}):
        assert torch.equal(last_attention(extra), attention[:, 3])
    assert all(last_attention(extra) is None for extra in (None, {}, {"attn": None}, {"attn": []}, {"attn": [None]}))


def test_a_softmax_of_its_own_is_taken(search):
    """Where a model or its decoder does not end in a plain softmax."""
    adaptive = untrained(
        search.data, "transformer", "--adaptive-softmax-cutoff", "5,10", "--criterion", "adaptive_loss"
    )
    assert ends_in_a_softmax(search.model) and not ends_in_a_softmax(adaptive.model)

    class Shifted(type(search.model)):
        def get_normalized_probs(self, *arguments, **named):
            return super().get_normalized_probs(*arguments, **named) - 1

    options = Namespace(beam=BEAM, max_len_a=0, max_len_b=LONGEST)
    try:
        search.model.__class__ = Shifted
        assert not ends_in_a_softmax(search.model)
        generator = search.task.build_generator([search.model], options)
        lower = search.task.inference_step(generator, [search.model], search.batch)
    finally:
        search.model.__class__ = Shifted.__mro__[1]
    for one, other in zip(lower, search.default):
        assert one[0]["positional_scores"].mean() < other[0]["positional_scores"].mean() - 0.5


def _counting(search: Searches, calls: list) -> Callable:
    original = type(search.model.encoder).reorder_encoder_out

    def counting(self, *arguments):
        calls.append(arguments)
        return original(self, *arguments)

    return counting


def test_options_said_to_have_no_effect_have_none(toy, trained):
    values = {"--iter-decode-eos-penalty": 9.0, "--iter-decode-max-iter": 1, "--iter-decode-with-beam": 3}
    values |= {"--beam-mt": 1, "--max-len-a-mt": 0.1, "--max-len-b-mt": 1, "--lenpen-mt": 9.0, "--eos-token": "x"}
    values |= {"--decoding-format": "vote"}
    given = [x for name in option_ledger.without_effect() for x in (name, *([values[name]] if name in values else []))]
    for kind in "HP":
        assert rows(toy, trained, kind, *given) == rows(toy, trained, kind)


def test_every_option_of_generation_is_told():
    """A new option of fairseq turns this red until its effect is asserted."""
    asserted = {name for names in EFFECTS.values() for name in names.split()} | OF_COMMAND
    nothing = {name.lstrip("-").replace("-", "_") for name in option_ledger.without_effect()}
    named = {field.name for field in fields(GenerationConfig)} - {"_name"}
    assert asserted | nothing | ELSEWHERE == named and not asserted & nothing and not ELSEWHERE & (asserted | nothing)
    assert set(SEARCH_OPTIONS) <= asserted
    assert {f.name: f.type for f in fields(GenerationConfig) if f.name in SEARCH_OPTIONS} == SEARCH_OPTIONS


@pytest.mark.parametrize(
    "name, value",
    {"retain_dropout_modules": "x", "diverse_beam_strength": 0.9, "lm_weight": 0.5, "nbest": 5, "beam": 0}.items(),
)
def test_an_option_that_needs_another_is_refused_without_it(search, name, value):
    with pytest.raises(SyntaxDataError) as error:
        search(**{name: value})
    assert error.value.option == "--" + name.replace("_", "-")


def test_each_part_of_the_data_is_written_to_its_own_folder(toy, trained, tmp_path, monkeypatch):
    """One after the other, and by the processes of torchrun; together they have every sentence once."""
    whole = {row[0] for row in rows(toy, trained, "H")}

    def numbers(folder: Path) -> list[str]:
        files = sorted(folder.glob("shard-*-of-2/generate-test.txt"))
        assert len(files) == 2
        return sorted(row.split("\t")[0] for f in files for row in f.read_text("utf-8").splitlines() if row[:2] == "H-")

    for shard in (0, 1):
        rows(toy, trained, "H", "--results-path", tmp_path / "a", "--num-shards", 2, "--shard-id", shard)
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        rows(toy, trained, "H", "--results-path", tmp_path / "b")
    assert numbers(tmp_path / "a") == numbers(tmp_path / "b") == sorted(whole)

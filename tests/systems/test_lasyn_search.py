"""Search in LaSyn models: against enumeration of all words and tags, in batches, with templates, by fairseq's rules."""

import itertools
import math
from types import SimpleNamespace

import pytest
import torch
from data_errors import data_error
from fairseq.sequence_generator import SequenceGenerator
from hypothesis import given, settings
from hypothesis import strategies as st
from matrix_part import examples
from random_parses import Line
from tiny_syntax import dictionary, sample, tiny_model

from fairseq_syntax.compat.search import largest
from fairseq_syntax.systems.lasyn.generator import LatentGenerator
from fairseq_syntax.systems.lasyn.joint import JointBeamSearch
from fairseq_syntax.systems.lasyn.tag_search import TagSearch
from fairseq_syntax.systems.lasyn.templates import OPEN, parse_template, read_templates

WORDS = dictionary()
EOS, N_WORDS = WORDS.eos(), len(WORDS)


class Given:
    """Templates by sentence number."""

    path = "tags.txt"

    def __init__(self, *templates):
        self.templates = templates

    def __call__(self, batch):
        return [self.templates[i] for i in batch["id"].tolist()]


def lines(*lengths):
    return [Line([], [], [], [4 + (3 * i + j) % 16 for j in range(n)] + [EOS]) for i, n in enumerate(lengths)]


def batch(*lengths, left=True):
    return sample(lines(*lengths), left, syntax=False)


def model(seed=0, sharp=8, **options):
    made = tiny_model("lasyn_transformer", seed, **options).eval()
    # A model fresh from initialisation hardly depends on its tags.
    with torch.no_grad():
        made.decoder.tag_embedding.weight.mul_(8)
        made.decoder.output_projection.weight.mul_(sharp)
        made.decoder.tag_projection.weight.mul_(2)
    return made


def generator(models, mode="marginal", beam=5, templates=None, **options):
    options = {"max_len_b": 4, **options}
    return LatentGenerator(models, WORDS, mode=mode, templates=templates, beam_size=beam, **options)


def translate(models, net, mode="marginal", **options):
    return generator(models, mode, **options).generate(models, net)


def literal(models, source, words):
    """[T][Z, V] of P(y_n = v, z | x, y<n) along the words: Equation 2, value by value, averaged over the models."""
    tokens = torch.tensor([[EOS, *words[:-1]]])
    total = 0.0
    with torch.no_grad():
        for m in models:
            h = m(source[None], torch.tensor([len(source)]), tokens, features_only=True)[0][0].double()
            w, e = m.decoder.output_projection.weight.double(), m.decoder.tag_embedding.weight.double()
            prior = torch.softmax(h @ m.decoder.tag_projection.weight.double().t(), dim=1)
            total = total + torch.stack(
                [prior[:, z, None] * torch.softmax((h + e[z]) @ w.t(), dim=1) for z in range(len(e))], dim=1
            )
    return total / len(models)


def score_and_tags(models, source, words, mode, template=None):
    """The score that a mode gives a translation, and its tags, word by word."""
    total, tags = 0.0, []
    for n, (word, table) in enumerate(zip(words, literal(models, source, words))):
        z = int(table[:, word].argmax())
        if mode == "template" and template[n] != OPEN:
            z = template[n]
            table = literal_conditional(models, source, words, n, z)
        tags.append(z)
        total += math.log(table[z, word] if mode == "joint" else table[:, word].sum())
    return total, tags


def literal_conditional(models, source, words, n, z):
    tokens = torch.tensor([[EOS, *words[:-1]]])
    total = 0.0
    with torch.no_grad():
        for m in models:
            h = m(source[None], torch.tensor([len(source)]), tokens, features_only=True)[0][0, n].double()
            w, e = m.decoder.output_projection.weight.double(), m.decoder.tag_embedding.weight.double()
            total = total + torch.softmax(w @ (h + e[z]), dim=0)[None]
    only = torch.zeros(len(models[0].decoder.latent_names), N_WORDS, dtype=torch.double)
    only[z] = total[0] / len(models)
    return only


def source(net, i):
    return net["net_input"]["src_tokens"][i][net["net_input"]["src_tokens"][i] != WORDS.pad()]


@pytest.mark.parametrize("mode", ["marginal", "joint"])
@pytest.mark.parametrize("n_models", [1, 2])
def test_scores_and_tags_of_the_n_best_are_those_of_the_literal_model(mode, n_models):
    models = [model(seed) for seed in range(n_models)]
    net = batch(5, 3)
    for i, best in enumerate(translate(models, net, mode, normalize_scores=False)):
        assert len(best) == 5
        for hypothesis in best:
            score, tags = score_and_tags(models, source(net, i), hypothesis["tokens"].tolist(), mode)
            assert hypothesis["score"].item() == pytest.approx(score, abs=1e-4)
            assert hypothesis["positional_scores"].sum().item() == pytest.approx(score, abs=1e-4)
            assert hypothesis["tags"].tolist() == tags


@pytest.mark.matrix(2)
@pytest.mark.parametrize("mode", ["marginal", "joint"])
@pytest.mark.parametrize("seed", range(2))
def test_a_wide_beam_finds_the_best_of_all_translations(mode, seed):
    """All translations of one or two words, enumerated, against a beam that holds every first word."""
    models, net = [model(seed, sharp=1)], batch(4)
    best = lambda table: table.amax(dim=0) if mode == "joint" else table.sum(dim=0)  # noqa: E731
    words = [w for w in range(N_WORDS) if w not in (WORDS.pad(), EOS)]
    scores = {}
    for first, second in itertools.product(words, words):
        steps = [best(table).log() for table in literal(models, source(net, 0), [first, second, EOS])]
        scores[first, EOS] = float(steps[0][first] + steps[1][EOS])
        scores[first, second, EOS] = float(steps[0][first] + steps[1][second] + steps[2][EOS])
    expected = max(scores, key=scores.get)
    actual = translate(models, net, mode, beam=N_WORDS - 1, max_len_b=2, normalize_scores=False)[0][0]
    assert tuple(actual["tokens"].tolist()) == expected
    assert actual["score"].item() == pytest.approx(scores[expected], abs=1e-4)


@pytest.mark.parametrize("mode", ["marginal", "joint"])
@pytest.mark.parametrize("n_models", [1, 2])
def test_a_prefix_that_is_the_whole_translation(mode, n_models):
    """Its hypotheses end in one step, all with the score and the tags of the prefix."""
    models, net = [model(seed, sharp=3) for seed in range(n_models)], batch(3, 5, 4)
    prefixes = [[5, EOS], [7, 8, 9, EOS], [6, EOS]]
    prefix = torch.tensor([p + [WORDS.pad()] * (4 - len(p)) for p in prefixes])
    actual = generator(models, mode, beam=4).generate(models, net, prefix_tokens=prefix)
    for i, (words, hypotheses) in enumerate(zip(prefixes, actual)):
        score, tags = score_and_tags(models, source(net, i), words, mode)
        for hypothesis in hypotheses:
            assert hypothesis["tokens"].tolist() == words
            assert hypothesis["tags"].tolist() == tags
            assert hypothesis["score"] * len(words) == pytest.approx(score, abs=1e-3)


@pytest.mark.parametrize("mode", ["marginal", "joint", "template"])
@pytest.mark.parametrize("left", [True, False])
def test_a_translation_does_not_depend_on_the_batch(mode, left):
    models = [model()]
    given = {"templates": Given([1, 3, 2], [2, OPEN], [3, 1, 1, 2])} if mode == "template" else {}
    together = translate(models, batch(6, 2, 4, left=left), mode, **given)
    for i, length in enumerate((6, 2, 4)):
        alone = batch(6, 2, 4, left=not left)
        alone["net_input"] = {
            "src_tokens": source(alone, i)[None],
            "src_lengths": torch.tensor([length + 1]),
        }
        alone["id"] = alone["id"][i : i + 1]
        best = translate(models, alone, mode, **given)[0]
        assert len(best) == len(together[i])
        for a, b in zip(best, together[i]):
            assert a["tokens"].tolist() == b["tokens"].tolist()
            assert a["tags"].tolist() == b["tags"].tolist()
            assert a["score"].item() == pytest.approx(b["score"].item(), abs=1e-5)


def test_fairseqs_own_generator_sums_the_tags_out():
    models, net = [model(0), model(1)], batch(5, 3)
    plain = SequenceGenerator(models, WORDS, beam_size=4, max_len_b=6).generate(models, net)
    ours = translate(models, net, beam=4, max_len_b=6)
    for a, b in zip(itertools.chain(*plain), itertools.chain(*ours)):
        assert a["tokens"].tolist() == b["tokens"].tolist()
        assert a["score"].item() == pytest.approx(b["score"].item(), abs=1e-5)


@pytest.mark.parametrize("n_models", [1, 2])
def test_a_temperature_is_that_of_each_model(n_models):
    """As in fairseq's own generator, which averages the models' distributions after it."""
    models, net, options = [model(seed) for seed in range(n_models)], batch(4, 2), {"beam_size": 3, "max_len_b": 4}
    expected = SequenceGenerator(models, WORDS, temperature=1.7, **options).generate(models, net)
    for ours, theirs in zip(translate(models, net, beam=3, temperature=1.7), expected):
        for one, other in zip(ours, theirs):
            assert one["tokens"].tolist() == other["tokens"].tolist()
            torch.testing.assert_close(one["positional_scores"], other["positional_scores"], atol=1e-4, rtol=1e-4)


def test_a_temperature_leaves_the_end_of_a_template_its_probability():
    net, flat = batch(3), 1e9
    ((best, *_),) = translate([model()], net, "template", templates=Given([1, 2]), temperature=flat)
    torch.testing.assert_close(best["positional_scores"], torch.full((3,), -math.log(N_WORDS)))


@pytest.mark.parametrize("n_models", [1, 2])
def test_template(n_models):
    models, net = [model(seed) for seed in range(n_models)], batch(5, 3)
    templates = [[1, 2, OPEN], [3]]
    actual = translate(models, net, "template", templates=Given(*templates), normalize_scores=False)
    for i, (best, template) in enumerate(zip(actual, templates)):
        for hypothesis in best:
            words = hypothesis["tokens"].tolist()
            assert len(words) == len(template) + 1 and words[-1] == EOS and EOS not in words[:-1]
            score, tags = score_and_tags(models, source(net, i), words, "template", [*template, 0])
            assert hypothesis["score"].item() == pytest.approx(score, abs=1e-4)
            assert hypothesis["tags"].tolist() == tags
    other = translate(models, net, "template", templates=Given([2, 1, 3], [1]))
    assert [b[0]["tokens"].tolist() for b in other] != [b[0]["tokens"].tolist() for b in actual]


def test_an_open_template_sums_the_tags_out():
    """A greedy search with a template of open places is the marginal one with the length given."""
    models, net = [model()], batch(5)
    (held,) = translate(models, net, "template", beam=1, templates=Given([OPEN, OPEN, OPEN]))[0]
    (free,) = translate(models, net, beam=1, max_len_b=3, min_len=3)[0]
    assert held["tokens"].tolist() == free["tokens"].tolist() and len(held["tokens"]) == 4
    assert held["tags"][:-1].tolist() == free["tags"][:-1].tolist()
    # Given its own value, </s> is scored by P(y | z); with the values summed out, by P(y).
    expected = free["positional_scores"][:-1].tolist()
    assert held["positional_scores"][:-1].tolist() == pytest.approx(expected, abs=1e-5)


def test_a_model_without_tag_names():
    models, net = [model(latent_values=4)], batch(5, 3)
    for mode in ("marginal", "joint"):
        for i, best in enumerate(translate(models, net, mode, normalize_scores=False)):
            score, tags = score_and_tags(models, source(net, i), best[0]["tokens"].tolist(), mode)
            assert best[0]["score"].item() == pytest.approx(score, abs=1e-4) and best[0]["tags"].tolist() == tags
    actual = translate(models, net, "template", templates=Given([0, 3], [1, 1, 2]))
    assert [b[0]["tags"].tolist()[:-1] for b in actual] == [[0, 3], [1, 1, 2]]


@settings(max_examples=examples(100))
@given(
    seed=st.integers(0, 10**6),
    spread=st.floats(0, 8),
    beam=st.integers(1, 4),
    step=st.integers(0, 3),
    n_values=st.integers(2, 6),
    ahead=st.integers(1, 8),
    block=st.integers(1, 400),
)
def test_joint_candidates_equal_brute_force(seed, spread, beam, step, n_values, ahead, block):
    """Marginals from flat to sharp, some words forbidden, posteriors from certain to even; whatever is looked at first,
    and however small the blocks of what remains."""
    best, words, beams, expected, full, _ = joint_search(seed, spread, beam, step, n_values, ahead, block)
    torch.testing.assert_close(best, expected)
    index = beams * 12 + words
    # The candidates are those that have these scores, each once; equal ones, but for rounding, in either order.
    torch.testing.assert_close(full.gather(1, index), expected)
    assert all(len(set(row)) == len(row) for row in index.tolist())


def test_a_joint_search_prunes_and_looks_on_where_it_must():
    """The test above is of both: a sharp posterior ends the search at the first look, a flat marginal does not."""
    *_, asked = joint_search(1, 8.0, 2, 1, 3, ahead=2, block=1)
    assert asked == [3 * 8]  # 3 sentences, twice the 4 candidates, of 24
    *_, asked = joint_search(1, 0.5, 2, 1, 6, ahead=1, block=1)
    assert len(asked) > 2 and max(asked) <= 3 * 4


def joint_search(seed, spread, beam, step, n_values, ahead, block):
    """Scores, words and beams of the search; best and all scores by brute force; how many words were asked about."""
    make = torch.Generator().manual_seed(seed)
    n_sentences, n_words = 3, 12
    asked = []

    class Posterior:
        table = torch.log_softmax(spread * torch.randn(n_sentences * beam, n_words, n_values, generator=make), dim=2)

        def log_posterior(self, rows, words):
            asked.append(words.numel())
            return self.table[rows, words]

    class Dictionary:
        def pad(self):
            return 1

        unk = eos = pad

        def __len__(self):
            return n_words

    lprobs = torch.log_softmax(spread * torch.randn(n_sentences, beam, n_words, generator=make), dim=2)
    lprobs[:, :, 1] = -math.inf
    scores = torch.randn(n_sentences, beam, max(step, 1), generator=make)
    full = lprobs + Posterior.table.amax(dim=2).view(lprobs.shape)
    full = full[:, :1] if step == 0 else full + scores[:, :, step - 1, None]
    full = full.reshape(n_sentences, -1)
    expected = full.topk(min(2 * beam, full[0].numel() - 1)).values
    posterior = Posterior()
    posterior.n_values = n_values
    search = JointBeamSearch(Dictionary(), posterior)
    search.ahead, search.block = ahead, block
    return *search.step(step, lprobs, scores), expected, full, asked


def test_constraints_of_fairseq_hold_in_a_joint_search():
    models, net = [model()], batch(5)
    free = translate(models, net, "joint")[0][0]["tokens"].tolist()
    start = torch.tensor([[next(w for w in range(4, N_WORDS) if w != free[0])]])
    forced = generator(models, "joint").generate(models, net, prefix_tokens=start)[0]
    assert all(h["tokens"][0] == start[0, 0] for h in forced)
    _, tags = score_and_tags(models, source(net, 0), forced[0]["tokens"].tolist(), "joint")
    assert forced[0]["tags"].tolist() == tags


@pytest.mark.parametrize("length", [0, 5])
def test_a_template_of_another_length(length):
    models = [model()]
    with data_error(str(length), path="tags.txt", line=2):
        translate(models, batch(5, 3), "template", templates=Given([1], [1] * length))


def test_a_template_of_one_tag_with_a_beam_wider_than_its_words():
    (best,) = translate([model()], batch(3), "template", beam=N_WORDS, templates=Given([1]))
    assert len(best) == N_WORDS - 2 and all(len(h["tokens"]) == 2 for h in best)


def test_bad_templates(tmp_path):
    names = ["</s>", "N", "V"]
    assert parse_template("N V _ N", names) == [1, 2, OPEN, 1]
    path = tmp_path / "tags"
    path.write_text("N V\nN VV\n")
    with data_error("'VV'", "N V _", path="tags", line=2):
        read_templates(path, names)
    path.write_text("N V\n\n")
    with data_error(path="tags", line=2):
        read_templates(path, names)
    path.write_text("N </s>\n")
    with data_error("'</s>'", path="tags", line=1):
        read_templates(path, names)
    path.write_bytes(b"N \xff\n")
    with data_error(path="tags", line=1):
        read_templates(path, names)
    path.write_text("\ufeffN V\r\nV _\r\n", encoding="utf-8")
    assert read_templates(path, names) == [[1, 2], [2, OPEN]]
    with data_error(path="none"):
        read_templates(tmp_path / "none", names)


def test_searches_that_do_not_go_together():
    from fairseq.search import Sampling

    with data_error("temperature"):
        generator([model()], "joint", temperature=0.5)
    with data_error("beam"):
        generator([model()], "joint", search_strategy=Sampling(WORDS))
    with data_error("templates"):
        generator([model()], "template")
    with data_error("latent"):
        generator([model(), model(latent_values=4)])


@pytest.mark.parametrize(
    "models, search, told",
    [
        ((None, None), "joint", True),
        ((None, None), "marginal", False),  # the values are summed out
        ((None,), "joint", False),
        (("upos", "upos"), "joint", False),
    ],
)
def test_values_of_models_trained_apart_are_not_the_same(caplog, models, search, told):
    def named(seed, tags):
        made = model(seed)
        made.decoder.tags = tags
        return made

    task = SimpleNamespace(cfg=SimpleNamespace(tag_search=search, print_tags=False))
    TagSearch(task).generator([named(*m) for m in enumerate(models)], SimpleNamespace(), False)
    assert bool(caplog.records) == told


def test_a_template_goes_with_no_forced_prefix_and_no_length_of_the_source():
    task = SimpleNamespace(cfg=SimpleNamespace(tag_search="template", print_tags=False, tag_templates="tags"))
    with data_error("--prefix-size"):
        TagSearch(task).generator([model()], SimpleNamespace(prefix_size=2), False)
    with data_error("--match-source-len"):
        TagSearch(task).generator([model()], SimpleNamespace(match_source_len=True), False)


@pytest.mark.parametrize("n, k", [(1000, 5), (1003, 30), (1007, 31), (40, 7), (800, 1)])
def test_the_largest_of_long_rows(n, k):
    x = torch.randn(6, n)
    x[0] = -math.inf  # and of what is nothing but impossible
    x[1, : n // 2] = -math.inf
    values, index = largest(x, k)
    torch.testing.assert_close(values, x.topk(k).values, rtol=0, atol=0)
    assert torch.equal(x.gather(1, index), values) and all(len(set(row)) == k for row in index.tolist())

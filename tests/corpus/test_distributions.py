"""p(head, label | word): against loops over the scores, and out of real parsers, in any batch."""

from __future__ import annotations

import math

import devices
import parse_models
import pytest
import torch
from data_errors import data_error
from enumerated_trees import enumerated
from parse_models import models
from toy_data import syntax_command

from fairseq_syntax.corpus.conllu import format_conllu, parse_conllu_block, read_conllu
from fairseq_syntax.corpus.parsing.distributions import arcs_of_scores, head_probabilities
from fairseq_syntax.corpus.parsing.parser import ParserOptions, load_parser

LABELS = ["root", "dep", "nmod:poss"]


def toy(**changes) -> ParserOptions:
    return ParserOptions(lang="xx", model_dir=str(models()), **changes)


def looped(scores, labels, n, min_prob, temperature=1.0, label_temperature=1.0, structured=False):
    """The arcs of one sentence by the definition, in plain Python; of the distribution over trees, by enumeration."""
    arcs = []
    marginals = enumerated(scores[: n + 1, : n + 1].double() / temperature)[1] if structured else None
    for word in range(1, n + 1):
        weights = {h: math.exp(float(scores[word, h]) / temperature) for h in range(n + 1) if h != word}
        actual = []
        for head, weight in weights.items():
            p_head = weight / sum(weights.values()) if marginals is None else float(marginals[word, head])
            given = [math.exp(float(value) / label_temperature) for value in labels[word, head]]
            for label, value in enumerate(given):
                p = p_head * value / sum(given)
                if p >= min_prob:
                    actual.append((word, head, LABELS[label], p))
        arcs += sorted(actual, key=lambda arc: -arc[3])
    return arcs


def same(got, expected, tolerance=1e-5):
    assert [arc[:3] for arc in got] == [arc[:3] for arc in expected]
    assert all(abs(a[3] - b[3]) < tolerance for a, b in zip(got, expected))


@pytest.mark.parametrize("min_prob", [1e-9, 0.01, 0.2])
@pytest.mark.parametrize(("temperature", "label_temperature"), [(1.0, 1.0), (0.5, 3.0)])
@pytest.mark.parametrize("structured", [False, pytest.param(True, marks=pytest.mark.slow)])  # all trees, enumerated
def test_arcs_equal_the_definition(min_prob, temperature, label_temperature, structured):
    torch.manual_seed(1)
    lengths = [4, 1, 6]
    scores, labels = torch.randn(3, 7, 7) * 2, torch.randn(3, 7, 7, 3)
    for b, n in enumerate(lengths):  # whatever stands in the padding
        scores[b, n + 1 :] = torch.nan
        scores[b, :, n + 1 :] = 1000.0
        labels[b, n + 1 :] = torch.inf
    options = {"temperature": temperature, "label_temperature": label_temperature, "structured": structured}
    given = ParserOptions(min_prob=min_prob, **options)
    got = arcs_of_scores(scores, labels, torch.tensor(lengths), LABELS, given)
    for b, n in enumerate(lengths):
        same(got[b], looped(scores[b], labels[b], n, min_prob, **options))


def test_rows_are_distributions_over_heads():
    torch.manual_seed(2)
    scores = torch.randn(2, 5, 5) * 300
    for structured in (False, True):
        heads = head_probabilities(scores, torch.tensor([4, 2]), structured=structured)
        assert torch.allclose(heads[0].sum(1), torch.tensor([0.0, 1, 1, 1, 1]))
        assert torch.allclose(heads[1].sum(1), torch.tensor([0.0, 1, 1, 0, 0]))
        assert heads.diagonal(dim1=1, dim2=2).abs().sum() == 0 and heads[1, :, 3:].sum() == 0


def test_nothing_above_the_threshold_is_a_list_without_arcs():
    scores, label_scores = torch.zeros(1, 4, 4), torch.zeros(1, 4, 4, 3)
    assert arcs_of_scores(scores, label_scores, torch.tensor([3]), LABELS, ParserOptions(min_prob=0.5)) == [[]]


# ------------------------------------------------------------------------------------------------------ Stanza

LINES = [*parse_models.sentences(12, seed=7), "", "boat", "an unknown word !"]


def test_stanzas_trees_are_those_of_its_pipeline():
    import stanza

    from fairseq_syntax.corpus.parsing.stanza import _pipeline

    plain, sure = (load_parser(toy(distributions=on)).parse(LINES) for on in (False, True))
    pipeline: stanza.Pipeline = _pipeline(toy(), ("tokenize", "pos", "depparse"), tokenize_pretokenized=True)
    for line, with_arcs in zip(plain, sure, strict=True):
        assert line.arcs is None and (with_arcs.arcs is not None or not with_arcs.words)
        with_arcs.arcs = None
        assert line == with_arcs
        if line.words:
            (sentence,) = pipeline([line.words]).sentences
            assert line.heads == [w.head - 1 if w.head else w.id - 1 for w in sentence.words]
            assert line.deprels == [word.deprel for word in sentence.words]
            assert line.upos == [word.upos for word in sentence.words]
            assert line.xpos == [word.xpos for word in sentence.words]


def test_stanzas_arcs_are_its_own_scores_and_do_not_depend_on_the_batch():
    options = toy(distributions=True, min_prob=1e-7)
    parser = load_parser(options)
    together = parser.parse(LINES)
    for line, text in zip(together, LINES, strict=True):
        (alone,) = parser.parse([text])
        if not line.words:
            assert alone.arcs is None
            continue
        key = {arc[:3]: arc[3] for arc in alone.arcs}
        assert all(abs(key.get(arc[:3], 0.0) - arc[3]) < 1e-5 for arc in line.arcs)
        for word in range(len(line.words)):
            mass = [p for dependent, _, _, p in line.arcs if dependent == word]
            assert abs(sum(mass) - 1.0) < 1e-3
            assert mass == sorted(mass, reverse=True)
    small = load_parser(toy(distributions=True, min_prob=1e-7, batch_size=15)).parse(LINES)
    assert [line.heads for line in small] == [line.heads for line in together]


def test_stanzas_scores_by_hand():
    from stanza.models.depparse.data import DataLoader
    from stanza.models.depparse.trainer import unpack_batch

    parser = load_parser(toy(distributions=True, min_prob=0.02, temperature=2.0))
    words = LINES[0].split()
    (line,) = parser.parse([words])
    document = parser.pipeline.processors["pos"].process(parser.pipeline.processors["tokenize"].process([words]))
    loader = DataLoader(document, 5000, parser.depparse.config, None, vocab=parser.depparse.vocab, evaluation=True)
    (batch,) = list(loader)
    inputs, _, word_order, lengths, word_lengths, text = unpack_batch(batch, "cpu")
    with torch.no_grad():
        scores, labels, *_ = parser.depparse.trainer.model.eval().forward_scores(
            *inputs, word_order, lengths, word_lengths, text
        )
    names = [parser.depparse.vocab["deprel"].id2unit(i) for i in range(4, len(parser.depparse.vocab["deprel"]))]
    expected = []
    for word in range(1, len(words) + 1):
        weights = [math.exp(float(s) / 2.0) for s in scores[0, word, : len(words) + 1]]
        actual = []
        for head, weight in enumerate(weights):
            given = [math.exp(float(s)) for s in labels[0, word, head]]
            for name, value in zip(names, given, strict=True):
                p = weight / sum(weights) * value / sum(given)
                if p >= 0.02:
                    actual.append((word - 1, head - 1 if head else word - 1, name, p))
        expected += sorted(actual, key=lambda arc: -arc[3])
    same(line.arcs, expected)


def test_what_stanza_gives_can_be_written_and_read():
    for structured in (False, True):
        parser = load_parser(toy(distributions=True, structured=structured))
        for line in parser.parse(LINES):
            again = parse_conllu_block(format_conllu(line))
            assert again.words == line.words and again.heads == line.heads
            assert len(again.arcs or []) == len(line.arcs or [])


def test_missing_and_damaged_models_are_named(tmp_path):
    with data_error("'xx'", "pos.pt", "depparse.pt"):
        load_parser(ParserOptions(lang="xx", model_dir=str(tmp_path)))
    for name in ("pos.pt", "depparse.pt"):
        (tmp_path / name).write_bytes((models() / name).read_bytes()[:5000])
    with data_error(path=tmp_path):
        load_parser(ParserOptions(lang="xx", model_dir=str(tmp_path)))


# ------------------------------------------------------------------------------------------------------ SuPar


def supar_model(folder):
    """SuPar's biaffine parser, hardly trained, as folder/model."""
    supar = pytest.importorskip("supar")
    data = folder / "train.conllu"
    data.write_text(parse_models.conllu(parse_models.sentences(40)), encoding="utf-8")
    built = supar.BiaffineDependencyParser.build(
        str(folder / "model"), min_freq=1, train=str(data), build=True, encoder="lstm", feat=["char"], embed=None,
        n_embed=20, n_pretrained=20, n_char_embed=8, n_char_hidden=8, n_lstm_hidden=12, n_lstm_layers=1, n_arc_mlp=12,
        n_rel_mlp=12, unk="unk",
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.no_grad():
        built.model.arc_attn.weight.normal_()  # zeros until it is trained
        built.model.rel_attn.weight.normal_()
        built.model.rel_attn.weight[built.REL.bos_index, -1, -1] = -50.0
    built.save(str(folder / "model"))
    return built


@pytest.mark.slow
def test_supar_behind_the_same_interface(tmp_path):
    built = supar_model(tmp_path)
    options = ParserOptions(parser="supar", model_dir=str(tmp_path / "model"), distributions=True, min_prob=1e-7)
    parser = load_parser(options)
    together = parser.parse(LINES)
    texts = [line.split() for line in LINES if line]
    built.model.eval()
    expected = built.predict(texts, verbose=False, tree=True)
    assert [line.deprels for line in together if line.words] == [list(actual.rels) for actual in expected]
    for line, actual in zip([line for line in together if line.words], expected, strict=True):
        assert [h + 1 if h != i else 0 for i, h in enumerate(line.heads)] == [int(arc) for arc in actual.arcs]
    for line, text in zip(together, LINES, strict=True):
        (alone,) = parser.parse([text])
        assert alone.heads == line.heads
        for a, b in zip(sorted(alone.arcs or []), sorted(line.arcs or [])):
            assert a[:3] == b[:3] and abs(a[3] - b[3]) < 1e-5
        for word in range(len(line.words)):
            assert abs(sum(p for dependent, _, _, p in line.arcs if dependent == word) - 1.0) < 1e-3
    (tmp_path / "bad").write_bytes(b"nothing")
    with data_error(path="bad"):
        load_parser(ParserOptions(parser="supar", model_dir=str(tmp_path / "bad")))
    with data_error("--model-dir"):
        load_parser(ParserOptions(parser="supar"))


# ------------------------------------------------------------------------------------------------------ devices


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("name", ["stanza", "supar"])
def test_a_device_parses_as_the_cpu(name, tmp_path):
    """Trees, labels and tags are the same, and probabilities to the fifth digit, through the command."""
    folder = models() if name == "stanza" else tmp_path / "model"
    if name == "supar":
        supar_model(tmp_path)
    (tmp_path / "text").write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    parses = []
    for device in ("cpu", "cuda"):
        options = ["--parser", name, "--lang", "xx", "--model-dir", folder, "--distributions", "--device", device]
        out = tmp_path / f"{device}.conllu"
        written = ["--input", tmp_path / "text", "--output", out, "--tokenizer", "basic"]
        with devices.on(device):
            assert syntax_command("parse", *written, *options) == 0
        parses.append(list(read_conllu(out)))
    for a, b in zip(*parses, strict=True):
        assert (a.words, a.heads, a.deprels, a.upos) == (b.words, b.heads, b.deprels, b.upos)
        assert {arc[:3] for arc in a.arcs or []} == {arc[:3] for arc in b.arcs or []}
        for one, other in zip(sorted(a.arcs or []), sorted(b.arcs or []), strict=True):
            assert one[3] == pytest.approx(other[3], abs=1.5e-5)  # the last digit that is written

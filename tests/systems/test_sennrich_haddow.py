"""Label embeddings in the last dimensions of the token embedding."""

import copy
import random

import pytest
import torch
from data_errors import data_error
from random_parses import flat, random_line
from tiny_syntax import LABELS, sample, tiny_model

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.systems.sennrich_haddow import parse_features

LINES = [random_line(random.Random(seed)) for seed in range(4)]
COLUMNS = ("deprel", "upos", "xpos")


def embedded(model, batched):
    """What the encoder embeds, before positions, scaled."""
    net_input = batched["net_input"]
    return model.encoder(net_input["src_tokens"], src_syntax=net_input["src_syntax"])["encoder_embedding"][0]


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("features", ["deprel:10", "deprel:3,upos:2", "xpos:1,deprel:2,upos:13", "upos:4"])
def test_by_loops_over_tokens_and_dimensions(features, left):
    model = tiny_model("sennrich_haddow_transformer", label_features=features).eval()
    batched = sample(LINES, left)
    tables = model.encoder.systems["sennrich_haddow"].embeddings
    tokens = batched["net_input"]["src_tokens"]
    ours = embedded(model, batched)
    sizes = parse_features(features)
    for b, line in enumerate(LINES):
        offset = tokens.shape[1] - len(line.tokens) if left else 0
        for i, token in enumerate(line.tokens):
            expected = model.encoder.embed_tokens.weight[token].tolist()[: 16 - sum(sizes.values())]
            for column, size in sizes.items():
                at_end = i == len(line.tokens) - 1
                label = 0 if at_end else line.labels[line.word_of_piece[i]][COLUMNS.index(column)]
                expected += tables[column].weight[label].tolist()
                assert tables[column].weight.shape == (len(LABELS[column]), size)
            torch.testing.assert_close(ours[b, i + offset], 4 * torch.tensor(expected))  # sqrt(16)


def test_default_is_the_papers():
    model = tiny_model("sennrich_haddow_transformer")
    assert {n: e.embedding_dim for n, e in model.encoder.systems["sennrich_haddow"].embeddings.items()} == {
        "deprel": 10
    }
    assert model.inference_needs == model.training_needs == {"tree"}


def test_another_label_changes_its_own_sentence_only():
    model = tiny_model("sennrich_haddow_transformer", label_features="deprel:4").eval()
    batched = sample(LINES, True)
    before = model(**batched["net_input"])[0]
    other = copy.deepcopy(LINES)
    label, *tags = other[1].labels[0]
    other[1].labels[0] = (label % 4 + 1, *tags)
    batched["net_input"]["src_syntax"] = flat(other)
    after = model(**batched["net_input"])[0]
    assert not torch.allclose(after[1], before[1]) and torch.equal(after[[0, 2, 3]], before[[0, 2, 3]])


@pytest.mark.parametrize(
    "text", ["deprel", "deprel:x", "lemma:3", "deprel:3,deprel:4", "deprel:-1", "deprel:0", "upos:17"]
)
def test_features_that_cannot_be(text):
    with pytest.raises(SyntaxDataError) as refusal:
        tiny_model("sennrich_haddow_transformer", label_features=text)
    assert refusal.value.option == "--label-features"


def test_a_parse_is_needed():
    with data_error(option="--task"):
        tiny_model("sennrich_haddow_transformer")(**sample(LINES, True, syntax=False)["net_input"])

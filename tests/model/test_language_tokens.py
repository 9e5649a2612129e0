"""Language tokens: the model reads them where it expects them, and no parse, loss, batch or search sees them."""

import random

import pytest
import torch
from random_parses import random_line
from tiny_syntax import check_same_in_any_batch, encode, sample, tiny_model

from fairseq_syntax.inference.alignment_head import attention_weights
from fairseq_syntax.model.losses import system_losses
from fairseq_syntax.model.transformer import PRESETS

LANGUAGE, PAD, END = 7, 1, 2
SOURCE = {"source_language_token": f"w{LANGUAGE}"}
places = pytest.mark.parametrize("last", [False, True])
GROUPS = {
    "ldd_label_groups_text": "root: root\na: a\nb: b c\nd: d\n",
    "encoder_attention_heads": 4,
    "ldd_variant": "LDP",
}
# Of the encoder alone.
SYSTEMS = sorted(arch for arch, preset in PRESETS.items() if not preset.get("decoder_syntax"))


def lines() -> list:
    """Lines of several lengths, with all kinds of trees."""
    draw = random.Random(3)
    return [random_line(draw) for _ in range(4)]


@places
@pytest.mark.parametrize("learned", [False, True])
def test_the_encoder_reads_it_in_its_place(last, learned):
    """As the same model without the option reads a sentence that has the token there."""
    options = {"encoder_learned_pos": learned}
    ours = tiny_model("syntax_transformer", **SOURCE, source_language_last=last, **options).eval()
    plain = tiny_model("syntax_transformer", **options).eval()
    plain.load_state_dict(ours.state_dict())
    for line, states in zip(lines(), encode_all(ours)):
        tokens = [*line.tokens, LANGUAGE] if last else [LANGUAGE, *line.tokens]
        expected = plain.encoder(torch.tensor([tokens]))["encoder_out"][0][:, 0]
        if not last:  # its state is the last one here
            expected = torch.cat([expected[1:], expected[:1]])
        torch.testing.assert_close(states, expected, atol=1e-6, rtol=1e-5)


def encode_all(model) -> list[torch.Tensor]:
    with torch.no_grad():
        return encode(model, lines(), left=True)


@pytest.mark.matrix(10)
@places
@pytest.mark.parametrize("arch", SYSTEMS)
def test_with_every_system_a_line_is_the_same_in_any_batch(arch, last):
    options = GROUPS if arch == "ldd_transformer" else {}
    model = tiny_model(arch, **SOURCE, source_language_last=last, **options).eval()
    check_same_in_any_batch(model, lines())
    other = tiny_model(arch, source_language_token="w8", source_language_last=last, **options).eval()
    assert not torch.equal(encode_all(model)[0], encode_all(other)[0])


@pytest.mark.parametrize("arch", ["supervised_head_transformer", "lisa_transformer", "dbsa_transformer"])
def test_no_loss_counts_it(arch):
    """Losses have the rows that they have without a token, with padding on either side."""
    if arch == "dbsa_transformer":
        options = {"encoder_syntax": "dbsa", "decoder_syntax": None}
        arch = "syntax_transformer"
    else:
        options = {}
    counts = []
    for token in ({}, SOURCE):
        for left in (False, True):
            model = tiny_model(arch, **options, **token)
            batch = sample(lines(), left)
            _, log = system_losses(model, model(**batch["net_input"])[1], batch)
            counts.append({name: value.item() for name, value in log.items() if not name.endswith(("nll", "correct"))})
    assert counts[0] and all(one == counts[0] for one in counts)


@pytest.mark.parametrize("left", [False, True])
def test_the_decoder_reads_it_after_its_start(left):
    """Its features are those of a decoder that is given the token; a search computes the same step by step."""
    ours = tiny_model("syntax_transformer", target_language_token=f"w{LANGUAGE}").eval()
    plain = tiny_model("syntax_transformer").eval()
    plain.load_state_dict(ours.state_dict())
    rows = [[END, 9, 10, 11], [END, 12, 13], [END]]
    width = max(map(len, rows))
    padded = torch.tensor([[PAD] * (width - len(r)) + r if left else r + [PAD] * (width - len(r)) for r in rows])
    encoded = ours.encoder(torch.tensor([[4, 5, END]] * 3))
    features = ours.decoder(padded, encoder_out=encoded)[0]
    for row, actual, given in zip(rows, features, padded):
        one = {
            name: [t[:, :1] if t.dim() == 3 else t[:1] for t in value]
            for name, value in encoded.items()
            if name != "step"
        }
        expected = plain.decoder(torch.tensor([[END, LANGUAGE, *row[1:]]]), encoder_out=one)[0][0, 1:]
        torch.testing.assert_close(actual[given.ne(PAD)], expected, atol=1e-6, rtol=1e-5)
        state: dict = {}
        for length in range(1, len(row) + 1):
            step = ours.decoder(torch.tensor([row[:length]]), encoder_out=one, incremental_state=state)[0]
            torch.testing.assert_close(step[0, 0], expected[length - 1], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("left", [False, True])
def test_alignments_do_not_see_it(left):
    """The attention between pieces is that of a model that is given the tokens, in the columns of pieces."""
    ours = tiny_model("syntax_transformer", **SOURCE, target_language_token="w8").eval()
    plain = tiny_model("syntax_transformer").eval()
    plain.load_state_dict(ours.state_dict())
    batch, targets = lines(), [torch.tensor([9, 10, 11, END]), torch.tensor([12, END])] * 2
    net_input = sample(batch, left, syntax=False)["net_input"]
    actual = attention_weights(ours, net_input, targets)
    width = net_input["src_tokens"].size(1)
    for number, (line, target) in enumerate(zip(batch, targets)):
        tokens = torch.tensor([[LANGUAGE, *line.tokens]])
        given = {"src_tokens": tokens, "src_lengths": torch.tensor([tokens.size(1)])}
        alone = attention_weights(plain, given, [torch.cat([torch.tensor([8]), target])])
        n, t = len(line.tokens), len(target)
        columns = slice(width - n, width) if left else slice(n)
        for kind, rows in (("cross", slice(t)), ("encoder", columns)):
            assert actual[kind][0].shape[2:] == (4 if kind == "cross" else width, width)
            for layer, expected in zip(actual[kind], alone[kind]):
                torch.testing.assert_close(
                    layer[number, :, rows, columns], expected[0, :, 1:, 1:], atol=1e-5, rtol=1e-4
                )


@pytest.mark.parametrize("option", ["decoder_start_token", "target_language_token"])
def test_the_decoder_can_begin_with_another_symbol(option):
    ours = tiny_model("syntax_transformer", **{option: f"w{LANGUAGE}"}, target_language_first="target" in option).eval()
    plain = tiny_model("syntax_transformer").eval()
    plain.load_state_dict(ours.state_dict())
    encoded = ours.encoder(torch.tensor([[4, 5, END]]))
    actual = ours.decoder(torch.tensor([[END, 9, 10]]), encoder_out=encoded)[0]
    torch.testing.assert_close(actual, plain.decoder(torch.tensor([[LANGUAGE, 9, 10]]), encoder_out=encoded)[0])

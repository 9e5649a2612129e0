"""Layers with score terms: fairseq's own layers otherwise, also with several threads at once."""

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from fairseq.models.transformer import TransformerConfig
from fairseq.modules.transformer_layer import TransformerDecoderLayerBase

from fairseq_syntax.model.attention import ScoreTerm
from fairseq_syntax.model.decoder import SyntaxDecoderLayer
from fairseq_syntax.model.layers import LayerPlan

LENGTH, BATCH, SIZE, HEADS = 5, 3, 16, 4
SCALES = ["scale_attn", "scale_heads", "scale_fc", "scale_resids"]
FUTURE = torch.triu(torch.full((LENGTH, LENGTH), float("-inf")), 1)


class Plus(ScoreTerm):
    """Adds a number to all scores, which changes no weight, but the observed scores."""

    def __init__(self, number: float) -> None:
        self.number = number

    def scores(self, scores, inputs):
        return scores + self.number


def layers(**options) -> tuple[TransformerDecoderLayerBase, SyntaxDecoderLayer]:
    """fairseq's decoder layer and one with terms, of the same parameters."""
    cfg = TransformerConfig(dropout=0.0)
    cfg.encoder.embed_dim = cfg.decoder.embed_dim = SIZE
    cfg.decoder.ffn_embed_dim, cfg.decoder.attention_heads = 2 * SIZE, HEADS
    cfg.decoder.normalize_before = options.pop("normalize_before", False)
    vars(cfg).update(options)
    plain, ours = TransformerDecoderLayerBase(cfg), SyntaxDecoderLayer(LayerPlan(HEADS, True, [], [], []), cfg)
    for parameter in plain.parameters():
        torch.nn.init.normal_(parameter, std=0.5)  # the scales begin as ones, which would not be noticed
    ours.load_state_dict(plain.state_dict())
    return plain, ours


@pytest.mark.matrix(6)
@pytest.mark.parametrize("normalize_before", [False, True])
@pytest.mark.parametrize("scales", [[], *([name] for name in SCALES), SCALES], ids=str)
def test_a_decoder_layer_is_fairseqs_but_for_its_terms(scales, normalize_before):
    """Its output, gradients and steps of a search, with the scales of NormFormer too, which only code can set."""
    plain, ours = layers(**dict.fromkeys(scales, True), normalize_before=normalize_before)
    x, source = torch.randn(LENGTH, BATCH, SIZE), torch.randn(LENGTH + 1, BATCH, SIZE)
    expected = plain(x, encoder_out=source, self_attn_mask=FUTURE)[0]
    gradients = torch.autograd.grad(expected.square().sum(), list(plain.parameters()))
    for terms, observe in (([], []), ([Plus(1.0)], [1])):
        actual, *_ = ours(x, encoder_out=source, self_attn_mask=FUTURE, terms=terms, observe=observe)
        torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-4)
        our_gradients = torch.autograd.grad(actual.square().sum(), list(ours.parameters()))
        torch.testing.assert_close(our_gradients, gradients, atol=1e-2, rtol=1e-3)
    states: tuple[dict, dict] = {}, {}
    plain.eval(), ours.eval()
    for step in x.split(1):
        inputs = [{"encoder_out": source, "incremental_state": state} for state in states]
        actual, *_ = ours(step, **inputs[1], terms=[Plus(1.0)], observe=[])
        torch.testing.assert_close(actual, plain(step, **inputs[0])[0], atol=1e-4, rtol=1e-4)


def test_threads_share_a_model_without_each_others_terms():
    _, ours = layers()
    ours.eval()
    x, source = torch.randn(LENGTH, BATCH, SIZE), torch.randn(LENGTH + 1, BATCH, SIZE)

    def observed(number: float) -> torch.Tensor:
        with torch.no_grad():
            return ours(x, encoder_out=source, self_attn_mask=FUTURE, terms=[Plus(number)], observe=[0])[-1]

    expected, before = observed(0.0), sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(4) as pool:
            numbers = [float(number) for number in range(200)]
            for number, scores in zip(numbers, pool.map(observed, numbers)):
                torch.testing.assert_close(scores, expected + number, atol=1e-4, rtol=1e-4)
    finally:
        sys.setswitchinterval(before)

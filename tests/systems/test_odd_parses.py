"""Parses that are not one tree: several roots, a cycle, one word, none at all; in any batch, in search, in half."""

import lstm_models
import pytest
import tiny_syntax
import torch
from fairseq.sequence_generator import SequenceGenerator
from random_parses import EOS, Line, flat

from fairseq_syntax.model.losses import system_losses

TRANSFORMERS = {
    "gcn": ("gcn_transformer", {"gcn_layers": 2}),
    "relative_depth": ("relative_depth_transformer", {}),
    "relative_depth and positions": ("syntax_transformer", {"encoder_syntax": "relative_depth,relative_positions"}),
    "structural_positions": ("structural_positions_transformer", {}),
    "dbsa": ("dbsa_transformer", {}),
    "dbsa, the paper's subwords": ("dbsa_transformer", {"dbsa_chain": True}),
    "predicted_pascal": ("parser_free_pascal_transformer", {}),
    "predicted_ldd": ("parser_free_ldd_transformer", {}),
}
LSTMS = {"senmt": "senmt_lstm", "tree2seq": "tree2seq_lstm", "gcn (lstm)": "gcn_lstm"}
WITHOUT_A_PARSE = ("dbsa", "predicted")  # at inference


def line(heads: list[int], pieces: list[int] | None = None) -> Line:
    pieces = pieces or [1] * len(heads)
    return Line(
        pieces, heads, [(1 + w % 4, 1, 1) for w in range(len(heads))], [4 + i % 9 for i in range(sum(pieces))] + [EOS]
    )


ODD = {
    "no word": line([]),
    "one word": line([0], [3]),
    "several roots": line([0, 0, 2, 3, 3], [1, 2, 1, 1, 1]),
    "every word a root": line([0, 1, 2, 3]),
    "a cycle of two": line([1, 0, 1, 2], [2, 1, 1, 1]),
    "a cycle of three below nothing": line([1, 2, 0, 0, 4]),
    "a chain": line([max(w - 1, 0) for w in range(18)]),
}


def build(system: str):
    if system in LSTMS:
        return lstm_models.model(LSTMS[system])
    arch, options = TRANSFORMERS[system]
    return tiny_syntax.tiny_model(arch, **options).eval()


def inputs(system: str, lines: list[Line], left: bool) -> dict:
    result = lstm_models.net_input(lines, left)
    if system.startswith(WITHOUT_A_PARSE):
        del result["src_syntax"]
    return result


@pytest.mark.matrix(5)
@pytest.mark.parametrize("system", [*TRANSFORMERS, *LSTMS])
def test_odd_parses_in_any_batch_in_half_precision_and_in_search(system):
    model, lines = build(system), list(ODD.values())
    generator = SequenceGenerator([model], model.decoder.dictionary, beam_size=3, max_len_b=6)

    def search(given):
        return generator.generate([model], {"net_input": {k: given[k] for k in given if k != "prev_output_tokens"}})

    together = search(inputs(system, lines, True))
    with torch.no_grad():
        whole = {left: model(**inputs(system, lines, left))[0] for left in (True, False)}
        for i, one in enumerate(lines):
            alone = model(**inputs(system, [one], True))[0][0]
            for left in (True, False):
                torch.testing.assert_close(whole[left][i], alone, atol=1e-5, rtol=1e-4)
            (actual,) = search(inputs(system, [one], False))
            assert [h["tokens"].tolist() for h in actual] == [h["tokens"].tolist() for h in together[i]]
        for dtype in (torch.bfloat16, torch.float16):
            if system in LSTMS:
                break  # their weights here are too wide for it; lstm_models.check_half_precision
            half = build(system).to(dtype)(**inputs(system, lines, True))[0]
            assert half.dtype == dtype
            torch.testing.assert_close(half.float(), whole[True], atol=0.1, rtol=0.1)


@pytest.mark.parametrize("system", [s for s in TRANSFORMERS if s.startswith(WITHOUT_A_PARSE)])
def test_losses_over_odd_parses(system):
    """Of a batch the sum of those of its lines, whatever their trees."""
    model, lines = build(system), list(ODD.values())

    def loss(some: list[Line], left: bool) -> torch.Tensor:
        given = tiny_syntax.sample(some, left)
        width = max(len(one.tokens) for one in some)
        given["target"] = torch.tensor([one.tokens + [1] * (width - len(one.tokens)) for one in some])
        given["net_input"]["prev_output_tokens"] = torch.tensor(
            [[EOS, *one.tokens[:-1]] + [1] * (width - len(one.tokens)) for one in some]
        )
        given["tgt_syntax"] = flat(some)
        return system_losses(model, model(**given["net_input"])[1], given)[0]

    expected = sum(loss([one], False) for one in lines)
    torch.testing.assert_close(loss(lines, True), expected, atol=1e-3, rtol=1e-4)
    expected.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)

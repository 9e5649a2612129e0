"""The guided start of DLAA and local-p: what is read, what the predictor is taught, and that nothing of it stays."""

import pytest
import torch
from lstm_models import empty_line, lines, model, net_input

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.model.losses import system_losses

PAD = 1
KINDS = {
    "dlaa": ("dlaa_lstm", {"dlaa_block_size": 3}),
    "dlaa-hard": ("dlaa_lstm", {"dlaa_block_size": 3, "dlaa_alignment": "hard"}),
    "dlaa-gaussian": ("dlaa_lstm", {"dlaa_block_size": 3, "dlaa_alignment": "gaussian"}),
    "local-p": ("local_attention_lstm", {"local_window": 2}),
}
kinds = pytest.mark.parametrize("kind", KINDS)


def build(kind: str, **options):
    arch, of_kind = KINDS[kind]
    return model(arch, scale=2, **of_kind, **options)


def training(m, updates: int):
    """In training, at this update, without dropout."""
    for module in m.modules():
        if hasattr(module, "p"):
            module.p = 0.0
        if isinstance(module, torch.nn.LSTM):
            module.dropout = 0.0
    m.train()
    m.set_num_updates(updates)
    return m


@kinds
def test_the_model_is_the_papers_in_search_and_after_the_start(kind):
    plain, guided = build(kind), build(kind, guided_updates=10)
    assert plain.state_dict().keys() == guided.state_dict().keys()
    inputs = net_input([*lines(1), empty_line()])
    torch.testing.assert_close(guided(**inputs), plain(**inputs))
    out, extra = training(guided, 10)(**inputs)
    assert extra is None
    torch.testing.assert_close(out, training(plain, 10)(**inputs)[0])
    out, extra = training(guided, 9)(**inputs)
    assert extra is not None and (out - plain(**inputs)[0]).abs().max() > 1e-4
    assert plain.losses == () and guided.losses == ("position",)


def test_the_share_of_global_attention_falls_to_nothing():
    attention = training(build("local-p", guided_updates=8), 0).decoder.attention
    shares = []
    for update in range(10):
        attention.set_num_updates(update)
        shares.append(attention.guided_share())
    assert shares == [1, 1, 1, 1, 1, 0.75, 0.5, 0.25, 0, 0]
    attention.eval()
    attention.set_num_updates(0)
    assert attention.guided_share() == 0


@kinds
@pytest.mark.parametrize("updates", [0, 7])
def test_a_step_and_its_loss_against_loops(kind, updates):
    """At update 7 of 8 a quarter of what is read is global attention's, three quarters the system's own."""
    m = build(kind, guided_updates=8, guide_weight=0.5)
    attention = m.decoder.attention
    ls = [*lines(3, max_words=6), empty_line()]
    inputs = net_input(ls)
    encoded = m.encoder(inputs["src_tokens"], inputs["src_lengths"], inputs["src_syntax"])
    hiddens = torch.randn(2, len(ls), 10, generator=torch.Generator().manual_seed(1))
    memory = attention.remember(encoded)
    of_steps = [attention(h, memory, step)[1] for step, h in enumerate(hiddens)]
    training(m, updates)
    memory = attention.remember(encoded)
    outs = [attention(h, memory, step)[0] for step, h in enumerate(hiddens)]
    real = torch.tensor([[True, b != 1] for b in range(len(ls))])  # the second row's second target is padding
    loss = attention.losses(memory, real)["position"]
    share = 1.0 if updates == 0 else 0.25
    W_a, W_c = attention.input_proj.weight, attention.output_proj.weight
    total, count = 0.0, 0
    for b, line in enumerate(ls):
        if kind == "local-p":
            places = [encoded.states[s, b] for s in range(len(line.tokens))]
            span = len(places)
        else:
            columns = [[i for i, of in enumerate(line.word_of_piece) if of == w] for w in range(len(line.pieces))]
            places = [encoded.states[c, b].mean(0) for c in columns] or [torch.zeros(16)]
            span = len(places) - 1
        for step, h in enumerate(hiddens[:, b]):
            weights = torch.stack([(W_a @ h) @ state for state in places]).softmax(0)
            predictor = attention.position
            p = span * torch.sigmoid(predictor.score.weight[0] @ torch.tanh(predictor.hidden_proj.weight @ h))
            context = sum(weight * state for weight, state in zip(weights, places))
            local = sum(weight * state for weight, state in zip(of_steps[step][b], places))
            expected = torch.tanh(W_c @ torch.cat((share * context + (1 - share) * local, h)))
            torch.testing.assert_close(outs[step][b], expected, atol=1e-5, rtol=1e-4)
            if real[b, step]:
                total += sum(w * (s - p) ** 2 for s, w in enumerate(weights)) / (2 * attention.sigma**2)
                count += 1
    torch.testing.assert_close(loss.nll, torch.as_tensor(total), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(loss.loss, 0.5 * loss.nll)
    assert loss.tokens == count


@kinds
def test_the_loss_is_a_sum_over_sentences_and_trains_the_predictor(kind):
    m = training(build(kind, guided_updates=8), 0)
    ls = [*lines(4), empty_line()]
    whole, log = system_losses(m, m(**net_input(ls))[1], {})
    assert log["position_tokens"] == 7 * len(ls)
    alone = sum(system_losses(m, m(**net_input([line]))[1], {})[0] for line in ls)
    torch.testing.assert_close(whole, alone, atol=1e-4, rtol=1e-4)
    whole.backward()
    # The predictor follows the attention. Were the decoder trained by this too, the attention would follow the
    # predictor: a position that is always the same, and attention to it alone, have no loss.
    for name, parameter in m.named_parameters():
        if "attention.position" in name:
            assert parameter.grad.abs().max() > 1e-6
        else:
            assert parameter.grad is None or not parameter.grad.any(), name


def test_attention_that_predicts_no_position_is_not_guided():
    with pytest.raises(SyntaxDataError) as refusal:
        build("local-p", guided_updates=5, local_attention="monotonic")
    assert refusal.value.option == "--guided-updates"

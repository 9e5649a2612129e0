"""Small LSTM models, batches of random lines for them, and what every system among them must do."""

import io
import random
from argparse import Namespace

import torch
import torch.nn.functional as F
from data_errors import data_error
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, MODEL_REGISTRY
from random_parses import EOS, PAD, Line, flat, pad, random_line
from tiny_syntax import LABELS

import fairseq_syntax  # noqa: F401  (registers the architectures)

SIZES = {
    "encoder_embed_dim": 12,
    "decoder_embed_dim": 12,
    "encoder_hidden_size": 8,
    "decoder_hidden_size": 10,
    "decoder_out_embed_dim": 14,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_bidirectional": True,
}


def dictionary(symbols: int = 16) -> Dictionary:
    d = Dictionary()
    for i in range(symbols):
        d.add_symbol(f"w{i}")
    return d


def model(arch: str, scale: float = 5, **options):
    """A model in evaluation mode, its weights drawn wide enough that nothing is nearly uniform."""
    args = Namespace(arch=arch, criterion="cross_entropy", **{**SIZES, **options})
    ARCH_CONFIG_REGISTRY[arch](args)
    d = dictionary()
    torch.manual_seed(3)
    task = Namespace(source_dictionary=d, target_dictionary=d, labels=lambda side: LABELS)
    m = MODEL_REGISTRY[arch].build_model(args, task)
    with torch.no_grad():
        for p in m.parameters():
            p.mul_(scale)
    return m.eval()


def lines(seed: int, count: int = 5, **sizes) -> list[Line]:
    rng = random.Random(seed)
    return [random_line(rng, **sizes) for _ in range(count)]


def empty_line() -> Line:
    return Line([], [], [], [EOS])


def net_input(batch: list[Line], left: bool = True, targets: int = 7) -> dict:
    """What a model's forward takes; the target of a line depends on the line alone."""
    prev = []
    for line in batch:
        rng = random.Random(str(line.tokens))
        prev.append([EOS] + [rng.randrange(4, 20) for _ in range(targets - 1)])
    return {
        "src_tokens": pad(batch, left),
        "src_lengths": torch.tensor([len(l.tokens) for l in batch]),
        "prev_output_tokens": torch.tensor(prev),
        "src_syntax": flat(batch),
    }


def check_same_in_any_batch(m) -> None:
    """Each line alone gives the same logits and attention as in a batch, padded left or right."""
    batch = [*lines(4), empty_line(), *lines(5, count=2, max_words=12)]
    with torch.no_grad():
        for left in (True, False):
            logits, attention = m(**net_input(batch, left))
            for i, line in enumerate(batch):
                alone, alone_attention = m(**net_input([line], left))
                torch.testing.assert_close(logits[i], alone[0], atol=1e-5, rtol=1e-4)
                length = alone_attention.size(2)
                torch.testing.assert_close(attention[i, :, :length], alone_attention[0], atol=1e-5, rtol=1e-4)
                assert not attention[i, :, length:].any()


def check_search(m) -> None:
    """Beam search over a batch finds what it finds for each line alone, with the scores of one full pass."""
    from fairseq.sequence_generator import SequenceGenerator

    batch = [*lines(6, count=6), empty_line()]
    generator = SequenceGenerator([m], m.decoder.dictionary, beam_size=3, max_len_b=8)

    def search(some):
        inputs = {k: v for k, v in net_input(some).items() if k != "prev_output_tokens"}
        return generator.generate([m], {"net_input": inputs})

    for line, actual in zip(batch, search(batch)):
        (alone,) = search([line])
        assert [h["tokens"].tolist() for h in actual] == [h["tokens"].tolist() for h in alone]
        for hypothesis in actual:
            tokens = hypothesis["tokens"]
            inputs = net_input([line])
            inputs["prev_output_tokens"] = torch.cat((torch.tensor([EOS]), tokens[:-1]))[None]
            with torch.no_grad():
                logits = m(**inputs)[0][0]
            # the search never takes the padding symbol, and renormalises nothing
            expected = logits.log_softmax(1)[torch.arange(len(tokens)), tokens]
            torch.testing.assert_close(hypothesis["positional_scores"], expected, atol=1e-5, rtol=1e-4)


def check_half_precision(arch: str, **options) -> None:
    """Whole in half precision as --fp16 has it, and under autocast as --amp has it: near float32, with gradients."""
    batch = [*lines(4), empty_line()]
    expected = model(arch, scale=1, **options)(**net_input(batch))[0]
    for dtype in (torch.bfloat16, torch.float16):
        whole, mixed = model(arch, scale=1, **options).to(dtype), model(arch, scale=1, **options)
        with torch.autocast("cpu", dtype=dtype):
            under_autocast = mixed(**net_input(batch))[0]
        for m, logits in ((whole, whole(**net_input(batch))[0]), (mixed, under_autocast)):
            assert logits.dtype == dtype
            torch.testing.assert_close(logits.float(), expected, atol=5e-3, rtol=1e-2)
            (logits.float() * torch.randn(logits.shape)).sum().backward()
            for name, p in m.named_parameters():
                assert p.grad is not None and torch.isfinite(p.grad).all(), name


def check_the_parse_matters(arch: str, **options) -> None:
    """It does after saving and loading too, every parameter is trained, and without it there is an error."""
    m, loaded = model(arch, **options), model(arch, **options)
    buffer = io.BytesIO()
    torch.save(m.state_dict(), buffer)
    buffer.seek(0)
    with torch.no_grad():
        for p in loaded.parameters():
            p.zero_()
    loaded.load_state_dict(torch.load(buffer))
    line = Line([1] * 5, [2, 2, 2, 2, 2], [(1, 1, 1)] * 5, [5, 6, 7, 8, 9, EOS])
    other = Line(line.pieces, [4, 4, 4, 4, 4], line.labels, line.tokens)
    logits = loaded(**net_input([line]))[0]
    torch.testing.assert_close(logits, m(**net_input([line]))[0])
    assert (logits - m(**net_input([other]))[0]).abs().max() > 1e-3

    inputs = net_input(lines(9, count=12))
    F.cross_entropy(loaded(**inputs)[0].flatten(0, 1), inputs["prev_output_tokens"].flatten()).backward()
    for name, p in loaded.named_parameters():
        assert p.grad is not None and p.grad.any(), name

    inputs.pop("src_syntax")
    with data_error(option="--task"):
        loaded(**inputs)

    # Processes that share a batch wait for the gradient of every parameter, whatever is in their part of it.
    for batch in ([empty_line()] * 2, lines(3, count=2, max_words=1, max_sentences=1)):
        m = model(arch, **options)
        m(**net_input(batch))[0].sum().backward()
        assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in m.parameters())


__all__ = [
    "EOS",
    "PAD",
    "check_half_precision",
    "check_same_in_any_batch",
    "check_search",
    "check_the_parse_matters",
    "dictionary",
    "empty_line",
    "lines",
    "model",
    "net_input",
]

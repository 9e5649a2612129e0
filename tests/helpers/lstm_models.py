"""Small LSTM models and batches of random lines for them."""

import random
from argparse import Namespace

import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, MODEL_REGISTRY
from random_parses import EOS, PAD, Line, flat, pad, random_line

import fairseq_syntax.systems.dlaa
import fairseq_syntax.systems.local_attention
import fairseq_syntax.systems.sdrnmt  # noqa: F401

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


def model(arch: str, **options):
    """A model in evaluation mode, its weights drawn wide enough that nothing is nearly uniform."""
    args = Namespace(arch=arch, criterion="cross_entropy", **{**SIZES, **options})
    ARCH_CONFIG_REGISTRY[arch](args)
    d = dictionary()
    torch.manual_seed(3)
    m = MODEL_REGISTRY[arch].build_model(args, Namespace(source_dictionary=d, target_dictionary=d))
    with torch.no_grad():
        for p in m.parameters():
            p.mul_(5)
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


def check_same_in_any_batch(m, batch: list[Line]) -> None:
    """Each line alone gives the same logits and attention as in the batch, padded left or right."""
    with torch.no_grad():
        for left in (True, False):
            logits, attention = m(**net_input(batch, left))
            for i, line in enumerate(batch):
                alone, alone_attention = m(**net_input([line], left))
                torch.testing.assert_close(logits[i], alone[0], atol=1e-5, rtol=1e-4)
                own = alone_attention.size(2)
                torch.testing.assert_close(attention[i, :, :own], alone_attention[0], atol=1e-5, rtol=1e-4)
                assert not attention[i, :, own:].any()


def check_search(m, batch: list[Line], beam: int = 3) -> None:
    """Beam search over the batch finds what it finds for each line alone, with the scores of one full pass."""
    from fairseq.sequence_generator import SequenceGenerator

    generator = SequenceGenerator([m], m.decoder.dictionary, beam_size=beam, max_len_b=8)

    def search(some):
        inputs = {k: v for k, v in net_input(some).items() if k != "prev_output_tokens"}
        return generator.generate([m], {"net_input": inputs})

    for line, found in zip(batch, search(batch)):
        (alone,) = search([line])
        assert [h["tokens"].tolist() for h in found] == [h["tokens"].tolist() for h in alone]
        for hypothesis in found:
            tokens = hypothesis["tokens"]
            inputs = net_input([line])
            inputs["prev_output_tokens"] = torch.cat((torch.tensor([EOS]), tokens[:-1]))[None]
            with torch.no_grad():
                logits = m(**inputs)[0][0]
            # the search never takes the padding symbol, and renormalises nothing
            expected = logits.log_softmax(1)[torch.arange(len(tokens)), tokens]
            torch.testing.assert_close(hypothesis["positional_scores"], expected, atol=1e-5, rtol=1e-4)


__all__ = [
    "EOS",
    "PAD",
    "check_same_in_any_batch",
    "check_search",
    "dictionary",
    "empty_line",
    "lines",
    "model",
    "net_input",
]

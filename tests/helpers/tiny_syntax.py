"""Tiny Transformers of any architecture of this package, without a data directory."""

from argparse import Namespace
from types import SimpleNamespace

import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from random_parses import Line, flat, pad

import fairseq_syntax  # noqa: F401  (registers the architectures)

LABELS = {"deprel": ["<unk>", "a", "b", "c", "d"], "upos": ["<unk>", "N", "V", "D"], "xpos": ["<unk>", "n", "v"]}


def dictionary(size: int = 20) -> Dictionary:
    words = Dictionary()  # <s> 0, <pad> 1, </s> 2, <unk> 3
    for i in range(4, size):
        words.add_symbol(f"w{i}")
    return words


def tiny_task() -> SimpleNamespace:
    words = dictionary()
    return SimpleNamespace(
        source_dictionary=words,
        target_dictionary=words,
        labels=lambda side: LABELS,
        segmenter=lambda side: None,
        cfg=SimpleNamespace(parse_dropout=0.0),
    )


def tiny_model(arch: str, seed: int = 0, **options):
    """A model of two layers of four heads of four, without dropout."""
    args = Namespace(
        **{
            "encoder_layers": 2,
            "decoder_layers": 1,
            "encoder_embed_dim": 16,
            "encoder_ffn_embed_dim": 20,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "dropout": 0.0,
            "attention_dropout": 0.0,
            **options,
        }
    )
    ARCH_CONFIG_REGISTRY[arch](args)
    torch.manual_seed(seed)
    return ARCH_MODEL_REGISTRY[arch].build_model(args, tiny_task())


def sample(lines: list[Line], left: bool, syntax: bool = True, target_length: int = 4) -> dict:
    """fairseq's batch: the sources given, and targets that depend on the source alone."""
    targets = [[4 + (sum(line.tokens) + 3 * i) % 16 for i in range(target_length)] + [2] for line in lines]
    target = torch.tensor(targets)
    net_input = {
        "src_tokens": pad(lines, left),
        "src_lengths": torch.tensor([len(line.tokens) for line in lines]),
        "prev_output_tokens": torch.cat([target[:, -1:], target[:, :-1]], dim=1),
    }
    if syntax:
        net_input["src_syntax"] = flat(lines)
    return {"net_input": net_input, "target": target, "ntokens": target.numel(), "id": torch.arange(len(lines))}


def encode(model, lines: list[Line], left: bool, syntax: bool = True) -> list[torch.Tensor]:
    """The encoder's states of each line [pieces + 1, C], without padding."""
    given = sample(lines, left, syntax)["net_input"]
    out = model.encoder(given["src_tokens"], given["src_lengths"], given.get("src_syntax"))
    padding = out["encoder_padding_mask"][0]
    return [out["encoder_out"][0][~padding[b], b] for b in range(len(lines))]


def check_same_in_any_batch(model, lines: list[Line], syntax: bool = True) -> None:
    """The states of a line are those that it has alone, with padding on either side."""
    with torch.no_grad():
        alone = [encode(model, [line], False, syntax)[0] for line in lines]
        for left in (False, True):
            for one, other in zip(alone, encode(model, lines, left, syntax)):
                torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)

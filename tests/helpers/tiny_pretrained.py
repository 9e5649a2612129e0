"""Tiny translation models of transformers with random weights and real tokenizers, as ``save_pretrained`` writes them.

All parameters differ from their initial values, also biases, norms and learned positions.
"""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import binarized
import torch

from fairseq_syntax.use.hugging_face import import_transformers

SIZES = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "max_position_embeddings": 40}
SIZES |= {
    f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in (("attention_heads", 4), ("ffn_dim", 48))
}
SPECIAL = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}  # of the families that come from fairseq
# Added to the logit of </s>, so that translations of random sentences have many lengths.
END = {
    "marian": 4.0,
    "separate": 4.5,
    "tags": 4.0,
    "m2m100": 13.0,
    "nllb": 16.0,
    "legacy": 16.0,
    "mbart": 20.0,
    "mbart50": 8.0,
    "fsmt": 6.0,
}

SEED = {"nllb": 3, "legacy": 3, "fsmt": 2}  # of parameters with which translations differ


def text() -> list[str]:
    """Sentences of random words, and of the words of :mod:`binarized`."""
    draw = random.Random(1)
    words = [*binarized.DE, *binarized.DE.values()]
    words += ["".join(draw.choices("abcdefghijklmnop", k=draw.randint(1, 7))) for _ in range(60)]
    return [" ".join(draw.choices(words, k=8)) for _ in range(300)]


def pieces(path: Path, kind: str = "unigram", size: int = 120) -> list[str]:
    """Train a SentencePiece model, which is written to ``path``; returns its pieces without the special ones."""
    import sentencepiece

    with path.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(text()), model_writer=file, vocab_size=size, model_type=kind, minloglevel=2,
            hard_vocab_limit=False,
        )  # fmt: skip
    model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    ids = range(model.get_piece_size())
    return [model.id_to_piece(i) for i in ids if not (model.is_control(i) or model.is_unknown(i))]


@torch.no_grad()
def save(model: Any, folder: Path, **search: Any) -> None:
    """Draw every parameter and the bias of logits, and save the model with the options of its search."""
    # Smaller for FSMT, which has no other type than float32: its logits are smaller, too.
    config, spread = model.config, 0.3 if model.config.model_type in ("marian", "fsmt") else 0.6
    torch.manual_seed(SEED.get(folder.name, 1))
    for name, parameter in model.named_parameters():
        if "embed_positions" in name and config.model_type != "mbart":  # sinusoids
            continue
        parameter.uniform_(0.5, 1.5) if name.endswith("norm.weight") else parameter.normal_(std=spread)
    if "final_logits_bias" in dict(model.named_buffers()):
        model.final_logits_bias.normal_()
        if config.model_type == "mbart":  # a trained model does not produce language tokens
            model.final_logits_bias[:, -60:] -= 20
    norms = [m for n, m in model.named_modules() if "decoder" in n and isinstance(m, torch.nn.LayerNorm)]
    row = (getattr(model, "lm_head", None) or model.model.decoder.output_projection).weight[config.eos_token_id]
    norms[-1].bias += END[folder.name] * row / row.square().sum()  # since not all models have a bias on the logits
    ids = {name: getattr(config, name) for name in SPECIAL if getattr(config, name) is not None}
    ids["decoder_start_token_id"] = config.decoder_start_token_id
    model.generation_config = import_transformers().GenerationConfig(num_beams=5, max_length=30, **ids, **search)
    model.save_pretrained(folder)


def marian(folder: Path) -> None:
    """Marian (OPUS-MT): ``</s>`` and ``<unk>`` first, and last ``<pad>``, which begins translations.

    ``separate``: two vocabularies; ``tags``: two target languages, which a tag before the source chooses.
    """
    hf = import_transformers()
    separate = folder.name == "separate"
    sides = [pieces(folder / f"{side}.spm", size=size) for side, size in (("source", 120), ("target", 100))]
    source, target = sides
    # Both sides must have the same id of <pad>.
    vocabularies = [source[: len(target)], target] if separate else [list(dict.fromkeys(source + target))]
    if folder.name == "tags":
        vocabularies[0] += [">>deu<<", ">>fra<<"]
    names = ["vocab.json", "target_vocab.json"]
    for name, symbols in zip(names, vocabularies):
        numbered = {symbol: i for i, symbol in enumerate(["</s>", "<unk>", *symbols, "<pad>"])}
        (folder / name).write_text(json.dumps(numbered, ensure_ascii=False), encoding="utf-8")
    hf.MarianTokenizer(
        *(str(folder / name) for name in ("source.spm", "target.spm", "vocab.json")),
        target_vocab_file=str(folder / names[1]) if separate else None,
        separate_vocabs=separate, source_lang="en", target_lang="de",
    ).save_pretrained(folder)  # fmt: skip
    size = len(vocabularies[0]) + 3
    config = hf.MarianConfig(
        vocab_size=size, decoder_vocab_size=size, share_encoder_decoder_embeddings=not separate,
        pad_token_id=size - 1, decoder_start_token_id=size - 1, eos_token_id=0, bos_token_id=None,
        activation_function="swish", scale_embedding=True, **SIZES,
    )  # fmt: skip
    save(hf.MarianMTModel(config), folder, bad_words_ids=[[size - 1]], forced_eos_token_id=0)


def m2m100(folder: Path) -> None:
    """M2M-100: ids of its own in vocab.json, then the language tokens and eight rows without a symbol."""
    hf = import_transformers()
    symbols = ["<s>", "<pad>", "</s>", "<unk>", *pieces(folder / "sentencepiece.bpe.model", "bpe")]
    numbered = {symbol: i for i, symbol in enumerate(symbols)}
    (folder / "vocab.json").write_text(json.dumps(numbered, ensure_ascii=False), encoding="utf-8")
    files = (str(folder / name) for name in ("vocab.json", "sentencepiece.bpe.model"))
    tokenizer = hf.M2M100Tokenizer(*files, src_lang="en", tgt_lang="de")
    tokenizer.save_pretrained(folder)
    _save_m2m100(folder, max(tokenizer.lang_token_to_id.values()) + 9, tokenizer.get_lang_id("de"))


def nllb(folder: Path) -> None:
    """NLLB-200: M2M-100's model with SentencePiece's ids + 1; ``legacy``: the language token follows ``</s>``."""
    hf = import_transformers()
    of_text = pieces(folder / "sentencepiece.bpe.model", "bpe")
    languages = ["deu_Latn", "eng_Latn", "fra_Latn"]
    symbols = ["<s>", "<pad>", "</s>", "<unk>", *of_text, *languages, "<mask>"]
    vocabulary = {symbol: i for i, symbol in enumerate(symbols)}
    merges = [(p[:k], p[k:]) for p in of_text for k in range(1, len(p)) if {p[:k], p[k:]} <= vocabulary.keys()]
    tokenizer = hf.NllbTokenizer(
        vocab=vocabulary, merges=merges, extra_special_tokens=languages, src_lang="eng_Latn", tgt_lang="deu_Latn",
        legacy_behaviour=folder.name == "legacy",
    )  # fmt: skip
    tokenizer.save_pretrained(folder)
    _save_m2m100(folder, len(tokenizer) + 2, tokenizer.convert_tokens_to_ids("deu_Latn"))


def _save_m2m100(folder: Path, size: int, first: int) -> None:
    hf = import_transformers()
    config = hf.M2M100Config(
        vocab_size=size, activation_function="relu", decoder_start_token_id=2, scale_embedding=True, **SIZES, **SPECIAL
    )
    save(hf.M2M100ForConditionalGeneration(config), folder, forced_bos_token_id=first)


def mbart(folder: Path) -> None:
    """mBART-25, which begins with the target language; mBART-50, which begins with ``</s>`` and forces it first."""
    hf, fifty = import_transformers(), folder.name == "mbart50"
    pieces(folder / "sentencepiece.bpe.model")
    cls = hf.MBart50Tokenizer if fifty else hf.MBartTokenizer
    tokenizer = cls.from_pretrained(folder, src_lang="en_XX", tgt_lang="de_DE")
    tokenizer.save_pretrained(folder)
    language = tokenizer.convert_tokens_to_ids("de_DE")
    config = hf.MBartConfig(
        vocab_size=len(tokenizer), activation_function="gelu", scale_embedding=False,
        decoder_start_token_id=2 if fifty else language, **SIZES, **SPECIAL,
    )  # fmt: skip
    forced = {"forced_bos_token_id": language} if fifty else {}
    save(hf.MBartForConditionalGeneration(config), folder, forced_eos_token_id=2, **forced)


def fsmt(folder: Path) -> None:
    """FSMT (WMT19): two vocabularies of Moses' tokens cut by fastBPE, in which ``</w>`` ends a word."""
    from subword_nmt.learn_bpe import learn_bpe

    hf = import_transformers()
    codes = io.StringIO()
    learn_bpe(text(), codes, 60)
    merges = codes.getvalue().splitlines()[1:]
    (folder / "merges.txt").write_text("".join(f"{merge} 7\n" for merge in merges), encoding="utf-8")
    characters = sorted(set("".join(text())) - {" "})
    symbols = [c + end for end in ("", "</w>") for c in characters]
    symbols = list(dict.fromkeys([*symbols, *(merge.replace(" ", "") for merge in merges)]))
    sizes = {}
    for side, of_side in (("src", symbols), ("tgt", symbols[:-9])):
        numbered = {symbol: i for i, symbol in enumerate(["<s>", "<pad>", "</s>", "<unk>", *of_side])}
        sizes[f"{side}_vocab_size"] = len(numbered)
        (folder / f"vocab-{side}.json").write_text(json.dumps(numbered, ensure_ascii=False), encoding="utf-8")
    files = {"src_vocab_file": "vocab-src.json", "tgt_vocab_file": "vocab-tgt.json", "merges_file": "merges.txt"}
    paths = {name: str(folder / file) for name, file in files.items()}
    hf.FSMTTokenizer(langs=["en", "de"], **paths).save_pretrained(folder)
    config = hf.FSMTConfig(
        langs=["en", "de"], **sizes, decoder_start_token_id=2, scale_embedding=True, tie_word_embeddings=False,
        **SIZES, **SPECIAL,
    )  # fmt: skip
    save(hf.FSMTForConditionalGeneration(config), folder, forced_eos_token_id=2)


FAMILIES: dict[str, Callable[[Path], None]] = {
    "marian": marian,
    "separate": marian,
    "tags": marian,
    "m2m100": m2m100,
    "nllb": nllb,
    "legacy": nllb,
    "mbart": mbart,
    "mbart50": mbart,
    "fsmt": fsmt,
}


def make(family: str, folder: Path) -> Path:
    """A model of a family of :data:`FAMILIES`, in a new folder of its name."""
    (folder / family).mkdir()
    FAMILIES[family](folder / family)
    return folder / family

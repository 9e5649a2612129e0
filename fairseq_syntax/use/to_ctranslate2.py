"""Export to CTranslate2 by its converter for fairseq models.

To the converter, the architecture is ``transformer``. Label embeddings (:mod:`.sennrich_haddow`), which occupy the last
dimensions of a piece's embedding, become concatenated source factors.
"""

from __future__ import annotations

import copy
import os
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_syntax.errors import SyntaxDataError, imports_of
from fairseq_syntax.model.pretrained import PretrainedConfig
from fairseq_syntax.systems.sennrich_haddow import LabelEmbedding
from fairseq_syntax.use.exported import FACTOR_MARK, factored, target_prefix, with_source_language
from fairseq_syntax.use.plain import DISTIL, TrainedModel, acting_parts, check_equal, plain_options

TO_FAIRSEQ = f"--to fairseq; or {DISTIL}"


def write(loaded: TrainedModel, folder: Path, quantization: str | None = None) -> list[str]:
    """Write a CTranslate2 model, and return the columns of the parse that it reads as source factors.

    Raises:
        SyntaxDataError: CTranslate2 is not installed or does not support the model
    """
    with imports_of("export"):
        from ctranslate2.converters.converter import Converter
    embedding, columns = _label_embedding(loaded.model), []
    if embedding is None:
        model, options = loaded.plain(pretrained=True)
    else:
        model, options = loaded.model, plain_options("transformer", loaded.options)
        columns = list(embedding.embeddings)

    class Converted(Converter):
        def _load(self):  # quantization changes it in place
            return _specification(model, options, loaded, embedding)

    try:
        Converted().convert(os.fspath(folder), force=True)  # before quantization, which would hide a difference
    except SyntaxDataError:  # a SyntaxDataError is a ValueError too
        raise
    except (ValueError, AttributeError) as error:  # an option, a part or weights that only one of the two has
        raise SyntaxDataError(f"CTranslate2 cannot take this model: {error}", hint=TO_FAIRSEQ) from None
    _check_scores(loaded, folder, columns)
    if quantization is not None:
        Converted().convert(os.fspath(folder), quantization=quantization, force=True)
    return columns


def _label_embedding(model: Any) -> LabelEmbedding | None:
    """The label embeddings of a model, if they are the only system that acts at inference."""
    systems = getattr(model.encoder, "systems", {}).values()
    embedding = next((system for system in systems if isinstance(system, LabelEmbedding)), None)
    if embedding is not None and (others := acting_parts(model, besides=embedding)):
        raise SyntaxDataError(f"{' and '.join(others)} has no counterpart in CTranslate2", hint=DISTIL)
    return embedding


@torch.no_grad()
def _specification(
    model: Any, options: Mapping[str, Any], loaded: TrainedModel, embedding: LabelEmbedding | None
) -> Any:
    """The model as a CTranslate2 specification; ValueError or AttributeError if it has no counterpart."""
    from ctranslate2.converters import fairseq as converter
    from ctranslate2.specs.common_spec import EmbeddingsSpec

    task, head = loaded.task, loaded.head
    # The alignment head becomes the first head below, and the mean over that one head is used.
    heads = head.heads if head.head is None else 1
    args = Namespace(**{**options, "alignment_layer": head.layer, "alignment_heads": heads})
    if loaded.pretrained:
        args.arch = "transformer"  # what it has besides are values of the specification
    if options.get("no_cross_attention"):
        raise ValueError("Option --no-cross-attention is not supported")
    spec = converter._get_model_spec(args)  # this checks most options, and the scores tell of the others
    if embedding is not None:
        spec.encoder.embeddings += [EmbeddingsSpec() for _ in embedding.embeddings]
    # a copy, since the arrays are the parameters, which are quantized and permuted in place
    model = copy.deepcopy(model)
    if head.head is not None:
        move_to_front(model.decoder.layers[head.layer].encoder_attn, head.head)
    converter.set_transformer_encoder(spec.encoder, model.encoder)
    converter.set_transformer_decoder(spec.decoder, model.decoder)
    spec.register_source_vocabulary(converter._get_vocab(task.source_dictionary))
    if embedding is not None:
        if marked := [s for s in task.source_dictionary.symbols if FACTOR_MARK in s]:
            raise SyntaxDataError(f"the piece {marked[0]!r} contains {FACTOR_MARK}, which marks factors in CTranslate2")
        spec.encoder.embeddings[0].weight = model.encoder.embed_tokens.weight[:, : embedding.kept].numpy()
        tables: list[tuple[str, Any]] = list(embedding.embeddings.items())
        for place, (column, labels) in zip(spec.encoder.embeddings[1:], tables):
            # </s> has the embedding of "no label", and CTranslate2 expects its special symbols at the end.
            none = labels.weight[:1]
            place.weight = torch.cat([labels.weight, none, none, none]).numpy()
            spec.register_source_vocabulary([*task.labels("source")[column], "<blank>", "<s>", "</s>"])
    spec.register_target_vocabulary(converter._get_vocab(task.target_dictionary))
    # fairseq begins translations and ends sources with </s>; Marian begins with padding's embedding.
    start = PretrainedConfig(**loaded.pretrained).start_token
    spec.config.decoder_start_token = "<blank>" if start == "<pad>" else start or spec.config.eos_token
    spec.config.add_source_eos = not loaded.pretrained.get("source_language_last")
    return spec


@torch.no_grad()
def move_to_front(attention: Any, head: int) -> None:
    """Permute an attention's heads so that ``head`` becomes the first, whose weights CTranslate2 returns.

    The attention's output does not change.
    """
    order = [head, *(h for h in range(attention.num_heads) if h != head)]
    rows = torch.arange(attention.embed_dim).view(attention.num_heads, -1)[order].flatten()
    for projection in (attention.q_proj, attention.k_proj, attention.v_proj):
        projection.weight.copy_(projection.weight[rows].clone())
        if projection.bias is not None:
            projection.bias.copy_(projection.bias[rows].clone())
    attention.out_proj.weight.copy_(attention.out_proj.weight[:, rows].clone())


def _check_scores(loaded: TrainedModel, folder: Path, columns: list[str]) -> None:
    """Compare CTranslate2's log-probabilities in float32 with the model's."""
    import ctranslate2

    task = loaded.task
    source, target = task.source_dictionary, task.target_dictionary
    translator = ctranslate2.Translator(os.fspath(folder), device="cpu", intra_threads=1)

    def scores_of(batch: dict[str, Any], targets: Tensor) -> Tensor:
        lengths = (batch["src_lengths"] - 1).tolist()
        labels = [(task.labels("source")[c], getattr(batch["src_syntax"], c).split(lengths)) for c in columns]
        sources = []
        for number, (row, length) in enumerate(zip(batch["src_tokens"], lengths)):
            factors = [[names[i] for i in of_rows[number].tolist()] for names, of_rows in labels]
            # Without padding and </s>, which CTranslate2 adds on both sides.
            pieces = factored([source[i] for i in row[-1 - length : -1].tolist()], factors)
            sources.append(with_source_language(pieces, loaded.pretrained))
        prefix = target_prefix(loaded.pretrained)
        given = [prefix + [target[i] for i in row[:-1].tolist()] for row in targets]
        return torch.tensor([result.log_probs[len(prefix) :] for result in translator.score_batch(sources, given)])

    check_equal(loaded.model, scores_of, task, "CTranslate2", columns)

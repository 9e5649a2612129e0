"""Linguistic input features: label embeddings replace the last dimensions of the token embedding.

Sennrich and Haddow (2016), Linguistic Input Features Improve Neural Machine Translation, in the setting of Bugliarello
and Okazaki (2020), appendix A: an embedding of the word's dependency label replaces the last 10 dimensions.
"""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fairseq_syntax.data.labels import COLUMNS
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.model.encoder import EncoderSystem, register_encoder_system, remember_labels
from fairseq_syntax.model.heads import Step
from fairseq_syntax.model.options import SystemConfig, option
from fairseq_syntax.model.task import SyntaxTask
from fairseq_syntax.model.transformer import register_presets


@dataclass
class LabelEmbeddingConfig(SystemConfig):
    label_features: str = option(
        "deprel:10", f"comma-separated COLUMN:DIMENSIONS, with the columns {', '.join(COLUMNS)}"
    )


@register_encoder_system("sennrich_haddow")
class LabelEmbedding(EncoderSystem):
    """Embeddings of labels that replace the last dimensions of the token embedding.

    Label 0 (no label, or one that did not occur in training) has its own embedding, which ``</s>`` uses too.
    """

    config = LabelEmbeddingConfig
    training_needs = inference_needs = frozenset({"tree"})

    def __init__(self, options: LabelEmbeddingConfig, args: Namespace, task: SyntaxTask) -> None:
        super().__init__(options, args, task)
        features, embed_dim = parse_features(options.label_features), args.encoder_embed_dim
        sizes = {column: len(remember_labels(args, task, column)) for column in features}
        self.kept = embed_dim - sum(features.values())
        if self.kept < 0 or min(features.values()) < 1:
            message = f"at least one dimension each, and together at most the token embedding's {embed_dim}"
            raise SyntaxDataError(message, option="--label-features")
        self.embeddings = nn.ModuleDict({c: nn.Embedding(sizes[c], d) for c, d in features.items()})
        for weight in self.embeddings.parameters():
            # initialized like the token embedding that they replace
            nn.init.normal_(weight, std=embed_dim**-0.5)

    def embed(self, x: Tensor, step: Step) -> Tensor:
        parts = [embedding(getattr(step.parse, column)) for column, embedding in self.embeddings.items()]
        return torch.cat([x[..., : self.kept], *(part.to(x.dtype) for part in parts)], dim=-1)


def parse_features(text: str) -> dict[str, int]:
    """Parse ``deprel:10,upos:4`` into the dimensions of each column."""
    features: dict[str, int] = {}
    for item in text.split(","):
        column, colon, dimensions = (part.strip() for part in item.partition(":"))
        if column not in COLUMNS or column in features or not colon or not dimensions.isdecimal():
            raise SyntaxDataError(
                f"{item!r} is not COLUMN:DIMENSIONS, or occurs twice",
                option="--label-features",
                hint=f"columns are {', '.join(COLUMNS)}, as in deprel:10,upos:4",
            )
        features[column] = int(dimensions)
    return features


register_presets("sennrich_haddow_transformer", encoder_syntax="sennrich_haddow")

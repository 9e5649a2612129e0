"""LaSyn (Yang, Liu, Xie, Wang and Balasubramanian, EMNLP 2019): latent part-of-speech sequences of the target.

A Transformer whose decoder predicts, from its output h_n at each position,

    P(z_n | x, y<n)      = softmax(W_z h_n)                 the latent value: a tag
    P(y_n | z_n, x, y<n) = softmax(W (h_n + e_z))           the word, given the tag
    P(y_n, z_n | x, y<n) = P(y_n | z_n) P(z_n)              (2)

The tags of different positions are independent given the words, so they are summed out position by position (5).
Training is expectation maximization (8 to 11) with a cross entropy of P(z) towards the tags (12), and K optimizer steps
per batch (Algorithm 1). :mod:`.softmax` computes the sums over words and tags at the cost of one softmax,
:mod:`fairseq_syntax.data.epochs` repeats batches K times, and :mod:`.search` is the search.
"""

# No postponed annotations here: fairseq makes options out of the configuration's types, which must not be strings.

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from fairseq.models.transformer import TransformerConfig
from torch import Tensor, nn

from fairseq_syntax.data.batch import SyntaxBatch
from fairseq_syntax.data.labels import labels_path
from fairseq_syntax.data.packing import BatchSyntax
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.model.decoder import DecoderSystem, SyntaxTransformerDecoder, register_decoder_system
from fairseq_syntax.model.options import REMEMBERED_NAMES, SystemConfig, option
from fairseq_syntax.model.task import SyntaxTask
from fairseq_syntax.model.transformer import register_presets
from fairseq_syntax.systems.lasyn.softmax import LN2, TagTables, log_marginal, search_scores, tag_tables

END = "</s>"  # the name of value 0, which belongs to </s>; label i of the inventory is value i
SEARCHES = ("marginal", "joint", "template")  # --tag-search
UNKNOWN = -1  # for a position whose latent value the parse does not give

# ----------------------------------------------------------------------------------- 2.1 model: the hybrid decoder


class LaSynDecoder(SyntaxTransformerDecoder):
    """A Transformer decoder with a latent value per position.

    Its output is the log-probability of words with the latent values summed out (5), so all criteria, scorers, samplers
    and ensembles of fairseq work with it.

    Attributes:
        latent_names: the names of the latent values
        tags: ``upos`` or ``xpos``, the label column of the values; None for values without a column
    """

    def __init__(
        self, cfg: TransformerConfig, dictionary: Any, embed_tokens: nn.Embedding, systems: Mapping[str, Any]
    ) -> None:
        if cfg.adaptive_softmax_cutoff is not None:
            raise SyntaxDataError("--adaptive-softmax-cutoff: lasyn has one output layer for all words")
        super().__init__(cfg, dictionary, embed_tokens, systems)
        lasyn: LaSyn = systems["lasyn"]
        self.latent_names, self.tags = lasyn.latent_names, lasyn.tags
        self.num_updates = 0
        size, values = self.output_embed_dim, len(self.latent_names)
        self.tag_projection = nn.Linear(size, values, bias=False)  # W_z
        self.tag_embedding = nn.Embedding(values, size)  # e
        nn.init.normal_(self.tag_projection.weight, std=size**-0.5)
        nn.init.normal_(self.tag_embedding.weight, std=size**-0.5)

    def set_num_updates(self, num_updates: int) -> None:
        """Called by fairseq before each training step."""
        self.num_updates = num_updates

    def log_prior(self, hidden: Tensor) -> Tensor:
        """log P(z | x, y<n) [..., Z] in at least float32, from the decoder's output [..., C]."""
        logits = self.tag_projection(hidden)
        return torch.log_softmax(logits, dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))

    def tables(self) -> TagTables:
        """The tables of the output layer for a search, without gradient."""
        with torch.no_grad():
            return tag_tables(self.output_projection.weight, self.tag_embedding.weight)

    def scores(self, hidden: Tensor, tables: TagTables) -> tuple[Tensor, Tensor]:
        """:func:`.softmax.search_scores` at decoder outputs ``hidden`` [R, C]: ([R, V], [R, Z])."""
        # In base 2, as search_scores takes logits. Here there are C numbers to divide, and not V.
        return search_scores(self.output_projection(hidden / LN2), self.log_prior(hidden), tables)

    def conditional(self, hidden: Tensor, values: Tensor) -> Tensor:
        """log P(y | z) [R, V] in float32 for given values z [R] and decoder outputs ``hidden`` [R, C]."""
        return torch.log_softmax(self.output_projection(hidden + self.tag_embedding(values)).float(), dim=-1)

    def forward(self, prev_output_tokens, encoder_out=None, incremental_state=None, features_only=False, **kwargs):
        """As in fairseq. The first output is log P(y_n | x, y<n) [B, T, V], or h_n [B, T, C] with ``features_only``."""
        hidden, extra = super().forward(
            prev_output_tokens, encoder_out, incremental_state, features_only=True, **kwargs
        )
        if features_only:
            if self.training and torch.is_grad_enabled():
                # The criterion uses these parameters outside this call. They are returned so that DDP, when it looks
                # for unused parameters, does not take them for unused.
                weights = self.output_projection.weight, self.tag_embedding.weight, self.tag_projection.weight
                extra = {**extra, "output_weights": [weight.view_as(weight) for weight in weights]}
            return hidden, extra
        tables = None
        if incremental_state is not None:
            # The tables are the same in all steps of a search, so they are never reordered.
            tables = incremental_state.setdefault("lasyn", {}).get("tables") or self.tables()
            incremental_state["lasyn"]["tables"] = tables
        return self.output_layer(hidden, tables), extra

    def output_layer(self, features: Tensor, tables: TagTables | None = None) -> Tensor:
        """log P(y_n | x, y<n) [B, T, V] from decoder outputs [B, T, C]; differentiable if gradients are enabled."""
        hidden = features.flatten(0, -2)
        if torch.is_grad_enabled():
            weight = self.output_projection.weight
            logits, tag_logits = self.output_projection(hidden), self.tag_embedding.weight @ weight.t()
            wide = logits if logits.dtype == torch.float64 else logits.float()
            out = log_marginal(wide, tag_logits, self.log_prior(hidden))
        else:
            out, _ = self.scores(hidden, tables or self.tables())
        return out.view(*features.shape[:-1], -1)

    def target_values(self, target: Tensor, syntax: BatchSyntax) -> Tensor:
        """The latent value of each target piece according to the parse: its word's tag, or value 0 for ``</s>``.

        Both ``target``, whose sentences end in ``</s>``, and the values are [B, T] int64. A value is :data:`UNKNOWN`
        for padding and for tags that did not occur in training.
        """
        eos = self.dictionary.eos()
        # Label 0 is a missing label, or one that did not occur in training.
        label = getattr(SyntaxBatch(syntax, target, self.padding_idx), str(self.tags))
        return torch.where(label > 0, label, UNKNOWN).masked_fill(target.eq(eos), self.latent_names.index(END))


def is_latent(model: Any) -> bool:
    """Whether a model has latent values."""
    return isinstance(getattr(model, "decoder", None), LaSynDecoder)


def check_tags(decoder: LaSynDecoder, task: SyntaxTask) -> None:
    """Raise SyntaxDataError unless the tags of the data are those of the model."""
    if decoder.tags is None:
        raise SyntaxDataError(
            "the model's latent values have no names, so that no tag can be one of them",
            hint="train without --latent-values for tags; with it, --tag-weight is 0",
        )
    if [END, *task.labels("target")[decoder.tags][1:]] != decoder.latent_names:
        raise SyntaxDataError(
            f"the data has other {decoder.tags.upper()} tags than the model was trained with",
            path=labels_path(task.data_dir, task.cfg.target_lang),
            hint="binarize it with the training data's labels (--target-labels)",
        )


@dataclass
class LaSynConfig(SystemConfig):
    tags: str | None = option(None, "column of the target parse with the tags", "upos", choices=("upos", "xpos"))
    latent_values: int | None = option(
        None, "number of unnamed latent values, for training without tags (--tag-weight 0)", "", low=1, high=1000
    )


REMEMBERED_NAMES["latent_names"] = "target"


@register_decoder_system("lasyn")
class LaSyn(DecoderSystem):
    """The decoder's settings from options and data."""

    config = LaSynConfig
    criterion = "lasyn_em"

    def __init__(self, options: LaSynConfig, args: Namespace, task: SyntaxTask) -> None:
        super().__init__(options, args, task)
        if not getattr(args, "latent_names", None):  # otherwise from a checkpoint
            args.latent_names, args.tags = latent_names(options, task)
        self.latent_names: list[str] = list(args.latent_names)
        self.tags: str | None = args.tags

    def decoder(
        self, cfg: TransformerConfig, dictionary: Any, embed_tokens: nn.Embedding, systems: Mapping[str, Any]
    ) -> LaSynDecoder:
        return LaSynDecoder(cfg, dictionary, embed_tokens, systems)


def latent_names(options: LaSynConfig, task: SyntaxTask) -> tuple[list[str], str | None]:
    """The names of the latent values, and their label column; an error if the target's parse has no tags."""
    if options.latent_values is not None:
        return [str(i) for i in range(options.latent_values)], None
    tags = options.tags or "upos"
    labels = task.labels("target")[tags]
    if len(labels) < 2:
        raise SyntaxDataError(
            f"the target's parse has no {tags.upper()} tags",
            path=labels_path(task.data_dir, task.cfg.target_lang),
            hint="parse the target with a tagger and binarize again, choose the other column with --tags, "
            "or train without tags: --latent-values Z --tag-weight 0",
        )
    return [END, *labels[1:]], tags


register_presets("lasyn_transformer", decoder_syntax="lasyn")

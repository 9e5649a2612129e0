"""LaSyn (Yang, Liu, Xie, Wang and Balasubramanian, EMNLP 2019): latent part-of-speech sequences of the target.

A Transformer whose decoder predicts, from its output h_n at each position,

    P(z_n | x, y<n)      = softmax(W_z h_n)                 the latent value: a tag
    P(y_n | z_n, x, y<n) = softmax(W (h_n + e_z))           the word, given the tag
    P(y_n, z_n | x, y<n) = P(y_n | z_n) P(z_n)              (2)

The tags of different positions are independent given the words, so that they are summed out position by position (5).
Training is expectation maximisation (8 to 11) with a cross entropy of P(z) towards the tags (12), K optimizer steps
per batch (Algorithm 1). How the sums over words and tags cost one softmax is in :mod:`.softmax`, how a batch
comes K times in :mod:`.batches`, and search in :mod:`.search`.
"""

# No postponed annotations here: fairseq makes options out of the configuration's types, which must not be strings.

import math
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from fairseq import utils
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from fairseq.models.transformer import TransformerConfig
from omegaconf import II
from torch import Tensor, nn

from fairseq_syntax.data.batch import SyntaxBatch
from fairseq_syntax.data.labels import labels_path
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.model.decoder import DecoderSystem, SyntaxTransformerDecoder, register_decoder_system
from fairseq_syntax.model.losses import reduce_head_metrics, system_losses
from fairseq_syntax.model.options import SystemConfig, option
from fairseq_syntax.model.transformer import register_presets
from fairseq_syntax.systems.lasyn.softmax import TagTables, em_loss, log_marginal, search_scores, tag_tables

END = "</s>"  # the name of the latent value of </s>, which is value 0; label i of the inventory is value i
UNKNOWN = -1  # where a latent value is wanted and the parse has none

# ----------------------------------------------------------------------------------- 2.1 model: the hybrid decoder


class LaSynDecoder(SyntaxTransformerDecoder):
    """A Transformer decoder with a latent value per position.

    As a fairseq decoder its output is the log-probability of the words with the latent values summed out (5), so that
    every criterion, scorer, sampler and ensemble of fairseq runs on it.

    Args:
        cfg, dictionary, embed_tokens: as in fairseq
        latent_names: the names of the latent values
        tags: ``upos`` or ``xpos``, the label column that the values are taken from; None without a column
        systems: the decoder's systems by name
    """

    def __init__(
        self,
        cfg: TransformerConfig,
        dictionary: Any,
        embed_tokens: nn.Embedding,
        latent_names: Sequence[str],
        tags: str | None,
        systems: Mapping[str, DecoderSystem],
    ) -> None:
        if cfg.adaptive_softmax_cutoff is not None:
            raise SyntaxDataError("--adaptive-softmax-cutoff: lasyn has one output layer for all words")
        super().__init__(cfg, dictionary, embed_tokens, systems)
        self.latent_names, self.tags = list(latent_names), tags
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
        """log P(z | x, y<n) [..., Z], at least float32, of the decoder's output [..., C]."""
        logits = self.tag_projection(hidden)
        return torch.log_softmax(logits, dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))

    def tables(self) -> TagTables:
        """What a search needs of the output layer, without gradient."""
        with torch.no_grad():
            return tag_tables(self.output_projection.weight, self.tag_embedding.weight)

    def scores(self, hidden: Tensor, tables: TagTables) -> tuple[Tensor, Tensor]:
        """:func:`.softmax.search_scores` at decoder outputs ``hidden`` [R, C]: ([R, V], [R, Z])."""
        return search_scores(self.output_projection(hidden), self.log_prior(hidden), tables)

    def conditional(self, hidden: Tensor, values: Tensor) -> Tensor:
        """log P(y | z) [R, V] in float32 for given values z [R], at decoder outputs ``hidden`` [R, C]."""
        return torch.log_softmax(self.output_projection(hidden + self.tag_embedding(values)).float(), dim=-1)

    def forward(self, prev_output_tokens, encoder_out=None, incremental_state=None, features_only=False, **kwargs):
        """fairseq's; its first output is log P(y_n | x, y<n) [B, T, V], or h_n [B, T, C] if ``features_only``."""
        hidden, extra = super().forward(
            prev_output_tokens, encoder_out, incremental_state, features_only=True, **kwargs
        )
        if features_only:
            return hidden, extra
        tables = None
        if incremental_state is not None:
            # One set of tables for all steps of a search; nothing reorders it.
            tables = incremental_state.setdefault("lasyn", {}).get("tables") or self.tables()
            incremental_state["lasyn"]["tables"] = tables
        return self.output_layer(hidden, tables), extra

    def output_layer(self, features: Tensor, tables: TagTables | None = None) -> Tensor:
        """log P(y_n | x, y<n) [B, T, V] at decoder outputs [B, T, C]; with a gradient where gradients are enabled."""
        hidden = features.flatten(0, -2)
        if torch.is_grad_enabled():
            weight = self.output_projection.weight
            logits, tag_logits = self.output_projection(hidden), self.tag_embedding.weight @ weight.t()
            out = log_marginal(logits.float(), tag_logits, self.log_prior(hidden))
        else:
            out, _ = self.scores(hidden, tables or self.tables())
        return out.view(*features.shape[:-1], -1)

    def target_values(self, target: Tensor, syntax: Mapping[str, Tensor]) -> Tensor:
        """The latent value that the parse gives each target piece: its word's tag, and for ``</s>`` its own.

        Args:
            target: [B, T] int64, each sentence ending in ``</s>``, padded
            syntax: the flat syntax of the target (``data/batch.py``)

        Returns:
            [B, T] int64; :data:`UNKNOWN` on padding and where the word has no tag that the training data knows
        """
        eos = self.dictionary.eos()
        label = getattr(SyntaxBatch(syntax, target, self.padding_idx), self.tags)
        return torch.where(label > 0, label, UNKNOWN).masked_fill(target.eq(eos), self.latent_names.index(END))


def check_tags(decoder: LaSynDecoder, task: Any) -> None:
    """Make sure that the tags of the data are those that the model has learnt.

    Raises:
        SyntaxDataError: the model's values have no names, or are other tags than the data's
    """
    if decoder.tags is None:
        raise SyntaxDataError(
            "the model's latent values have no names, so that no tag can be one of them",
            hint="train without --latent-values for tags; with it, --tag-weight is 0",
        )
    if [END, *task.target_labels[decoder.tags][1:]] != decoder.latent_names:
        raise SyntaxDataError(
            f"the data has other {decoder.tags.upper()} tags than the model was trained with",
            path=labels_path(task.data_dir, task.cfg.target_lang),
            hint="binarize it with the training data's labels (--target-labels)",
        )


@dataclass
class LaSynConfig(SystemConfig):
    """The options of the decoder."""

    tags: str | None = option(None, "column of the target's parse that has the tags, upos or xpos", "upos")
    latent_values: int | None = option(
        None, "this many latent values without names, for training without tags (--tag-weight 0)", ""
    )


@register_decoder_system("lasyn")
class LaSyn(DecoderSystem):
    """What the decoder takes from the options and from the data.

    Args:
        latent_names: the names of the latent values
        tags: the column that they are taken from; None without a column
    """

    config = LaSynConfig

    def __init__(self, latent_names: Sequence[str], tags: str | None) -> None:
        super().__init__()
        self.latent_names, self.tags = list(latent_names), tags

    @classmethod
    def from_config(cls, config: LaSynConfig, args: Namespace, task: Any) -> "LaSyn":
        if not getattr(args, "latent_names", None):  # else from a checkpoint
            args.latent_names, args.tags = latent_names(config, task)
        return cls(args.latent_names, args.tags)

    def decoder(
        self, cfg: TransformerConfig, dictionary: Any, embed_tokens: nn.Embedding, systems: Mapping[str, DecoderSystem]
    ) -> LaSynDecoder:
        return LaSynDecoder(cfg, dictionary, embed_tokens, self.latent_names, self.tags, systems)


def latent_names(config: LaSynConfig, task: Any) -> tuple[list[str], str | None]:
    """The names of the latent values, and the label column they are taken from.

    Raises:
        SyntaxDataError: an option is out of range, or the target's parse has no tags
    """
    if config.latent_values is not None:
        if config.latent_values < 1:
            raise SyntaxDataError(f"--latent-values {config.latent_values}: wanted a positive number")
        return [str(i) for i in range(config.latent_values)], None
    tags = config.tags or "upos"
    if tags not in ("upos", "xpos"):
        raise SyntaxDataError(f"--tags {tags}: no such column", hint="upos or xpos")
    labels = task.target_labels[tags]
    if len(labels) < 2:
        raise SyntaxDataError(
            f"the target's parse has no {tags.upper()} tags",
            path=labels_path(task.data_dir, task.cfg.target_lang),
            hint="parse the target with a tagger and binarize again, choose the other column with --tags, "
            "or train without tags: --latent-values Z --tag-weight 0",
        )
    return [END, *labels[1:]], tags


# ------------------------------------------------------------------------------------ 2.3, 2.4 training: criterion


@dataclass
class LaSynEMConfig(FairseqDataclass):
    """Options of the criterion."""

    em_steps: int = field(
        default=1, metadata={"help": "K: optimizer steps on each batch, each with its own E-step (Algorithm 1)"}
    )
    tag_weight: float = field(
        default=1.0, metadata={"help": "lambda: weight of the tag loss (Equation 12); 0 leaves the values latent"}
    )
    observed_updates: int = field(
        default=0,
        metadata={
            "help": "for so many updates the posterior of a word with a tag is that tag, as EM has it where a variable "
            "is seen; the paper's algorithm, 0, need not find out which of two tags goes with which word"
        },
    )
    label_smoothing: float = field(
        default=0.0, metadata={"help": "epsilon for label smoothing of P(y | z), 0 means no label smoothing"}
    )
    sentence_avg: bool = II("optimization.sentence_avg")
    update_freq: list[int] = II("optimization.update_freq")  # noqa: RUF009


@register_criterion("lasyn_em", dataclass=LaSynEMConfig)
class LaSynEMCriterion(FairseqCriterion):
    """Regularised neural expectation maximisation (Equation 12).

    The loss is minus the lower bound (8), tight after its E-step, plus lambda times the tag loss. Logged, in bits per
    token: ``nll_loss`` of the words with the tags summed out, and its ``ppl``, which compare with a plain
    Transformer's; ``tag_loss``; and ``tag_accuracy``, the percentage of tags that P(z) predicts before seeing the word.

    Attributes:
        batch_repeats: K; the task repeats every group of batches that makes one update that often
        batch_groups: batches per update, by epoch, as ``--update-freq``
        target_needs: what the batch must bring of the target's syntax
    """

    takes_system_losses = True

    def __init__(
        self,
        task: Any,
        em_steps: int,
        tag_weight: float,
        label_smoothing: float,
        sentence_avg: bool,
        update_freq: Sequence[int],
        observed_updates: int = 0,
    ) -> None:
        super().__init__(task)
        if em_steps < 1:
            raise SyntaxDataError(f"--em-steps {em_steps}: wanted a positive number")
        self.tag_weight, self.smoothing, self.sentence_avg = tag_weight, label_smoothing, sentence_avg
        self.batch_repeats, self.batch_groups = em_steps, list(update_freq)
        self._checked: LaSynDecoder | None = None
        self.observed_updates = observed_updates
        self.target_needs = frozenset({"tree"}) if tag_weight or observed_updates else frozenset()

    def forward(self, model, sample, reduce=True):
        """Returns the loss, the sample size that it is divided by, and what is logged."""
        decoder, target = model.decoder, sample["target"]
        if not isinstance(decoder, LaSynDecoder):
            raise SyntaxDataError("--criterion lasyn_em trains lasyn models", hint="use --arch lasyn_transformer")
        features, extra = model(**sample["net_input"], features_only=True)
        real = target.ne(self.padding_idx)
        hidden, words = features[real], target[real]
        log_prior = decoder.log_prior(hidden)
        tags = self._tags(decoder, sample)[real] if self.target_needs else None
        em = em_loss(
            hidden,
            decoder.output_projection.weight,
            decoder.tag_embedding.weight,
            log_prior,
            words,
            self.smoothing,
            observed=tags if self.training and decoder.num_updates < self.observed_updates else None,
        )
        sample_size = target.size(0) if self.sentence_avg else sample["ntokens"]
        log = {
            "nll_loss": em.nll.sum(),
            "ntokens": sample["ntokens"],
            "nsentences": target.size(0),
            "sample_size": sample_size,
        }
        loss = em.loss
        if self.tag_weight:
            tag_loss = F.nll_loss(log_prior, tags, ignore_index=UNKNOWN, reduction="sum")
            loss = loss + self.tag_weight * tag_loss
            log["tag_loss"] = tag_loss.data
            log["tag_total"] = tags.ne(UNKNOWN).sum()
            log["tag_correct"] = log_prior.argmax(dim=1).eq(tags).sum()
        head_loss, head_log = system_losses(model, extra, sample)
        loss = loss + head_loss
        return loss, sample_size, {"loss": loss.data, **log, **head_log}

    def _tags(self, decoder: LaSynDecoder, sample: Mapping[str, Any]) -> Tensor:
        if self._checked is not decoder:
            check_tags(decoder, self.task)
            self._checked = decoder
        if "tgt_syntax" not in sample:
            raise SyntaxDataError(
                "the tag loss needs the target's parse, and this batch has none",
                hint="use --task syntax_translation on data with a parsed target, or set --tag-weight 0",
            )
        tags = decoder.target_values(sample["target"], sample["tgt_syntax"])
        if self.training and not tags.gt(0).any() and sample["tgt_syntax"]["pieces"].numel():
            raise SyntaxDataError(
                f"no word of this batch has a {decoder.tags.upper()} tag",
                hint="parse the target with a tagger and binarize again",
            )
        return tags

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[dict[str, Any]]) -> None:
        """Sum over workers and batches."""

        def total(key: str) -> Any:
            return sum(log.get(key, 0) for log in logging_outputs)

        size, tokens = total("sample_size"), total("ntokens")
        metrics.log_scalar("loss", total("loss") / size / math.log(2), size, round=3)
        metrics.log_scalar("nll_loss", total("nll_loss") / tokens / math.log(2), tokens, round=3)
        metrics.log_derived("ppl", lambda meters: utils.get_perplexity(meters["nll_loss"].avg))
        tags = total("tag_total")
        if tags > 0:
            metrics.log_scalar("tag_loss", total("tag_loss") / tags / math.log(2), tags, round=3)
            metrics.log_scalar("tag_accuracy", 100.0 * total("tag_correct") / tags, tags, round=2)
        reduce_head_metrics(logging_outputs)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        """True: every entry is a sum over the batch."""
        return True


register_presets("lasyn_transformer", decoder_syntax="lasyn")

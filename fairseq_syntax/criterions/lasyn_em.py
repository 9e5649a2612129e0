"""Neural expectation maximisation (Yang et al. 2019, sections 2.3 and 2.4), plus the losses of the model's systems."""

# No postponed annotations: fairseq generates options from the types of the configuration, which must not be strings.

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch.nn.functional as F
from fairseq import utils
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from omegaconf import II
from torch import Tensor

from fairseq_syntax.data.batch import places_of
from fairseq_syntax.data.packing import target_syntax, unpack
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.model.losses import reduce_head_metrics, sums_on_host, system_losses, without_alignment
from fairseq_syntax.model.options import check_options, option, without_parse
from fairseq_syntax.model.task import SyntaxTask
from fairseq_syntax.systems.lasyn.model import UNKNOWN, LaSynDecoder, check_tags
from fairseq_syntax.systems.lasyn.softmax import em_loss

if TYPE_CHECKING:
    from fairseq_syntax.data.epochs import TrainingBatches


@dataclass
class LaSynEMConfig(FairseqDataclass):
    """The options of the criterion."""

    em_steps: int = option(
        1, "K: optimizer steps on each batch, each with its own E-step (Algorithm 1)", low=1, high=1000
    )
    tag_weight: float = option(
        1.0, "lambda: weight of the tag loss (Equation 12); 0 is the unsupervised model", low=0, high=1e3
    )
    observed_updates: int = option(
        0,
        "for the first N updates, use the observed tag as a word's posterior; 0 is the paper's algorithm, "
        "which may confuse tags that occur in the same place",
        low=0,
    )
    label_smoothing: float = option(0.0, "label smoothing of P(y | z)", low=0, high=1)
    sentence_avg: bool = II("optimization.sentence_avg")


@register_criterion("lasyn_em", dataclass=LaSynEMConfig)
class LaSynEMCriterion(FairseqCriterion):
    """Regularised neural expectation maximisation (Equation 12).

    The loss is minus the lower bound (8), which is tight after the E-step, plus lambda times the tag loss. It logs, in
    bits per token, ``nll_loss`` of the words (tags are summed out), with ``ppl``, both comparable with a plain
    Transformer's; ``tag_loss``; and ``tag_accuracy``, the percentage of tags that P(z) predicts without the word.
    """

    takes_system_losses = True

    def __init__(
        self,
        task: SyntaxTask,
        em_steps: int,
        tag_weight: float,
        label_smoothing: float,
        sentence_avg: bool,
        observed_updates: int = 0,
    ) -> None:
        super().__init__(task)
        named = {"em_steps": em_steps, "tag_weight": tag_weight, "observed_updates": observed_updates}
        check_options(LaSynEMConfig, {**named, "label_smoothing": label_smoothing})
        self.tag_weight, self.smoothing, self.sentence_avg = tag_weight, label_smoothing, sentence_avg
        self._em_steps = em_steps
        self._checked: LaSynDecoder | None = None  # the decoder whose tags were compared with the data's
        self.observed_updates = observed_updates
        # What the batch must contain of the target's syntax.
        self.target_needs = frozenset({"tree"}) if tag_weight or observed_updates else frozenset()

    def check_model(self, model: Any) -> None:
        """Raise SyntaxDataError if this criterion cannot train a model, before its data are loaded."""
        decoder = getattr(model, "decoder", None)
        if not isinstance(decoder, LaSynDecoder):
            hint = "use --arch lasyn_transformer"
            raise SyntaxDataError("lasyn_em trains lasyn models", option="--criterion", hint=hint)
        if decoder.tags is None and self.target_needs:
            name = "--tag-weight" if self.tag_weight else "--observed-updates"
            message = "with --latent-values there are no tags to learn from"
            raise SyntaxDataError(message, option=name, hint=f"give {name} 0")

    def forward(self, model, sample, reduce=True):
        """Returns the loss, the sample size by which it is divided, and the logging output."""
        decoder, target = model.decoder, sample["target"]
        features, extra = model(**sample["net_input"], features_only=True, **without_alignment(model))
        # The number of tokens is known, so the host does not wait for the device.
        real = places_of(target.ne(self.padding_idx), sample["ntokens"])
        hidden, words = features.flatten(0, 1)[real], target.flatten()[real]
        log_prior = decoder.log_prior(hidden)
        tags = self._tags(decoder, sample).flatten()[real] if self.target_needs else None
        em = em_loss(
            hidden,
            decoder.output_projection.weight,
            decoder.tag_embedding.weight,
            log_prior,
            words,
            self.smoothing,
            # UNKNOWN also means "not observed" in em_loss.
            observed=tags if self.training and decoder.num_updates < self.observed_updates else None,
        )
        n_tokens, n_sentences = sample["ntokens"], target.size(0)
        size = n_sentences if self.sentence_avg else n_tokens
        log = {"nll_loss": em.nll.sum(), "ntokens": n_tokens, "nsentences": n_sentences, "sample_size": size}
        loss = em.loss
        if self.tag_weight:
            tag_loss = F.nll_loss(log_prior, tags, ignore_index=UNKNOWN, reduction="sum")
            loss = loss + self.tag_weight * tag_loss
            log["tag_loss"] = tag_loss.data
            log["tag_total"] = tags.ne(UNKNOWN).sum()
            log["tag_correct"] = log_prior.argmax(dim=1).eq(tags).sum()
        head_loss, head_log = system_losses(model, extra, sample)
        loss = loss + head_loss
        return loss, size, {"loss": loss.data, **log, **head_log}

    def epoch_iterator(self, base: "TrainingBatches") -> "TrainingBatches":
        """The task's batches, with the batches of each update repeated K times."""
        base.repeats = self._em_steps
        return base

    def _tags(self, decoder: LaSynDecoder, sample: Mapping[str, Any]) -> Tensor:
        first = self._checked is not decoder
        if first:
            check_tags(decoder, self.task)
            self._checked = decoder
        syntax = target_syntax(sample)
        if syntax is None:
            raise without_parse("the tag loss (unless --tag-weight is 0) needs the target's parse")
        tags = decoder.target_values(sample["target"], syntax)
        # In the first batch only, since the host waits for the device. Value 0 is </s>, and empty lines have no tag.
        if first and self.training and not tags.gt(0).any() and unpack(syntax).pieces.numel():
            raise SyntaxDataError(
                f"no word of the first batch has a {str(decoder.tags).upper()} tag",
                hint="parse the target with a tagger and binarize again",
            )
        return tags

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[dict[str, Any]]) -> None:
        """Sum over workers and batches."""
        sums = sums_on_host(logging_outputs)
        size, tokens = sums["sample_size"], sums["ntokens"]
        metrics.log_scalar("loss", sums["loss"] / size / math.log(2), size, round=3)
        metrics.log_scalar("nll_loss", sums["nll_loss"] / tokens / math.log(2), tokens, round=3)
        metrics.log_derived("ppl", lambda meters: utils.get_perplexity(meters["nll_loss"].avg))
        tags = sums.get("tag_total", 0)
        if tags > 0:
            metrics.log_scalar("tag_loss", sums["tag_loss"] / tags / math.log(2), tags, round=3)
            metrics.log_scalar("tag_accuracy", 100.0 * sums["tag_correct"] / tags, tags, round=2)
        reduce_head_metrics(sums)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        """True, since all entries are sums over the batch."""
        return True

"""Label-smoothed cross entropy, computed in chunks, plus the losses of the model's systems."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from functools import partial
from typing import Any

from fairseq.criterions import register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    LabelSmoothedCrossEntropyCriterionConfig,
)
from fairseq.logging import metrics
from torch import Tensor

from fairseq_syntax.data.batch import places_of
from fairseq_syntax.model.losses import reduce_head_metrics, sums_on_host, system_losses, without_alignment
from fairseq_syntax.model.output_loss import (
    OutputLoss,
    is_linear,
    output_layer_replaced,
    output_loss,
    unwrapped,
)

logger = logging.getLogger(__name__)


@register_criterion("chunked_cross_entropy", dataclass=LabelSmoothedCrossEntropyCriterionConfig)
class ChunkedCrossEntropyCriterion(LabelSmoothedCrossEntropyCriterion):
    """fairseq's ``label_smoothed_cross_entropy``, faster and with less memory, and the losses of the model's systems.

    Loss and gradient of a linear output layer are computed together, in chunks of positions (:mod:`.output_loss`). For
    other models (LaSyn, adaptive softmax, own code after the features), fairseq computes the loss, as the log says.

    It logs what fairseq's criterion logs; for systems with losses also ``translation_loss`` and NAME_loss
    (``child_loss``), in bits per token, and in validation NAME_uas, the percentage of words whose parent has the
    highest score, without repair to a tree.
    """

    takes_system_losses = True
    _told = False

    def forward(self, model, sample, reduce=True):
        """Returns the loss, the sample size by which it is divided, and the logging output."""
        if reduce and is_linear(model):
            places = self._places(sample)
            with output_layer_replaced(model, partial(self._loss, sample["target"], places)):
                parts, extra = model(**sample["net_input"], **without_alignment(model))
            total = len(places)
        else:
            if reduce and not self._told:
                self._told = True
                name = type(unwrapped(model)).__name__
                logger.info(f"the output layer of {name} is not linear; its loss is computed as by fairseq")
            output = model(**sample["net_input"])
            loss, nll = self.compute_loss(model, output, sample, reduce=reduce)
            extra = output[1]
            correct, total = self.compute_accuracy(model, output, sample) if self.report_accuracy else (None, None)
            parts = OutputLoss(loss, nll, correct)
        syntax_loss, syntax_log = system_losses(model, extra, sample)
        loss = parts.loss + syntax_loss
        n_tokens, n_sentences = sample["ntokens"], sample["target"].size(0)
        sample_size = n_sentences if self.sentence_avg else n_tokens
        log = {"nll_loss": parts.nll.data, "ntokens": n_tokens, "nsentences": n_sentences, "sample_size": sample_size}
        if syntax_log:
            log |= {"translation_loss": parts.loss.data, **syntax_log}
        if self.report_accuracy:
            log |= {"n_correct": parts.correct.data, "total": total}
        return loss, sample_size, {"loss": loss.data, **log}

    def _places(self, sample: Mapping[str, Any]) -> Tensor:
        """The flat indices [N] int64 of the target's tokens that have a loss."""
        real = sample["target"].ne(self.padding_idx)
        if self.ignore_prefix_size:
            real[:, : self.ignore_prefix_size] = False
            return real.flatten().nonzero()[:, 0]
        # Their number is known, so the host does not wait for the device.
        return places_of(real, sample["ntokens"])

    def _loss(
        self, target: Tensor, places: Tensor, features: Tensor, weight: Tensor, bias: Tensor | None
    ) -> OutputLoss:
        features, target = (t[places] for t in (features.flatten(0, 1), target.flatten()))
        return output_loss(features, weight, bias, target, self.eps, count=self.report_accuracy)

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[dict[str, Any]]) -> None:
        """Sum over workers and batches."""
        sums = sums_on_host(logging_outputs)
        super().reduce_metrics([sums])
        if "translation_loss" in sums:
            size = sums["sample_size"]
            metrics.log_scalar("translation_loss", sums["translation_loss"] / size / math.log(2), size, round=3)
        reduce_head_metrics(sums)


@register_criterion("supervised_head", dataclass=LabelSmoothedCrossEntropyCriterionConfig)
class SupervisedHeadCriterion(ChunkedCrossEntropyCriterion):
    """Another name of ``chunked_cross_entropy``, for recipes and checkpoints that have it."""


@register_criterion("lisa", dataclass=LabelSmoothedCrossEntropyCriterionConfig)
class LisaCriterion(ChunkedCrossEntropyCriterion):
    """Another name of ``chunked_cross_entropy``: ``log p(translation) + log p(parents)``."""

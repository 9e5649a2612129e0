"""Cross entropy plus the losses of the model's systems (Wang et al. 2019, section 3.2; LISA)."""

from __future__ import annotations

import math

from fairseq.criterions import register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    LabelSmoothedCrossEntropyCriterionConfig,
)
from fairseq.logging import metrics

from fairseq_syntax.model.losses import reduce_head_metrics, sums_on_host, system_losses


@register_criterion("supervised_head", dataclass=LabelSmoothedCrossEntropyCriterionConfig)
class SupervisedHeadCriterion(LabelSmoothedCrossEntropyCriterion):
    """Label-smoothed cross entropy (by default without smoothing) and the systems' losses.

    It logs ``translation_loss``, ``child_loss`` and ``parent_loss`` in bits per token, as fairseq does. In validation,
    it logs ``parent_uas``, the percentage of words whose parent has the highest score, without repair to a tree.
    """

    takes_system_losses = True

    def forward(self, model, sample, reduce=True):
        net_output = model(**sample["net_input"])
        translation_loss, nll_loss = self.compute_loss(model, net_output, sample, reduce=reduce)
        syntax_loss, syntax_log = system_losses(model, net_output[1], sample)
        loss = translation_loss + syntax_loss
        n_tokens, n_sentences = sample["ntokens"], sample["target"].size(0)
        sample_size = n_sentences if self.sentence_avg else n_tokens
        logging_output = {
            "loss": loss.data,
            "translation_loss": translation_loss.data,
            "nll_loss": nll_loss.data,
            "ntokens": n_tokens,
            "nsentences": n_sentences,
            "sample_size": sample_size,
            **syntax_log,
        }
        if self.report_accuracy:
            n_correct, total = self.compute_accuracy(model, net_output, sample)
            logging_output.update(n_correct=n_correct.data, total=total.data)
        return loss, sample_size, logging_output

    @classmethod
    def reduce_metrics(cls, logging_outputs) -> None:
        sums = sums_on_host(logging_outputs)
        super().reduce_metrics([sums])
        size = sums["sample_size"]
        metrics.log_scalar("translation_loss", sums["translation_loss"] / size / math.log(2), size, round=3)
        reduce_head_metrics(sums)


@register_criterion("lisa", dataclass=LabelSmoothedCrossEntropyCriterionConfig)
class LisaCriterion(SupervisedHeadCriterion):
    """Label-smoothed cross entropy and the parents' cross entropy: ``log p(translation) + log p(parents)``.

    It logs ``translation_loss`` and ``lisa_loss``, and in validation ``lisa_uas``. It is another name of
    ``supervised_head``: both collect all losses of the systems.
    """

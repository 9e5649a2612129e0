"""What is logged of the systems' losses."""

import math

import pytest
from fairseq.logging import metrics

from fairseq_syntax.model.losses import reduce_head_metrics


def test_updates_are_weighted_by_their_tokens_and_words():
    with metrics.aggregate(new_root=True) as logged:
        reduce_head_metrics({"a_nll": 2 * math.log(2), "a_tokens": 2, "a_correct": 1, "a_words": 1})
        reduce_head_metrics({"a_nll": 18 * math.log(2), "a_tokens": 6, "a_correct": 0, "a_words": 3})
        reduce_head_metrics({"a_nll": 0.0, "a_tokens": 0, "a_correct": 0, "a_words": 0})  # its layer was dropped
    assert logged.get_smoothed_values() == pytest.approx({"a_loss": (2 * 1 + 6 * 3) / 8, "a_uas": 25.0})

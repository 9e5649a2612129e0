"""Names of metrics and tokenizers in options, without importing their libraries, which takes seconds."""

import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from fairseq_syntax.corpus.words import WITHOUT_SPACES, has_no_spaces, language_of

METRICS = {
    "bleu": "BLEU",
    "bleu1": "BLEU-1",
    "bleu_char": "BLEU-char",
    "chrf": "chrF",
    "ter": "TER",
    "ribes": "RIBES",
    "exact": "exact",
}
DISTINCT_KEY = "distinct1"  # computed without references
LOWER_IS_BETTER = frozenset({"TER"})
# Below these, a model has learned so little that its scores say nothing of a system; a bootstrap does not know that.
LEAST_SCORES = {"BLEU": 3.0, "BLEU-char": 3.0, "chrF": 15.0, "exact": 1.0}
# The default metrics.
USUAL = (*(key for key in METRICS if key not in ("bleu_char", "exact")), DISTINCT_KEY)
# sacrebleu's tokenizers for languages without spaces, and for Korean.
_TOKENIZERS = dict.fromkeys(WITHOUT_SPACES, "char") | {"zh": "zh", "yue": "zh", "ja": "ja-mecab", "ko": "ko-mecab"}


def is_too_low(report: Mapping[str, Any], metric: str) -> bool:
    """Whether even the best score of a metric is too low for a comparison, in a report of ``fairseq-syntax score``."""
    scores = [system["mean"][metric] for system in report["systems"] if metric in system["mean"]]
    return bool(scores) and max(scores) < LEAST_SCORES.get(metric, 0.0)


def too_low(metric: str) -> str:
    """What is said in place of a comparison of such scores."""
    return f"{metric} below {LEAST_SCORES[metric]:g}: too low to compare systems"


def tokenizer_of(lang: str) -> str:
    """sacrebleu's tokenizer for a language, such as ``zh`` for ``zh-cn``; ``char`` for others without spaces."""
    return _TOKENIZERS.get(language_of(lang), "13a")


def tokenizer_of_text(lines: Sequence[str]) -> str:
    """Choose sacrebleu's tokenizer by the script of a text.

    For scripts with spaces between words, it is ``13a``. Otherwise it is ``ja-mecab`` for Japanese (if MeCab is
    installed), ``zh`` for Chinese, and ``char`` for others, which give the same result for raw and tokenized text.
    """
    if not has_no_spaces(lines):
        return "13a"
    text = "".join(lines)
    if re.search("[\u3040-\u30ff]", text):
        return "ja-mecab" if find_spec("MeCab") else "char"
    return "zh" if re.search("[\u3400-\u9fff]", text) else "char"

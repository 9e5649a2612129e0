"""Names of metrics in options; this module does not import their libraries, which takes seconds."""

import re
from collections.abc import Sequence
from importlib.util import find_spec

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
DISTINCT_KEY = "distinct1"  # of a system alone: it compares nothing with references
LOWER_IS_BETTER = frozenset({"TER"})
# What is measured where nothing else is asked for.
USUAL = (*(key for key in METRICS if key not in ("bleu_char", "exact")), DISTINCT_KEY)
# sacrebleu's tokenizers, of languages without spaces, and of Korean.
_TOKENIZERS = dict.fromkeys(WITHOUT_SPACES, "char") | {"zh": "zh", "yue": "zh", "ja": "ja-mecab", "ko": "ko-mecab"}


def tokenizer_of(lang: str) -> str:
    """sacrebleu's tokenizer for a language, such as ``zh`` for ``zh-cn``; ``char`` for others without spaces."""
    return _TOKENIZERS.get(language_of(lang), "13a")


def tokenizer_of_text(lines: Sequence[str]) -> str:
    """sacrebleu's tokenizer for a text, by its script: ``13a`` where it puts spaces between words.

    Else ``ja-mecab`` for Japanese, where MeCab is installed, ``zh`` for Chinese, and ``char`` for others. These cut
    words that somebody has tokenized as they cut raw text, so that it makes no difference which of the two it is.
    """
    if not has_no_spaces(lines):
        return "13a"
    text = "".join(lines)
    if re.search("[\u3040-\u30ff]", text):
        return "ja-mecab" if find_spec("MeCab") else "char"
    return "zh" if re.search("[\u3400-\u9fff]", text) else "char"

"""The metrics by the names that options take; without the libraries that compute them, which take seconds to import."""

METRICS = {
    "bleu": "BLEU",
    "bleu1": "BLEU-1",
    "bleu_char": "BLEU-char",
    "chrf": "chrF",
    "ter": "TER",
    "ribes": "RIBES",
}
DISTINCT_KEY = "distinct1"  # of a system alone: it compares nothing with references
LOWER_IS_BETTER = frozenset({"TER"})
MORE_IS_BETTER = tuple(key for key, name in METRICS.items() if name not in LOWER_IS_BETTER)
# What is measured where nothing else is asked for.
USUAL = (*(key for key in METRICS if key != "bleu_char"), DISTINCT_KEY)

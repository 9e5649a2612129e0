"""The papers' metrics, each with a signature.

BLEU-4, BLEU-1, character BLEU, chrF and TER are computed by sacrebleu (Post 2018), RIBES (Isozaki et al. 2010) with
nltk's values and distinct-1 (Li et al. 2016) here, and BEER (Stanojević and Sima'an 2014) by a Java program that users
install.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.metrics.base import Metric, Score, Signature

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.lab.scoring.names import LOWER_IS_BETTER, METRICS
from fairseq_syntax.lab.scoring.ribes import sentence_ribes

_WITHOUT_SPACES = frozenset({"zh", "ja-mecab", "ko-mecab", "char"})
UNKNOWN = "<unk>"  # a word that is not in a model's vocabulary, as fairseq prints it
# In its place, the metrics see a letter that no text has and no tokenizer splits; 13a would make "< unk >" of it. In
# references, fairseq prints <<unk>>, which equals no translation's.
_UNKNOWN_LETTER, _LETTER_IN_REFERENCES = "\ua66e", "\ua669"


def with_unknown_words(lines: Sequence[str]) -> list[str]:
    """The lines with a letter in place of each ``<unk>`` and ``<<unk>>``, which all metrics then count as one token."""
    return [line.replace(f"<{UNKNOWN}>", _LETTER_IN_REFERENCES).replace(UNKNOWN, _UNKNOWN_LETTER) for line in lines]


class MeanMetric(Metric):
    """A sacrebleu metric that is the mean of a sentence score in [0, 1], times 100.

    The statistics of a sentence are its score and 1, so that the same bootstrap and randomization apply.

    Args:
        score: the score of a tokenized hypothesis and its references
        tokenizer: sacrebleu's tokenizer, or None to split at white space
        about: what the signature says about the metric
    """

    def __init__(
        self,
        score: Callable[[list[list[str]], list[str]], float],
        references: Sequence[Sequence[str]],
        lowercase: bool,
        tokenizer: Callable[[str], str] | None,
        about: Mapping[str, Any],
    ) -> None:
        super().__init__()
        self.score, self.lowercase, self.tokenizer = score, lowercase, tokenizer
        self.about = {"case": "lc" if lowercase else "mixed", **about}
        self._ref_cache = self._cache_references(references)

    def get_signature(self) -> Signature:
        signature = super().get_signature()
        signature.info.update(self.about)
        return signature

    def _preprocess_segment(self, sent: str) -> str:
        text = (sent.lower() if self.lowercase else sent).rstrip()
        return text if self.tokenizer is None else self.tokenizer(text)

    def _extract_reference_info(self, refs: Sequence[str]) -> dict:
        return {"references": [ref.split() for ref in refs]}

    def _compute_segment_statistics(self, hypothesis: str, ref_kwargs: dict) -> list[float]:
        return [100.0 * self.score(ref_kwargs["references"], hypothesis.split()), 1.0]

    def _compute_score_from_stats(self, stats) -> Score:
        return Score("mean", float(stats[0]) / float(stats[1]))

    def _aggregate_and_compute(self, stats) -> Score:
        return self._compute_score_from_stats(np.asarray(stats, dtype=np.float64).sum(0))


class Scorer:
    """A metric with fixed references; the statistics of each run are extracted only once. ``<unk>`` is one token.

    Args:
        key: one of :data:`METRICS`
        references: one list of sentences per reference translation
        tokenize: sacrebleu's tokenizer for BLEU and RIBES; tokenizers for text without spaces (``zh``, ``ja-mecab``,
            ``ko-mecab``, ``char``) also turn on TER's support for Asian languages
        lowercase: compare lowercased text

    Attributes:
        name: the printed name
        metric: the sacrebleu metric, for sacrebleu's paired tests
        higher_is_better: False for TER
    """

    def __init__(
        self, key: str, references: Sequence[Sequence[str]], tokenize: str = "13a", lowercase: bool = False
    ) -> None:
        self.name = METRICS[key]
        self.higher_is_better = self.name not in LOWER_IS_BETTER
        references = [with_unknown_words(lines) for lines in references]
        with _tokenizer_loaded(tokenize):
            self.metric, sentence_metric = _build(key, references, tokenize, lowercase)
        self._sentence_metric = sentence_metric or self.metric
        self._statistics: dict[tuple[str, ...], list] = {}
        extract = self.metric._extract_corpus_statistics

        def remember(hypotheses: Sequence[str], references: Sequence[Sequence[str]] | None = None) -> list:
            run = tuple(hypotheses)
            if run not in self._statistics:
                self._statistics[run] = extract(with_unknown_words(run), references)
            return self._statistics[run]

        # TER and chrF take seconds for thousands of sentences, and the tests need them repeatedly.
        self.metric._extract_corpus_statistics = remember  # type: ignore[method-assign]  # versions are bounded for this

    @property
    def signature(self) -> str:
        signature = self.metric.get_signature()
        if self.name == "BLEU-1":  # sacrebleu's signature does not distinguish it from BLEU
            signature.update("order", 1)
        return str(signature)

    def statistics(self, hypotheses: Sequence[str]) -> list:
        """sacrebleu's sufficient statistics of each sentence; their sums determine the corpus score."""
        return self.metric._extract_corpus_statistics(hypotheses, None)

    def corpus(self, hypotheses: Sequence[str], subset: Sequence[int] | None = None) -> float:
        """The corpus score of all sentences, or of those whose 0-based indices are in ``subset``."""
        statistics = self.statistics(hypotheses)
        if subset is not None:
            statistics = [statistics[i] for i in subset]
        return float(self.metric._aggregate_and_compute(statistics).score)

    def length(self, hypotheses: Sequence[str]) -> float | None:
        """The tokens of the translations, in percent of those of BLEU's references; None for metrics without tokens.

        BLEU's brevity penalty depends on it. Of several references of a sentence, the closest in length counts.
        """
        if not isinstance(self.metric, BLEU):
            return None
        translated, references = np.asarray(self.statistics(hypotheses)).sum(0)[:2].tolist()
        return 100.0 * translated / references if references else None

    def of_sums(self, sums: np.ndarray) -> float:
        """The corpus score for summed sentence statistics [K] float64; 0 if it is undefined for lack of tokens."""
        return float(self.metric._compute_score_from_stats(sums.tolist()).score)

    def sentences(self, hypotheses: Sequence[str]) -> np.ndarray:
        """Sentence scores [N], float64; BLEU with effective order, as in ``sacrebleu --sentence-level``."""
        statistics = self.statistics(hypotheses)
        return np.array([self._sentence_metric._aggregate_and_compute([one]).score for one in statistics])


def check_metrics(keys: Sequence[str], tokenize: str, program: str | None = None) -> None:
    """Raise SyntaxDataError if a metric or its tokenizer cannot be loaded, or the BEER program does not exist."""
    for key in keys or ["bleu"]:
        Scorer(key, [["a"]], tokenize)
    if program is not None and not (program.split() and shutil.which(shlex.split(program)[0])):
        raise SyntaxDataError("no such program", option="--beer", hint=program)


@contextmanager
def _tokenizer_loaded(name: str) -> Iterator[None]:
    """A context that raises SyntaxDataError if sacrebleu's tokenizer of that name cannot be loaded."""
    if name not in BLEU.TOKENIZERS:
        raise SyntaxDataError(f"must be one of {', '.join(BLEU.TOKENIZERS)}, not {name}", option="--tokenize")
    try:
        yield
    except (ImportError, RuntimeError, OSError) as error:  # OSError: its download fails
        raise SyntaxDataError(f"the tokenizer {name} cannot be loaded: {error}", option="--tokenize") from error


def _build(key: str, references, tokenize: str, lowercase: bool) -> tuple[Metric, Metric | None]:
    """The metric, and that of single sentences if it differs."""
    if key in ("bleu", "bleu1", "bleu_char"):
        # force: no warning for text that looks tokenized, since the signature names the tokenizer
        options: dict[str, Any] = {"tokenize": tokenize, "lowercase": lowercase, "force": True}
        options["max_ngram_order"] = 1 if key == "bleu1" else 4
        if key == "bleu_char":  # ignores spaces, which some Chinese or Japanese output has between words
            options["tokenize"] = "char"
        return BLEU(references=references, **options), BLEU(effective_order=True, **options)
    if key == "chrf":
        return CHRF(lowercase=lowercase, references=references), None
    if key == "ter":
        # By default sacrebleu lowercases, like TERCOM. A sentence without spaces would be one word.
        asian = tokenize in _WITHOUT_SPACES
        return TER(normalized=asian, asian_support=asian, references=references), None
    if key == "exact":  # the percentage of sentences that equal one of their references, ignoring white space
        return MeanMetric(lambda refs, hyp: hyp in refs, references, lowercase, None, {"tok": "none"}), None
    bleu = BLEU(tokenize=tokenize)
    about = {"tok": bleu.tokenizer_signature, "alpha": 0.25, "beta": 0.1, "nltk": version("nltk")}
    return MeanMetric(sentence_ribes, references, lowercase, bleu.tokenizer, about), None


def distinct_1(hypotheses: Sequence[str], tokenize: str = "13a") -> float:
    """The number of distinct unigrams divided by all generated tokens (Li et al. 2016); 0 for no tokens."""
    with _tokenizer_loaded(tokenize):
        tokenizer = BLEU(tokenize=tokenize).tokenizer
    tokens = [token for line in with_unknown_words(hypotheses) for token in tokenizer(line.rstrip()).split()]
    return len(set(tokens)) / len(tokens) if tokens else 0.0


def beer(program: str, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """The corpus score by the BEER program, run as ``PROGRAM -s SYSTEM -r REFERENCE[:REFERENCE…]``.

    Args:
        program: the command, which may include options (``"beer_2.0/beer"``, ``"beer_1.0/beer -l de"``)

    Raises:
        SyntaxDataError: the program does not exist, fails, or prints no score
    """
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, str(number)) for number in range(1 + len(references))]
        for path, lines in zip(paths, map(with_unknown_words, [hypotheses, *references])):
            Path(path).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        try:
            command = [*shlex.split(program), "-s", paths[0], "-r", ":".join(paths[1:])]
            printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        except (ValueError, OSError, subprocess.CalledProcessError) as error:  # ValueError: an open quotation mark
            detail = getattr(error, "stderr", None) or error
            raise SyntaxDataError(f"BEER failed: {str(detail).strip()[:300]}", option="--beer", hint=program) from error
    numbers = re.findall(r"-?\d+\.\d+(?:[eE]-?\d+)?", printed)
    if not numbers:
        raise SyntaxDataError(f"BEER printed no score: {printed.strip()[:300]!r}", option="--beer", hint=program)
    return float(numbers[-1])  # the score is the last number that it prints

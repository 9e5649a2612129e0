"""The toy corpora are what they claim: text alone cannot solve them, and the best accuracies are as printed."""

import json
import subprocess
import sys
from collections import Counter, defaultdict
from fractions import Fraction
from functools import lru_cache
from random import Random

import pytest
from toy_scripts import TOY, generate, grammar

from fairseq_syntax.corpus.conllu import read_conllu, text_of

SMALL = grammar.Lexicon(
    nouns=grammar.entries("man/Mann/m woman/Frau/f girl/Mädchen/n dog/Hund/m cat/Katze/f"),
    verbs=grammar.entries("saw/sah found/fand painted/malte liked/mochte"),
    prepositions=grammar.entries("with/mit near/bei behind/hinter under/unter"),
    adjectives=[],
)


@lru_cache
def shares(weights):
    """The probabilities of choices with these weights, exactly."""
    exact = [Fraction(weight).limit_denominator(1000) for weight in weights]
    return [weight / sum(exact) for weight in exact]


class Enumerator:
    """Stands in for ``Random``: runs a program once for every way its choices can fall, with exact probabilities."""

    def __init__(self):
        self.script, self.place, self.probability = [], 0, Fraction(1)

    def choices(self, population, weights):
        if self.place == len(self.script):
            self.script.append(0)
        index = self.script[self.place]
        self.widths = [*self.widths[: self.place], len(population)]
        self.place += 1
        self.probability *= shares(tuple(weights))[index]
        return [population[index]]

    def choice(self, population):
        return self.choices(population, [1] * len(population))[0]

    def outcomes(self, program):
        while True:
            self.place, self.probability, self.widths = 0, Fraction(1), []
            outcome = program(self)
            if self.probability:
                yield outcome, self.probability
            while self.script and self.script[-1] + 1 == self.widths[len(self.script) - 1]:
                self.script.pop()
            if not self.script:
                return
            self.script[-1] += 1


@pytest.mark.matrix(2)
@pytest.mark.parametrize(
    "phrases, lexical",
    [(0, 0.0), (1, 0.0), (2, 0.0), (1, 0.5), (1, 1.0), (2, 1.0), pytest.param(2, 0.5, marks=pytest.mark.slow)],
)
def test_best_accuracy_against_all_derivations(phrases, lexical):
    """Every derivation of a small lexicon is enumerated; who sees the text does best by its likeliest translation."""
    all_known = ("text", "labels", "depth")
    joint = {knows: defaultdict(lambda: defaultdict(Fraction)) for knows in all_known}
    choices = {knows: defaultdict(lambda: defaultdict(Fraction)) for knows in all_known}  # of contrastive pairs
    claimed, claimed_pairs = dict.fromkeys(all_known, Fraction(0)), dict.fromkeys(all_known, 0.0)
    total = Fraction(0)
    with_pairs = phrases == 1 or lexical == 0.5  # of two phrases there are many derivations
    for sentence, p in Enumerator().outcomes(
        lambda rng: grammar.attachment(rng, phrases, lexical=lexical, lexicon=SMALL)
    ):
        depth = [0 if head == word else None for word, head in enumerate(sentence.heads)]
        while None in depth:
            depth = [d if d is not None or depth[h] is None else depth[h] + 1 for d, h in zip(depth, sentence.heads)]
        pairs = grammar.pairs([sentence]) if with_pairs else []
        for pair in pairs:
            assert sum(a != b for a, b in zip(pair.correct, pair.incorrect, strict=True)) == 1
        for knows, more in {"text": (), "labels": sentence.deprels, "depth": depth}.items():
            seen = (*sentence.words, *more)
            joint[knows][seen][tuple(sentence.target.words)] += p
            for pair in pairs:
                two = frozenset([tuple(pair.correct), tuple(pair.incorrect)])
                choices[knows][seen, two][tuple(pair.correct)] += p
            if with_pairs:
                claimed_pairs[knows] += float(p) * grammar.best_on_pairs(sentence, lexical, knows=knows)[0]
            accuracy = grammar.best_accuracy([sentence], lexical, knows=knows)
            claimed[knows] += p * Fraction(accuracy).limit_denominator(10**9)
        assert grammar.best_accuracy([sentence], lexical, knows="parse") == 1
        total += p
    assert total == 1
    # The text is silent where lexical is 0: 1 of 2 sites, then 1 of 3. A label tells the verb from the nouns, of which
    # the second phrase has two. The depth tells all but which of two nouns, where the first phrase attaches to the verb
    # and its noun is as deep as the object.
    silent = {
        "text": [1, Fraction(1, 2), Fraction(1, 6)],
        "labels": [1, 1, Fraction(2, 3)],
        "depth": [1, 1, Fraction(5, 6)],
    }
    for knows in all_known:
        best = sum(max(targets.values()) for targets in joint[knows].values())
        assert float(best) == pytest.approx(float(claimed[knows]), abs=1e-9), knows
        best_pairs = sum(max(right.values()) for right in choices[knows].values())
        assert float(best_pairs) == pytest.approx(claimed_pairs[knows], abs=1e-9), knows
        if lexical == 0:
            assert best == silent[knows][phrases], knows
        if lexical == 1:
            assert best == 1, knows


def test_the_error_of_the_pairs_by_simulation():
    """The share that the likelier candidate wins, over many drawings of the governor."""
    phrase = grammar.Phrase([1, 2, 3], 0, [True, False, False])
    mean, variance = grammar.best_on_pairs(grammar.Sentence(phrases={4: phrase}), 0.5, knows="text")
    p = grammar.posterior(phrase, 0.5, knows="text")
    draws = Random(1).choices(range(3), p, k=20_000)
    right = [sum((p[g], g) > (p[w], w) for w in range(3) if w != g) for g in draws]
    average = sum(right) / len(right)
    assert mean == pytest.approx(average, abs=0.02)
    assert variance == pytest.approx(sum((r - average) ** 2 for r in right) / len(right), abs=0.02)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_homographs_are_decided_by_the_target_alone(count, monkeypatch):
    monkeypatch.setattr(grammar, "HOMOGRAPHS", grammar.HOMOGRAPHS[:3])
    joint = defaultdict(lambda: defaultdict(Fraction))
    by_tags = defaultdict(set)
    for sentence, p in Enumerator().outcomes(lambda rng: grammar.homograph(rng, count)):
        source = (tuple(sentence.words), tuple(sentence.heads), tuple(sentence.deprels), tuple(sentence.tags))
        joint[source][tuple(sentence.target.words)] += p
        by_tags[source, tuple(sentence.target.tags)].add(tuple(sentence.target.words))
    assert sum(max(targets.values()) for targets in joint.values()) == Fraction(1, 2**count)
    assert all(len(targets) == 1 for targets in by_tags.values())


def test_the_whole_corpus_has_the_ceiling_that_is_written_beside_it():
    ambiguous = {shape: weight for shape, weight in generate.SHAPES.items() if any(shape)}
    chances = {(1,): 1 / 2, (2,): 1 / 6, (1, 1): 1 / 4}
    ceiling = sum(weight * chances[shape] for shape, weight in ambiguous.items()) / sum(ambiguous.values())
    assert ceiling == pytest.approx(0.275)
    assert sum(generate.SHAPES.values()) == pytest.approx(1)


@pytest.fixture(scope="module")
def noisy():
    rng = Random(5)
    return [generate.draw_line(rng, "attachment", 0.5, 0.8) for _ in range(6000)]


def phrases_of(lines):
    return [phrase for line in lines for sentence in line for phrase in sentence.phrases.values()]


def test_the_parsers_probabilities_are_calibrated(noisy):
    """Of the arcs given a probability near p, a share near p is right; and the best tree is right as often as asked."""
    bins = defaultdict(list)
    for phrase in phrases_of(noisy):
        assert sum(phrase.belief) == pytest.approx(1)
        for site, p in enumerate(phrase.belief):
            bins[min(int(p * 10), 9)].append((p, site == phrase.governor))
    for pairs in bins.values():
        expected = sum(p for p, _ in pairs) / len(pairs)
        deviation = (sum(p * (1 - p) for p, _ in pairs) ** 0.5) / len(pairs)
        assert abs(sum(right for _, right in pairs) / len(pairs) - expected) < 4 * deviation + 1e-9
    phrases = phrases_of(noisy)
    accuracy = sum(phrase.best == phrase.governor for phrase in phrases) / len(phrases)
    assert accuracy == pytest.approx(0.8, abs=0.015)


@pytest.mark.parametrize("knows", ["text", "tree", "arcs"])
def test_claimed_accuracies_are_reached_by_the_best_guesses(noisy, knows):
    """Guessing by the posterior is right as often as the posterior says; what is right does not depend on it."""
    hits, claims, variance = 0, 0.0, 0.0
    for line in noisy:
        guesses = [
            (grammar.posterior(phrase, 0.5, knows=knows, accuracy=0.8), phrase.governor)
            for phrase in phrases_of([line])
        ]
        hits += all(p.index(max(p)) == governor for p, governor in guesses)
        claim = grammar.best_accuracy(line, 0.5, knows=knows, accuracy=0.8)
        claims += claim
        variance += claim * (1 - claim)
    assert abs(hits - claims) < 4 * variance**0.5


def test_probabilities_beat_the_best_tree_which_beats_the_text(noisy):
    best = generate.ceilings(noisy, 0.5, 0.8)
    text, tree, arcs = (best[knows]["accuracy"] for knows in ("text", "tree", "arcs"))
    assert tree > text + 0.05 and arcs > tree + 0.05
    assert best["parse"] == {"accuracy": 1, "error": 0}


def test_governors_are_spread_evenly():
    rng = Random(2)
    counts = defaultdict(Counter)
    for phrase in phrases_of([[grammar.attachment(rng, 2)] for _ in range(3000)]):
        counts[len(phrase.sites)][phrase.governor] += 1
    for sites, actual in counts.items():
        for site in range(sites):
            assert actual[site] == pytest.approx(3000 / sites, abs=4 * (3000 / sites) ** 0.5)


def governors_in(target):
    return [word.strip("().") for word in target.split() if word.startswith("(")]


@pytest.mark.parametrize("accuracy", [None, 0.7])
def test_files_agree_with_each_other(tmp_path, accuracy):
    info = generate.generate(tmp_path, train=50, valid=20, test=300, accuracy=accuracy)
    assert json.loads((tmp_path / "info.json").read_text()) == info
    german = dict(entry.split("/")[:2] for entry in grammar.LEXICON.nouns + grammar.LEXICON.verbs)
    gold = "gold" if accuracy else "src"
    texts = {name: (tmp_path / f"test.{name}").read_text(encoding="utf-8").split("\n")[:-1] for name in ("src", "tgt")}
    choices = (tmp_path / "test.open").read_text().split("\n")[:-1]
    parses = list(read_conllu(tmp_path / f"test.{gold}.conllu", n_lines=300))
    assert len(texts["src"]) == len(texts["tgt"]) == len(choices) == 300
    assert sum(bool(row) for row in choices) == info["ambiguous"]
    two_sentences = 0
    for parse, source, target, row in zip(parses, texts["src"], texts["tgt"], choices):
        assert text_of(parse) == source
        two_sentences += len(parse.sentences) == 2
        phrases = [i for i, word in enumerate(parse.words) if parse.deprels[i] in ("obl", "nmod")]
        # The translation names the governors that the true parse gives, in order.
        assert governors_in(target) == [german[parse.words[parse.heads[i]]] for i in phrases]
        assert [len(governors_in(target))] == [len(row.split())]
    assert two_sentences > 5
    said = list(read_conllu(tmp_path / "test.src.conllu", n_lines=300))
    for parse, truth in zip(said, parses):
        assert parse.words == truth.words
        if accuracy is None:
            assert parse.arcs is None
        else:
            best = {}
            for dependent, head, label, p in parse.arcs:
                best[dependent] = max(best.get(dependent, (0.0, None, None)), (p, head, label), key=lambda arc: arc[0])
            for word, (p, head, label) in best.items():
                # The tree is that of the most probable heads (of two equal ones, either).
                chosen = [arc[3] for arc in parse.arcs if arc[:2] == (word, parse.heads[word])]
                assert chosen == [p] and (head != parse.heads[word] or label == parse.deprels[word])


def test_homograph_files_have_the_targets_tags(tmp_path):
    generate.generate(tmp_path, mode="homograph", train=20, valid=20, test=100)
    parses = list(read_conllu(tmp_path / "test.tgt.conllu", n_lines=100))
    targets = (tmp_path / "test.tgt").read_text(encoding="utf-8").split("\n")
    assert [text_of(parse) for parse in parses] == targets[:-1]
    assert {"VERB", "NOUN", "DET", "PRON"} <= {tag for parse in parses for tag in parse.upos}


def test_the_translations_tree_is_the_sources(tmp_path):
    """Word by word, but for the brackets, which hang on the noun before them; seen from the files alone."""
    generate.generate(tmp_path, mode="lexical", train=5, valid=5, test=60, target_parse=True)
    source, target = (list(read_conllu(tmp_path / f"test.{side}.conllu", n_lines=60)) for side in ("src", "tgt"))
    assert [text_of(parse) for parse in target] == (tmp_path / "test.tgt").read_text(encoding="utf-8").splitlines()
    brackets = 0
    for ours, theirs in zip(source, target):
        plain = [at for at, word in enumerate(theirs.words) if not word.startswith("(")]
        assert [theirs.heads[at] for at in plain] == [plain[head] for head in ours.heads]
        assert [theirs.deprels[at] for at in plain] == ours.deprels
        for at in set(range(len(theirs.words))) - set(plain):
            assert theirs.heads[at] == at - 1 and theirs.upos[at - 1] == "NOUN" and theirs.deprels[at] == "dep"
            assert f"({theirs.words[theirs.heads[at - 1]]})" == theirs.words[at]
            brackets += 1
    assert brackets > 40


def test_the_same_seed_writes_the_same_bytes(tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        generate.generate(tmp_path / name, train=30, valid=5, test=5, seed=seed)
    files = {name: b"".join(p.read_bytes() for p in sorted((tmp_path / name).glob("*.src*"))) for name in "abc"}
    assert files["a"] == files["b"] != files["c"]


@pytest.mark.slow
def test_command_prints_the_best_accuracies(tmp_path):
    command = [
        sys.executable,
        TOY / "generate.py",
        "--output",
        tmp_path,
        "--train",
        "10",
        "--valid",
        "5",
        "--test",
        "200",
    ]
    environment = {"PYTHONPATH": str(TOY.parent.parent), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    accuracy = json.loads((tmp_path / "info.json").read_text())["best"]["text"]["accuracy"]
    assert f"{100 * accuracy:.1f} %" in done.stdout
    done = subprocess.run([*command, "--parser-accuracy", "0.3"], capture_output=True, text=True, env=environment)
    assert done.returncode == 2 and "at least 0.5" in done.stderr

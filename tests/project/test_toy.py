"""The toy corpora are what they claim: text alone cannot solve them, and the best accuracies are as printed."""

import importlib.util
import io
import json
import re
import subprocess
import sys
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from random import Random

import pytest
import toy_data

from fairseq_syntax import console
from fairseq_syntax.text.conllu import read_conllu, text_of

TOY = Path(__file__).resolve().parents[2] / "examples" / "toy"


def load(name):
    sys.path.insert(0, str(TOY))
    try:
        spec = importlib.util.spec_from_file_location(name, TOY / f"{name}.py")
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(TOY))


grammar = load("grammar")
generate = load("generate")
systems = load("systems")
table = load("table")
run = load("run")

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
    for sites, found in counts.items():
        for site in range(sites):
            assert found[site] == pytest.approx(3000 / sites, abs=4 * (3000 / sites) ** 0.5)


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
    command = [sys.executable, TOY / "generate.py", "--out", tmp_path, "--train", "10", "--valid", "5", "--test", "200"]
    environment = {"PYTHONPATH": str(TOY.parent.parent), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    accuracy = json.loads((tmp_path / "info.json").read_text())["best"]["text"]["accuracy"]
    assert f"{100 * accuracy:.1f} %" in done.stdout
    done = subprocess.run([*command, "--parser-accuracy", "0.3"], capture_output=True, text=True, env=environment)
    assert done.returncode == 2 and "at least 0.5" in done.stderr


@pytest.fixture
def in_process(monkeypatch):
    """Runs the table's commands in this process; returns their list."""
    commands = []

    def run_one(runner, command, log):
        words = [str(word) for word in command[1:]]
        commands.append(words)
        if words[0].endswith("generate.py"):
            monkeypatch.setattr(sys, "argv", words)
            assert generate.main() == 0
        elif words[1] == "fairseq_syntax":
            assert toy_data.syntax_command(*words[2:]) == 0
        else:
            at = words.index("--user-dir")
            more = ["--cpu"] if words[1] == "fairseq_cli.train" else []
            toy_data.fairseq(words[1].removeprefix("fairseq_cli."), *words[2:at], *words[at + 2 :], *more)
        return 1.0

    monkeypatch.setattr(run.Runner, "run", run_one)
    return commands


def test_a_bar_counts_the_epochs_in_the_logs(tmp_path, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(console, "DELAY", 0.0)
    system = systems.System("A row", "pascal_transformer", "parse", options="--max-epoch 3")
    log = tmp_path / "A_row" / "1" / "train.log"
    log.parent.mkdir(parents=True)
    log.write_text("x | end of epoch 1 (average)\ny\nx | end of epoch 2 (average)\n")
    with run.training_bar([(system, 1)], {system.corpus: tmp_path}):
        deadline = time.monotonic() + 20
        while "2/3" not in sys.stderr.getvalue() and time.monotonic() < deadline:
            time.sleep(0.05)
    assert re.search(r"training: +67%.* 2/3 .* epochs/s|training: +67%.* 2/3 .*s/ epochs", sys.stderr.getvalue())


@pytest.mark.slow
def test_a_row_goes_through_the_whole_pipeline(tmp_path, in_process, monkeypatch):
    tiny = ["--train", "40", "--valid", "10", "--test", "40"]
    monkeypatch.setitem(run.CORPORA, "attachment", tiny)
    runner = run.Runner(tmp_path, 1)
    options = "--max-epoch 1 --warmup-updates 1"
    system = systems.System("A row", "pascal_transformer", "parse", options=options, generation="--max-len-b 9")
    row = run.train_and_translate(runner, system, run.prepare(runner, "attachment", 1), 1)
    assert row["possible"] == 100 and 0 <= row["exact"] <= 100 and row["ambiguous"] > 20
    line = table.table([table.over_seeds([row])]).splitlines()[-1]
    assert line.startswith("A row") and "100.0 % ± 0.0" in line
    # Once more: nothing is run again. With other options, training is; with another corpus, everything.
    count = len(in_process)
    assert run.train_and_translate(runner, system, run.prepare(runner, "attachment", 1), 1) == row
    assert len(in_process) == count
    options += " --criterion supervised_head"
    other = systems.System(
        "A row", "supervised_head_transformer", "text", options=options, generation="--max-len-b 9", tree=True
    )
    row = run.train_and_translate(runner, other, run.prepare(runner, "attachment", 1), 1)
    assert row["possible"] < 50 and 0 < row["uas"] < 100
    assert len(in_process) == count + 3
    monkeypatch.setitem(run.CORPORA, "attachment", [*tiny, "--lexical", "1"])
    run.train_and_translate(runner, other, run.prepare(runner, "attachment", 1), 1)
    assert len(in_process) == 2 * count + 4


def test_exact_match_counts_the_ambiguous_sentences(tmp_path):
    (tmp_path / "test.tgt").write_text("a\nb\nc\nd\n")
    (tmp_path / "test.open").write_text("2\n\n2 3\n2\n")
    (tmp_path / "info.json").write_text(json.dumps({"best": {"text": {"accuracy": 0.5, "error": 0.1}}}))
    (tmp_path / "out").write_text(
        "".join(f"D-{i}\t-0.1\t{word}\n" for i, word in ((3, "x"), (0, "a"), (1, "b"), (2, "c")))
    )
    row = run.score(tmp_path / "out", tmp_path, systems.System("s", "a", "text"))
    assert row["ambiguous"] == 3 and row["exact"] == pytest.approx(200 / 3) and row["unambiguous"] == 100
    assert row["possible"] == 50 and row["error"] == 10
    merged = table.over_seeds([{**row, "train_s": 1.0, "translate_s": 1.0}])
    assert merged["exact_error"] == pytest.approx(100 * (1 / 9) ** 0.5)  # variance of 1, 1, 0 is 1/3, of its mean 1/9
    assert merged["seeds"] == 1 and "right" not in merged and merged["exact"] == row["exact"]
    assert "66.7 % ± 66.7" in table.table([merged])


def test_the_error_over_seeds_holds_that_of_sentences_and_of_seeds():
    """Two seeds that agree on every sentence, and two that differ in half of them the other way round."""
    rest = {"unambiguous": 100.0, "bleu": 50.0, "train_s": 1.0, "translate_s": 1.0}
    rows = [{"exact": 50.0, "right": "1100", **rest}] * 2
    assert table.over_seeds(rows)["exact_error"] == pytest.approx(100 * (1 / 3 / 4) ** 0.5)
    rows = [{"exact": 75.0, "right": "1110", **rest}, {"exact": 25.0, "right": "0001", **rest}]
    merged = table.over_seeds(rows)
    assert merged["exact"] == 50 and merged["seeds"] == 2
    assert merged["exact_error"] == pytest.approx(
        100 * (0.5**2 / 2 / 2) ** 0.5
    )  # every sentence is right half the time


ROW = dict.fromkeys(("possible", "error", "exact", "unambiguous", "bleu", "train_s", "translate_s"), 1.0)
ROW |= {"corpus": "c", "knows": "text", "key": "k"}


def of_seed(system, seed, right="10", **rest):
    """A line of what one seed gave; of the ambiguous sentences, those with a 1 are right."""
    exact = 100 * right.count("1") / len(right)
    return {**ROW, "system": system, "seed": seed, "right": right, "exact": exact, "run": "here", **rest}


def test_a_table_holds_what_each_seed_gave_and_adds_the_next(tmp_path):
    """In the order of the systems, whatever the order of the runs; a run of another kind is numbered."""
    kept = table.Table(tmp_path / "t.md")
    assert kept.known("PASCAL", 1, "k") is None
    kept.add(of_seed("SE-NMT", 1))
    kept.add(of_seed("PASCAL", 2, "11", run="there", heads=[97.0, 98.25]))
    kept.add(of_seed("PASCAL", 1, "01", heads=[99.0, 98.25]))
    assert [table.identity(line) for line in kept.read()] == [("PASCAL", 1), ("PASCAL", 2), ("SE-NMT", 1)]
    rows = [line.split() for line in (tmp_path / "t.md").read_text().splitlines() if line.startswith(("PAS", "SE-"))]
    assert [(row[0], row[3], row[8], row[-1]) for row in rows] == [
        ("PASCAL", "2", "75.0", "1+2"),
        ("SE-NMT", "1", "50.0", "1"),
    ]
    assert " 98.0 / 98.2 " in (tmp_path / "t.md").read_text()
    assert (tmp_path / "t.md").read_text().split("```")[2].strip().startswith("1. Here.\n2. There.\n")
    assert kept.known("PASCAL", 2, "k")["exact"] == 100 and kept.known("PASCAL", 3, "k") is None
    # Once more, with the same options and then with others: what the others gave goes.
    kept.add(of_seed("PASCAL", 2, "00", heads=[97.0, 98.25]))
    assert kept.known("PASCAL", 2, "k")["exact"] == 0 and kept.known("PASCAL", 2, "another key") is None
    kept.add(of_seed("PASCAL", 3, key="another key"))
    assert [table.identity(line) for line in kept.read()] == [("PASCAL", 3), ("SE-NMT", 1)]


def test_a_row_without_its_seeds_stands_until_as_many_are_there(tmp_path):
    whole = {**ROW, "system": "DLAA", "exact": 81.7, "exact_error": 18.0, "seeds": 2, "run": ["of old"]}
    gone = {**whole, "system": "a system of old"}
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(line) + "\n" for line in (gone, whole)))
    kept = table.Table(tmp_path / "t.md")
    for seed, exact in ((1, "81.7"), (2, "75.0")):
        kept.add(of_seed("DLAA", seed, "01" if seed == 1 else "11"))
        (row,) = table.rows_of(kept.read())
        assert row["seeds"] == 2 and f" {exact} % " in (tmp_path / "t.md").read_text()
    kept.add({**of_seed("DLAA", 1), "key": "another key"})
    (row,) = table.rows_of(kept.read())
    assert row["seeds"] == 1 and len(kept.read()) == 1


def test_two_runs_can_fill_one_table(tmp_path):
    """Each result is written as it comes, beside what others wrote in the meantime."""
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda seed: table.Table(tmp_path / "t.md").add(of_seed("PASCAL", seed)), range(1, 13)))
    assert [line["seed"] for line in table.Table(tmp_path / "t.md").read()] == [*range(1, 13)]


def test_what_a_table_has_is_not_trained_again(tmp_path, monkeypatch, capsys):
    """And what it has not is in it as soon as it is there, though a later one fails."""
    trained = []

    def train_and_translate(runner, system, corpus, seed):
        if seed == 3:
            raise run.StepError("no more")
        trained.append((system.name, seed))
        return of_seed(system.name, seed, key=run.key_of(system, corpus))

    def prepare(runner, name, seed):
        (tmp_path / "prepared.json").write_text('{"corpus": "its files"}')
        return tmp_path

    monkeypatch.setattr(run, "train_and_translate", train_and_translate)
    monkeypatch.setattr(run, "prepare", prepare)
    given = ["run.py", "--out", str(tmp_path), "--table", str(tmp_path / "t.md"), "--jobs", "1", "--only", "PASCAL"]
    for seeds, status, new in ((["1"], 0, 1), (["1", "2"], 0, 1), (["2", "1"], 0, 0), (["4", "3"], 1, 1)):
        monkeypatch.setattr(sys, "argv", [*given, "LDD (0.8)", "--seeds", *seeds])
        trained.clear()
        assert run.main() == status
        assert len(trained) == 2 * new
    lines = table.Table(tmp_path / "t.md").read()
    assert [table.identity(line) for line in lines] == [
        (name, seed) for name in ("PASCAL", "LDD (0.8)") for seed in (1, 2, 4)
    ]
    assert "as " in capsys.readouterr().out


def test_the_key_of_a_result_holds_all_that_it_hangs_on(tmp_path, monkeypatch):
    """And no path: a checkout elsewhere has the same."""
    (tmp_path / "prepared.json").write_text('{"corpus": "its files"}')
    groups = [tmp_path / name / "groups.txt" for name in "ab"]
    for path in groups:
        path.parent.mkdir()
        path.write_text("nsubj\n")
    ldd = [systems.replace(systems.ldd("LDD", "arcs", 0.8), options=f"--ldd-label-groups '{path}'") for path in groups]
    keys = [run.key_of(system, tmp_path) for system in ldd]
    assert keys[0] == keys[1]
    groups[0].write_text("nsubj obj\n")
    others = [run.key_of(ldd[0], tmp_path), run.key_of(systems.replace(ldd[1], generation="--beam 2"), tmp_path)]
    others.append(run.key_of(systems.replace(ldd[1], arch="transformer"), tmp_path))
    (tmp_path / "prepared.json").write_text('{"corpus": "other files"}')
    others.append(run.key_of(ldd[1], tmp_path))
    assert len({keys[0], *others}) == 5


@pytest.mark.checkout
def test_the_kept_table_is_that_of_its_results():
    """What is beside it was not edited by hand, and its rows are still asked for in the same way."""
    kept = table.Table(TOY / "TABLE.md")
    lines = kept.read()
    assert kept.page.read_text("utf-8") == table.markdown(table.rows_of(lines))
    known = {system.name: system for system in systems.SYSTEMS}
    for line in lines:
        assert (line["corpus"], line["knows"]) == (known[line["system"]].corpus, known[line["system"]].knows)
    for line in lines:
        if "seed" in line:
            assert line["exact"] == pytest.approx(100 * line["right"].count("1") / line["ambiguous"])


def test_a_corpus_of_control_parses_is_its_corpus_with_other_trees(tmp_path, monkeypatch, in_process):
    monkeypatch.setitem(run.CORPORA, "attachment", ["--train", "30", "--valid", "5", "--test", "20"])
    monkeypatch.setattr(run, "PIECES", {"src": 90, "tgt": 120})
    roots = [run.prepare(run.Runner(tmp_path, 1), name, 1) for name in ("attachment", "attachment.linear")]
    real, linear = (list(read_conllu(root / "corpus/test.src.conllu")) for root in roots)
    assert [text_of(line) for line in real] == [text_of(line) for line in linear]
    assert [line.heads for line in real] != [line.heads for line in linear]
    for line in linear:
        assert all(head in (word, word - 1) for word, head in enumerate(line.heads))
    infos = [json.loads((root / "corpus/info.json").read_text())["best"] for root in roots]
    assert infos[0] == infos[1]


def test_a_failed_command_shows_the_end_of_its_log(tmp_path):
    runner = run.Runner(tmp_path, 1)
    with pytest.raises(run.StepError, match="the reason"):
        runner.run([sys.executable, "-c", "print('the reason'); raise SystemExit(3)"], tmp_path / "log")
    assert runner.run([sys.executable, "-c", "pass"], tmp_path / "log") < 60


def test_every_row_can_be_asked_for():
    names = [system.name for system in systems.SYSTEMS]
    assert len(set(names)) == len(names) and systems.SYSTEMS[: len(systems.DEMO)] == systems.DEMO
    assert {system.corpus for system in systems.SYSTEMS} <= {*systems.CORPORA, *systems.CONTROLS}
    # these controls tell nothing: their rows are to stay at what the text allows
    assert all(system.knows == "text" for system in systems.SYSTEMS if system.corpus in systems.CONTROLS)


def test_documented_checkpoints_are_where_runs_put_them():
    root = TOY.parents[1]
    pages = [*root.glob("*.md"), *root.glob("docs/*.md"), *root.glob("examples/*/*.md")]
    found = {
        path
        for page in pages
        for path in re.findall(r"runs/toy/[^\s`]*checkpoint[^\s`]*", page.read_text(encoding="utf-8"))
    }
    known = {f"runs/toy/{s.corpus}/{run.folder_name(s)}/1/checkpoint_last.pt" for s in systems.SYSTEMS}
    assert found and found <= known

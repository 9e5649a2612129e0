"""Control parses: always trees, drawn uniformly, with the margins that are stated, and seeded."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from collections import Counter, defaultdict
from random import Random

import pytest
from data_errors import data_error, refused
from hypothesis import given, settings
from hypothesis import strategies as st
from matrix_part import examples
from scipy import stats

from fairseq_syntax.cli import main as command
from fairseq_syntax.corpus.conllu import ParsedLine, Token, format_conllu, owner, read_conllu
from fairseq_syntax.corpus.header import check_controls, parsed_with
from fairseq_syntax.corpus.header import controls as controls_of
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.lab import control_trees
from fairseq_syntax.lab.control_trees import STRUCTURES
from fairseq_syntax.lab.controls import CONTROLS, Control

LABELS = ["nsubj", "obj", "acl:relcl", "obl", "a,b|c"]
P_VALUES = [0.01, 0.03, 0.125, 0.2, 0.25]


def is_tree(heads: list[int]) -> bool:
    """One root, and every word below it: by walking up from each word, at most n steps."""
    if sum(head == word for word, head in enumerate(heads)) != 1:
        return False
    for word in range(len(heads)):
        for _ in heads:
            word = heads[word]
        if heads[word] != word:
            return False
    return True


def is_projective(heads: list[int]) -> bool:
    """Every word between a dependent and its head has an ancestor in the head."""

    def below(word: int, head: int) -> bool:
        while word != head and heads[word] != word:
            word = heads[word]
        return word == head

    return all(
        below(between, head)
        for word, head in enumerate(heads)
        for between in range(min(word, head) + 1, max(word, head))
    )


def all_trees(n: int) -> list[tuple[int, ...]]:
    return [heads for heads in itertools.product(range(n), repeat=n) if is_tree(list(heads))]


@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ["random", "random-projective"])
def test_random_trees_are_uniform_over_the_enumerated_ones(name, n):
    trees = all_trees(n)
    assert len(trees) == n ** (n - 1)
    if name == "random-projective":
        trees = [tree for tree in trees if is_projective(list(tree))]
        assert len(trees) == math.comb(3 * n - 2, n - 1) // n
    rng = Random(5)
    draws = 60 * len(trees)
    counts = Counter(tuple(control_trees.control_heads(name, [0] * n, rng)) for _ in range(draws))
    assert set(counts) <= set(trees)
    if n > 1:
        assert stats.chisquare([counts[tree] for tree in trees]).pvalue > 0.001


@given(n=st.integers(1, 300), seed=st.integers(0, 10**6), name=st.sampled_from(STRUCTURES))
@settings(max_examples=examples(60))
def test_trees_of_any_size_are_trees(n, seed, name):
    before = control_trees.random_tree(n, Random(seed))
    heads = control_trees.control_heads(name, before, Random(seed))
    assert is_tree(heads)
    if name in ("linear", "right", "random-projective") and n <= 40:
        assert is_projective(heads)
    if name == "linear":
        assert all(head == word - 1 for word, head in enumerate(heads) if word)
    if name == "right":
        assert all(head == word + 1 for word, head in enumerate(heads[:-1]))
    if name == "flat":
        assert all(before[head] == head for head in heads)


def test_long_sentences_take_no_recursion():
    for name in STRUCTURES:
        assert is_rooted(control_trees.control_heads(name, [0] * 20_000, Random(1)))


def is_rooted(heads: list[int]) -> bool:
    """As ``is_tree``, in linear time: words are taken off from the leaves."""
    children = Counter(head for word, head in enumerate(heads) if head != word)
    leaves = [word for word in range(len(heads)) if not children[word]]
    seen = 0
    while leaves:
        word = leaves.pop()
        seen += 1
        head = heads[word]
        if head != word:
            children[head] -= 1
            if not children[head]:
                leaves.append(head)
    return seen == len(heads)


@st.composite
def lines(draw, distributions: bool | None = None) -> list[ParsedLine]:
    """A text: lines of 0 to 3 sentences, with multi-word tokens, with and without distributions."""
    rng = Random(draw(st.integers(0, 10**9)))
    arcs = draw(st.booleans()) if distributions is None else distributions
    result = []
    for number in range(draw(st.integers(1, 6))):
        line = ParsedLine(line_number=number, arcs=[] if arcs else None)
        for _ in range(rng.randint(0, 3)):
            start, n = len(line.words), rng.randint(1, 6)
            tree = control_trees.random_tree(n, rng)
            line.heads += [head + start for head in tree]
            line.deprels += ["root" if head == word else rng.choice(LABELS) for word, head in enumerate(tree)]
            line.words += [f"w{word}" for word in range(start, start + n)]
            line.sentences.append((start, start + n))
            word = start
            while word < start + n:
                last = min(word + rng.choice([0, 0, 1, 2]), start + n - 1)
                form = line.words[word] if last == word else "mwt"
                line.tokens.append(Token(form, rng.random() < 0.7, word, last, owner(word, last, line.heads), 2))
                word = last + 1
            if arcs:
                for word in range(start, start + n):
                    chosen = rng.sample(P_VALUES, rng.randint(0, 4))
                    pairs = [(head, label) for head in range(start, start + n) if head != word for label in LABELS]
                    pairs = [*rng.sample(pairs, min(len(chosen), len(pairs))), (word, "root")]
                    ranked = sorted(zip(chosen, pairs), reverse=True)
                    line.arcs += [(word, head, label, p) for p, (head, label) in ranked]
        line.upos = [rng.choice(["NOUN", "VERB"]) for _ in line.words]
        line.xpos = ["_"] * len(line.words)
        if not line.words:
            line.arcs = None
        result.append(line)
    return result


def masses(line: ParsedLine) -> list[float]:
    result = [0.0] * len(line.words)
    for word, _, _, p in line.arcs or ():
        result[word] += p
    return result


def control(names: tuple[str, ...], seed: int = 1, **options) -> Control:
    """The control, with a share of wrong arcs for ``damaged``."""
    return Control(names, seed, wrong_arcs=0.4 if "damaged" in names else None, **options)


@given(
    text=lines(),
    name=st.sampled_from([*CONTROLS, "random relabelled", "damaged one-best"]),
    seed=st.integers(0, 3),
)
@settings(max_examples=examples(150))
def test_what_every_control_keeps(text, name, seed):
    names = tuple(name.split())
    before = "".join(map(format_conllu, text))
    made = list(control(names, seed)(text))
    assert "".join(map(format_conllu, text)) == before, "the lines given were changed"
    assert made == list(control(names, seed)(text)), "not seeded"
    # what is written is a valid parse, and the same
    written = "".join(map(format_conllu, made))
    count = max((line.line_number + 1 for line in made if line.words), default=0)
    again = list(read_conllu(written.splitlines(), n_lines=count))
    for new, read in zip(made, again):
        assert (read.heads, read.deprels, read.tokens) == (new.heads, new.deprels, new.tokens)
    for old, new in zip(text, made):
        assert (new.words, new.upos, new.xpos, new.sentences) == (old.words, old.upos, old.xpos, old.sentences)
        assert [(t.form, t.first, t.last, t.pieces) for t in new.tokens] == [
            (t.form, t.first, t.last, t.pieces) for t in old.tokens
        ]
        for start, end in new.sentences:
            assert is_tree([head - start for head in new.heads[start:end]])
        assert all(token.word == owner(token.first, token.last, new.heads) for token in new.tokens)
        assert (new.arcs is None) == (old.arcs is None and not ("one-best" in names and old.words))
        if name == "one-best":
            assert new.arcs is None or new.arcs == [
                (word, *arc, 1.0) for word, arc in enumerate(zip(old.heads, old.deprels))
            ]
        elif name not in ("shuffled", "damaged one-best"):
            for start, end in new.sentences:
                assert sorted(masses(new)[start:end]) == pytest.approx(sorted(masses(old)[start:end]))
                assert sorted(new.deprels[start:end]) == sorted(old.deprels[start:end])
        if name in STRUCTURES:
            for word, (head, label) in enumerate(zip(new.heads, new.deprels)):
                assert (head == word) == (label == "root")
            assert all(head == new.heads[word] for word, head, _, _ in new.arcs or ())
        if name in ("relabelled", "one-best"):
            assert new.heads == old.heads


@given(n=st.integers(1, 30), share=st.floats(0, 1), seed=st.integers(0, 10**6))
@settings(max_examples=examples(300))
def test_wrong_arcs_leave_a_tree_and_are_as_many_as_wanted(n, share, seed):
    before = control_trees.random_tree(n, Random(seed))
    wanted = round(share * n)
    after = control_trees.with_wrong_arcs(before, wanted, Random(seed))
    assert is_tree(after)
    wrong = sum(old != new for old, new in zip(before, after))
    assert wrong <= wanted
    if n >= 5 and wanted <= 0.6 * n:
        assert wrong == wanted
    assert wrong > 0 or wanted == 0 or n < 5


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_trees_with_other_heads_are_uniform_over_the_enumerated_ones(n):
    trees = all_trees(n)
    rng = Random(2)
    for before in rng.sample(trees, min(len(trees), 12)):
        for drawn in itertools.chain(*(itertools.combinations(range(n), k) for k in range(1, n + 1))):
            changed = set(drawn)
            allowed = [t for t in trees if {w for w in range(n) if t[w] != before[w]} == changed]
            draws = 30 * len(allowed) if allowed else 1
            made = [control_trees.with_other_heads(before, drawn, rng) for _ in range(draws)]
            if not allowed:
                assert made == [None]
                continue
            counts = Counter(map(tuple, made))
            assert set(counts) <= set(allowed)
            if len(allowed) > 1:
                assert stats.chisquare([counts[tree] for tree in allowed]).pvalue > 1e-4, (before, drawn)


@given(n=st.integers(1, 7), seed=st.integers(0, 10**6))
@settings(max_examples=examples(200))
def test_what_is_a_tree(n, seed):
    rng = Random(seed)
    heads = [rng.randrange(n) for _ in range(n)]
    for candidate in (heads, control_trees.random_tree(n, rng)):
        assert control_trees.is_tree(candidate) == is_tree(candidate)


@given(text=lines(distributions=True), seed=st.integers(0, 3), share=st.sampled_from([0.1, 0.3, 1.0]))
@settings(max_examples=examples(60))
def test_damaged_says_by_its_distribution_how_often_it_is_wrong(text, seed, share):
    made = list(Control(("damaged",), seed, wrong_arcs=share)(text))
    for old, new in zip(text, made):
        for start, end in new.sentences:
            # the two words that trade the root's label trade their masses
            assert sorted(masses(old)[start:end]) == pytest.approx(sorted(masses(new)[start:end]))
            for word in range(start, end):
                arcs = [arc for arc in new.arcs if arc[0] == word]
                assert sorted(head for _, head, _, _ in arcs) == list(range(start, end))
                for _, head, label, p in arcs:
                    assert label == new.deprels[word]
                    trusted = 1.0 if end - start == 1 else 1 - share
                    even = share / max(1, end - start - 1)
                    part = trusted if head == new.heads[word] else even
                    assert p == pytest.approx(part * masses(new)[word])


def test_the_share_of_wrong_arcs_of_a_text():
    rng = Random(7)
    text = []
    for number in range(400):
        n = rng.randint(8, 14)
        tree = control_trees.random_tree(n, rng)
        text.append(ParsedLine(["w"] * n, tree, ["d"] * n, ["_"] * n, ["_"] * n, [], None, [(0, n)], number))
    for share in (0.1, 0.3, 0.6):
        damage = Control(("damaged",), 1, wrong_arcs=share)
        made = list(damage(text))
        wrong = sum(a != b for old, new in zip(text, made) for a, b in zip(old.heads, new.heads))
        counts = damage.counts
        assert wrong == counts["wrong_arcs"] and counts["words"] == sum(len(line.words) for line in text)
        assert wrong / counts["words"] == pytest.approx(share, abs=4 * math.sqrt(share * (1 - share) / counts["words"]))


@pytest.mark.parametrize("names, share", [(("damaged",), None), (("linear",), 0.1)])
def test_damaged_needs_a_share_of_wrong_arcs(names, share):
    with pytest.raises(SyntaxDataError):
        Control(names, wrong_arcs=share)


@given(text=lines(distributions=True), seed=st.integers(0, 3))
@settings(max_examples=examples(60))
def test_relabelled_keeps_the_probability_of_each_head_and_mixes_no_labels(text, seed):
    for old, new in zip(text, Control(("relabelled",), seed)(text)):

        def by_head(line):
            result = defaultdict(float)
            for word, head, _, p in line.arcs or ():
                result[word, head] += p
            return result

        assert by_head(new) == pytest.approx(by_head(old))
        for word, head in enumerate(new.heads):
            if head == word:
                assert new.deprels[word] == old.deprels[word]

        # each word's labels, given that the head is a word, are those of one word before
        def conditionals(line):
            result = []
            for word in range(len(line.words)):
                labels = Counter()
                for dependent, head, label, p in line.arcs or ():
                    if dependent == word and head != word:
                        labels[label] += p
                total = sum(labels.values())
                result.append({label: p / total for label, p in labels.items()})
            return result

        old_labels = [*conditionals(old), *({label: 1.0} for label in old.deprels)]
        for result in conditionals(new):
            assert not result or any(result == pytest.approx(known) for known in old_labels)


def test_shuffled_moves_every_tree_to_a_sentence_of_its_length():
    rng = Random(3)
    text = []
    for number in range(60):
        n = 9 if number == 30 else rng.choice([3, 4, 5])
        tree = control_trees.random_tree(n, rng)
        labels = [f"{number}.{word}" for word in range(n)]
        arcs = [(word, head, label, 0.5) for word, (head, label) in enumerate(zip(tree, labels))]
        words = ["w"] * n
        tokens = [Token("w", True, word, word, word) for word in range(n)]
        text.append(ParsedLine(words, tree, labels, words, words, tokens, arcs, [(0, n)], number))
    control = Control(("shuffled",), 1)
    made = list(control(text))
    assert control.counts["without_partner"] == 1 and control.counts["sentences"] == 60
    came = [int(line.deprels[0].split(".")[0]) for line in made]
    assert sorted(came) == list(range(60))
    for number, source in enumerate(came):
        assert source != number or number == 30
        if number != 30:
            assert (made[number].heads, made[number].deprels) == (text[source].heads, text[source].deprels)
            assert made[number].arcs == text[source].arcs
    # in blocks no tree leaves its block
    blocks = [int(line.deprels[0].split(".")[0]) // 20 for line in Control(("shuffled",), 1, 20)(text)]
    assert blocks == [number // 20 for number in range(60)]


def test_a_mass_above_one_by_rounding_makes_no_probability_above_one(tmp_path):
    """A reader takes masses to 1.001, as parsers that round have them, and no probability above 1."""
    rows = ["1\ta\t_\t_\t_\t_\t2\tdet\t_\tArcs=2:det:0.9995,0:root:0.0014"]
    rows += ["2\tb\t_\t_\t_\t_\t0\troot\t_\tArcs=0:root:1.0", "3\tc\t_\t_\t_\t_\t2\tobj\t_\tArcs=2:x:0.5,2:y:0.501"]
    parse, out = tmp_path / "p.conllu", tmp_path / "o.conllu"
    parse.write_text("\n".join(rows) + "\n\n")
    for seed in range(1, 4):
        files = ["--input", str(parse), "--output", str(out)]
        assert command(["control", "relabelled", "--seed", str(seed), *files]) == 0
        (line,) = read_conllu(out)
        assert max(p for *_, p in line.arcs) <= 1.0


def test_sattolos_cycles_are_uniform():
    rng = Random(1)
    counts = Counter(tuple(control_trees.sattolo(range(4), rng)) for _ in range(1200))
    assert len(counts) == 6 and stats.chisquare(list(counts.values())).pvalue > 0.001
    assert all(place != item for order in counts for place, item in enumerate(order))


def test_a_line_is_treated_the_same_whatever_the_others_are():
    rng = Random(1)
    tree = control_trees.random_tree(8, rng)
    line = ParsedLine(["w"] * 8, tree, ["d"] * 8, ["_"] * 8, ["_"] * 8, [], None, [(0, 8)], 5)
    alone = next(Control(("random",), 4)([line]))
    among = list(Control(("random",), 4)([ParsedLine(line_number=4), line]))[1]
    assert alone == among
    assert alone.heads != next(Control(("random",), 5)([line])).heads


def test_the_command(tmp_path, capsys):
    parse = tmp_path / "a.conllu"
    row = "{}\tw{}\t_\tN\tn\t_\t{}\t{}\t_\t{}\n"
    rows = [
        row.format(1, 1, 2, "det", "Arcs=2:det:0.8,3:det:0.1"),
        row.format(2, 2, 0, "root", "Arcs=0:root:1"),
        row.format(3, 3, 2, "obj", "Arcs=2:obj:0.6,2:obl:0.3"),
    ]
    parse.write_text("# lines = 3\n# line = 2\n" + "".join(rows) + "\n", encoding="utf-8")
    out = tmp_path / "b.conllu"
    assert command(["control", "linear", "--input", str(parse), "--output", str(out)]) == 0
    empty, line, end = read_conllu(out)
    assert not empty.words and not end.words
    # word 1 is the root now, and has the label and the arcs that the root had
    assert line.heads == [0, 0, 1] and line.deprels == ["root", "det", "obj"]
    assert line.arcs == [(0, 0, "root", 1.0), (1, 0, "det", 0.9), (2, 1, "obj", 0.6), (2, 1, "obl", 0.3)]
    assert controls_of(parsed_with(out)) == ["linear"]
    assert command(["control", "random", "relabelled", "--seed", "2", "--input", str(parse), "--output", str(out)]) == 0
    assert command(["control", "shuffled", "--input", str(parse), "--output", str(out)]) == 0
    said = capsys.readouterr()
    assert said.err.rstrip().endswith(": 1")  # sentences without another of their length
    assert controls_of(parsed_with(out)) == ["shuffled"]
    assert "fairseq-syntax segment" in said.out
    pieces = tmp_path / "pieces.conllu"
    pieces.write_text("".join(rows).replace("Arcs", "Pieces=1|Arcs") + "\n", encoding="utf-8")
    assert command(["control", "linear", "--input", str(pieces), "--output", str(out)]) == 0
    assert "next: fairseq-syntax binarize" in capsys.readouterr().out
    for argv, about in (
        (["linear", "--input", parse, "--output", parse], {"path": parse}),
        (["linear", "--input", tmp_path / "none", "--output", out], {"path": "none"}),
        (["linear", "--input", "/dev/null", "--output", out], {"path": "/dev/null"}),
    ):
        refused(["control", *argv], **about)
    refused(["control", "up", "--input", parse, "--output", out], "up")


def test_the_title_has_the_share_of_wrong_arcs(tmp_path, capsys):
    """So that a model which was trained on one is not given the other."""
    parse = tmp_path / "a.conllu"
    parse.write_text("1\ta\t_\tX\t_\t_\t0\troot\t_\tArcs=0:root:0.9\n\n")

    def made(*control) -> dict:
        out = tmp_path / f"{'_'.join(control)}.conllu"
        assert command(["control", *control, "--input", str(parse), "--output", str(out)]) == 0
        return parsed_with(out)

    usual = made("damaged", "one-best", "--wrong-arcs", "0.5")
    assert controls_of(usual) == ["damaged --wrong-arcs 0.5", "one-best"]
    other = made("damaged", "one-best", "--wrong-arcs", "0.1")
    assert controls_of(other) == ["damaged --wrong-arcs 0.1", "one-best"]
    for trained, tested in ((usual, other), (other, usual)):
        with data_error(path="x") as error:
            check_controls(trained, tested, "x")
    assert "control damaged --wrong-arcs 0.1 one-best" in error.value.hint
    check_controls(other, other, "x")


def test_stdout_has_the_parse_and_nothing_else(tmp_path):
    parse, out = tmp_path / "a.conllu", tmp_path / "b.conllu"
    rows = "1\tw\t_\tN\tn\t_\t0\troot\t_\t_\n\n"
    parse.write_text(f'# lines = 1\n# parsed_with = {{"parser": "x"}}\n{rows}', encoding="utf-8")
    for name in ("-", "/dev/stdout"):
        made = [sys.executable, "-m", "fairseq_syntax", "control", "shuffled", "--input", parse, "--output", name]
        out.write_bytes(subprocess.run(made, stdout=subprocess.PIPE, check=True, cwd=tmp_path).stdout)
        (line,) = read_conllu(out, n_lines=1)
        assert line.words == ["w"] and parsed_with(out) == {"parser": "x", "control": ["shuffled"]}
    assert not (tmp_path / "-").exists()

"""Trees out of attention, against enumeration; UAS and LAS, against the shared task's own program."""

import io
import itertools

import numpy as np
import pytest
from data_errors import data_error
from hypothesis import given, settings
from hypothesis import strategies as st
from matrix_part import examples

from fairseq_syntax.corpus.conllu import read_conllu
from fairseq_syntax.corpus.cycles import cycle_through
from fairseq_syntax.corpus.parsed_line import is_tree
from fairseq_syntax.lab.scoring.attachment import collect_words, score_trees
from fairseq_syntax.use.parent_head import decode_parents


def log_softmax(scores):
    return scores - np.logaddexp.reduce(scores, axis=1, keepdims=True)


def reaches_root(heads):
    for word in range(len(heads)):
        seen = set()
        while heads[word] != word:
            if word in seen:
                return False
            seen.add(word)
            word = heads[word]
    return True


def trees(n_words, one_root):
    for heads in itertools.product(range(n_words), repeat=n_words):
        roots = sum(head == word for word, head in enumerate(heads))
        if reaches_root(heads) and (roots == 1 or not one_root):
            yield heads


@pytest.mark.parametrize("n_words", [1, 2, 3, 4])
def test_is_tree_by_walking(n_words):
    for heads in itertools.product(range(n_words), repeat=n_words):
        roots = sum(head == word for word, head in enumerate(heads))
        assert is_tree(heads) == (reaches_root(heads) and roots == 1)
        assert (cycle_through(heads) is None) == reaches_root(heads)


@pytest.mark.parametrize("seed", range(60))
def test_best_tree_by_enumeration(seed):
    rng = np.random.default_rng(seed)
    n_words = int(rng.integers(1, 6))
    logprobs = log_softmax(rng.normal(0, 4, (n_words, n_words)))
    best = max(trees(n_words, True), key=lambda heads: sum(logprobs[w, h] for w, h in enumerate(heads)))
    heads, probabilities = decode_parents(logprobs.astype(np.float32) + rng.normal(), [(0, n_words)])
    assert tuple(heads) == best
    np.testing.assert_allclose(probabilities, np.exp(logprobs), atol=1e-5)


def test_certain_but_impossible_parents():
    """Float32 log-softmax may say -inf; a cycle of certain words is still broken into one tree."""
    logprobs = np.full((4, 4), -np.inf, dtype=np.float32)
    logprobs[[0, 1, 2, 3], [1, 2, 0, 3]] = 0.0
    heads, _ = decode_parents(logprobs, [(0, 4)])
    assert is_tree(heads)


def test_known_sentences_keep_parents_inside():
    rng = np.random.default_rng(1)
    logprobs = log_softmax(rng.normal(0, 3, (7, 7)))
    heads, probabilities = decode_parents(logprobs, sentences=[(0, 3), (3, 7)])
    for start, end in [(0, 3), (3, 7)]:
        alone, of_alone = decode_parents(logprobs[start:end, start:end], [(0, end - start)])
        assert [head - start for head in heads[start:end]] == alone
        np.testing.assert_allclose(probabilities[start:end, start:end], of_alone)
        assert probabilities[start:end].sum() == pytest.approx(end - start)


# ------------------------------------------------------------------------------------------------ evaluation


def score(gold, system):
    return score_trees(collect_words(read_conllu(io.StringIO(gold)), "gold"),
                    collect_words(read_conllu(io.StringIO(system)), "system"))  # fmt: skip


def test_of_no_words_there_is_no_score():
    with data_error(path="gold"):
        score("# lines = 1\n\n", "")


def rows(*words):
    """CoNLL-U of one sentence from (id, form, head, deprel)."""
    return "".join(f"{i}\t{f}\t_\t_\t_\t_\t{h}\t{r}\t_\t_\n" for i, f, h, r in words) + "\n"


def test_half_right():
    gold = rows((1, "The", 2, "det"), (2, "monkey", 3, "nsubj"), (3, "eats", 0, "root"), (4, "it", 3, "obj"))
    system = rows((1, "The", 2, "det"), (2, "monkey", 3, "obj"), (3, "eats", 0, "root"), (4, "it", 2, "obj"))
    scores = score(gold, system)
    assert scores["UAS"].f1 == 0.75 and scores["LAS"].f1 == 0.5 and scores["Words"].f1 == 1.0


def test_subtypes_do_not_count_and_unlabelled_trees_have_no_las():
    gold = rows((1, "a", 2, "nmod:tmod"), (2, "b", 0, "root"))
    assert score(gold, rows((1, "a", 2, "nmod"), (2, "b", 0, "root")))["LAS"].f1 == 1.0
    assert "LAS" not in score(gold, rows((1, "a", 2, "dep"), (2, "b", 0, "root")))


def test_a_head_that_aligns_to_nothing_is_not_a_root():
    gold = rows((1, "ab", 0, "root"), (2, "c", 1, "x"))
    system = rows((1, "a", 0, "root"), (2, "b", 1, "x"), (3, "c", 2, "x"))
    scores = score(gold, system)
    assert (scores["UAS"].correct, scores["UAS"].aligned, scores["UAS"].gold, scores["UAS"].system) == (0, 1, 2, 3)


def test_different_texts_are_an_error_that_shows_where():
    with data_error("'x'", path="system"):
        score(rows((1, "ab", 0, "root"), (2, "c", 1, "x")), rows((1, "ab", 0, "root"), (2, "x", 1, "x")))


@st.composite
def two_parses(draw):
    """Two parses of one text, cut into tokens, words and sentences independently."""
    text = draw(st.text("abA", min_size=1, max_size=14))

    def parse():
        cuts = sorted({0, len(text)} | set(draw(st.lists(st.integers(0, len(text)), max_size=8))))
        tokens = [text[a:b] for a, b in itertools.pairwise(cuts)]
        out, sentence = [], []
        for token in tokens:
            n_words = draw(st.sampled_from([1, 1, 1, 2, 3]))
            sentence.append((token, [draw(st.text("abA", min_size=1, max_size=2)) for _ in range(n_words)]))
            if token is tokens[-1] or draw(st.integers(0, 5)) == 0:
                out.append(sentence)
                sentence = []
        return "".join(render(s) for s in out if s)

    def render(sentence):
        n_words = sum(len(words) for _, words in sentence)
        order = draw(st.permutations(range(n_words)))
        heads = [0] * n_words
        for at, word in enumerate(order):
            heads[word] = 0 if at == 0 else order[draw(st.integers(0, at - 1))] + 1
        text, i = "", 0
        for form, words in sentence:
            if len(words) > 1:
                text += f"{i + 1}-{i + len(words)}\t{form}" + "\t_" * 8 + "\n"
            for word in words if len(words) > 1 else [form]:
                label = draw(st.sampled_from(["x", "y", "y:z"])) if heads[i] else "root"
                text += f"{i + 1}\t{word}\t_\t_\t_\t_\t{heads[i]}\t{label}\t_\t_\n"
                i += 1
        return text + "\n"

    return parse(), parse()


@settings(max_examples=examples(200))
@given(two_parses())
def test_scores_of_the_shared_task(parses):
    udeval = pytest.importorskip("udtools.udeval")
    gold, system = (udeval.load_conllu(io.StringIO(text), "", {}) for text in parses)
    theirs = udeval.evaluate(gold, system)
    for name, ours in score(*parses).items():
        expected = theirs[name]
        assert (ours.correct, ours.gold, ours.system) == (expected.correct, expected.gold_total, expected.system_total)
        assert ours.f1 == pytest.approx(expected.f1)

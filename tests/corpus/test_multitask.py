"""Linearised parses, and the doubled corpus."""

import itertools
import random
import shutil

import pytest
from data_errors import data_error, run
from random_parses import random_tree

from fairseq_syntax.corpus import multitask as doubling
from fairseq_syntax.corpus.conllu import ParsedLine, Token, parse_conllu_block, write_conllu
from fairseq_syntax.corpus.multitask import is_projective, linearize


def parsed(heads, labels=None):
    n = len(heads)
    return ParsedLine(
        words=[f"w{i}" for i in range(n)],
        heads=list(heads),
        deprels=labels or ["root" if h == i else f"l{i % 3}" for i, h in enumerate(heads)],
        upos=[f"T{i}" for i in range(n)],
        xpos=["_"] * n,
        tokens=[Token(f"w{i}", True, i, i, i, 1) for i in range(n)],
        sentences=[(0, n)],
    )


MONKEY = parse_conllu_block(
    "1\tThe\t_\tDET\t_\t_\t2\tdet\t_\t_\n2\tmonkey\t_\tNOUN\t_\t_\t3\tnsubj\t_\t_\n"
    "3\teats\t_\tVERB\t_\t_\t0\troot\t_\t_\n4\ta\t_\tDET\t_\t_\t5\tdet\t_\t_\n5\tbanana\t_\t_\t_\t_\t3\tobj\t_\t_\n"
)


def test_by_hand():
    assert " ".join(linearize(MONKEY)) == (
        "(root (nsubj (det DET )det NOUN )nsubj VERB (obj (det DET )det * )obj )root"
    )
    assert " ".join(linearize(MONKEY, "relations")) == "det +1 nsubj +1 root 0 det +1 obj -2"
    two = linearize(MONKEY, symbols=[[w[0], "@" + w[1:]] for w in MONKEY.words])
    assert " ".join(two[:6]) == "(root (nsubj (det T @he )det"


def read_brackets(symbols):
    """The tree of a bracketed line, by another way: heads in the order of the words' symbols."""
    heads, labels, stack, words = {}, {}, [], []
    for symbol in symbols:
        if symbol.startswith("("):
            stack.append({"label": symbol[1:], "word": None, "waiting": []})
        elif symbol.startswith(")"):
            done = stack.pop()
            assert symbol[1:] == done["label"]
            for dependent in done["waiting"]:
                heads[dependent] = done["word"]
            labels[done["word"]] = done["label"]
            if stack:
                stack[-1]["waiting"].append(done["word"])
            else:
                heads[done["word"]] = done["word"]
        else:
            stack[-1]["word"] = len(words)
            words.append(symbol)
    return [heads[w] for w in range(len(words))], [labels[w] for w in range(len(words))], words


@pytest.mark.parametrize("seed", range(40))
def test_brackets_give_a_projective_tree_back(seed):
    rng = random.Random(seed)
    heads = random_tree(rng, rng.randint(1, 7))
    line = parsed(heads)
    actual, labels, words = read_brackets(linearize(line))
    assert sorted(words) == sorted(line.upos)
    order = [int(word[1:]) for word in words]
    assert [order[h] for h in actual] == [heads[w] for w in order]
    assert labels == [line.deprels[w] for w in order]
    assert (order == sorted(order)) == is_projective(line)


def crosses(heads):
    """Whether two arcs cross, by trying all pairs; a root attaches to a place before the text."""
    arcs = [(w, h if h != w else -1) for w, h in enumerate(heads)]
    arcs = [(min(a), max(a)) for a in arcs]
    return any(a < c < b < d for a, b in arcs for c, d in arcs)


@pytest.mark.parametrize("n_words", [1, 2, 3, 4, 5])
def test_projective_by_pairs_of_arcs(n_words):
    for heads in itertools.product(range(n_words), repeat=n_words):
        if [w for w, h in enumerate(heads) if w == h] and all(reaches_root(heads, w) for w in range(n_words)):
            assert is_projective(parsed(heads)) == (not crosses(heads))


def reaches_root(heads, word):
    for _ in heads:
        word = heads[word]
    return heads[word] == word


def test_a_chain_deeper_than_the_interpreters_stack():
    line = parsed([max(i - 1, 0) for i in range(3000)])
    assert read_brackets(linearize(line))[0] == line.heads


# ------------------------------------------------------------------------------------------------ the command


def multitask(tmp_path, *options):
    return run("multitask", "-s", "en", "-t", "de", "--output", tmp_path / "out", *options)


def corpus(tmp_path, n=20):
    (tmp_path / "seg").mkdir()
    prefix = tmp_path / "seg" / "train"
    with open(f"{prefix}.en.conllu", "w") as file:
        for i in range(n):
            line = parsed(random_tree(random.Random(i), i % 4 + 1)) if i != 3 else ParsedLine()
            line.line_number = i
            write_conllu(file, line)
    texts = [" ".join(f"w{j}" for j in range(i % 4 + 1)) if i != 3 else "" for i in range(n)]
    with open(f"{prefix}.en", "w") as file:
        file.writelines(text + "\n" for text in texts)
    with open(f"{prefix}.de", "w") as file:
        file.writelines(f"satz {i}\n" for i in range(n))
    return prefix, texts


def test_every_source_twice_in_one_order_for_a_seed(tmp_path, capsys):
    prefix, texts = corpus(tmp_path)
    multitask(tmp_path, "--train", str(prefix), "--seed", "7")
    assert f"{len(texts)} translations and {len(texts) - 1} parses" in capsys.readouterr().out
    source, target = ((tmp_path / "out" / f"train.{lang}").read_text().splitlines() for lang in ("en", "de"))
    pairs = list(zip(source, target))
    assert len(source) == len(target) == 2 * len(texts) - 1  # the empty line has no parse
    for i, text in enumerate(texts):
        assert (f"<translate> {text} <translate>", f"satz {i}") in pairs
        if text:
            heads = random_tree(random.Random(i), i % 4 + 1)
            assert (f"<parse> {text} <parse>", " ".join(linearize(parsed(heads)))) in pairs
    assert [t for s, t in pairs if s.startswith("<t")] != [f"satz {i}" for i in range(len(texts))]
    multitask(tmp_path, "--train", str(prefix), "--seed", "7")
    assert (tmp_path / "out" / "train.en").read_text().splitlines() == source


def test_neither_parts_nor_workers_change_the_corpus(tmp_path, monkeypatch):
    prefix, _ = corpus(tmp_path)
    multitask(tmp_path, "--train", str(prefix))
    whole = [(tmp_path / "out" / f"train.{lang}").read_bytes() for lang in ("en", "de")]
    for part_lines, workers in ((3, 1), (7, 2), (20, 3)):
        shutil.rmtree(tmp_path / "out")
        monkeypatch.setattr(doubling, "PART_LINES", part_lines)
        multitask(tmp_path, "--train", str(prefix), "--workers", str(workers))
        assert [(tmp_path / "out" / f"train.{lang}").read_bytes() for lang in ("en", "de")] == whole
        assert not list((tmp_path / "out").glob("*.parts"))


def test_translation_only(tmp_path):
    prefix, texts = corpus(tmp_path)
    multitask(tmp_path, "--translate-only", str(prefix), "--tags", "<T>", "<P>")
    assert (tmp_path / "out" / "train.en").read_text().splitlines() == [f"<T> {text} <T>" for text in texts]


def test_words_in_brackets(tmp_path):
    prefix, _ = corpus(tmp_path, n=2)
    multitask(tmp_path, "--train", str(prefix), "--words")
    assert "(root w0 )root" in (tmp_path / "out" / "train.de").read_text().splitlines()


@pytest.mark.parametrize("options", [(), ("--words",), ("--form", "relations")])
def test_a_parse_of_another_text_is_refused(tmp_path, options):
    prefix, texts = corpus(tmp_path)
    with open(f"{prefix}.en", "w") as file:
        file.writelines(text + "\n" for text in [*texts[:5], texts[5] + " w2", *texts[6:]])
    with data_error("2 pieces, the text of this line 3", path="train.en.conllu"):
        multitask(tmp_path, "--train", str(prefix), *options)


def test_nothing_is_written_through_a_link_onto_the_input(tmp_path):
    prefix, texts = corpus(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "train.en").symlink_to(f"{prefix}.en")
    for option in ("--train", "--translate-only"):
        with data_error(path="train.en"):
            multitask(tmp_path, option, str(prefix))
    assert (tmp_path / "seg" / "train.en").read_text().splitlines() == texts


def test_errors_name_the_file(tmp_path):
    prefix, _ = corpus(tmp_path)
    with data_error(path="train.en", line=2):
        multitask(tmp_path, "--train", str(prefix), "--tags", "w1", "w9")
    (tmp_path / "seg" / "train.de").write_text("one line\n")
    with data_error(path="train.de", line=1):
        multitask(tmp_path, "--train", str(prefix))
    (tmp_path / "more").mkdir()
    with data_error(path="train.en"):
        multitask(tmp_path, "--train", str(prefix), "--translate-only", str(tmp_path / "more" / "train"))
    with data_error("--train", "--translate-only"):
        multitask(tmp_path)
    with data_error("--words", "--form"):
        multitask(tmp_path, "--train", str(prefix), "--words", "--form", "relations")

"""Parallel treebanks: pairs by sentence id, surface words, and the trees of the pairs."""

import gzip
from pathlib import Path

import pytest

from fairseq_syntax.corpus.conllu import read_conllu, surface_rows
from fairseq_syntax.corpus.readers import read_corpus
from fairseq_syntax.errors import SyntaxDataError


def sentence(sentence_id: str, words: list[str], text: str = "") -> str:
    rows = [f"# sent_id = {sentence_id}", *([f"# text = {text}"] if text else [])]
    for number, word in enumerate(words, start=1):
        rows.append(f"{number}\t{word}\t_\tX\t_\t_\t{number - 1}\t{'root' if number == 1 else 'dep'}\t_\t_")
    return "\n".join(rows) + "\n\n"


@pytest.fixture
def treebanks(tmp_path) -> Path:
    for name in ("train", "dev", "test"):
        english = (
            sentence(f"1.{name}", ["a", "b", "c"]) + sentence(f"2.{name}", ["d"]) + sentence(f"3.{name}", ["e", "f"])
        )
        turkish = sentence(f"3.{name}", ["x", "y"], "xy") + sentence(f"1.{name}", ["z"])
        (tmp_path / f"en_small-ud-{name}.conllu.gz").write_bytes(gzip.compress(english.encode()))
        (tmp_path / f"tr_small-ud-{name}.conllu").write_text(turkish)
    return tmp_path


def test_pairs_and_trees(treebanks):
    options = {"trees": True}
    splits = {
        split.name: list(split.rows) for split in read_corpus("treebanks", treebanks, "en", "tr", options=options)
    }
    assert splits == {name: [("a b c", "z"), ("e f", "xy")] for name in ("train", "valid", "test")}
    for name, rows in splits.items():
        lines = list(read_conllu(treebanks / "trees" / f"{name}.en.conllu"))
        assert [" ".join(line.words) for line in lines] == [row[0] for row in rows]


def test_words_of_ranges():
    rows = ["# c", "1-2\tzum\t_", "1\tzu\t_", "2\tdem\t_", "3\tHaus\t_", "3.1\tempty\t_", "4\t.\t_"]
    assert [columns[1] for _, columns in surface_rows(rows)] == ["zum", "Haus", "."]


@pytest.mark.parametrize("damage", [lambda text: text.replace("# sent_id = 1.dev\n", ""), lambda text: text + text])
def test_ids_are_needed_once(treebanks, damage):
    path = treebanks / "tr_small-ud-dev.conllu"
    path.write_text(damage(path.read_text()))
    with pytest.raises(SyntaxDataError) as error:
        list(read_corpus("treebanks", treebanks, "en", "tr"))
    assert error.value.path == path

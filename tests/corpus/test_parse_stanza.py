"""Stanza's models where users have them: folders of files and resources folders, with tokenizers and without."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from parse_models import models, train_tokenizer
from stanza.models.common.vocab import VOCAB_PREFIX_SIZE
from stanza.models.depparse.head_constraints import SINGLETON_DEPREL_GROUPS
from stanza.models.depparse.model import GraphParser
from stanza.utils.conll import CoNLL

from fairseq_syntax.cli import main
from fairseq_syntax.corpus.conllu import read_conllu, text_of
from fairseq_syntax.corpus.parsing.parser import ParserOptions, load_parser
from fairseq_syntax.corpus.parsing.stanza import StanzaTokenizer, best_trees, fingerprint
from fairseq_syntax.corpus.parsing.tokenizers import BasicTokenizer

LINES = ["the man sees a dog. the girl likes a boat in the park.", "", "  the  dog has a man. "]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The toy models with a tokenizer beside them."""
    folder = tmp_path_factory.mktemp("models")
    for name in ("pos.pt", "depparse.pt"):
        shutil.copy(models() / name, folder)
    train_tokenizer(folder)
    return folder


def resources(folder: Path, root: Path) -> Path:
    """The same models in the layout of Stanza's downloads; the lemmatiser is one without a file."""
    kinds = ("tokenize", "pos", "depparse")
    for kind in kinds:
        (root / "xx" / kind).mkdir(parents=True)
        shutil.copy(folder / f"{kind}.pt", root / "xx" / kind / "toy.pt")
    index: dict = {"packages": {"default": dict.fromkeys(kinds, "toy") | {"lemma": "identity"}}, "lang_name": "Toy"}
    index |= {kind: {"toy": {"md5": ""}} for kind in kinds} | {"lemma": {"identity": {"md5": ""}}}
    (root / "resources.json").write_text(json.dumps({"xx": index}))
    return root


@pytest.mark.parametrize("layout", ["folder", "resources"])
def test_both_layouts_tokenize_split_and_parse(folder, tmp_path, layout):
    where = folder if layout == "folder" else resources(folder, tmp_path)
    for split in (False, True):
        options = ParserOptions(lang="xx", model_dir=str(where), split_sentences=split, distributions=True)
        parser = load_parser(options)
        assert isinstance(parser.tokenizer, StanzaTokenizer)
        first, empty, last = parser.parse(LINES)
        assert first.sentences == ([(0, 6), (6, 15)] if split else [(0, 15)])
        assert [text_of(line) for line in (first, empty, last)] == [" ".join(line.split()) for line in LINES]
        assert last.words == ["the", "dog", "has", "a", "man", "."] and empty.words == []
        assert sum(head == word for word, head in enumerate(first.heads)) == len(first.sentences)


def test_a_language_may_be_named_by_its_alias(folder, tmp_path):
    where = resources(folder, tmp_path)
    index = json.loads((where / "resources.json").read_text())
    (where / "resources.json").write_text(json.dumps(index | {"x": {"alias": "xx"}}))
    options = [ParserOptions(lang=lang, model_dir=str(where)) for lang in ("xx", "x")]
    parses = [load_parser(one).parse(LINES) for one in options]
    before = fingerprint(options[1])
    assert parses[0] == parses[1] and fingerprint(options[0]) == before
    with open(where / "xx" / "pos" / "toy.pt", "ab") as file:
        file.write(b"x")
    assert fingerprint(options[1]) != before


def test_the_tokenizer_is_an_option_and_the_models_are_part_of_a_jobs_identity(folder, tmp_path):
    text = tmp_path / "text"
    text.write_text("".join(f"{line}\n" for line in LINES))
    command = ["parse", "--input", str(text), "--output", str(tmp_path / "out"), "--lang", "xx"]
    assert main([*command, "--model-dir", str(folder), "--tokenizer", "basic"]) == 0
    assert [text_of(line) for line in read_conllu(tmp_path / "out")] == [" ".join(line.split()) for line in LINES]
    options = ParserOptions(lang="xx", model_dir=str(folder), tokenizer="basic")
    assert isinstance(load_parser(options).tokenizer, BasicTokenizer)
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    assert fingerprint(ParserOptions(lang="xx", model_dir=str(other))) == fingerprint(options)
    with open(other / "pos.pt", "ab") as file:
        file.write(b"x")
    assert fingerprint(ParserOptions(lang="xx", model_dir=str(other))) != fingerprint(options)


def test_contracted_tokens_become_several_words():
    document = CoNLL.conll2doc(
        input_str="# text = Er geht zum Haus.\n"
        "1\tEr\t_\t_\t_\t_\t2\tdep\t_\tstart_char=0|end_char=2\n"
        "2\tgeht\t_\t_\t_\t_\t0\troot\t_\tstart_char=3|end_char=7\n"
        "3-4\tzum\t_\t_\t_\t_\t_\t_\t_\tstart_char=8|end_char=11\n"
        "3\tzu\t_\t_\t_\t_\t2\tdep\t_\t_\n"
        "4\tdem\t_\t_\t_\t_\t2\tdep\t_\t_\n"
        "5\tHaus\t_\t_\t_\t_\t2\tdep\t_\tstart_char=12|end_char=16\n"
        "6\t.\t_\t_\t_\t_\t2\tdep\t_\tstart_char=16|end_char=17\n\n"
    )
    document.text = "Er geht zum Haus."
    tokenizer = StanzaTokenizer.__new__(StanzaTokenizer)
    tokenizer.pipeline = SimpleNamespace(bulk_process=lambda texts: [document for _ in texts])
    ((sentence,),) = tokenizer.tokenize(["Er geht zum Haus."])
    assert [(token.form, token.words, token.space_after) for token in sentence] == [
        ("Er", ["Er"], True),
        ("geht", ["geht"], True),
        ("zum", ["zu", "dem"], True),
        ("Haus", ["Haus"], False),
        (".", ["."], True),
    ]


@pytest.mark.parametrize("line", ["the \x80 man\x9f sees a dog.", "\x81", "the\x85dog\x96has a man."])
def test_control_characters_are_no_white_space(folder, line):
    """To Stanza they are, all of U+0080 to U+009F; to Python U+0085 alone is."""
    (parsed,) = load_parser(ParserOptions(lang="xx", model_dir=str(folder))).parse([line])
    assert text_of(parsed) == " ".join(line.split())
    assert set("".join(parsed.words)) - {" "} == set(line) - {" ", "\x85"}


@pytest.mark.parametrize("split", [False, True])
def test_an_empty_line_within_a_text_is_a_space(folder, split):
    parser = load_parser(ParserOptions(lang="xx", model_dir=str(folder), split_sentences=split))
    for text in ("the man sees a dog\n\nthe girl likes a boat .", "\n\n. the man sees a dog."):
        ((alone,), (_, among, _)) = (parser.parse(lines) for lines in ([text], ["the dog", text, "a man"]))
        (spaced,) = parser.parse([text.replace("\n", " ")])
        assert alone == replace(among, line_number=0) == spaced


def test_white_space_within_a_token(folder):
    document = CoNLL.conll2doc(
        input_str="1\til\t_\t_\t_\t_\t0\troot\t_\tstart_char=0|end_char=2\n"
        "2\t10 000\t_\t_\t_\t_\t1\tdep\t_\tstart_char=3|end_char=9\n\n"
    )
    tokenizer = StanzaTokenizer.__new__(StanzaTokenizer)
    tokenizer.pipeline = SimpleNamespace(bulk_process=lambda texts: [document for _ in texts])
    parser = load_parser(ParserOptions(lang="xx", model_dir=str(folder)))
    parser.tokenizer = tokenizer
    (parsed,) = parser.parse(["il 10\u00a0000"])
    assert parsed.words == ["il", "10 000"] and text_of(parsed) == "il 10 000"


class Labels:
    """A vocabulary of labels, of which a head may have one subject and one object."""

    names = ("root", "nsubj", "csubj", "obj", "obl", "advmod")

    def unmap(self, ids: list[int]) -> list[str]:
        return [self.names[index - VOCAB_PREFIX_SIZE] for index in ids]


@pytest.mark.matrix(3)
@pytest.mark.parametrize("constrained", [True, False])
@pytest.mark.parametrize("sure", [0.5, 3.0, 8.0], ids="sure-{}".format)
def test_the_trees_are_those_that_stanza_decodes(sure, constrained):
    # From scores of which hardly any sentence's most probable heads are a tree, to those of a good parser.
    made = torch.Generator().manual_seed(1)
    lengths = [length for length in range(2, 14) for _ in range(20)]
    size = max(lengths)
    heads = torch.randn(len(lengths), size, size, generator=made)
    labels = 2 * torch.randn(len(lengths), size, size, len(Labels.names), generator=made)
    for i, length in enumerate(lengths):  # a random tree, whose arcs are likelier by `sure`
        for word in range(2, length):
            heads[i, word, int(torch.randint(1, word, (), generator=made))] += sure
        heads[i, 1, 0] += sure
    predictions = [F.log_softmax(heads, 2).numpy(), labels.argmax(3).numpy() + VOCAB_PREFIX_SIZE]
    predictions.append(F.log_softmax(labels, 3).numpy())
    theirs = GraphParser.decode_graph_predictions(Labels(), len(lengths), predictions, lengths, constrained)
    ours = best_trees(Labels(), heads, labels, lengths, constrained)
    assert [[(int(head), label) for head, label in tree] for tree in theirs] == [list(map(tuple, t)) for t in ours]
    assert set(Labels.names[1:4]) <= set().union(*SINGLETON_DEPREL_GROUPS.values())

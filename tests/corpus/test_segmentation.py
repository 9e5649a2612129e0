"""Words to pieces: the text comes back, every piece knows its word, bad models are told from good ones."""

import argparse
import io
import json
import os
import pickle
import random
import time
from contextlib import suppress

import pytest
import sentencepiece
from data_errors import data_error, run
from fairseq.data import Dictionary
from fairseq.tokenizer import tokenize_line
from hypothesis import example, given, settings
from hypothesis import strategies as st
from matrix_part import examples

from fairseq_syntax.cli import main
from fairseq_syntax.corpus import segmentation
from fairseq_syntax.corpus.conllu import read_conllu, text_of
from fairseq_syntax.corpus.header import parsed_with
from fairseq_syntax.corpus.moses_tokenizer import MosesSegmenter
from fairseq_syntax.corpus.segmentation import (
    JOINER,
    SPACE_MARK,
    SentencePieceSegmenter,
    SubwordNmtSegmenter,
    load_segmenter,
    spaces_before,
)
from fairseq_syntax.corpus.segmentation_training import read_words, train_segmenter
from fairseq_syntax.corpus.words import single_spaced
from fairseq_syntax.data.preprocess import check_text_and_parses
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.jobs import RecordedStep

TEXT = """A man sees the girl with the telescope.
The girl does n't see the man @@ home.
Zwei Männer stehen am Herd und bereiten Essen zu.
don't go there ▁ ￭ ▂ </s> <unk> a@@ @@
"""
CONLLU = """\
# lines = 3
# line = 1
1-2\tzum\t_\t_\t_\t_\t_\t_\t_\t_
1\tzu\t_\tADP\t_\t_\t3\tcase\t_\t_
2\tdem\t_\tDET\t_\t_\t3\tdet\t_\t_
3\tHaus\t_\tNOUN\t_\t_\t0\troot\t_\tSpaceAfter=No|Arcs=0:root:0.8
4\t.\t_\tPUNCT\t_\t_\t3\tpunct\t_\t_

# line = 1
1\tdo\t_\tAUX\t_\t_\t3\taux\t_\tSpaceAfter=No
2\tn't\t_\tPART\t_\t_\t3\tadvmod\t_\t_
3\tgo\t_\tVERB\t_\t_\t0\troot\t_\tArcs=0:root:0.9,1:conj:0.05

# line = 3
1\ttelescope\t_\tNOUN\t_\t_\t0\troot\t_\t_

"""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "train.en"
    path.write_text(TEXT * 20, encoding="utf-8")
    return path


def foreign_sentencepiece(**options) -> bytes:
    """A model as users train them: with their own normalisation, dummy prefix and options."""
    output = io.BytesIO()
    options = {"vocab_size": 60, "model_type": "unigram", "hard_vocab_limit": False} | options
    lines = iter(TEXT.splitlines() * 20)
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=lines, model_writer=output, minloglevel=2, **options)
    return output.getvalue()


@pytest.fixture(scope="module")
def segmenters(corpus):
    return {
        "unigram": train_segmenter("sentencepiece", [corpus], 60),
        "bpe": train_segmenter("sentencepiece", [corpus], 80, model_type="bpe"),
        "subword_nmt": train_segmenter("subword_nmt", [corpus], 90),
        "words": train_segmenter("words", [corpus], 0),
        "foreign": SentencePieceSegmenter(foreign_sentencepiece(normalization_rule_name="identity")),
        "bytes": SentencePieceSegmenter(
            foreign_sentencepiece(normalization_rule_name="identity", byte_fallback=True, vocab_size=320)
        ),
    }


LOSSLESS = ["unigram", "bpe", "subword_nmt", "words", "foreign", "bytes"]
# Marks, separators, escapes, special symbols and odd spaces come up far more often than in a plain draw of characters.
CHARACTERS = st.one_of(
    st.characters(exclude_categories=["Cs"]),
    st.sampled_from(
        [*"@▁￭▂ <>/eujsa", "@@", "</w>", "</s>", "<s>", "<unk>", "<pad>", "<0x41>", "\xa0", "\u2028", "\x85"]
    ),
)
LINES = st.lists(CHARACTERS, max_size=30).map("".join)
WORDS = st.lists(LINES.filter(lambda word: word.split()), max_size=8)


@pytest.mark.matrix(3)
@pytest.mark.parametrize("name", LOSSLESS)
@settings(max_examples=examples(250))
@given(text=LINES)
@example(text="a@@ b@@")
@example(text="</s> <s> <unk> <pad>")
@example(text="▁a ▂e ￭ ￭b ▂")
@example(text="\x00 \x01")
@example(text="日本語 \U0001f600\u200d")
def test_decoding_gives_the_text_back(segmenters, name, text):
    segmenter = segmenters[name]
    pieces = segmenter.encode_text(text)
    assert segmenter.decode(pieces) == segmenter.decode(" ".join(pieces)) == single_spaced(text)
    assert not segmenter.altered


@pytest.mark.matrix(3)
@pytest.mark.slow
@pytest.mark.parametrize("name", LOSSLESS)
@settings(max_examples=examples(250))
@given(words=WORDS, data=st.data())
def test_every_piece_knows_its_word(segmenters, name, words, data):
    spaces = data.draw(st.lists(st.booleans(), min_size=len(words), max_size=len(words)))
    segmenter = segmenters[name]
    encoded = segmenter.encode_words(words, spaces)
    assert len(encoded) == len(words) and all(encoded)
    text = "".join(
        (" " if space or not i else "") + single_spaced(w) for i, (w, space) in enumerate(zip(words, spaces))
    )
    assert segmenter.decode([piece for of_word in encoded for piece in of_word]) == text.strip(" ")
    for word, of_word, space in zip(words, encoded, spaces):
        # A word's pieces are its own: alone they spell the word, whatever stands around it.
        assert (
            segmenter.encode_words(["x", word], [True, space])[1] == segmenter.encode_words([word], [True])[0]
            or not space
        )
        assert segmenter.decode(of_word) == single_spaced(word) or not space


@pytest.mark.matrix(3)
@pytest.mark.parametrize("name", LOSSLESS)
@settings(max_examples=examples(150))
@given(text=LINES)
def test_fairseq_reads_the_same_pieces(segmenters, name, text):
    """fairseq splits lines at white space: no piece may be split again, nor be one of its special symbols."""
    pieces = segmenters[name].encode_text(text)
    assert tokenize_line(" ".join(pieces)) == pieces
    dictionary = Dictionary()
    specials = {dictionary[i] for i in range(dictionary.nspecial)}
    assert not specials & set(pieces)


def test_words_are_encoded_as_their_place_asks(segmenters):
    words, spaces = ["does", "n't", "see"], [True, False, True]
    first, second, third = segmenters["unigram"].encode_words(words, spaces)
    assert first[0].startswith(SPACE_MARK) and third[0].startswith(SPACE_MARK)
    assert not second[0].startswith(SPACE_MARK)
    first, second, third = segmenters["subword_nmt"].encode_words(words, spaces)
    assert second[0].startswith(JOINER) and not first[0].startswith(JOINER)
    assert all(piece.endswith("@@") for piece in second[:-1]) and not second[-1].endswith("@@")


def test_sentencepiece_word_by_word_is_sentencepiece_by_line(corpus):
    """On plain text the pieces are those that sentencepiece gives to the whole line."""
    segmenter = train_segmenter("sentencepiece", [corpus], 60)
    plain = sentencepiece.SentencePieceProcessor(model_proto=segmenter.model)
    for line in TEXT.splitlines()[:3]:
        assert segmenter.encode_text(line) == plain.encode(line, out_type=str)


@pytest.mark.parametrize(
    "options",
    [
        {"normalization_rule_name": "nfkc"},
        {"normalization_rule_name": "nmt_nfkc", "add_dummy_prefix": False},
        {"normalization_rule_name": "nmt_nfkc_cf", "model_type": "bpe", "vocab_size": 80},
        {"normalization_rule_name": "nmt_nfkc", "byte_fallback": True, "vocab_size": 320},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_a_users_model_that_normalises_says_what_it_loses(options):
    segmenter = SentencePieceSegmenter(foreign_sentencepiece(**options))
    assert segmenter.decode(segmenter.encode_text("a man")) == "a man"
    assert not segmenter.altered
    assert segmenter.decode(segmenter.encode_text("the ﬁne ▁ man")) == "the fine ▁ man"
    assert segmenter.altered == {"ﬁne": "fine"}
    # Zero-width characters vanish under nmt_nfkc: the word keeps a piece all the same.
    encoded = segmenter.encode_words(["a", "\u200b", "man"], [True, True, False])
    assert all(encoded)


@pytest.mark.slow
@settings(max_examples=examples(200))
@given(words=WORDS)
def test_normalising_models_give_every_word_a_piece(normalising, words):
    encoded = normalising.encode_words(words, [True] * len(words))
    assert len(encoded) == len(words) and all(encoded)
    flat = [piece for of_word in encoded for piece in of_word]
    assert tokenize_line(" ".join(flat)) == flat


@pytest.fixture(scope="module")
def normalising():
    return SentencePieceSegmenter(foreign_sentencepiece(normalization_rule_name="nmt_nfkc_cf"))


def test_the_cache_is_bounded_by_pieces_and_changes_nothing(corpus, monkeypatch):
    # A server sees words that nobody writes twice, as long as it lets them be.
    plain = train_segmenter("sentencepiece", [corpus], vocab_size=60)
    normalising = foreign_sentencepiece(normalization_rule_name="nmt_nfkc_cf")
    words = [f"{'GIRL' * (n % 7)}{n}" for n in range(300)]
    expected = [SentencePieceSegmenter(plain.model).encode_words([word], [True]) for word in words]
    monkeypatch.setattr(segmentation, "CACHED_PIECES", 200)
    segmenter, losing = SentencePieceSegmenter(plain.model), SentencePieceSegmenter(normalising)
    for _ in range(2):
        for word, pieces in zip(words, expected):
            assert segmenter.encode_words([word], [True]) == pieces
            assert 0 < sum(map(len, segmenter._cache.values())) <= 200
            losing.encode_words([word], [True])
            assert 0 < sum(map(len, losing._cache.values())) <= 200
    assert 0 < len(losing.altered) < 200
    # A word that the cache forgot counts once.
    monkeypatch.setattr(segmentation, "CACHED_PIECES", 40)
    losing = SentencePieceSegmenter(normalising)
    for n in range(300):
        losing.encode_words(["GIRL", f"girl{n}"], [True, True])
    losing.encode_words(["MAN"], [True])
    assert losing.altered == {"GIRL": "girl", "MAN": "man"}


def test_very_long_words_are_not_kept():
    """A run of characters that sentencepiece does not know is one piece, however long."""
    segmenter = SentencePieceSegmenter(foreign_sentencepiece(normalization_rule_name="nmt_nfkc_cf"))
    word = "\u4e00" * 1000
    first = segmenter.encode_words([word, "GIRL" * 100], [True, True])
    assert first == segmenter.encode_words([word, "GIRL" * 100], [True, True]) and len(first[0]) < 5
    assert not segmenter._cache and not segmenter.altered


def test_subword_nmt_keeps_no_words_of_its_own(corpus):
    segmenter = train_segmenter("subword_nmt", [corpus], vocab_size=60)
    for n in range(20):
        segmenter.encode_words([f"girl{n}"], [True])
    assert len(segmenter._bpe.cache) <= 1


def test_pieces_never_cross_words_in_training(tmp_path):
    """Glued words ("do" + "n't") are learned as the separate words that they are in the parse."""
    rows = "1\tdo\t_\tX\t_\t_\t0\troot\t_\tSpaceAfter=No\n2\tn't\t_\tX\t_\t_\t1\tdep\t_\t_\n\n"
    (tmp_path / "a.conllu").write_text(rows * 50, encoding="utf-8")
    for kind in ("sentencepiece", "subword_nmt"):
        segmenter = train_segmenter(kind, [tmp_path / "a.conllu"], 30)
        assert b"on't" not in segmenter.model and b"on'" not in segmenter.model
        encoded = segmenter.encode_words(["do", "n't"], [True, False])
        assert segmenter.decode([piece for of_word in encoded for piece in of_word]) == "don't"


def test_training_is_repeatable_and_samples(corpus):
    for kind in ("sentencepiece", "subword_nmt"):
        first = train_segmenter(kind, [corpus], 60, max_lines=30, seed=3)
        assert first.fingerprint == train_segmenter(kind, [corpus], 60, max_lines=30, seed=3).fingerprint
    assert sum(1 for _ in read_words([corpus])) == 80


def test_drawn_lines_are_those_of_a_draw_from_all_that_was_read(corpus, tmp_path):
    """Lines of several sentences, without any, with ranges and empty nodes, in a parse and in a text."""
    word = "{0}\tw{1}\t_\tX\t_\t_\t{2}\troot\t_\t_\n".format
    rows = ["# lines = 60\n"]
    for line in range(1, 60, 2):
        for part in range(1 + line % 3):
            rows += [f"# line = {line}\n", "# newdoc\n", f"1-2\tr{line}\t" + "_\t" * 7 + "_\n"]
            rows += [word(1, f"{line}a{part}", 0), word(2, line, 1), "2.1\te\t" + "_\t" * 7 + "_\n", "\n"]
    parse, text = tmp_path / "a.conllu", tmp_path / "a.txt"
    parse.write_text("\ufeff" + "".join(rows), encoding="utf-8")
    text.write_text("one\n\n \ntwo words\nthree\n", encoding="utf-8")
    files = [parse, text, corpus]
    whole = list(read_words(files))
    assert [words for words, _ in whole[:2]] == [["r1", "r1"], ["r3"]] and len(whole) > 100
    for count in (1, 7, 50, len(whole), 1000):
        rng, expected = random.Random(5), whole[:count]
        for seen in range(count, len(whole)):
            place = rng.randrange(seen + 1)
            if place < count:
                expected[place] = whole[seen]
        assert list(read_words(files, count, 5)) == expected


def test_save_and_load(segmenters, tmp_path):
    for name in ("unigram", "subword_nmt"):
        segmenter = segmenters[name]
        path = segmenter.save(tmp_path / f"segmentation.{name}")
        loaded = load_segmenter(path)
        assert loaded.kind == segmenter.kind and loaded.fingerprint == segmenter.fingerprint
        assert loaded.encode_text("the telescope") == segmenter.encode_text("the telescope")
        assert loaded.pieces == segmenter.pieces > 0
        # The bare model, as a user would give their own, is recognised by what it holds.
        bare = load_segmenter(path.with_suffix(".model"))
        assert bare.kind == segmenter.kind and bare.fingerprint == segmenter.fingerprint


def test_unfit_models_are_errors(segmenters, tmp_path):
    with data_error(path="none.json"):
        load_segmenter(tmp_path / "none.json")
    path = segmenters["unigram"].save(tmp_path / "segmentation.en")
    about = json.loads(path.read_text())
    for name, content in (
        ("a.model", b"\xff\xfe garbage"),
        ("a.json", b"{]"),
        ("b.json", b'{"kind": "sentencepiece"}'),
        ("codes", b"#version: 0.2\na b</w>\nc\n"),
        ("suffix.model", foreign_sentencepiece(treat_whitespace_as_suffix=True)),
        ("old.json", json.dumps(about | {"format": 0}).encode()),
    ):
        (tmp_path / name).write_bytes(content)
        with data_error(path=name):
            load_segmenter(tmp_path / name)
    for codes in (b"", b"#version: 0.2\n"):  # at which subword-nmt would end the process
        with data_error("subword-nmt"):
            SubwordNmtSegmenter(codes)
    (tmp_path / "segmentation.en.model").write_bytes(segmenters["unigram"].model[:-5])
    with data_error(path="segmentation.en.model"):
        load_segmenter(path)


CODES = "#version: 0.2\nd e\nde r</w>\nd a\nda s</w>\n"


def test_files_of_other_tools_are_named_with_what_makes_them_readable(tmp_path):
    for name, content, said in (
        ("tokenizer.json", '{"pre_tokenizer": null, "model": {"type": "BPE"}}', "Hugging Face"),
        ("vocab.json", '{"</s>": 0, "▁der": 1}', "a JSON file"),
        ("tokenizer_config.json", '{"tokenizer_class": "MarianTokenizer"}', "a JSON file"),
        ("m.vocab", "<unk>\t0\n▁der\t-3.25\n", "vocabulary of sentencepiece"),
        ("merges.txt", "#version: 0.2\nd e\nde r\n", "merges"),
        ("dict.de.txt", "der 12\ndas 9\n", "dictionary"),
    ):
        (tmp_path / name).write_text(content, encoding="utf-8")
        with data_error(said, path=name):
            load_segmenter(tmp_path / name)
    for encoding in ("utf-16", "utf-16-le", "utf-16-be"):
        (tmp_path / "codes").write_text(CODES, encoding=encoding)
        with data_error("iconv", path="codes"):
            load_segmenter(tmp_path / "codes")


def test_codes_of_fastbpe_cut_the_tokens_of_moses(tmp_path):
    """A line as a whole, and the words of a parse, whose boundaries may cross those of Moses' tokens."""
    pytest.importorskip("sacremoses")
    (tmp_path / "codes").write_text("t h 9\nth e</w> 8\nd o 7\ndo n</w> 6\nM r 5\nMr .</w> 4\n", encoding="utf-8")
    segmenter = load_segmenter(tmp_path / "codes")
    assert isinstance(segmenter, MosesSegmenter)
    line = "Mr. X don't see “the” a-b."
    apostrophe, quote, dash = (["&@@", *(f"{c}@@" for c in name), ";"] for name in ("apos", "quot", "@-@"))
    dash = ["@@@", "-@@", "@"]
    don = ["don", *[*apostrophe[:-1], ";@@", "t"]]
    rest = ["s@@", "e@@", "e", *quote, "the", *quote, "a", *dash, "b", "."]
    assert segmenter.encode_text(line) == ["Mr.", "X", *don, *rest]
    words = ["Mr.", "X", "do", "n't", "see", "“", "the", "”", "a", "-", "b", "."]
    spaces = [True, True, True, False, True, True, False, False, True, False, False, False]
    encoded = segmenter.encode_words(words, spaces)
    assert encoded[2:4] == [["d@@", "o"], ["n", *don[1:]]]
    assert [p for word in encoded[:2] + encoded[4:] for p in word] == ["Mr.", "X", *rest]
    # "Mr." keeps its point because of what follows; alone, and at the end of a line, it has none.
    assert segmenter.decode(segmenter.encode_text(line)) == line.replace("“", '"').replace("”", '"')
    assert segmenter.encode_words(["\u200b", "x"], [True, True]) == [["\u200b"], ["x"]]
    (copy := pickle.loads(pickle.dumps(segmenter))).about["language"] = "de"
    assert load_segmenter(copy.save(tmp_path / "segmentation.de")).encode_text("the") == ["the"]
    for codes in (b"a b 1\nonly\n", b"\xff \xff 1\n"):
        (tmp_path / "codes").write_bytes(codes)
        with data_error(path="codes"):
            load_segmenter(tmp_path / "codes")


def test_a_byte_order_mark_is_no_part_of_codes(tmp_path):
    """Without the version that follows it, subword-nmt would merge otherwise at the ends of words."""
    pieces = []
    for mark in ("", "\ufeff"):
        (tmp_path / "codes").write_text(mark + CODES, encoding="utf-8")
        segmenter = load_segmenter(tmp_path / "codes")
        pieces.append(segmenter.encode_text("der das dada"))
        assert segmenter.model == CODES.encode()
    assert pieces[0] == pieces[1] == ["der", "das", "da@@", "d@@", "a"]


@settings(max_examples=examples(60))
@given(content=st.one_of(st.binary(max_size=200), st.binary(max_size=50).map(b"#version: 0.2\n".__add__)))
@example(content=b"#version:")
@example(content=b"#version: 0.3\na b\n")
@example(content=b"#version: 0.2\n")
@example(content=b"#version: 0.2\n a\n")
@example(content=b"#version: 0.2\n\xff a\n")
def test_arbitrary_bytes_are_never_a_crash(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "arbitrary.model"
    path.write_bytes(content)
    with suppress(SyntaxDataError):
        load_segmenter(path)


def test_nothing_to_train_on(tmp_path):
    (tmp_path / "empty").write_text("\n \n")
    (tmp_path / "few").write_text("ab ab\n" * 5)
    for kind in ("sentencepiece", "subword_nmt"):
        with data_error("--train-on"):
            train_segmenter(kind, [tmp_path / "empty"], 30)
    with data_error("--vocab-size"):
        train_segmenter("subword_nmt", [tmp_path / "few"], 2)
    with data_error("--vocab-size"):
        train_segmenter("sentencepiece", [tmp_path / "few"], 2)


@pytest.mark.parametrize("kind", ["sentencepiece", "subword_nmt"])
def test_training_on_what_is_not_utf8_names_the_line(tmp_path, kind):
    (tmp_path / "text").write_bytes(b"a b\n" * 20 + b"a \xff\n")
    with data_error(path="text", line=21):
        train_segmenter(kind, [tmp_path / "text"], 30)


def test_a_word_of_white_space_is_an_error(segmenters):
    with data_error(r"\xa0"):
        segmenters["unigram"].encode_words(["a", "\xa0"], [True, True])
    with pytest.raises(ValueError):
        segmenters["unigram"].encode_words(["a", "b"], [True])


def run_segment(*arguments):
    return run("segment", *arguments)


def test_words_are_one_piece_each_but_where_they_read_as_special_symbols(segmenters):
    pieces = segmenters["words"].encode_words(["house", "do", "n't", "</s>", "a b"], [True, True, False, True, True])
    assert [len(of_word) for of_word in pieces] == [1, 1, 1, 2, 1] and pieces[:3] == [["house"], ["do"], ["￭n't"]]
    assert segmenters["words"].encode_text("Hello, (old) world.") == ["Hello", "￭,", "(", "￭old", "￭)", "world", "￭."]


@pytest.mark.parametrize("kind", ["sentencepiece", "subword_nmt"])
def test_segment_command_on_parses(tmp_path, corpus, kind, capsys):
    (tmp_path / "dev.en.conllu").write_text('# parsed_with = {"parser": "stanza"}\n' + CONLLU, encoding="utf-8")
    out = tmp_path / "seg"
    options = ["--train", kind, "--train-on", corpus, "--vocab-size", 90, "--lang", "en", "--output", out]
    run_segment(*options, "--input", tmp_path / "dev.en.conllu", corpus)
    segmenter = load_segmenter(out / "segmentation.en.json")
    assert segmenter.about["language"] == "en"
    lines = (out / "dev.en").read_text(encoding="utf-8").split("\n")
    parsed = list(read_conllu(out / "dev.en.conllu", n_lines=3))
    assert len(lines) == 4 and lines[1] == lines[3] == "" and parsed_with(out / "dev.en.conllu") == {"parser": "stanza"}
    before = list(read_conllu(tmp_path / "dev.en.conllu"))
    for line, parse, original in zip(lines, parsed, before):
        assert segmenter.decode(line) == text_of(parse) == text_of(original)
        assert sum(token.pieces for token in parse.tokens) == len(line.split())
        assert parse.heads == original.heads and parse.arcs == original.arcs and parse.deprels == original.deprels
        # Pieces of each token, in order, are those of the token alone in its place.
        start = 0
        for token, space in zip(parse.tokens, spaces_before(parse.tokens)):
            expected = line.split()[start : start + token.pieces]
            assert segmenter.encode_words(["x", token.form], [True, space or start == 0])[1] == expected
            start += token.pieces
    assert (out / "train.en").read_text(encoding="utf-8").count("\n") == 80
    assert not (out / "train.en.conllu").exists()

    # Once more: nothing is done again; with a changed input that file alone is.
    capsys.readouterr()
    stamp = (out / "train.en").stat().st_mtime_ns
    run_segment(*options, "--input", tmp_path / "dev.en.conllu", corpus)
    assert capsys.readouterr().out.count("up to date") == 2
    time.sleep(0.02)
    (tmp_path / "dev.en.conllu").write_text(CONLLU.replace("telescope", "man"), encoding="utf-8")
    run_segment(*options, "--input", tmp_path / "dev.en.conllu", corpus)
    assert capsys.readouterr().out.count("up to date") == 1
    assert (out / "train.en").stat().st_mtime_ns == stamp
    assert segmenter.decode((out / "dev.en").read_text(encoding="utf-8").split("\n")[2]) == "man"

    # A model of another run, for another language.
    run_segment("--lang", "de", "--model", out / "segmentation.en.json", "--input", corpus, "--output", tmp_path / "b")
    assert load_segmenter(tmp_path / "b" / "segmentation.de.json").fingerprint == segmenter.fingerprint
    assert (tmp_path / "b" / "train.en.de").exists()


def test_segment_command_refuses(tmp_path, corpus):
    options = ["--lang", "en", "--train", "sentencepiece", "--vocab-size", 60]
    with data_error(path="train.en"):
        run_segment(*options, "--input", corpus, "--output", corpus.parent)
    whole = tmp_path / "whole"
    whole.mkdir()
    (whole / "train.en").write_bytes(corpus.read_bytes())
    with data_error(path="train.en"):  # its pieces would have the name of the text that the model is trained on
        run_segment(*options, "--input", corpus, "--train-on", whole / "train.en", "--output", whole)
    assert (whole / "train.en").read_bytes() == corpus.read_bytes()
    with data_error(path="train.en"):
        run_segment(*options, "--input", corpus, tmp_path / "train.en.conllu", "--output", tmp_path / "out")
    (tmp_path / "latin.en").write_bytes(b"a man\ncaf\xe9\n")
    with data_error(path="latin.en", line=2):
        run_segment(*options, "--input", tmp_path / "latin.en", "--train-on", corpus, "--output", tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir() if "segmentation" not in path.name] == []
    with data_error(path="none.en"):
        run_segment(*options, "--input", tmp_path / "none.en", "--output", tmp_path / "out")
    space = "1\t\xa0\t_\tX\t_\t_\t0\troot\t_\t_\n\n"
    (tmp_path / "space.en.conllu").write_text("1\ta\t_\tX\t_\t_\t0\troot\t_\t_\n\n" + space, encoding="utf-8")
    with data_error(path="space.en.conllu", line=3):
        run_segment(
            *options, "--input", tmp_path / "space.en.conllu", "--train-on", corpus, "--output", tmp_path / "out"
        )


def test_an_empty_text_is_refused(tmp_path, corpus):
    (tmp_path / "empty.en").write_text("")
    options = ["--lang", "en", "--train", "subword_nmt", "--vocab-size", "60", "--train-on", corpus]
    with data_error(path="empty.en"):
        run_segment(*options, "--input", tmp_path / "empty.en", "--output", tmp_path / "out")
    assert not (tmp_path / "out/empty.en").exists()


@pytest.mark.parametrize("option", ["--input", "--train-on"])
def test_a_pipe_is_not_segmented(tmp_path, corpus, option):
    pipe, out = tmp_path / "pipe", tmp_path / "out"
    os.mkfifo(pipe)
    given = {"--input": corpus, "--train-on": corpus} | {option: pipe}
    options = ["--lang", "en", "--train", "subword_nmt", "--vocab-size", "60", "--output", out]
    with data_error(path="pipe"):
        run_segment(*options, *(text for pair in given.items() for text in pair))
    assert not [path for path in out.iterdir() if "pipe" in path.name]


@pytest.mark.parametrize(
    "head", ["# lines = 1\n\n", "# line = 1\n", "# sent_id = a\n", "", "\ufeff", "1-2\tam\t_\t_\t_\t_\t_\t_\t_\t_\n"]
)
@pytest.mark.parametrize("option", ["--input", "--train-on"])
def test_a_parse_of_another_name_is_not_taken_for_text(tmp_path, corpus, head, option):
    rows = "1\ta\t_\tX\t_\t_\t0\troot\t_\t_\n2\tm\t_\tX\t_\t_\t1\tdep\t_\t_\n\n"
    (tmp_path / "parse").write_text(head + rows, encoding="utf-8")
    given = {"--input": corpus, "--train-on": corpus} | {option: tmp_path / "parse"}
    options = ["--lang", "en", "--train", "subword_nmt", "--vocab-size", "60", "--output", tmp_path / "out"]
    with data_error("*.conllu", path="parse"):
        run_segment(*options, *(text for pair in given.items() for text in pair))
    for text in ("# a heading\n1\tone\n", "1. one\n", "\n#1\n"):
        (tmp_path / "parse").write_text(text, encoding="utf-8")
        run_segment(*options, "--overwrite", *(text for pair in given.items() for text in pair))


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["--model", "m", "--vocab-size", "9", "--train-on", "x"], ["--train-on", "--model"]),
        (["--model", "m", "--model-type", "bpe"], ["--model-type", "--model"]),
        (["--model", "m", "--character-coverage", "0.5"], ["--character-coverage", "--model"]),
        (["--model", "m", "--train-lines", "5", "--seed", "2"], ["--train-lines", "--model"]),
        (["--train", "subword_nmt", "--model-type", "bpe"], ["--model-type", "--train", "subword_nmt"]),
        (["--train", "words", "--vocab-size", "90"], ["--vocab-size", "--train", "words"]),
        (["--train", "subword_nmt", "--character-coverage", "0.5"], ["--character-coverage", "--train", "subword_nmt"]),
    ],
)
def test_options_of_training_that_do_nothing(tmp_path, corpus, options, names):
    with data_error(*names):
        run_segment("--lang", "en", "--input", corpus, "--output", tmp_path / "out", *options)


@pytest.mark.parametrize(
    "option",
    [("--vocab-size", "0"), ("--train-lines", "-1"), ("--character-coverage", "0"), ("--character-coverage", "2")],
)
def test_numbers_that_no_training_has(tmp_path, corpus, option, capsys):
    with pytest.raises(SystemExit):
        run_segment("--lang", "en", "--input", corpus, "--output", tmp_path, "--train", "sentencepiece", *option)
    assert f"{option[0]}: " in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["sentencepiece", "subword_nmt"])
def test_a_model_of_fewer_pieces_than_asked_for_says_how_many(tmp_path, capsys, kind):
    (tmp_path / "a.en").write_text("a man sees a dog\n" * 5)
    command = ["segment", "--lang", "en", "--input", str(tmp_path / "a.en"), "--output", str(tmp_path / "out")]
    assert main([*command, "--train", kind, "--vocab-size", "500"]) == 0
    pieces = load_segmenter(tmp_path / "out/segmentation.en.json").pieces
    assert 10 < pieces < 50 and f"{pieces} pieces" in capsys.readouterr().out


def test_segment_command_says_what_a_model_loses(tmp_path, capsys):
    (tmp_path / "own.model").write_bytes(foreign_sentencepiece(normalization_rule_name="nmt_nfkc"))
    (tmp_path / "test.en").write_text("a ﬁne man\n", encoding="utf-8")
    run_segment(
        "--lang", "en", "--model", tmp_path / "own.model", "--input", tmp_path / "test.en", "--output", tmp_path / "o"
    )
    assert "'ﬁne' -> 'fine'" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["subword_nmt", "sentencepiece"])
def test_raw_text_is_cut_as_the_parse_that_the_data_were_cut_from(tmp_path, kind):
    """``Bank.`` is two words there: a model that has learned ``Bank ￭.`` knows no piece of it in one."""
    sentences = [["Die", "Bank", "."], ["Ein", "Hund", ",", "zwei", "Hunde", "!"], ['"', "Die", "Bank", '"', "."]]
    tight = set('.,!"')
    parse, raw = tmp_path / "train.de.conllu", tmp_path / "text.de"
    with parse.open("w", encoding="utf-8") as file:
        for words in sentences * 5:
            for i, word in enumerate(words):
                joined = i + 1 < len(words) and (words[i + 1] in tight or (word == '"' and i == 0))
                misc = "SpaceAfter=No" if joined else "_"
                file.write(f"{i + 1}\t{word}\t_\tX\t_\t_\t{min(i, 1)}\tdep\t_\t{misc}\n")
            file.write("\n")
    lines = list(read_conllu(parse))
    raw.write_text("".join(f"{text_of(line)}\n" for line in lines), encoding="utf-8")
    train = ["--train", kind, "--vocab-size", "40"]
    run_segment("--lang", "de", *train, "--input", parse, "--output", tmp_path / "out")
    segmenter = load_segmenter(tmp_path / "out/segmentation.de.json")
    pieces = (tmp_path / "out/train.de").read_text(encoding="utf-8").splitlines()
    assert [" ".join(segmenter.encode_text(text)) for text in raw.read_text(encoding="utf-8").splitlines()] == pieces
    assert segmenter.encode_text("") == [] and segmenter.decode(segmenter.encode_text("a.b  c!?")) == "a.b c!?"
    # So is more text of that language; another language's is what its own data are.
    model = ["--model", tmp_path / "out/segmentation.de.json"]
    run_segment("--lang", "de", *model, "--input", raw, "--output", tmp_path / "more")
    assert (tmp_path / "more/text.de").read_text(encoding="utf-8").splitlines() == pieces
    run_segment("--lang", "en", *model, "--input", raw, "--output", tmp_path / "joint")
    assert load_segmenter(tmp_path / "joint/segmentation.en.json").cut_from == "text"
    # A text is cut again where the model's words are from elsewhere now.
    assert (kind == "sentencepiece") == ((tmp_path / "joint/text.de.en").read_text("utf-8").splitlines() == pieces)
    run_segment("--lang", "en", *model, "--input", parse, raw, "--output", tmp_path / "joint")
    assert (tmp_path / "joint/text.de.en").read_text(encoding="utf-8").splitlines() == pieces
    assert load_segmenter(tmp_path / "joint/segmentation.en.json").cut_from == "parse"
    # So it is with a model that a parse is given to train on.
    run_segment("--lang", "de", *train, "--train-on", parse, "--input", raw, "--output", tmp_path / "on")
    assert load_segmenter(tmp_path / "on/segmentation.de.json").cut_from == "parse"
    assert (tmp_path / "on/text.de").read_text(encoding="utf-8").splitlines() == pieces
    # Data of an earlier version do not say: their model is written again, the same but for that.
    about = tmp_path / "out/segmentation.de.json"
    about.write_text(about.read_text().replace(' "cut_from": "parse",\n', ""))
    run_segment("--lang", "de", *train, "--input", parse, "--output", tmp_path / "out")
    assert load_segmenter(about).cut_from == "parse" and load_segmenter(about).fingerprint == segmenter.fingerprint


def test_pieces_are_not_left_without_the_model_that_they_are_cut_by(corpus, tmp_path, capsys):
    """A second run for other files would train another model, or have raw text cut otherwise, and nobody would know."""
    out, other = tmp_path / "out", tmp_path / "other.txt"
    other.write_text("xyz zyx yyy\n" * 20, encoding="utf-8")
    train = ["--train", "subword_nmt", "--vocab-size", "90", "--output", out, "--lang", "en"]
    run_segment(*train, "--input", corpus)
    about, first = out / "segmentation.en.json", load_segmenter(out / "segmentation.en.json")
    with data_error(corpus.name, path="segmentation.en.json"):
        run_segment(*train, "--input", other)
    run_segment(*train, "--input", other, "--train-on", corpus)  # the same model
    run_segment("--model", about, "--output", out, "--lang", "en", "--input", other)
    parse = tmp_path / "p.conllu"
    parse.write_text("1\txyz\t_\tX\t_\t_\t0\troot\t_\t_\n\n", encoding="utf-8")
    run_segment("--model", about, "--output", tmp_path / "given", "--lang", "en", "--input", parse)
    model = ["--model", out / first.about.get("model", "segmentation.en.model")]
    with data_error("p.en", path="segmentation.en.json"):  # as if from text
        run_segment(*model, "--output", tmp_path / "given", "--lang", "en", "--input", other)
    assert load_segmenter(about).fingerprint == first.fingerprint
    both = [corpus, other]
    run_segment(*train, "--vocab-size", "80", "--train-on", corpus, "--input", *both)
    assert load_segmenter(about).fingerprint != first.fingerprint
    # What --overwrite leaves behind is not binarized beside the model that replaced its own.
    run_segment(*train, "--input", other, "--overwrite")
    args = argparse.Namespace(trainpref=f"{out}/other.txt", validpref=None, testpref=None)
    args.source_lang, args.target_lang, args.only_source = "en", "xx", True
    args.source_labels = "labels.json"  # so that no parse is needed
    check_text_and_parses(args)
    args.testpref = f"{out}/other.txt,{out}/train"
    with data_error(path="train.en"):
        check_text_and_parses(args)
    (out / "train.en").write_text("a b\n", encoding="utf-8")  # pieces from elsewhere, of which nothing is known
    check_text_and_parses(args)


def test_pieces_of_a_run_that_was_killed_are_not_binarized(corpus, tmp_path, monkeypatch):
    """Files of before stand where the new ones were to come; and the same model may cut a text otherwise."""
    out, valid = tmp_path / "out", tmp_path / "valid.en"
    valid.write_text("the girl (who saw) it, and\n" * 3, encoding="utf-8")
    train = ["--train", "subword_nmt", "--output", out, "--lang", "en", "--train-on", corpus]
    run_segment(*train, "--vocab-size", "90", "--input", corpus, valid)
    args = argparse.Namespace(trainpref=f"{out}/train", validpref=f"{out}/valid", testpref=None)
    args.source_lang, args.target_lang, args.only_source = "en", "xx", True
    args.source_labels = "labels.json"  # so that no parse is needed
    check_text_and_parses(args)

    def begin(self, begin=RecordedStep.begin):
        begin(self)
        if self.outputs[0].name == "valid.en":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RecordedStep, "begin", begin)
        assert run_segment(*train, "--vocab-size", "80", "--input", corpus, valid) == 130, "interrupted"
    with data_error(path="valid.en"):
        check_text_and_parses(args)
    run_segment(*train, "--vocab-size", "80", "--input", corpus, valid)
    check_text_and_parses(args)
    parse = tmp_path / "p.en.conllu"
    parse.write_text("1\txyz\t_\tX\t_\t_\t0\troot\t_\t_\n\n", encoding="utf-8")
    run_segment(*train, "--vocab-size", "80", "--input", parse, "--overwrite")
    with data_error(path="train.en"):
        check_text_and_parses(args)
    nothing = {"trainpref": None, "validpref": None, "destdir": str(tmp_path / "data")}
    check_text_and_parses(argparse.Namespace(**{**vars(args), **nothing}))  # dictionaries alone


def test_a_parse_that_was_not_written_here_is_not_removed(corpus, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    parse = out / f"{corpus.name}.conllu"
    parse.write_text("hours of work", encoding="utf-8")
    train = ["--train", "subword_nmt", "--vocab-size", "90", "--lang", "en", "--output", out, "--train-on", corpus]
    with data_error(f"{parse.name}", f"{corpus.name}", path="train.en.conllu"):
        run_segment(*train, "--input", corpus)
    assert parse.read_text("utf-8") == "hours of work" and not (out / f"{corpus.name}").exists()
    parse.unlink()
    other_parse = tmp_path / f"{corpus.name}.conllu"
    other_parse.write_text("1\txyz\t_\tX\t_\t_\t0\troot\t_\t_\n\n", encoding="utf-8")
    run_segment(*train, "--input", other_parse)
    assert parse.exists()
    damaged = tmp_path / "damaged" / corpus.name
    damaged.parent.mkdir()
    damaged.write_bytes(b"not UTF-8: \xff")
    with data_error(path=corpus.name, line=1):
        run_segment(*train, "--input", damaged)
    assert parse.exists(), "the pieces that were there are still there"
    run_segment(*train, "--input", corpus)
    assert not parse.exists(), "it was of the pieces that were there"
    parse.write_text("hours of work", encoding="utf-8")
    with data_error(f"{parse.name}", f"{corpus.name}", path="train.en.conllu"):
        run_segment(*train, "--input", corpus, "--overwrite")
    assert parse.read_text("utf-8") == "hours of work"


def test_bytes_that_are_no_character_are_one_replacement(segmenters):
    segmenter = segmenters["bytes"]
    assert segmenter.decode(["▁a", "<0xE4>", "<0xB8>", "b", "<0xE4>", "<0xB8>", "<0xAD>"]) == "a\ufffdb中"


def test_text_that_fairseq_has_joined_already_is_left_as_it_is(corpus):
    """``--remove-bpe sentencepiece`` comes before the segmentation's own way back, which took every space out."""
    segmenter = train_segmenter("sentencepiece", [corpus], 60)
    pieces = segmenter.encode_text("a b (c) a")
    text = segmenter.decode(pieces)
    joined = "".join(pieces).replace("▁", " ").strip()  # as fairseq has it
    assert segmenter.decode(" ".join(pieces)) == segmenter.decode(joined) == text and " " in text

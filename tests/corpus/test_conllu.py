"""The CoNLL-U reader and writer: round trips, the conventions of the format, and every kind of bad file."""

from __future__ import annotations

import contextlib
import gzip
import io
import pickle
from dataclasses import replace

import numpy as np
import pytest
from data_errors import data_error
from hypothesis import given, settings
from hypothesis import strategies as st
from matrix_part import examples

from fairseq_syntax.corpus.conllu import (
    ParsedLine,
    Token,
    flatten,
    format_conllu,
    owner,
    parse_conllu_block,
    read_conllu,
    text_of,
    unflatten,
    write_conllu,
)
from fairseq_syntax.corpus.conllu_reader import ConlluReader
from fairseq_syntax.corpus.cycles import cycle_through, ends_in_cycle
from fairseq_syntax.corpus.header import header
from fairseq_syntax.corpus.parsed_line import check_parse
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.files import read_lines

CAPTION = """# text = A man sees.
1	A	a	DET	DT	_	2	det	_	_
2	man	man	NOUN	NN	Number=Sing	3	nsubj	_	Arcs=3:nsubj:0.9,3:nsubj:pass:0.05,0:root:0.01
3	sees	see	VERB	VBZ	_	0	root	_	SpaceAfter=No
4	.	.	PUNCT	.	_	3	punct	_	_

"""

# German "zum" = "zu" + "dem", an empty node, and two sentences in the second line.
RANGES = """# line = 2
1	Er	er	PRON	PPER	_	2	nsubj	_	_
2	geht	gehen	VERB	VVFIN	_	0	root	_	_
3-4	zum	_	_	_	_	_	_	_	SpaceAfter=No|Pieces=2
3	zu	zu	ADP	APPR	_	5	case	_	SpaceAfter=No
4	dem	der	DET	ART	_	5	det	_	_
4.1	fehlt	_	_	_	_	_	_	5:dep	_
5	Haus	Haus	NOUN	NN	_	2	obl	_	Pieces=1

# line = 2
1	Gut	gut	ADJ	ADJD	_	0	root	_	_

# line = 4
1	Ja	ja	INTJ	ITJ	_	0	root	_	_
"""


def rows(*heads: int | str, misc: str = "_") -> str:
    return "".join(f"{i}\tw{i}\t_\t_\t_\t_\t{head}\tdep\t_\t{misc}\n" for i, head in enumerate(heads, start=1)) + "\n"


def read(text: str, **kwargs) -> list[ParsedLine]:
    return list(read_conllu(io.BytesIO(text.encode()), **kwargs))


def test_reads_words_heads_tokens_and_arcs():
    (line,) = read(CAPTION)
    assert line.words == ["A", "man", "sees", "."]
    assert line.heads == [1, 2, 2, 2]
    assert line.deprels == ["det", "nsubj", "root", "punct"]
    assert line.upos[2] == "VERB" and line.xpos[2] == "VBZ"
    assert line.arcs == [(1, 2, "nsubj", 0.9), (1, 2, "nsubj:pass", 0.05), (1, 1, "root", 0.01)]
    assert line.sentences == [(0, 4)]
    assert (line.line_number, line.file_line) == (0, 1)
    assert text_of(line) == "A man sees."


def test_ranges_empty_nodes_empty_lines_and_several_sentences():
    first, second, third, fourth = read(RANGES)
    assert first.words == third.words == [] and [first.line_number, third.line_number] == [0, 2]
    assert second.words == ["Er", "geht", "zu", "dem", "Haus", "Gut"]
    assert second.heads == [1, 1, 4, 4, 1, 5]
    assert second.sentences == [(0, 5), (5, 6)]
    assert second.tokens[2] == Token("zum", False, 2, 3, 2, 2)
    assert [token.form for token in second.tokens] == ["Er", "geht", "zum", "Haus", "Gut"]
    assert text_of(second) == "Er geht zumHaus Gut"
    assert second.arcs is None
    assert fourth.words == ["Ja"] and fourth.file_line == 13


def test_trailing_empty_lines_are_known_only_from_the_count():
    assert len(read(RANGES)) == 4
    assert len(read(RANGES, n_lines=6)) == 6
    assert len(read("# lines = 6\n" + RANGES)) == 6
    assert [line.words for line in read("# lines = 2\n\n")] == [[], []]
    filled = [line.line_number for line in read("# lines = 6\n" + RANGES) if line.words]
    assert [line.line_number for line in read("# lines = 6\n" + RANGES, empty=False)] == filled == [1, 3]
    assert read("") == [] and read("", n_lines=0) == []


def test_the_end_of_a_text_may_stand_in_a_source_of_its_own():
    def numbers(text, **options):
        return [line.line_number for line in ConlluReader(**options).read(text.splitlines())]

    assert numbers("# lines = 5\n" + RANGES, first_line=1) == [1, 2, 3, 4]
    assert numbers("# lines = 5\n\n", n_lines=5, first_line=3) == [3, 4]
    with data_error("'# line = 2'", line=1):
        numbers(RANGES, first_line=2)


def test_owner_is_the_first_word_whose_head_lies_outside():
    assert owner(1, 2, [1, 2, 0]) == 2
    assert owner(0, 2, [1, 1, 0]) == 1  # the root is its own head, and counts as outside
    assert owner(0, 1, [2, 2, 2]) == 0


def test_a_file_without_line_comments_has_a_sentence_per_line(tmp_path):
    path = tmp_path / "foreign.conllu.gz"
    path.write_bytes(gzip.compress((rows(0) + rows(2, 0)).encode()))
    lines = list(read_conllu(path, n_lines=2))
    assert [line.words for line in lines] == [["w1"], ["w1", "w2"]]
    with data_error(path="foreign.conllu.gz"):
        list(read_conllu(path, n_lines=3))
    with data_error(path="foreign.conllu.gz", line=3):
        list(read_conllu(path, n_lines=1))


def test_a_sentence_is_there_when_its_blank_line_is():
    """Without line numbers: at a terminal nobody wants to write the next sentence first."""
    given = []

    def rows_as_typed():
        for row in (rows(0) + rows(0)).splitlines(keepends=True):
            given.append(row)
            yield row

    lines = read_conllu(rows_as_typed())
    assert next(lines).words and len(given) == len(rows(0).splitlines())
    assert next(lines).line_number == 1 and next(lines, None) is None


def test_a_parse_made_in_python_is_checked():
    """As one from a file is, before a model gets to see it."""
    line = parse_conllu_block(RANGES)
    assert check_parse(line) is line and check_parse(ParsedLine()).words == []
    n = len(line.words)
    root = line.heads.index(line.heads[line.sentences[0][0]])
    for change in (
        {"heads": [*line.heads[:-1], n]},  # not in its sentence
        {"heads": [-1, *line.heads[1:]]},  # not in its sentence
        {"heads": list(range(n))},  # roots in
        {"deprels": line.deprels[1:]},  # one deprel too few
        {"tokens": line.tokens[1:]},  # its tokens are not all
        {"sentences": line.sentences[:-1]},  # its sentences are not all
        {"arcs": [(0, n, "dep", 0.5)]},  # an arc of word 1
        {"arcs": [(0, root, "dep", 1.5)]},  # an arc of word 1
    ):
        with data_error():
            check_parse(replace(line, **change))


def test_a_comma_in_a_label():
    assert read(rows(0, misc=r"Arcs=0:a\cb:0.5"))[0].arcs == [(0, 0, "a,b", 0.5)]


def test_distributions_below_the_threshold_in_some_sentences_of_a_line():
    first, *others = read("# line = 1\n" + rows(0, 1, misc="Arcs=0:a:0.5"))
    two = replace(first, words=first.words * 2, heads=[0, 0, 2, 2], deprels=["dep"] * 4, upos=["X"] * 4)
    two.xpos, two.sentences = ["_"] * 4, [(0, 2), (2, 4)]
    two.tokens = first.tokens + [replace(t, first=t.first + 2, last=t.last + 2, word=t.word + 2) for t in first.tokens]
    assert not others and len(first.arcs) == 2
    for arcs in (first.arcs, [], [(2, 3, "dep", 0.5)], None):
        two.arcs = arcs
        assert read(format_conllu(two))[0].arcs == arcs


def test_a_sentence_begins_with_its_first_row_where_a_comment_is_in_its_middle():
    lines = read(rows(0) + rows(0, 1).replace("\n2", "\n# a remark\n2"))
    assert [line.file_line for line in lines] == [1, 3]


def test_comments_of_other_programs_are_no_line_numbers():
    foreign = "# line = corpus.txt:12\n# lines = 3-4\n"
    assert [line.line_number for line in read(foreign + rows(0) + foreign + rows(0))] == [0, 1]
    assert [line.line_number for line in read(foreign + "# line = 2\n" + rows(0)) if line.words] == [1]


def test_what_is_no_conllu_is_refused_at_its_first_line():
    def text():
        yield "a man sees a girl\n"
        raise AssertionError("a second line was read")

    with data_error(line=1):
        list(read_conllu(text()))


def test_a_row_of_an_iterable_holds_no_line_break():
    row = rows(0).splitlines()[0]
    with data_error(line=1):
        list(read_conllu([row.replace("w1\t_", "w1\n_")]))


@given(st.data())
def test_arcs_are_read_as_they_stand(data):
    n = data.draw(st.integers(1, 4))
    label = st.sampled_from(["dep", "nsubj:pass", "a:0.5", "x"])
    texts, expected = [], []
    for word in range(1, n + 1):
        heads = data.draw(st.lists(st.integers(0, n).filter(lambda head, word=word: head != word), max_size=3))
        arcs = [(head, data.draw(label), data.draw(st.sampled_from(["0.25", "1e-05", "0"]))) for head in heads]
        texts.append("Arcs=" + ",".join(map(":".join, ((str(head), name, p) for head, name, p in arcs))))
        expected += [(word - 1, (head or word) - 1, name, float(p)) for head, name, p in arcs]
    rows = [f"{word}\tw\t_\tX\t_\t_\t{word - 1}\tdep\t_\t{text}\n" for word, text in enumerate(texts, 1)]
    assert read("".join(rows) + "\n")[0].arcs == expected


@given(st.integers(1, 20), st.randoms(use_true_random=False))
def test_cycles_against_walks(n, rng):
    heads = [rng.randrange(n) for _ in range(n)]

    def ends(word):
        for _ in range(n):
            word = heads[word]
        return heads[word] == word

    def returns(word):
        at = word
        for _ in range(n):
            at = heads[at]
            if at == word:
                return heads[word] != word
        return False

    assert cycle_through(heads) == next(filter(returns, range(n)), None), "the first word on a cycle"
    assert ends_in_cycle(np.array(heads), n.bit_length()).tolist() == [not ends(word) for word in range(n)]


@pytest.mark.parametrize("n", [10**9 - 1, 10**9, 10**12])
def test_the_lines_of_the_largest_texts_have_numbers(n):
    """What ``parse`` writes as the header of a text of so many lines is read."""
    text = header(n) + f"# line = {n}\n" + rows(0)
    assert [line.line_number for line in read(text, n_lines=n, empty=False)] == [n - 1]


@pytest.mark.parametrize("comment", ["# line = 999999999", "# lines = 999999999\n# line = 1"])
def test_a_number_of_lines_beyond_reason_is_an_error(comment):
    with data_error("99999999"):
        read(f"{comment}\n{rows(0)}")


def test_a_byte_order_mark_is_no_part_of_a_text(tmp_path):
    (tmp_path / "a.conllu").write_text("\ufeff" + rows(0), encoding="utf-8")
    assert next(read_lines(tmp_path / "a.conllu")).startswith("1\tw1")


def test_line_ends_and_the_byte_order_mark_do_not_matter():
    assert read("\ufeff" + CAPTION.replace("\n", "\r\n")) == read(CAPTION)
    last = rows(0, misc="SpaceAfter=No")
    assert read(last.replace("\n", "\r\n")) == read(last)
    assert list(read_conllu(io.StringIO(CAPTION))) == read(CAPTION) == list(read_conllu(CAPTION.splitlines()))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (rows(0, 3), 2),  # head '3' of word 2
        (rows(0, "x"), 2),  # head 'x' of word 2
        (rows(0, "_"), 2),  # not parsed
        (rows(0, 0), 2),  # words 1 and 2 are both roots
        (rows(0, 3, 2), 2),  # cycle through word 2
        (rows(2, 1), 1),  # cycle
        (rows(0, 2), 2),  # cycle
        (rows(0).replace("1\tw1", "one\tw1"), 1),  # id 'one' where 1 is due
        (rows(0, 1).replace("2\tw2", "3\tw2"), 2),  # id '3' where 2 is due
        (rows(0) + rows(0).replace("1\tw1", "2\tw1"), 3),  # id '2' where 1 is due
        (rows(0).replace("\tdep", ""), 1),  # 9 columns where ten are due
        (rows(0).replace("w1", ""), 1),  # an empty column where ten are due
        (rows(0).replace("\t", " "), 1),  # 1 columns where ten are due
        # what one row, or one arc, has too much does not stand in for what the next has too little
        (rows(0, 1).replace("\n2", "\t2\n2").replace("2\tw2\t_", "2\tw2"), 1),  # 11 columns where ten are due
        (rows(0, 1).replace("\n2\tw2", "\t2\nw2"), 1),  # 11 columns where ten are due
        (rows(0, misc="Arcs=0:dep:0.1:2,0:0.3"), 1),  # not in [0, 1]
        (rows(0, misc="Arcs=0:dep:0.1:0.2,x:0.3"), 1),  # not an arc HEAD:LABEL:P: 'x:0.3'
        (rows(0, misc="Arcs=0::0.3"), 1),  # not an arc HEAD:LABEL:P
        (rows(0, misc="Arcs=0:dep:1_0"), 1),  # not in [0, 1]
        ("1-2\tab" + "\t_" * 8 + "\n" + rows(0), 1),  # range 1-2 ends after the sentence
        (rows(0, 1).replace("2\tw2", "3-4\tx" + "\t_" * 8 + "\n2\tw2"), 2),  # does not begin with the next word, 2
        ("1-2\tab" + "\t_" * 8 + "\n1-2\tab" + "\t_" * 8 + "\n" + rows(0, 1), 2),  # does not begin
        ("# line = 1\n" + rows(0) + rows(0), 4),  # has no '# line = N'
        (rows(0) + "# line = 2\n" + rows(0), 3),  # has a '# line = N'
        ("# line = 2\n" + rows(0) + "# line = 1\n" + rows(0), 4),  # '# line = 1' comes after '# line = 2'
        ("# line = 0\n" + rows(0), 1),  # not a number of lines
        ("# line = \n" + rows(0), 1),  # not a number of lines
        ("# line = 3\n\n" + rows(0), 1),  # has no sentence
        (rows(0).rstrip("\n") + "\n# line = 2\n" + rows(0), 2),  # in the middle of a sentence
        ("# lines = 1\n# line = 2\n" + rows(0), 1),  # of line 2, but the text has 1 lines
        (rows(0, 1, misc="Arcs=3:dep:0.5"), 1),  # leaves the sentence
        (rows(0, misc="Arcs=1:dep:0.5"), 1),  # leaves the sentence or is a loop
        (rows(0, misc="Arcs=0:dep:1.5"), 1),  # not in [0, 1]
        (rows(0, misc="Arcs=0:dep:-0.5"), 1),  # not in [0, 1]
        (rows(0, misc="Arcs=0:dep:nan"), 1),  # not in [0, 1]
        (rows(0, misc="Arcs=0:dep:"), 1),  # not in [0, 1]
        (rows(0, misc="Arcs=0:0.5"), 1),  # not an arc HEAD:LABEL:P
        (rows(0, misc="Arcs=x:dep:0.5"), 1),  # not an arc HEAD:LABEL:P
        (rows(0, misc="Arcs=0:a:0.6,0:b:0.5"), 1),  # mass of 1.1000, above 1
        ("# line = 1\n" + rows(0, misc="Arcs=0:a:0.6") + "# line = 1\n" + rows(0), 5),  # without a distribution
        ("# line = 1\n" + rows(0) + "# line = 1\n" + rows(0, misc="Arcs="), 5),  # the first has none
        (rows(0, misc="Pieces=0"), 1),  # not a number of pieces
        (rows(0, misc="Pieces=many"), 1),  # not a number of pieces
    ],
)
def test_bad_files_are_refused_with_the_line(text, line):
    with data_error(line=line):
        read(text)


def test_broken_utf8_names_line_and_byte(tmp_path):
    path = tmp_path / "broken.conllu"
    path.write_bytes(rows(0).encode() + b"1\tM\xe4dchen\t_\n")
    with data_error(path="broken.conllu", line=3) as caught:
        list(read_conllu(path))
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize("name", ["missing.conllu", "missing.conllu.gz", "."])
def test_files_that_cannot_be_opened(tmp_path, name):
    with data_error(path=tmp_path / name):
        list(read_conllu(tmp_path / name))


@pytest.mark.parametrize("cut", [20, -1])
def test_a_damaged_gzip_file_is_refused(tmp_path, cut):
    path = tmp_path / "cut.conllu.gz"
    path.write_bytes(gzip.compress(CAPTION.encode())[:cut])
    with data_error(path="cut.conllu.gz"):
        list(read_conllu(path))


def test_a_count_that_contradicts_the_file_is_refused():
    with data_error("6", "5"):
        read("# lines = 6\n" + RANGES, n_lines=5)


@settings(max_examples=examples(300))
@given(st.binary(max_size=400), st.one_of(st.none(), st.integers(0, 5)))
def test_arbitrary_bytes_raise_nothing_else(content, n_lines):
    with contextlib.suppress(SyntaxDataError):
        list(read_conllu(io.BytesIO(content), n_lines=n_lines))


@settings(max_examples=examples(400))
@given(st.data())
def test_damaged_files_raise_nothing_else(data):
    content = bytearray((RANGES + CAPTION).encode())
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(content) - 1))
        patch = data.draw(
            st.sampled_from([b"", b"\t", b"\n", b"#", b"-", b"9", b"0", b"\xff", b":", b"|", b"\\", b"_"])
        )
        content[at : at + data.draw(st.integers(0, 3))] = patch
    for n_lines in (None, 2):
        try:
            for line in read_conllu(io.BytesIO(bytes(content)), n_lines=n_lines):
                assert all(0 <= head < len(line.words) for head in line.heads)
        except SyntaxDataError:
            pass
    with contextlib.suppress(SyntaxDataError):
        parse_conllu_block(bytes(content).decode("utf-8", "replace"))


column = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\t\n"), min_size=1, max_size=6)
form_column = column.filter(str.strip)
label_column = column.map(str.strip).filter(bool)


@st.composite
def parsed_lines(draw, line_number: int = 0) -> ParsedLine:
    line = ParsedLine(line_number=line_number)
    for _ in range(draw(st.integers(0, 3))):
        start, n = len(line.words), draw(st.integers(1, 6))
        order = draw(st.permutations(range(n)))
        heads = [0] * n
        for place, word in enumerate(order):
            heads[word] = start + (word if place == 0 else order[draw(st.integers(0, place - 1))])
        line.heads += heads
        for name in ("words", "deprels", "upos", "xpos"):
            of_column = {"words": form_column, "xpos": column}.get(name, label_column)
            getattr(line, name).extend(draw(st.lists(of_column, min_size=n, max_size=n)))
        index = start
        while index < start + n:
            last = draw(st.integers(index, min(index + 2, start + n - 1)))
            form = line.words[index] if last == index and draw(st.booleans()) else draw(form_column)
            pieces = draw(st.one_of(st.none(), st.integers(1, 99)))
            line.tokens.append(Token(form, draw(st.booleans()), index, last, owner(index, last, line.heads), pieces))
            index = last + 1
        line.sentences.append((start, start + n))
    if line.words and draw(st.booleans()):
        line.arcs = []
        for start, end in line.sentences:
            for word in range(start, end):
                for head in draw(st.lists(st.integers(start, end - 1), max_size=3)):
                    p = float(f"{draw(st.floats(0, 0.33)):.4g}")
                    line.arcs.append((word, head, draw(column), p))
    return line


@settings(max_examples=examples(200))
@given(st.lists(st.integers(0, 2), max_size=4).flatmap(lambda gaps: st.tuples(*(parsed_lines() for _ in gaps))))
def test_what_is_written_is_read_again(lines):
    file = io.StringIO(newline="")
    file.write(f"# lines = {len(lines)}\n\n")
    for number, line in enumerate(lines):
        line.line_number = number
        write_conllu(file, line)
    actual = list(read_conllu(io.BytesIO(file.getvalue().encode())))
    assert len(actual) == len(lines)
    for got, line in zip(actual, lines):
        got.file_line = line.file_line
        assert got == line


@settings(max_examples=examples(200))
@given(parsed_lines())
def test_a_flattened_line_is_one_line_and_comes_back(line):
    flat = flatten(line)
    assert "\n" not in flat
    assert unflatten(flat) == format_conllu(line, comments=False).rstrip("\n")
    got = parse_conllu_block(flat)
    got.file_line = line.file_line
    assert got == line
    again = parse_conllu_block(format_conllu(line))
    again.file_line = line.file_line
    assert again == line


def test_a_block_keeps_all_its_sentences_in_one_line():
    line = parse_conllu_block(RANGES)
    assert line.sentences == [(0, 5), (5, 6), (6, 7)]
    assert line.heads[-2:] == [5, 6]
    with data_error(line=2) as caught:
        parse_conllu_block("# a comment\n" + rows(2, 1))
    assert caught.value.line == 2


@pytest.mark.parametrize("form", ["", "a\tb", "a\nb"])
def test_a_word_that_cannot_be_written_is_refused(form):
    line = ParsedLine([form], [0], ["root"], ["_"], ["_"], [Token(form or "x", True, 0, 0, 0)], None, [(0, 1)])
    with data_error(line=1):
        format_conllu(line)


@settings(max_examples=examples(100))
@given(st.lists(st.sampled_from(["A", "man", ".", "zum", "'s"]), max_size=6), st.data())
def test_the_text_of_a_line_has_single_spaces_where_there_are_spaces(forms, data):
    spaces = [data.draw(st.booleans()) for _ in forms]
    line = ParsedLine(tokens=[Token(form, space, i, i, i) for i, (form, space) in enumerate(zip(forms, spaces))])
    expected = ""
    for i, form in enumerate(forms):
        expected += form
        if spaces[i] and i + 1 < len(forms):
            expected += " "
    assert text_of(line) == expected


def test_a_parse_shows_itself_in_a_notebook():
    rows = ["1\ta<b\t_\tX\t_\t_\t2\tdet\t_\t_", "2\tman\t_\tX\t_\t_\t0\troot\t_\t_"]
    assert parse_conllu_block("\n".join(rows) + "\n")._repr_html_() == "<pre>╭─ a&lt;b  det\nman  root</pre>"


def test_tabs_of_a_flattened_line_may_be_written_out():
    """For readers that split a line at its tabs; a backslash that was doubled stays one."""
    assert unflatten(r"1\ta\n2" + "\t" + r"C:\\temp") == "1\ta\n2\tC:\\temp"


def test_a_parse_is_made_from_words_heads_and_labels():
    words, heads, labels = ["She", "sleeps", "."], [2, 0, 2], ["nsubj", "root", "punct"]
    line = ParsedLine.of_words(words, heads, labels, tags=["PRON", "VERB", "PUNCT"], text=" She sleeps. ")
    rows = [
        f"{i}\t{word}\t_\t{tag}\t_\t_\t{head}\t{label}\t_\t{misc}\n"
        for i, word, tag, head, label, misc in zip(
            (1, 2, 3), words, ("PRON", "VERB", "PUNCT"), heads, labels, ("_", "SpaceAfter=No", "_")
        )
    ]
    expected = parse_conllu_block("".join(rows))
    assert format_conllu(line, comments=False) == format_conllu(expected, comments=False)
    assert text_of(line) == "She sleeps." and line.heads == expected.heads
    assert line.conllu_heads == heads
    assert text_of(ParsedLine.of_words(words, heads, labels)) == "She sleeps ."
    for wrong in (
        {"conllu_heads": [2, 0]},
        {"conllu_heads": [2, 0, 9]},
        {"conllu_heads": [2, 0, -1]},
        {"conllu_heads": [2, 1, 2]},
        {"conllu_heads": [2, 2, 2]},  # a word is not its own head; the root's is 0
        {"conllu_heads": [0, 0, 2]},
        {"labels": ["nsubj"]},
        {"text": "She slept."},
        {"text": "She sleeps. Now"},
        {"text": "She sleeps"},
        {"text": "She sl eeps."},
        {"words": ["She sleeps", "", "."], "text": "She sleeps."},
        {"words": ["She", "", "."]},
        {"words": ["She", "\u00a0", "."]},
    ):
        with pytest.raises(SyntaxDataError):
            ParsedLine.of_words(**{"words": words, "conllu_heads": heads, "labels": labels, **wrong})

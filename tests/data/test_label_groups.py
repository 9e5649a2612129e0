"""Label groups: the built-in maps against the paper's table, the file format, and what a map covers."""

import pytest
from data_errors import data_error
from hypothesis import given
from hypothesis import strategies as st

from fairseq_syntax.data.binarize import binarize
from fairseq_syntax.data.label_groups import BUILT_IN, LabelGroups, built_in_for, parse_label_groups, read_label_groups
from fairseq_syntax.data.labels import LabelInventory
from fairseq_syntax.errors import SyntaxDataError

APPENDIX_A = """root | aux auxpass cop | acomp ccomp pcomp xcomp | dobj iobj pobj | csubj csubjpass | nsubj nsubjpass |
cc | conj preconj | advcl | amod | advmod | npadvmod tmod | det predet | num number quantmod | appos | punct"""
# The labels of spaCy's small English pipeline 3.8, with its ROOT as this package writes it.
SPACY_LABELS = (
    "root acl acomp advcl advmod agent amod appos attr aux auxpass case cc ccomp compound conj csubj csubjpass dative "
    "dep det dobj expl intj mark meta neg nmod npadvmod nsubj nsubjpass nummod oprd parataxis pcomp pobj poss preconj "
    "predet prep prt punct quantmod relcl xcomp"
)
SPACY = SPACY_LABELS.split()
MAPS = {name: read_label_groups(name) for name in BUILT_IN}


def test_stanford_is_appendix_a():
    groups = read_label_groups("stanford")
    assert [set(g) for g in groups.members] == [set(g.split()) for g in APPENDIX_A.split("|")]


@pytest.mark.parametrize(
    "label, group",
    [
        ("root", 0), ("aux", 1), ("aux:pass", 1), ("cop", 1), ("ccomp", 2), ("xcomp", 2), ("obj", 3), ("iobj", 3),
        ("obl", 3), ("obl:agent", 3), ("nmod", 3), ("nmod:poss", 3), ("csubj:pass", 4), ("nsubj", 5),
        ("nsubj:outer", 5), ("cc", 6), ("conj", 7), ("advcl", 8), ("advcl:relcl", 8), ("amod", 9), ("advmod", 10),
        ("obl:tmod", 11), ("nmod:unmarked", 11), ("obl:npmod", 11), ("det", 12), ("det:predet", 12), ("nummod", 13),
        ("appos", 14), ("punct", 15), ("case", -1), ("acl:relcl", -1), ("nonsense", -1), ("<unk>", -1),
    ],
)  # fmt: skip
def test_ud_labels(label, group):
    groups = read_label_groups("ud")
    assert len(groups) == 16
    assert groups.table([label]) == [group]


def test_root_group():
    assert read_label_groups("ud").root == 0
    assert parse_label_groups("a: nsubj\nb: det root\n").root == 1
    assert parse_label_groups("a: nsubj\n").root == -1


def test_file(tmp_path):
    path = tmp_path / "groups.txt"
    path.write_text("# mine\nsubject: nsubj csubj  # both\n\nobject:\tobj obj:x\n-: det\n", encoding="utf-8")
    groups = read_label_groups(str(path))
    assert groups.names == ("subject", "object")
    assert groups.table(["csubj", "obj:x", "obj:y", "det", "other"]) == [0, 1, 1, -1, -1]
    again = parse_label_groups(groups.to_text())
    assert (again.names, again.members, again.left_out) == (groups.names, groups.members, groups.left_out)
    path.write_text("\ufeffsubject: nsubj\r\n", encoding="utf-8")
    assert read_label_groups(str(path)).names == ("subject",)
    path.write_text("subject: nsubj  # or\u2028object: obj\n", encoding="utf-8")
    assert read_label_groups(str(path)).names == ("subject",)
    path.write_bytes(b"subject: nsubj\robject: obj\r")
    assert read_label_groups(str(path)).names == ("subject", "object")


@pytest.mark.parametrize(
    "text, line",
    [
        ("a: x\nb x\n", 2),  # NAME: LABEL
        ("a:\n", 1),  # NAME: LABEL
        ("a b: x\n", 1),  # NAME: LABEL
        ("a: x\nb: y x\n", 2),  # already in line 1
        ("a: x\na: y\n", 2),  # twice
        ("# nothing\n", None),  # no label groups
        ("-: x\n", None),  # no label groups
    ],
)
def test_bad_files(text, line):
    with pytest.raises(SyntaxDataError) as error:
        parse_label_groups(text, "groups.txt")
    assert (error.value.path, error.value.line) == ("groups.txt", line)


def test_missing_file(tmp_path):
    with data_error(path="none.txt"):
        read_label_groups(str(tmp_path / "none.txt"))
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with data_error(path="bytes", line=1):
        read_label_groups(str(tmp_path / "bytes"))


def test_coverage():
    groups = LabelGroups(("s", "o"), (("nsubj",), ("obj",)), frozenset({"det"}))
    coverage = groups.coverage({"nsubj": 2.0, "nsubj:pass": 1.0, "obj": 1.0, "det": 3.0, "foo": 1.0})
    assert coverage.kept == {"s": 3.0, "o": 1.0}
    assert coverage.left_out == {"det": 3.0} and coverage.unknown == {"foo": 1.0}
    assert (coverage.kept_share, coverage.unknown_share, coverage.total) == (0.5, 0.125, 8.0)
    text = str(coverage)
    assert "nothing" not in text and "nothing in o" in str(groups.coverage(["nsubj"]))
    assert "50.0 % in 2 label groups" in text and "det 37.5" in text and "12.5 % unknown to the map (foo 12.5)" in text
    assert groups.coverage([]).kept_share == 1.0


def test_the_built_in_map_that_fits():
    assert built_in_for({"nsubj": 3.0, "obl": 1.0, "case": 1.0}) == "ud"
    assert built_in_for({"nsubj": 3.0, "dobj": 1.0, "pobj": 1.0}) == "stanford"
    assert built_in_for(dict.fromkeys(SPACY, 1.0)) == "clearnlp"
    assert {name: groups.coverage(SPACY).unknown for name, groups in MAPS.items()}["clearnlp"] == {}
    assert len({groups.names for groups in MAPS.values()}) == 1  # the same heads, whatever the labels


def test_a_map_for_other_labels_is_refused():
    ud = read_label_groups("ud")
    with data_error(path="label_groups_ud.txt") as error:
        ud.check(["SBJ", "OBJ", "VMOD", "NMOD", "punct"])
    assert "label_groups_ud.txt" in str(error.value) and "SBJ" in str(error.value)
    assert ud.check(["SBJ", "nsubj"]).unknown_share == 0.5
    with data_error("clearnlp", option="--ldd-label-groups"):
        ud.check(SPACY)
    with data_error(option="--ldd-label-groups"):  # heads that would read nothing
        parse_label_groups("subject: nsubj\n-: det case\n").check(["det", "case"])


@pytest.mark.parametrize(
    "labels, right, wrong",
    [
        (["root", "nsubj", "det", "punct", "amod", "advmod", "obj"], "ud", "stanford"),
        (["root", "nsubj", "det", "punct", "amod", "advmod", "dobj"], "stanford", "ud"),
    ],
)
def test_the_map_of_another_scheme_is_refused_where_it_knows_most_labels_of_a_few_sentences(labels, right, wrong):
    assert not read_label_groups(right).check(labels).unknown
    with data_error(option="--ldd-label-groups"):
        read_label_groups(wrong).check(labels)
    shared = labels[:-1]
    assert not read_label_groups(wrong).check(shared).unknown and not read_label_groups(right).check(shared).unknown


@pytest.mark.parametrize("arcs", [True, False])
def test_binarizing_reports_the_kept_mass(arcs, tmp_path):
    rows = [
        ("1", "dogs", "2", "nsubj", "Arcs=2:nsubj:0.5,2:case:0.32"),
        ("2", "bark", "0", "root", "Arcs=0:root:0.5,0:nsubj:0.2,1:foo:0.1"),
    ]
    lines = [
        "\t".join([i, form, *"____", head, label, "_", misc if arcs else "_"]) for i, form, head, label, misc in rows
    ]
    (tmp_path / "a.en.conllu").write_text("\n".join(lines) + "\n\n", encoding="utf-8")
    (tmp_path / "a.en").write_text("dogs bark\n", encoding="utf-8")
    (tmp_path / "dict.en.txt").write_text("dogs 1\nbark 1\n", encoding="utf-8")
    tokens, parse, dictionary = (str(tmp_path / name) for name in ("a.en", "a.en.conllu", "dict.en.txt"))
    for _ in range(2):  # the second time, of the store that is there
        summary = binarize(tokens, parse, str(tmp_path / "store"), LabelInventory(), lang="en", dictionary=dictionary)
        expected = {"nsubj": 0.5, "case": 0.32, "root": 0.7, "foo": 0.1} if arcs else {"nsubj": 1.0, "root": 1.0}
        assert summary.label_mass == pytest.approx(expected, abs=1e-3)
        share = "74.1 % in 16 label groups; 19.8 % in no group (case 19.8)" if arcs else "100.0 % in 16 label groups"
        assert f"label groups (ud): {share}" in summary.text()


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text):
    try:
        groups = parse_label_groups(text)
    except SyntaxDataError:
        return
    assert len(groups) == len(groups.members) >= 1 and all(groups.members)

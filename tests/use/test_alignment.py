"""Word alignments: words, pieces, links, the choice of a head, and every way to ask for them."""

import json
from itertools import pairwise
from types import SimpleNamespace

import binarized
import lstm_models
import numpy as np
import pytest
import tiny_syntax
import torch
import toy_data
from data_errors import data_error, refused
from hypothesis import given
from hypothesis import strategies as st
from nltk.metrics.scores import precision as nltk_precision
from nltk.metrics.scores import recall as nltk_recall
from nltk.translate.metrics import alignment_error_rate

from fairseq_syntax.inference import alignment, alignment_head
from fairseq_syntax.inference.alignment import PieceText
from fairseq_syntax.inference.alignment_head import AlignmentHead
from fairseq_syntax.inference.spelling import decoder
from fairseq_syntax.use import alignment_choice
from fairseq_syntax.use.translator import Translator


def words(text: str) -> list[str]:
    return [text[a:b] for a, b in alignment.words_of(text)]


def test_words_have_their_punctuation_split_off():
    assert words(' "Wait..." don\'t (sah) x-ray -- 3,5 € ') == [
        '"', "Wait", "...", '"', "don't", "(", "sah", ")", "x-ray", "--", "3,5", "€",
    ]  # fmt: skip
    assert words("") == words(" \t") == []


@given(st.text())
def test_words_cover_the_text_in_order_whatever_it_is(text):
    spans = alignment.words_of(text)
    assert "".join(text[a:b] for a, b in spans) == "".join(text.split())
    assert all(a < b for a, b in spans) and all(x[1] <= y[0] for x, y in pairwise(spans))


def test_pieces_stand_where_their_text_stands():
    spelt = alignment.spell(["▁a", "▁tele", "scope", "."], lambda pieces: "".join(pieces).replace("▁", " ").strip())
    assert spelt.text == "a telescope." and [spelt.text[a:b] for a, b in spelt.words] == ["a", "telescope", "."]
    assert spelt.membership().tolist() == [[1, 0, 0], [0, 1, 0], [0, 1, 0], [0, 0, 1]]
    apart = alignment.spell(["▁", "a", "▁", "b"], lambda pieces: "".join(pieces).replace("▁", " ").strip())
    assert apart.membership().argmax(axis=1).tolist() == [0, 0, 1, 1]
    plain = alignment.spell(["a", "b@@", "c"], decoder(None))
    assert plain.text == "a bc" and plain.membership().argmax(axis=1).tolist() == [0, 1, 1]
    unknown = alignment.spell(["b@@", "<unk>", "<unk>", "."], decoder(None))
    assert [unknown.text[a:b] for a, b in unknown.words] == ["b<unk>", "<unk>", "."]


def test_the_bytes_of_a_character_stand_where_it_stands():
    """Decoded bytes that are not yet a character are shown as one mark each, which ran into the next word."""
    pieces = ["▁a", "▁", "<0xF0>", "<0x9F>", "<0x8E>", "<0x89>", "▁b"]

    def decode(given):
        actual = b""
        for piece in given:
            actual += bytes([int(piece[3:5], 16)]) if piece.startswith("<0x") else piece.replace("▁", " ").encode()
        text = actual.decode(errors="replace").lstrip()
        broken = len(text) and text[-1] == "\ufffd"
        # as SentencePiece: each byte of what is no character has a mark of its own
        return text[:-1] + "\ufffd" * sum(p.startswith("<0x") for p in given) if broken else text

    actual = alignment.spell(pieces, decode)
    assert actual.text == "a 🎉 b"
    assert actual.pieces == [(0, 1), (1, 2), (2, 3), (2, 3), (2, 3), (2, 3), (3, 5)]
    assert actual.membership().argmax(1).tolist()[2:] == [1, 1, 1, 1, 2]


def test_tokens_are_found_in_the_line_or_not_at_all():
    assert alignment.locate(" do n't  go.", ["do", "n't", "go", "."]) == [(1, 3), (4, 7), (9, 11), (11, 12)]
    assert alignment.locate("10 000 men", ["10 000", "men"]) == [(0, 6), (7, 10)]
    assert alignment.locate("a b", ["a", "c"]) is None and alignment.locate("a b", ["a"]) is None


def test_links_by_loops():
    """Each target word's link against a loop over its pieces and those of the source words."""
    rng = np.random.default_rng(1)
    for _ in range(20):
        sides = []
        for _ in range(2):
            counts = rng.integers(1, 4, size=rng.integers(1, 6)).tolist()
            ends = np.cumsum(counts).tolist()
            spans = [(end - n, end) for n, end in zip(counts, ends)]
            sides.append(PieceText("x" * ends[-1], spans, [(i, i + 1) for i in range(ends[-1])]))
        source, target = sides
        weights = rng.random((len(target.pieces), len(source.pieces)), dtype=np.float32)
        expected = []
        for t, (a, b) in enumerate(target.words):
            sums = [sum(float(weights[i, j]) for i in range(a, b) for j in range(*w)) for w in source.words]
            expected.append((sums.index(max(sums)), t))
        assert alignment.align(weights, source, target).links == expected


def test_a_word_of_no_weight_has_no_link():
    text = PieceText("a b", [(0, 1), (2, 3)], [(0, 1), (0, 0)])
    assert alignment.align(np.eye(2, dtype=np.float32), text, text).links == [(0, 0)]
    empty = PieceText("", [], [])
    assert alignment.align(np.zeros((0, 0), dtype=np.float32), empty, empty).pharaoh() == ""


def test_agreement_with_given_links():
    gold = alignment.read_gold(["0-0 1p1", "2-1"])
    actual = alignment.agreement([[(0, 0), (1, 1), (3, 3)], [(2, 1)]], gold)
    # A = 4, A∩S = 2, A∩P = 3, S = 2
    assert (actual.precision, actual.recall, actual.aer) == (3 / 4, 1.0, 1 - 5 / 6)
    assert actual.f1 == pytest.approx(2 * 0.75 / 1.75)
    with data_error("'0:1'", line=1):
        alignment.read_gold(["0:1"])


def test_agreement_is_that_of_nltk():
    rng = np.random.default_rng(2)
    pairs = [(s, t) for s in range(4) for t in range(4)]
    for _ in range(30):
        links, sure, more = ({pairs[i] for i in rng.choice(16, size=6, replace=False)} for _ in range(3))
        actual = alignment.agreement([sorted(links)], [(sure, sure | more)])
        assert actual.aer == pytest.approx(alignment_error_rate(sure, links, sure | more))
        assert actual.precision == nltk_precision(sure | more, links) and actual.recall == nltk_recall(sure, links)


def test_mutual_information_by_loops():
    """Of probabilities that add up to 1 over the target words of a half and one that it has not."""
    rng = np.random.default_rng(4)
    pairs = []
    for _ in range(9):
        source, target = ([f"w{i}" for i in rng.integers(0, 4, size=size)] for size in (3, 5))
        pairs.append((source, target, [(int(s), t) for t, s in enumerate(rng.integers(0, 3, size=5)) if t != s]))
    bits, words_in_all = 0.0, sum(len(target) for _, target, _ in pairs)
    for half, other in ((pairs[::2], pairs[1::2]), (pairs[1::2], pairs[::2])):
        seen = [word for _, target, _ in half for word in target]
        linked = [(source[s], target[t]) for source, target, links in half for s, t in links]
        kinds = {*seen, "another"}
        p = {word: (seen.count(word) + 1) / (len(seen) + len(kinds)) for word in kinds}
        assert sum(p.values()) == pytest.approx(1)
        for source, target, links in other:
            for s, t in links:
                of_source = [b for a, b in linked if a == source[s]]
                given = {word: (of_source.count(word) + p[word]) / (len(of_source) + 1) for word in kinds}
                assert sum(given.values()) == pytest.approx(1)
                word = target[t] if target[t] in kinds else "another"
                bits += np.log2(given[word] / p[word])
    assert alignment_choice.mutual_information(pairs) == pytest.approx(bits / words_in_all)


def test_good_links_tell_more_than_bad_ones():
    rng = np.random.default_rng(3)
    right, wrong = [], []
    for _ in range(200):
        source = [f"s{i}" for i in rng.integers(0, 8, size=5)]
        order = rng.permutation(5)
        target = [source[i].replace("s", "t") for i in order]
        right.append((source, target, [(int(s), t) for t, s in enumerate(order)]))
        wrong.append((source, target, [(t, t) for t in range(5)]))
    assert alignment_choice.mutual_information(right) > 2.5
    assert alignment_choice.mutual_information(wrong) < 1
    assert alignment_choice.mutual_information([(s, t, []) for s, t, _ in right]) == 0


def test_the_best_of_the_candidates_is_chosen():
    text = PieceText("ab", [(0, 1), (1, 2)], [(0, 1), (1, 2)])
    good, bad = AlignmentHead(1, 0), AlignmentHead(0, 0)
    weights = {bad: np.eye(2, dtype=np.float32)[::-1], good: np.eye(2, dtype=np.float32)}
    pairs = [{head: alignment.align(of_head, text, text) for head, of_head in weights.items()}] * 3
    (best, worst) = alignment_choice.choose(pairs, alignment.read_gold(["0-0 1-1"] * 3))
    assert (best.head, best.score, worst.score) == (good, 1.0, 0.0)


def test_heads_are_named_as_one_reads_them():
    heads = AlignmentHead(1, 2), AlignmentHead(0, shift=1), AlignmentHead(3, heads=2), AlignmentHead(shift=1)
    assert [str(head) for head in heads] == [
        "layer 1, head 2",
        "layer 0, mean of all heads, one step later",
        "layer 3, mean of 2 heads",
        "the attention, one step later",
    ]


def targets(net_input: dict) -> list[torch.Tensor]:
    return [torch.cat((row[1:], row[:1])) for row in net_input["prev_output_tokens"]]


@pytest.mark.parametrize("left", [True, False])
def test_an_lstms_attention_stands_under_its_pieces(left):
    """Over the columns of the batch, whichever side is padded; a line alone gives the same."""
    model, lines = lstm_models.model("dlaa_lstm"), lstm_models.lines(4)
    head = alignment_head.default_head(model)
    aligner = alignment_head.Aligner([model], [head])
    batch = lstm_models.net_input(lines, left)
    actual = aligner.weights(batch, targets(batch))
    for line, weights in zip(lines, actual):
        alone = lstm_models.net_input([line])
        (expected,) = aligner.weights(alone, targets(alone))
        assert weights.shape == (6, len(line.tokens) - 1)
        np.testing.assert_allclose(weights, expected, atol=1e-5)
        # A block has words alone: nothing is lost to the end of the sentence.
        np.testing.assert_allclose(weights.sum(axis=1), 1, atol=1e-5)


def test_a_transformers_heads_are_read_where_they_are():
    model = tiny_syntax.tiny_model("pascal_transformer", decoder_layers=2).eval()
    lines = lstm_models.lines(5)
    batch = lstm_models.net_input(lines)
    layers = alignment_head.source_attention(model, batch, targets(batch))
    assert [tuple(w.shape) for w in layers] == [(5, 4, 7, batch["src_tokens"].size(1))] * 2
    assert not layers[0].transpose(1, 3)[batch["src_tokens"].eq(1)].any()
    (weights,) = alignment_head.Aligner([model], [AlignmentHead(1, 2, shift=1)]).weights(
        {k: v[:1] for k, v in batch.items() if k != "src_syntax"} | {"src_syntax": tiny_syntax.flat(lines[:1])},
        targets(batch)[:1],
    )
    columns = batch["src_tokens"][0].ne(1).nonzero().squeeze(1)[:-1]
    np.testing.assert_allclose(weights, layers[1][0, 2, 1:][:, columns].numpy(), atol=1e-5)


def test_a_drawn_beginning_of_a_sentence_is_no_piece_to_align():
    """A search bans padding alone: ``<s>`` in a translation is in none of its texts, and has no row."""
    model = tiny_syntax.tiny_model("transformer").eval()
    batch = tiny_syntax.sample([lstm_models.lines(3)[0]], True, syntax=False)["net_input"]
    dictionary = model.decoder.dictionary
    drawn = torch.tensor([7, dictionary.bos(), 5, 9, dictionary.eos()])
    for shift in (0, 1):
        head = AlignmentHead(0, 1, shift=shift)
        (weights,) = alignment_head.Aligner([model], [head]).weights(batch, [drawn])
        whole = head.pick(alignment_head.source_attention(model, batch, [drawn]))[0]
        assert np.array_equal(weights, whole[[shift, 2 + shift, 3 + shift], :-1].detach().numpy())


def test_a_models_own_alignment_heads_are_the_default(tmp_path):
    model = tiny_syntax.tiny_model("pascal_transformer", decoder_layers=3)
    assert alignment_head.default_head(model) == AlignmentHead(2)
    model.args = SimpleNamespace(alignment_layer=-2, alignment_heads=1)
    assert alignment_head.default_head(model) == AlignmentHead(1, heads=1)
    (tmp_path / "model.pt").write_bytes(b"a model")
    alignment_head.save_head(AlignmentHead(2, 3), tmp_path / "model.pt", by="f1")
    assert alignment_head.load_head(tmp_path / "model.pt", model) == AlignmentHead(2, 3)
    alignment_head.save_head(AlignmentHead(2, 4), tmp_path / "model.pt")
    with data_error(path="model.alignment.json"):
        alignment_head.load_head(tmp_path / "model.pt", model)


def test_a_head_is_of_its_checkpoint(tmp_path, caplog):
    """Not of the model that is trained anew under its name."""
    model, checkpoint = tiny_syntax.tiny_model("pascal_transformer", decoder_layers=3), tmp_path / "model.pt"
    checkpoint.write_bytes(b"a model")
    alignment_head.save_head(AlignmentHead(1, 1), checkpoint)
    checkpoint.write_bytes(b"another")
    assert alignment_head.load_head(checkpoint, model) == AlignmentHead(2)
    assert "align --choose" in caplog.text


@pytest.mark.parametrize(
    "values", [{"layer": "1"}, {"layer": 1.0}, {"layer": -1}, {"layer": True}, {"heads": None}, {"shift": 2}, [1]]
)
def test_a_damaged_head_is_told(tmp_path, values):
    model, path = tiny_syntax.tiny_model("pascal_transformer"), tmp_path / "model.alignment.json"
    path.write_text(json.dumps(values), encoding="utf-8")
    with data_error(path="model.alignment.json"):
        alignment_head.load_head(tmp_path / "model.pt", model)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    binarized.make(folder)
    toy_data.train(folder / "bin", folder / "model", max_update=3)
    for checkpoint in (folder / "model").glob("*.pt"):
        state = torch.load(checkpoint, weights_only=True)
        for name, weight in state["model"].items():
            if "encoder_attn.q_proj.weight" in name:
                weight *= 40  # no attention is nearly uniform
        torch.save(state, checkpoint)
    return folder


@pytest.mark.slow
def test_every_way_to_ask_gives_the_same_links(corpus, capsys):
    """The translator, the two commands, and fairseq-generate's output; words with their places in the user's text."""
    checkpoint = corpus / "model" / "checkpoint_last.pt"
    parsed, text = corpus / "valid.en.conllu", corpus / "de"
    assert toy_data.syntax_command("translate", checkpoint, "--input", parsed, "--output", text,
                                   "--alignments", corpus / "links.jsonl", "--device", "cpu") == 0  # fmt: skip
    rows = [json.loads(line) for line in (corpus / "links.jsonl").read_text(encoding="utf-8").splitlines()]
    sources = binarized.sentences(12, 2)
    for row, source, target in zip(rows, sources, text.read_text(encoding="utf-8").splitlines(), strict=True):
        assert row["source_text"].replace(".", " .") == source and row["target_text"] == target
        assert [row["source_text"][a:b] for a, b in row["source_words"]] == source.split()
        assert row["links"] and {s for s, _ in row["links"]} <= set(range(6))
    pharaoh = [" ".join(f"{s}-{t}" for s, t in row["links"]) for row in rows]

    arguments = ["--path", checkpoint, "--task", "syntax_translation", "--gen-subset", "valid", "--beam", 4, "--cpu"]
    out = toy_data.fairseq("generate", corpus / "bin", *arguments, "--print-alignment", "hard")
    printed = {int(n): links for n, links in (row[2:].split("\t") for row in out.splitlines() if row[:2] == "A-")}
    assert [printed[n] for n in range(12)] == pharaoh

    translator = Translator.load(checkpoint, device="cpu", batch_size=5)
    again = translator.translations(sorted_parses(parsed), alignments=True)
    assert [best[0].alignment.pharaoh() for best in again] == pharaoh
    # Given translations: each by itself as among others.
    pairs = sorted_parses(parsed), (corpus / "valid.de").read_text(encoding="utf-8").splitlines()
    aligned = translator.align(*pairs)
    assert [a.target_text for a in aligned] == pairs[1] and len(aligned[0].target_words) == len(pairs[1][0].split())
    assert translator.align(pairs[0][3:4], pairs[1][3:4]) == aligned[3:4]
    ranked = translator.rank_heads(*pairs)
    assert len(ranked) == 2 * (2 + 1) and ranked[0].score >= ranked[-1].score
    assert translator.translations([""], alignments=True)[0][0].alignment.links == []


def sorted_parses(path):
    from fairseq_syntax.corpus.conllu import read_conllu

    return list(read_conllu(path))


@pytest.mark.slow
def test_a_chosen_head_is_used_and_can_be_named(corpus, tmp_path, capsys):
    checkpoint = corpus / "model" / "checkpoint_best.pt"
    gold = tmp_path / "gold"
    gold.write_text("0-0 1-1 2-2 3-3 4-4 5-5\n" * 12, encoding="utf-8")
    common = ["align", checkpoint, "--input", corpus / "valid.en.conllu", "--translations", corpus / "valid.de"]
    assert toy_data.syntax_command(*common, "--gold", gold, "--choose", "--device", "cpu") == 0, capsys.readouterr().err
    kept = json.loads((corpus / "model" / "checkpoint_best.alignment.json").read_text(encoding="utf-8"))
    assert kept["chosen"]["by"] == "f1" and kept["chosen"]["pairs"] == 12
    assert toy_data.syntax_command(*common, "--gold", gold, "--output", tmp_path / "links", "--device", "cpu") == 0
    assert f"F1 {kept['chosen']['score']:.3f}"[:7] in capsys.readouterr().err
    assert len((tmp_path / "links").read_text(encoding="utf-8").splitlines()) == 12
    # A damaged file stops who aligns, and not who does as its message says.
    (corpus / "model" / "checkpoint_best.alignment.json").write_text('{"layer": 1', encoding="utf-8")
    refused([*common, "--gold", gold, "--device", "cpu"], path="checkpoint_best.alignment.json")
    assert toy_data.syntax_command(*common, "--gold", gold, "--choose", "--device", "cpu") == 0
    assert json.loads((corpus / "model" / "checkpoint_best.alignment.json").read_text(encoding="utf-8")) == kept
    gold.write_text("0-0\n" * 11 + "1-1 2-2 3-3 4-4 5-5 6-6\n", encoding="utf-8")  # counted from 1
    for choose in ([], ["--choose"]):
        refused([*common, "--gold", gold, *choose, "--device", "cpu"], "6-6", line=12)
    (tmp_path / "gold").write_text("0-0\n", encoding="utf-8")
    refused([*common, "--gold", gold, "--device", "cpu"], path=gold)
    gold.write_text("\n" * 12, encoding="utf-8")
    refused([*common, "--gold", gold, "--choose", "--device", "cpu"], path=corpus / "valid.en.conllu")
    assert json.loads((corpus / "model" / "checkpoint_best.alignment.json").read_text(encoding="utf-8")) == kept

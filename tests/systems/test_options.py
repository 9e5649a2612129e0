"""Options of fairseq's commands that were taken and did nothing, or something else."""

from __future__ import annotations

import gzip
import io
import shutil
from pathlib import Path

import option_ledger
import pytest
import torch
import toy_data
from toy_data import fairseq

from fairseq_syntax.errors import SyntaxDataError

in_training = pytest.mark.matrix(2, of="options of training and search")
TASK = ["--task", "syntax_translation", "-s", "en", "-t", "de", "--cpu", "--max-tokens", 400, "--num-workers", 0]


def generated(printed: str, kind: str = "H") -> dict[int, str]:
    rows = (line.split("\t") for line in printed.splitlines() if line.startswith(f"{kind}-"))
    return {int(name[2:]): rest[-1] for name, *rest in rows}


def generate(toy, trained, *more) -> str:
    return fairseq("generate", toy.data, "--path", trained, *TASK, "--max-len-b", 9, *more)


def test_each_shard_translates_its_part(toy, trained, monkeypatch, tmp_path):
    whole = generated(generate(toy, trained, "--batch-size", 3))
    parts = [generated(generate(toy, trained, "--batch-size", 3, "--num-shards", 2, "--shard-id", i)) for i in (0, 1)]
    assert all(parts) and not set(parts[0]) & set(parts[1]) and parts[0] | parts[1] == whole
    for rank in (0, 1):
        more = ["--distributed-world-size", 2, "--distributed-rank", rank]
        assert generated(generate(toy, trained, "--batch-size", 3, *more)) == parts[rank]
    monkeypatch.setenv("WORLD_SIZE", "2")  # as torchrun has it
    for rank in (0, 1):
        monkeypatch.setenv("RANK", str(rank))
        assert generated(generate(toy, trained, "--batch-size", 3)) == parts[rank]
    monkeypatch.delenv("WORLD_SIZE")
    with pytest.raises(ValueError, match="shard_id must be between"):  # fairseq's
        generate(toy, trained, "--num-shards", 2, "--shard-id", 2)
    with pytest.raises(SyntaxDataError):
        fairseq("validate", toy.data, "--path", trained, *TASK, "--valid-subset", "valid", "--num-shards", 2)
    with pytest.raises(SyntaxDataError):
        toy_data.train(toy.data, tmp_path, "--num-shards", 2)


def test_a_score_of_pieces_is_not_taken_for_one_of_the_text(toy, trained):
    """What is printed is text, whatever is scored."""
    for more, warned in (([], True), (["--scoring", "sacrebleu"], False), (["--remove-bpe", "sentencepiece"], False)):
        with toy_data.logged("fairseq_syntax.inference.generation") as said:
            printed = generate(toy, trained, *more)
        assert ("pieces" in said.getvalue()) == warned
        assert "▁" not in "".join(generated(printed, "D").values())


def test_alignments_of_scored_references_are_those_of_words(toy, trained):
    printed = generate(toy, trained, "--score-reference", "--print-alignment", "hard")
    sources, references, links = (generated(printed, kind) for kind in "STA")
    assert set(links) == set(sources)
    for number, row in links.items():
        pairs = [tuple(map(int, link.split("-"))) for link in row.split()]
        assert all(i < len(sources[number]) and j < len(references[number].split()) for i, j in pairs), number


def interactive(data, model, lines, *more) -> str:
    path = Path(model).parent / "lines"
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    arguments = ["--path", model, "--input", path, *more, *TASK[:-4], "--buffer-size", 4, "--batch-size", 2]
    return fairseq("interactive", data, *arguments, "--max-len-b", 4)


@in_training
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["words", "sentencepiece"])
def test_unknown_words_are_copied_from_the_source(tmp_path, kind):
    """By the alignment of words, from raw text and from raw data; a file says what is written for some of them."""
    lines = toy_data.corpus()
    for folder in ("raw", "segmented"):
        (tmp_path / folder).mkdir()
    toy_data.write_raw(tmp_path / "raw", lines)
    toy_data.segment(tmp_path / "raw", tmp_path / "segmented", kind)
    prefixes = [x for s in toy_data.SIZES for x in (f"--{s}pref", tmp_path / "segmented" / s)]
    making = ["--task", "syntax_translation", "-s", "en", "-t", "de", *prefixes]
    data, raw = tmp_path / "data", tmp_path / "text"
    fairseq("preprocess", *making, "--nwordssrc", 9, "--nwordstgt", 9, "--destdir", data)
    dictionaries = ["--srcdict", data / "dict.en.txt", "--tgtdict", data / "dict.de.txt"]
    fairseq("preprocess", *making, *dictionaries, "--dataset-impl", "raw", "--destdir", raw)
    toy_data.train(data, tmp_path, arch="transformer", max_epoch=1)
    model, nothing_else = tmp_path / "checkpoint_last.pt", ["--unkpen", "-99", "--replace-unk"]
    (tmp_path / "copies").write_text("man MANN\nzqxö zqxö\n", encoding="utf-8")
    text = ["the man painted zqxö", "man zqxö", "man", "the zqxö saw zqxö"]
    for copies, words in (((), {}), ((tmp_path / "copies",), {"man": "MANN"})):
        translations = generated(interactive(data, model, text, *nothing_else, *copies), "D")
        assert len(translations) == len(text)
        for number, translation in translations.items():
            sources = {words.get(word, word) for word in text[number].split()}
            assert translation and set(translation.split()) <= sources, (number, translation)
        assert translations[2].split()[0] == words.get("man", "man")
    if kind == "words":
        printed = interactive(data, model, text, *nothing_else, "--print-alignment", "hard")
        links, translations = generated(printed, "A"), generated(printed, "D")
        for number, row in links.items():
            source, target = text[number].split(), translations[number].split()
            pairs = [tuple(map(int, link.split("-"))) for link in row.split()]
            assert pairs and all(source[i] == target[j] for i, j in pairs), (number, row, target)
        assert any(link[0] != "0" for row in links.values() for link in row.split()), "not the first word alone"
        printed = fairseq(
            "generate", raw, "--path", model, *TASK, "--dataset-impl", "raw", *nothing_else, "--max-len-b", 3
        )
        for number, reference in generated(printed, "T").items():
            assert reference == toy_data.translation(lines["test"][number])
            words = {token.form for token in lines["test"][number].tokens}
            assert set(generated(printed, "H")[number].split()) <= (words or {"<unk>"})
    (tmp_path / "copies").write_text("man MANN\nman\n", encoding="utf-8")
    with pytest.raises(SyntaxDataError) as error:
        interactive(data, model, text, "--replace-unk", tmp_path / "copies")
    assert (error.value.path, error.value.line) == (str(tmp_path / "copies"), 2)


def test_interactive_reads_compressed_text_and_text_that_is_no_utf8_is_named(toy, trained, tmp_path, monkeypatch):
    (tmp_path / "text.gz").write_bytes(gzip.compress(b"dogs\na man\n"))
    (tmp_path / "latin").write_bytes("dogs\ngröße\n".encode("latin-1"))
    plain = ["--path", trained, *TASK[:-4], "--syntax-parser", "chain_parser"]
    assert len(generated(fairseq("interactive", toy.data, *plain, "--input", tmp_path / "text.gz"))) == 2
    with pytest.raises(SyntaxDataError) as error:
        fairseq("interactive", toy.data, *plain, "--input", tmp_path / "latin")
    assert error.value.line == 2
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("größe\n".encode()), encoding="ascii"))
    assert len(generated(fairseq("interactive", toy.data, *plain))) == 1


@in_training
@pytest.mark.slow
def test_embeddings_from_a_file_that_is_gone_and_one_without_a_header(toy, tmp_path):
    rows = [f"{line.split()[0]} {' '.join(['0.25'] * 16)}\n" for line in (toy.data / "dict.en.txt").open()]
    path = tmp_path / "vectors"
    path.write_text("".join(rows), encoding="utf-8")
    state = toy_data.train(toy.data, tmp_path / "a", "--encoder-embed-path", path, lr=1e-9, max_epoch=1)
    assert torch.allclose(state["model"]["encoder.embed_tokens.weight"][4], torch.tensor(0.25), atol=1e-4)
    path.unlink()
    assert generated(generate(toy, tmp_path / "a/checkpoint_last.pt"))
    path.write_text("a 1 2 3\nb 1 x 3\n", encoding="utf-8")
    with pytest.raises(SyntaxDataError) as error:
        toy_data.train(toy.data, tmp_path / "b", "--encoder-embed-path", path)
    assert error.value.line == 2


@in_training
@pytest.mark.slow
def test_languages_with_a_hyphen(toy, tmp_path):
    for path in toy.segmented.iterdir():
        name = path.name if path.suffix == ".model" else path.name.replace(".en", ".en-US").replace(".de", ".de-DE")
        shutil.copy(path, tmp_path / name)
    options = ["--task", "syntax_translation", "-s", "en-US", "-t", "de-DE", "--destdir", tmp_path / "bin"]
    fairseq("preprocess", *options, "--trainpref", tmp_path / "train", "--validpref", tmp_path / "valid")
    options = {**toy_data.MODEL, **toy_data.TRAINING, "--max-epoch": 1, "--save-dir": tmp_path / "model"}
    given = [x for name, value in options.items() if name not in ("-s", "-t") for x in (name, value)]
    fairseq("train", tmp_path / "bin", *given, *toy_data.FLAGS)
    assert (tmp_path / "model/checkpoint_last.pt").exists()


@in_training
@pytest.mark.slow
def test_bleu_of_nothing_is_0(toy, tmp_path):
    bleu = ["--best-checkpoint-metric", "bleu", "--maximize-best-checkpoint-metric"]
    nothing = ["--eval-bleu", "--eval-bleu-args", '{"max_len_b": 1, "min_len": 0, "beam": 1}', "--lr", "1e-9"]
    toy_data.train(toy.data, tmp_path / "b", *bleu, *nothing, lr=None, max_epoch=1)
    assert (tmp_path / "b/checkpoint_best.pt").exists()


def test_what_does_not_fit_is_named(toy, trained, tmp_path):
    for option, values in (("--max-tokens", {"max_tokens": 8}), ("--max-tokens-valid", {"max_tokens_valid": 8})):
        with pytest.raises(SyntaxDataError) as error:
            toy_data.train(toy.data, tmp_path / "a", **values)
        assert option in error.value.option and "sentence" in error.value.message
    with pytest.raises(SyntaxDataError) as error:
        toy_data.train(toy.data, tmp_path / "b", "--dataset-impl", "raw")
    assert "--dataset-impl" in error.value.hint
    for option in ("--print-step", "--retain-iter-history"):
        with pytest.raises(SyntaxDataError):
            generate(toy, trained, option)
    for option in ("--encoder-xformers-att-config", "--decoder-xformers-att-config"):
        with pytest.raises(SyntaxDataError):
            toy_data.train(toy.data, tmp_path / "c", option, '{"name": "linformer"}')


@in_training
@pytest.mark.slow
def test_resumed_in_mid_epoch_with_smaller_batches(toy, tmp_path, monkeypatch):
    """Every sentence of the epoch is trained on once, before or after."""
    from fairseq_syntax.tasks.syntax_translation import SyntaxTranslationTask as Task

    seen: list[int] = []
    step = Task.train_step

    def noting(self, sample, *args, **kwargs):
        seen.extend(sample["id"].tolist())
        return step(self, sample, *args, **kwargs)

    monkeypatch.setattr(Task, "train_step", noting)
    often = ["--save-interval-updates", 1]
    toy_data.train(toy.data, tmp_path, *often, max_tokens=150, max_update=2, max_epoch=None)
    first = len(seen)
    toy_data.train(toy.data, Path(tmp_path), *often, max_tokens=90, max_epoch=1)
    assert 0 < first < 60 and sorted(seen) == list(range(60))


def test_the_ledger_has_every_option_of_fairseq_and_no_other():
    """A new option of fairseq turns this red until somebody has said what becomes of it."""
    known, there = option_ledger.ledger(), option_ledger.fairseq_options()
    missing = sorted("/".join(sorted(names)) for names in there if not names & set(known))
    assert not missing, f"say in {option_ledger.LEDGER.name} what becomes of {' '.join(missing)}"
    names = set().union(*there, option_ledger.ONLY_IN_A_CHECKOUT)
    assert not (gone := sorted(set(known) - names)), f"fairseq has no {' '.join(gone)}"


def test_what_the_ledger_says_is_tried_is_named_where_it_is_tried():
    root, untried = Path(__file__).resolve().parents[2], []
    for name, where in option_ledger.ledger().items():
        part, _, file = where.partition(": ")
        if part == "tests":
            text = (root / file).read_text("utf-8")
            untried += [] if name in text or name.lstrip("-").replace("-", "_") in text else [(name, file)]
        elif part == "ways":
            text = "".join((root / "tests/helpers" / n).read_text("utf-8") for n in ("ways.py", "toy_data.py"))
            untried += [] if name in text or name.lstrip("-").replace("-", "_") in text else [(name, "ways.py")]
    assert not untried

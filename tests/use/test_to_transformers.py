"""``export --to transformers``: the same translations by Hugging Face's library, without this package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise

import binarized
import pytest
import torch
import toy_data
from data_errors import data_error
from matrix_part import of_half_a_minute
from untrained import untrained

from fairseq_syntax.inference.interactive import InteractiveInput
from fairseq_syntax.use.export import export, load_exported_folder
from fairseq_syntax.use.translator import Translator

pytestmark = pytest.mark.slow

ALONE = """
import json, sys
sys.modules["fairseq_syntax"] = sys.modules["fairseq"] = sys.modules["torchaudio"] = None
import socket
socket.socket.connect = None
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
lines = json.load(sys.stdin)
def beams(folder):
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForSeq2SeqLM.from_pretrained(folder)
    for i in range(0, len(lines), 16):
        batch = tokenizer(lines[i : i + 16], return_tensors="pt", padding=True)
        options = {"num_return_sequences": 4, "max_new_tokens": 41, "return_dict_in_generate": True}
        out = model.generate(**batch, **options, output_scores=True)
        texts = tokenizer.batch_decode(out.sequences, skip_special_tokens=True)
        ids = [[i for i in row if i not in (0, 1, 2)] for row in out.sequences.tolist()]
        rows = list(zip(ids, texts, out.sequences_scores.tolist()))
        yield from (rows[i : i + 4] for i in range(0, len(rows), 4))
json.dump([list(beams(folder)) for folder in sys.argv[1:]], sys.stdout)
"""


BEFORE = ["--encoder-normalize-before", "--decoder-normalize-before"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    pytest.importorskip("transformers")
    return binarized.make(tmp_path_factory.mktemp("text"), parsed=False, train=150)


NORMS = {"post-norm": [], "pre-norm": BEFORE}


def exported(data, folder, norm) -> None:
    """A model that fairseq's own task has trained until it ends its sentences, and its export below it."""
    sizes = dict.fromkeys(("encoder_embed_dim", "decoder_embed_dim"), 32)
    small = {**sizes, "decoder_attention_heads": 4, "dropout": 0.0, "max_tokens": 150, "max_epoch": 18}
    of_fairseq = {**small, "arch": "transformer", "task": "translation"}
    toy_data.train(data, folder, *NORMS[norm], each_epoch=False, **of_fairseq)
    export(load_exported_folder(folder / "checkpoint_last.pt", data), "transformers", folder / "out")


def beams_of(folder, lines):
    """Those that transformers finds alone: ids, text and score of each translation of each line."""
    program = [sys.executable, "-c", ALONE, str(folder / "out")]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    run = subprocess.run(program, input=json.dumps(lines), capture_output=True, text=True, env=environment)
    assert run.returncode == 0, run.stderr[-2000:]
    (beams,) = json.loads(run.stdout)
    return beams


@of_half_a_minute
@pytest.mark.parametrize("norm", NORMS)
def test_the_same_beams(data, tmp_path, norm):
    exported(data, tmp_path, norm)
    lines = binarized.sentences(int(os.environ.get("SENTENCES", "24")), 7)
    translator = Translator.load(tmp_path / "checkpoint_last.pt", data, device="cpu", beam=4, nbest=4, max_len_b=40)
    dictionary = translator.task.target_dictionary
    same = ended = 0
    for line, ours, theirs in zip(lines, translator.translations(lines), beams_of(tmp_path, lines), strict=True):
        # at the limit of the length, transformers gives the forced </s> a probability of 1
        if any(translation.cut for translation in ours):
            continue
        ended += 1
        pieces = [[dictionary[i] for i in ids] for ids, _, _ in theirs]
        scores = [score for *_, score in theirs]
        assert all(pieces), "an empty translation, which fairseq's search does not find"
        if [t.score for t in ours] != pytest.approx(scores, abs=1e-3):
            # Of what ends in the last step, fairseq takes what fills the beam, and transformers whatever is better.
            assert ours[0].score == pytest.approx(scores[0], abs=1e-3), line
            assert all(t.score < score + 1e-3 for t, score in zip(ours, scores)), line
            continue
        gaps = [a.score - b.score for a, b in pairwise(ours)]
        if min(gaps) > 1e-5:  # else their order is a matter of rounding
            same += 1
            assert [t.pieces for t in ours] == pieces, line
            known = [(t.text, text) for t, (_, text, _) in zip(ours, theirs) if "<unk>" not in t.pieces]
            assert all(ours == theirs for ours, theirs in known)
    print(f"{same} of {ended} that ended, of {len(lines)}, compared by their pieces")
    assert ended > 0.9 * len(lines) and same > 0.5 * ended  # the others by their scores


@pytest.mark.matrix(3)
@pytest.mark.parametrize(
    "arch, options",
    [
        ("transformer", ["--share-decoder-input-output-embed", "--decoder-layers", "1"]),
        ("supervised_head_transformer", ["--no-scale-embedding", "--activation-fn", "gelu"]),
        ("transformer_align", ["--activation-fn", "gelu_accurate"]),
        ("transformer", BEFORE),
        ("transformer", [*BEFORE, "--share-decoder-input-output-embed", "--no-token-positional-embeddings"]),
        ("transformer", [*BEFORE, "--encoder-learned-pos", "--max-target-positions", "60"]),
    ],
)
def test_what_transformers_loads_is_the_model(data, tmp_path, arch, options):
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    loaded = untrained(data, arch, *options)
    export(loaded, "transformers", tmp_path / "out")
    text = "the </s> man <unk>"  # typed by a user
    (ours,) = InteractiveInput(loaded.task).encode([text])
    assert AutoTokenizer.from_pretrained(tmp_path / "out")(text)["input_ids"] == ours.tokens.tolist()
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out").eval()
    source = torch.tensor([[5, 6, 7, 8, 2], [9, 5, 2, 1, 1]])
    target = torch.tensor([[2, 5, 6], [2, 7, 8]])
    with torch.no_grad():
        theirs = model(
            input_ids=source, attention_mask=source.ne(1).long(), decoder_input_ids=target, use_cache=False
        ).logits
        inputs = {"src_tokens": source, "src_lengths": source.ne(1).sum(1), "prev_output_tokens": target}
        ours = loaded.model(**inputs)[0]
    torch.testing.assert_close(theirs[..., : ours.size(-1)], ours, atol=1e-4, rtol=1e-4)
    assert theirs[..., ours.size(-1) :].isneginf().all()


@pytest.mark.parametrize(
    "arch, options, named",
    [
        ("transformer", ["--encoder-normalize-before"], "layer_norm"),
        ("transformer", ["--decoder-normalize-before"], "layer_norm"),
        ("transformer", ["--encoder-learned-pos"], "FSMT"),
        ("transformer", [*BEFORE, "--no-decoder-final-norm"], "layer_norm"),
        ("transformer", ["--layernorm-embedding"], "layernorm_embedding"),
        ("transformer", ["--activation-fn", "gelu_fast"], "gelu_fast"),
        ("lstm", [], "lstm"),
        ("pascal_transformer", [], "pascal"),
    ],
)
@pytest.mark.filterwarnings("ignore:--activation-fn=gelu_fast has been renamed:UserWarning")  # fairseq's word
def test_what_is_not_exact_is_refused_by_name(data, tmp_path, arch, options, named):
    with data_error(named):
        export(untrained(data, arch, *options), "transformers", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "kind, parsed, named", [("subword_nmt", False, "subword_nmt"), ("sentencepiece", True, "parse")]
)
def test_a_segmentation_that_is_not_exact_is_refused(tmp_path, kind, parsed, named):
    pytest.importorskip("transformers")
    corpus = binarized.make(tmp_path / "corpus", kind=kind, parsed=parsed)
    with data_error(named):
        export(untrained(corpus, "transformer"), "transformers", tmp_path / "out")

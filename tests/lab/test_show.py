"""Attention as it is used, whatever the system; heat maps; and the page, in a real browser where there is one."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from types import SimpleNamespace

import browser as chromium
import ldd_models as ldd
import numpy as np
import pytest
import torch
from binarized import make
from data_errors import data_error, refused
from fairseq import options
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.modules import MultiheadAttention
from fairseq_cli import train
from matplotlib import font_manager
from matrix_part import of_ten_seconds
from PIL import Image
from random_parses import random_line
from tiny_syntax import sample, tiny_model

from fairseq_syntax.cli import main as command
from fairseq_syntax.corpus.conllu import ParsedLine, Token
from fairseq_syntax.inference.recorded_attention import recorded
from fairseq_syntax.lab.figures import exhibits
from fairseq_syntax.lab.figures.exhibits import collect
from fairseq_syntax.lab.figures.heatmap import arc_levels, heat_maps
from fairseq_syntax.lab.figures.plot import save_figure
from fairseq_syntax.lab.scoring.diversity import Diversifier
from fairseq_syntax.runtime.manifest import MANIFEST
from fairseq_syntax.use.pages.exhibit import Exhibit, Output, Tree, exhibit_of_parse
from fairseq_syntax.use.pages.page import page

in_a_browser = pytest.mark.matrix(2, of="pages in a browser")
# ------------------------------------------------------------------------------------------------------- attention

ARCHITECTURES = ["syntax_transformer", "pascal_transformer", "lisa_transformer", "supervised_head_transformer"]
ARCHITECTURES += ["dbsa_transformer"]  # a system in the decoder, under the mask of the future


@pytest.mark.matrix(5)
@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_recorded_weights_are_those_that_made_the_output(arch, left):
    """Each attention's output is its output projection of the recorded weights times its values; and nothing else of
    the model changes."""
    rng = random.Random(0)
    batch = sample([random_line(rng) for _ in range(3)], left)
    model = tiny_model(arch).eval()
    seen = []

    def keep(module, inputs, keywords, output):
        given = keywords if keywords.get("value") is not None else {"value": inputs[0] if inputs else keywords["query"]}
        seen.append((module, given["value"], output[0]))

    hooks = [
        module.register_forward_hook(keep, with_kwargs=True)
        for module in model.modules()
        if isinstance(module, MultiheadAttention)
    ]
    with torch.no_grad():
        plain, _ = model(**batch["net_input"])
        seen.clear()
        with recorded(model) as weights:
            logits, _ = model(**batch["net_input"])
        for hook in hooks:
            hook.remove()
        again, _ = model(**batch["net_input"])
    torch.testing.assert_close(logits, plain, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(again, plain, rtol=0, atol=0)
    places = {"encoder": 0, "decoder": 0, "cross": 0}
    decoder_layers = list(model.decoder.layers)
    for module, value, output in seen:
        kind = "encoder" if any(layer.self_attn is module for layer in model.encoder.layers) else "decoder"
        kind = "cross" if any(layer.encoder_attn is module for layer in decoder_layers) else kind
        w = weights[kind][places[kind]]
        places[kind] += 1
        assert w.shape[1] == module.num_heads
        torch.testing.assert_close(w.sum(-1), torch.ones_like(w.sum(-1)))
        v = module.v_proj(value)
        length, rows, width = v.shape
        v = v.view(length, rows, module.num_heads, width // module.num_heads).permute(1, 2, 0, 3)
        made = module.out_proj((w @ v).permute(2, 0, 1, 3).reshape(w.shape[2], rows, width))
        torch.testing.assert_close(made, output, rtol=1e-4, atol=1e-5)
    assert places == {"encoder": 2, "decoder": 1, "cross": 1}


@pytest.mark.parametrize("variant", ["LDD", "LDA", "UDD"])
def test_the_sparse_form_of_ldd_has_the_weights_of_its_dense_form(variant, tmp_path):
    """LDD's layer makes no weights of its own: those recorded must give its sparse output all the same."""
    sentences = ldd.some_sentences(lengths=(4, 7, 5))
    model = ldd.build(tmp_path, ldd_variant=variant).eval()
    tokens, syntax = ldd.tokens_of(sentences, left=True), ldd.flat_of(sentences)
    module, outputs = model.encoder.layers[0].self_attn, []
    hook = module.register_forward_hook(lambda _, inputs, out: outputs.append((inputs[0], out[0])))
    with torch.no_grad():
        model.encoder(tokens, src_syntax=syntax)
        hook.remove()
        with recorded(model) as weights:
            model.encoder(tokens, src_syntax=syntax)
        (x, sparse), (w, *_) = outputs[0], weights["encoder"]
        v = module.v_proj(x)
        length, rows, width = v.shape
        v = v.view(length, rows, module.num_heads, module.head_dim).permute(1, 2, 0, 3)
        made = module.out_proj((w @ v).permute(2, 0, 1, 3).reshape(length, rows, width))
    real = tokens.ne(1).T
    torch.testing.assert_close(made[real], sparse[real], rtol=1e-4, atol=1e-5)


def test_padding_gets_no_attention():
    rng = random.Random(1)
    lines = [random_line(rng, max_words=n, max_sentences=1) for n in (1, 6)]
    batch = sample(lines, left=False)
    model = tiny_model("pascal_transformer").eval()
    with torch.no_grad(), recorded(model) as weights:
        model(**batch["net_input"])
    padded = batch["net_input"]["src_tokens"].eq(1)
    assert padded.any()
    for w in [*weights["encoder"], *weights["cross"]]:
        assert w.transpose(1, 3)[padded].abs().max() == 0


# ----------------------------------------------------------------------------------------------- from data to figure


def _train(data, folder, arch, *more):
    argv = [
        str(data),
        "--task",
        "syntax_translation",
        "--arch",
        arch,
        "--cpu",
        "--max-update",
        "2",
        "--max-tokens",
        "400",
    ]
    argv += ["--optimizer", "adam", "--lr", "0.01", "--save-dir", str(folder), "--no-epoch-checkpoints", *more]
    layers = ["2", "1"] if "transformer" in arch else ["1", "1"]
    argv += ["--encoder-layers", layers[0], "--decoder-layers", layers[1], "--max-target-positions", "40"]
    argv += ["--log-format", "none", "--num-workers", "0"]
    parser = options.get_training_parser()
    train.main(convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, argv)))
    return folder / "checkpoint_last.pt"  # fairseq remembers the best of an earlier model of the same process


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A data directory and two models of it, one of which has a parent head."""
    folder = tmp_path_factory.mktemp("show")
    data = make(folder)
    supervised = ["--criterion", "supervised_head"]
    return data, {
        "LSTM": str(_train(data, folder / "lstm", "dlaa_lstm", "--criterion", "cross_entropy")),
        "PASCAL": str(_train(data, folder / "pascal", "pascal_transformer_tiny", "--criterion", "cross_entropy")),
        "heads": str(_train(data, folder / "heads", "supervised_head_transformer_tiny", *supervised)),
    }


def test_no_translation_has_the_unknown_words_of_a_reference():
    """Which comes from the data, where words that are not in the vocabulary are <unk>, as in translations."""
    words = Dictionary()
    tokens = torch.tensor([words.add_symbol("ein"), words.unk(), words.eos()])
    cfg = SimpleNamespace(source_lang="en", target_lang="de")
    task = SimpleNamespace(source_dictionary=words, target_dictionary=words, cfg=cfg, segmenter=lambda side: None)
    exhibit = exhibits._source(task, SimpleNamespace(src=[tokens], tgt=[tokens]), 1, None)
    diversifier = Diversifier.__new__(Diversifier)
    diversifier.task, diversifier.dataset = task, [{"target": tokens}]
    assert exhibit.source == "ein <unk>" and exhibit.reference == diversifier.reference(0) == "ein <<unk>>"
    exhibit.outputs = {"unknown": Output("ein <unk>"), "other": Output("ein x")}
    exhibits._score([exhibit], "13a")
    assert exhibit.outputs["unknown"].scores["BLEU"] == exhibit.outputs["other"].scores["BLEU"] < 100


@pytest.mark.slow
def test_data_of_the_other_direction_show_their_parse(trained, tmp_path):
    data = shutil.copytree(trained[0], tmp_path / "bin", ignore=shutil.ignore_patterns(MANIFEST))
    for path in data.glob("*.en-de.*"):
        path.rename(path.with_name(path.name.replace(".en-de.", ".de-en.")))
    options = ["-s", "en", "-t", "de", "--criterion", "cross_entropy"]
    model = str(_train(data, tmp_path / "model", "pascal_transformer_tiny", *options))
    (shown,), *_ = collect(str(data), "valid", [3], {"PASCAL": model}, beam=1)
    assert shown.trees["parser"].heads == [1, 2, 2, 4, 2, 2]


@pytest.mark.slow
def test_texts_without_spaces_are_compared_as_such(tmp_path):
    """The data's words stand apart and the model's do not; and a sentence is more than one word."""
    chinese = {"man": "男人", "dog": "狗", "woman": "女人", "bicycle": "自行车", "river": "河", "children": "孩子们"}
    chinese |= {"the": "这", "sees": "看见", "follows": "跟着", "remembers": "记得", ".": "。"}
    data = make(tmp_path, kind="subword_nmt", target="zh", words=chinese)
    model = str(_train(data, tmp_path / "model", "pascal_transformer_tiny", "--criterion", "cross_entropy"))
    reference = (tmp_path / "valid.zh").read_text(encoding="utf-8").splitlines()[2]
    near = reference.replace(" ", "").replace("看见", "记得").replace("跟着", "记得")
    (tmp_path / "near").write_text(f"{near}\n" * 12, encoding="utf-8")
    (shown,), *_ = collect(str(data), "valid", [3], {"PASCAL": model}, files={"near": f"{tmp_path}/near"}, beam=1)
    assert shown.reference == reference.replace(" ", "")
    assert shown.outputs["near"].scores["BLEU"] > 10, "most characters are those of the reference"
    with data_error("nosuch"):
        collect(str(data), "valid", [3], {"PASCAL": model}, tokenize="nosuch")


@pytest.mark.slow
def test_an_exhibit_holds_what_there_is_to_see(trained, tmp_path):
    data, models = trained
    (tmp_path / "copy").write_text("".join(f"line {i}\n" for i in range(1, 13)))
    gold = (data.parent / "valid.en.conllu").read_text().replace("\t3\tobj\t", "\t2\tnmod\t")
    (tmp_path / "gold.conllu").write_text(gold)
    from fairseq_syntax.corpus.conllu import read_conllu

    lines = list(read_conllu(tmp_path / "gold.conllu"))
    made, src, tgt = collect(str(data), "valid", [3, 1], models, files={"copy": f"{tmp_path}/copy"}, gold=lines, beam=2)
    assert (src, tgt) == ("en", "de") and [e.number for e in made] == [3, 1]
    one = made[0]
    source = [t.form for t in lines[2].tokens]
    assert one.words == source and one.source == " ".join(source).replace(" .", ".")
    assert one.reference == (data.parent / "valid.de").read_text().splitlines()[2]
    assert sum(one.counts) == len(one.pieces) - 1 and one.pieces[-1] == "</s>"
    assert one.trees["parser"].heads == [1, 2, 2, 4, 2, 2] and one.trees["parser"].labels[4] == "obj"
    assert one.trees["gold"].heads[4] == 1 and one.trees["gold"].labels[4] == "nmod"
    assert one.trees["parser"].p == pytest.approx([0.75] * 6, abs=1e-4)
    assert (1, 2, "nsubj", pytest.approx(0.75, abs=1e-4)) in one.arcs and len(one.arcs) == 12
    assert one.outputs["copy"].text == "line 3" and not one.outputs["copy"].attention
    assert set(one.trees) == {"parser", "gold", "heads (predicted)"}
    predicted = one.trees["heads (predicted)"]
    assert sum(h == i for i, h in enumerate(predicted.heads)) == 1 and len(predicted.heads) == 6
    for name in models:
        output = one.outputs[name]
        assert set(output.scores) == {"log-probability", "BLEU", "chrF"} and output.pieces[-1] == "</s>"
        if name == "LSTM":
            (weights,) = output.attention.pop("cross")
            assert not output.attention and weights.shape == (1, len(output.pieces), len(one.pieces))
            np.testing.assert_allclose(weights.sum(-1), 1.0, rtol=1e-5)
            continue
        assert [len(output.attention[kind]) for kind in ("encoder", "cross", "decoder")] == [2, 1, 1]
        assert output.attention["encoder"][0].shape[1:] == (len(one.pieces), len(one.pieces))
        assert output.attention["cross"][0].shape[1:] == (len(output.pieces), len(one.pieces))
    for bad, name in (
        ({"numbers": [13]}, "13"),
        ({"files": {"x": str(data / "dict.en.txt")}}, "valid"),
        ({"gold": lines[:3]}, "gold"),
        ({"checkpoints": {"x": f"{tmp_path}/none.pt"}}, "none.pt"),
    ):
        arguments = {
            "data": str(data),
            "split": "valid",
            "numbers": [1],
            "checkpoints": {"PASCAL": models["PASCAL"]},
        } | bad
        with data_error(name):
            collect(**arguments)


@of_ten_seconds
@pytest.mark.slow
def test_the_command_writes_pages_and_pictures(trained, tmp_path, capsys):
    data, models = trained
    argv = ["show", *(f"{name}={models[name]}" for name in ("PASCAL", "LSTM")), "--data", str(data), "--beam", "1"]
    assert command([*argv, "--output", f"{tmp_path}/page.html", "--sentences", "2-4", "7"]) == 0
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert text.count('"number":') == 4 and "valid: en → de" in text
    assert command([*argv, "--output", f"{tmp_path}/one.png", "--layers", "0", "--heads", "0", "1"]) == 0
    assert np.asarray(Image.open(tmp_path / "one.png").convert("L")).std() > 5
    assert "sentence 1 by PASCAL" in capsys.readouterr().out, "the others are not drawn"
    assert command([*argv, "--output", f"{tmp_path}/one.svg", "--kind", "cross", "--sentences", "5"]) == 0
    assert command([*argv, "--output", f"{tmp_path}/one.gif"]) == 1
    refused([*argv, "--output", f"{tmp_path}/one.html", "--layers", "0", "--kind", "cross"], option="--layers")
    refused([*argv, "--output", f"{tmp_path}/one.png", "--layers", "7"], "layer 7")
    refused([*argv, "--output", f"{tmp_path}/no.html", "--split", "nope"], "nope")


# ------------------------------------------------------------------------------------------------------ made by hand


def _exhibit(number, source, words, heads, systems=("PASCAL", "LDD"), text="the cat"):
    rng = np.random.default_rng(number)
    pieces = [*words, "</s>"]
    target = [*text.split(), "</s>"]
    exhibit = Exhibit(number, source, "the small cat", list(words), ["X"] * len(words), [1] * len(words), pieces)
    exhibit.trees["parser"] = Tree(
        heads, ["dep" if h != i else "root" for i, h in enumerate(heads)], [0.9] * len(words)
    )
    exhibit.trees["gold"] = Tree([0] * len(words), ["root"] + ["dep"] * (len(words) - 1), [None] * len(words))
    exhibit.arcs = [(i, h, exhibit.trees["parser"].labels[i], 0.9) for i, h in enumerate(heads)]
    exhibit.arcs.append((len(words) - 1, 0 if heads[-1] else 1, "maybe", 0.08))
    for system in systems:
        exhibit.outputs[system] = Output(text, {"BLEU": 12.345, "chrF": 50.0}, target, {
            "encoder": [rng.dirichlet(np.ones(len(pieces)), (3, len(pieces))) for _ in range(2)],
            "cross": [rng.dirichlet(np.ones(len(pieces)), (2, len(target)))],
        })  # fmt: skip
    exhibit.outputs["file"] = Output("</script><script>alert(1)</script> & <b>", {"BLEU": 1.0})
    return exhibit


EXHIBITS = [
    ("en", _exhibit(1, "A small cat sleeps.", ["A", "small", "cat", "sleeps", "."], [2, 2, 3, 3, 3])),
    ("zh", _exhibit(2, "小猫喜欢房子。", ["小猫", "喜欢", "房子", "。"], [1, 1, 1, 1])),
    ("ja", _exhibit(3, "猫を見た。", ["猫", "を", "見", "た", "。"], [2, 0, 2, 2, 2])),
    ("ar", _exhibit(4, "رأى الولد القطة", ["رأى", "الولد", "القطة"], [0, 0, 0])),
]


def _has_font(script: str) -> bool:
    return any("Noto" in font.name and script in font.name for font in font_manager.fontManager.ttflist)


def test_an_arc_is_above_what_it_covers():
    assert arc_levels([(0, 1), (1, 2), (0, 2), (3, 2), (4, 0)]) == [1, 1, 2, 1, 3]
    rng = random.Random(0)
    for _ in range(50):
        arcs = [tuple(rng.sample(range(9), 2)) for _ in range(8)]
        levels = arc_levels(arcs)
        for a, la in zip(arcs, levels):
            for b, lb in zip(arcs, levels):
                if set(a) != set(b) and min(a) <= min(b) and max(b) <= max(a):
                    assert la > lb


@pytest.mark.matrix(2)
@pytest.mark.slow
@pytest.mark.parametrize("lang, exhibit", EXHIBITS)
def test_heat_maps_show_the_weights_and_the_parse(tmp_path, lang, exhibit, recwarn):
    figure = heat_maps(exhibit, "PASCAL", layers=[1], heads=[0, 2], src=lang)
    maps = [axes for axes in figure.axes if axes.images]
    assert [axes.get_title() for axes in maps] == ["layer 1, head 0", "layer 1, head 2"]
    weights = exhibit.outputs["PASCAL"].attention["encoder"][1]
    for axes, head in zip(maps, (0, 2)):
        shown = axes.images[0].get_array()
        np.testing.assert_allclose(shown[:, ::-1] if lang == "ar" else shown, weights[head])
    texts = {text.get_text() for text in figure.axes[0].texts}
    assert {*exhibit.pieces} <= texts and "root .90" in texts and "dep .90" in texts
    save_figure(figure, tmp_path / "x.png")
    fonts = {"zh": "CJK", "ja": "CJK", "ar": "Arabic"}
    if lang == "en" or _has_font(fonts[lang]):
        assert not [w for w in recwarn if "Glyph" in str(w.message)], "a glyph is missing"


def _with_decoder():
    """An exhibit whose decoder's last step attends to nothing but what its second one has read."""
    exhibit = _exhibit(1, "a b", ["a", "b"], [1, 1], systems=["DBSA"])
    weights = np.tril(np.full((3, 3), 0.1)) + np.diag([0.9, 0.8, 0.0])
    weights[2] = [0, 1, 0]
    exhibit.outputs["DBSA"].attention["decoder"] = [weights[None]]
    return exhibit


def test_the_decoder_attends_to_what_it_has_read():
    """Its steps read </s> and then each piece, which the next step reads: not yet the piece that they write."""
    figure = heat_maps(_with_decoder(), "DBSA", kind="decoder")
    (panel, *_) = [axes for axes in figure.axes if axes.images]
    assert [label.get_text() for label in panel.get_yticklabels()] == ["</s>", "the", "cat"]
    assert [label.get_text() for label in panel.get_xticklabels()] == ["</s>", "the", "cat"]


def test_many_heads_go_into_several_rows():
    exhibit = _exhibit(1, "a b", ["a", "b"], [1, 1])
    exhibit.outputs["LDD"].attention["encoder"] = [np.full((heads, 3, 3), 1 / 3) for heads in (6, 4)]
    figure = heat_maps(exhibit, "LDD")
    titles = [axes.get_title() for axes in figure.axes if axes.images]
    assert sorted(titles) == sorted(f"layer {l}, head {h}" for l, n in ((0, 6), (1, 4)) for h in range(n))
    across = {round(axes.get_position().x0, 2) for axes in figure.axes if axes.images}
    assert len(across) == 4


def test_a_sentence_without_a_parse_has_no_tree():
    tokens = [Token(form, True, i, i, i, 1) for i, form in enumerate(["a", "b"])]
    line = ParsedLine(["a", "b"], [0, 1], ["_"] * 2, ["_"] * 2, ["_"] * 2, tokens, sentences=[(0, 2)])
    assert exhibit_of_parse(line, ["a", "b", "</s>"]).trees["parser"].heads == [0, 1]
    bare = exhibit_of_parse(replace(line, parsed=False), ["a", "b", "</s>"])
    assert bare.words == ["a", "b"] and bare.counts == [1, 1] and not bare.trees


def test_heat_maps_name_what_is_not_there():
    exhibit = EXHIBITS[0][1]
    for arguments, name in (
        ({"system": "LDD", "kind": "decoder"}, "decoder"),
        ({"system": "LDD", "heads": [3]}, "head 3"),
        ({"system": "LDD", "tree": "x"}, "tree x"),
    ):
        with data_error(name):
            heat_maps(exhibit, **arguments)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    program = chromium.find()
    if program is None:
        pytest.skip("no Chromium is installed")
    opened = chromium.Browser(program, tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


def _open(browser, tmp_path, exhibits, src="en", at=""):
    path = tmp_path / "page.html"
    path.write_text(page(exhibits, src, "en", "A <title> & more"), encoding="utf-8")
    browser.errors.clear()
    browser.requests.clear()
    browser.open(path.as_uri() + at)


TEXT = "document.body.innerText"


@in_a_browser
@pytest.mark.slow
def test_a_person_can_step_through_the_page(browser, tmp_path):
    english = EXHIBITS[0][1]
    other = _exhibit(9, "Dogs bark.", ["Dogs", "bark", "."], [1, 1, 1], text="dogs bark")
    other.arcs = []  # by a parser without probabilities
    _open(browser, tmp_path, [english, other])
    shown = browser.run(TEXT)
    assert "A <title> & more" in shown and "A small cat sleeps." in shown and "the small cat" in shown
    assert "</script><script>alert(1)</script> & <b>" in shown, "text is text, whatever stands in it"
    assert "12.3" in shown and "50.0" in shown
    assert "other arcs of the parser" in shown and "its arcs and their probabilities" in shown
    count = "document.querySelectorAll('{}').length"
    assert browser.run(count.format(".panel")) == 2
    assert browser.run(count.format(".panel .cells")) == 2
    assert browser.run(count.format(".panel:first-child .minis canvas")) == 3
    assert browser.run(count.format("#tree-picture .word")) == 5
    assert browser.run(count.format("#tree-picture .arc")) == 5, "four arcs and the root; the rest is improbable"
    browser.run("(e => {e.value = '0.05'; e.dispatchEvent(new Event('input'))})(document.querySelector('#least'))")
    assert browser.run(count.format("#tree-picture .arc.maybe")) == 1
    # the parse stands above the words of the map: each arc ends over its column
    ends = browser.run(
        "[...document.querySelectorAll('.panel:first-child svg .one path')]"
        ".map(p => [+p.parentNode.dataset.i, p.getPointAtLength(p.getTotalLength()).x])"
    )
    columns = browser.run(
        "[...document.querySelectorAll('.panel:first-child svg [data-column]')].map(t => +t.getAttribute('x'))"
    )
    assert len(ends) == 5 and all(abs(x - columns[i]) < 9 for i, x in ends)
    # the colours are the weights
    weights = english.outputs["PASCAL"].attention["encoder"][0][0]
    fills = browser.run(
        "[...document.querySelectorAll('.panel:first-child .cells rect')].slice(1)"
        ".map(r => +getComputedStyle(r).fillOpacity)"
    )
    expected = ((np.round(weights * 255) / 255) / max(weights.max(), 64 / 255))[weights > 0.0035].ravel()
    np.testing.assert_allclose(fills, expected, atol=0.01)
    # heads by mouse, in both panels; by key; the weight under the pointer
    browser.mouse(".panel:first-child .minis figure:nth-child(2) canvas", click=True)
    heads = "[...document.querySelectorAll('select.head')].map(s => s.value).join()"
    assert browser.run(heads) == "1,1"
    browser.run("document.activeElement.blur()")
    browser.key("]")
    assert browser.run(heads) == "2,2"
    browser.mouse(".panel:first-child .cells rect")
    assert browser.run("document.querySelector('#tip').innerText") == "cat → cat: " + f"{_byte(english, 2, 2, 2):.3f}"
    browser.mouse("#tree-picture .word[data-i='4']")
    assert browser.run("document.querySelector('#tip').innerText") == "sleeps dep 0.900; A maybe 0.080"
    # systems and kinds; a change of kind goes to both panels
    choose = (
        "(e => {{e.value = '{}'; e.dispatchEvent(new Event('change'))}})(document.querySelectorAll('select.{}')[{}])"
    )
    browser.run(choose.format("cross", "kind", 0))
    assert browser.run("[...document.querySelectorAll('select.kind')].map(s => s.value).join()") == "cross,cross"
    rows = "[...document.querySelectorAll('.panel:first-child [data-row]')].map(t => t.textContent).join(' ')"
    assert browser.run(rows) == "the cat </s>"
    browser.run(choose.format("LDD", "system", 0))
    assert browser.run("document.querySelector('select.system').value") == "LDD"
    # sentences, by key, button, list and address
    browser.run("document.activeElement.blur()")
    browser.key("ArrowRight")
    assert "Dogs bark." in browser.run("document.querySelector('#texts').innerText")
    assert browser.run("location.hash") == "#9"
    shown = browser.run(TEXT)
    assert "other arcs of the parser" not in shown and "Point at a word for its head." in shown
    browser.mouse("#next", click=True)
    assert browser.run("location.hash") == "#1", "after the last comes the first"
    browser.run("(e => {e.value = 'gold'; e.dispatchEvent(new Event('change'))})(document.querySelector('#tree'))")
    assert browser.run(count.format("#tree-picture .arc")) == 5
    _open(browser, tmp_path, [english, other], at="#9")
    assert "Dogs bark." in browser.run("document.querySelector('#texts').innerText")
    browser.screenshot(tmp_path / "page.png")
    assert np.asarray(Image.open(tmp_path / "page.png").convert("L")).std() > 5
    assert browser.errors == [] and all(url.startswith("file:") for url in browser.requests)


def _byte(exhibit, head, row, column) -> float:
    return round(float(exhibit.outputs["PASCAL"].attention["encoder"][0][head, row, column]) * 255) / 255


@in_a_browser
@pytest.mark.slow
@pytest.mark.parametrize("lang, exhibit", EXHIBITS[1:])
def test_every_script_has_its_letters(browser, tmp_path, lang, exhibit):
    script = "Arabic" if lang == "ar" else "CJK"
    if not _has_font(script):
        pytest.skip(f"no Noto {script} font is installed")
    _open(browser, tmp_path, [exhibit], src=lang)
    words = {"zh": "小猫", "ja": "猫", "ar": "رأى"}
    for selector in ("#texts tr:nth-child(2) td", "#tree-picture .word", ".panel [data-column]", ".panel [data-row]"):
        assert words[lang] in browser.run(f"document.querySelector({selector!r}).textContent")
        fonts = browser.fonts(selector)
        assert all(script in name for name in fonts if name != "Noto Sans"), fonts
        assert any(script in name for name in fonts)
        if lang in ("zh", "ja"):
            assert any({"zh": "SC", "ja": "JP"}[lang] in name for name in fonts), "the forms of its own language"
    places = browser.run("[...document.querySelectorAll('#tree-picture .word')].map(t => +t.getAttribute('x'))")
    assert places == sorted(places, reverse=lang == "ar"), "from right to left where it is written so"
    assert browser.errors == []


@in_a_browser
@pytest.mark.slow
def test_a_page_knows_how_its_languages_are_written(browser, tmp_path):
    _open(browser, tmp_path, [_exhibit(1, "a b c", ["a", "b", "c"], [1, 1, 1])], src="ug-CN")
    places = browser.run("[...document.querySelectorAll('#tree-picture .word')].map(t => +t.getAttribute('x'))")
    assert places == sorted(places, reverse=True)
    assert browser.run("unitsOf('我哋 喺度', 'yue').length") == 5
    assert browser.run("unitsOf('two words', 'de').length") == 2 and not browser.run("rightToLeft('de')")


@in_a_browser
@pytest.mark.slow
def test_one_system_has_two_kinds_of_attention_side_by_side(browser, tmp_path):
    _open(browser, tmp_path, [_exhibit(1, "a b", ["a", "b"], [1, 1], systems=["PASCAL"])])
    kinds = "[...document.querySelectorAll('select.kind')].map(s => s.value).join()"
    assert browser.run(kinds) == "encoder,cross"
    browser.mouse(".panel:first-child .minis figure:nth-child(3) canvas", click=True)
    assert browser.run("[...document.querySelectorAll('select.head')].map(s => s.value).join()") == "2,0"
    assert browser.errors == []


@in_a_browser
@pytest.mark.slow
def test_long_words_fit_a_phone(browser, tmp_path):
    word = "Donaudampfschifffahrtsgesellschaftskapitänsmütze"
    size = {"height": 1200, "deviceScaleFactor": 1}
    browser.send("Emulation.setDeviceMetricsOverride", width=390, mobile=True, **size)
    try:
        _open(browser, tmp_path, [_exhibit(1, f"{word} {word}", [word, word], [1, 1], text=word)])
        assert browser.run("document.documentElement.scrollWidth") <= 390, "nothing is wider than the window"
    finally:
        browser.send("Emulation.setDeviceMetricsOverride", width=1400, mobile=False, **size)


@in_a_browser
@pytest.mark.slow
def test_the_page_names_what_the_decoder_has_read(browser, tmp_path):
    _open(browser, tmp_path, [_with_decoder()])
    browser.run("state.panels.forEach(panel => { panel.kind = 'decoder' }); show()")
    cell = "[...document.querySelectorAll('.panel:first-child .cells rect')].at(-1)"
    browser.run(f"{cell}.id = 'strongest'")
    browser.mouse("#strongest")
    assert browser.run("document.querySelector('#tip').innerText") == "cat → the: 1.000"
    names = "[...document.querySelectorAll('.panel:first-child [data-{}]')].map(t => t.textContent).join(' ')"
    assert browser.run(names.format("row")) == browser.run(names.format("column")) == "</s> the cat"


@in_a_browser
@pytest.mark.slow
def test_the_focus_stays_where_a_head_was_chosen(browser, tmp_path):
    other = _exhibit(9, "Dogs bark.", ["Dogs", "bark", "."], [1, 1, 1], text="dogs bark")
    _open(browser, tmp_path, [EXHIBITS[0][1], other])
    second = "document.querySelectorAll('.panel')[1].querySelector('{}')"
    for key, value in (("head", 1), ("layer", 1), ("kind", "cross")):
        control = second.format(f"select.{key}")
        browser.run(f"(e => {{e.focus(); e.value = '{value}'; e.dispatchEvent(new Event('change'))}})({control})")
        assert browser.run(f"document.activeElement === {control} && {control}.value === '{value}'"), key
        browser.key("ArrowRight")
        assert browser.run("location.hash") == "#1", "an arrow key is the list's, not the page's"
    mini = second.format('[aria-label="head 0"]')
    browser.run(f"{mini}.focus()")
    browser.key("Enter")
    assert browser.run(f"document.activeElement === {mini}")
    assert browser.errors == []


@in_a_browser
@pytest.mark.slow
def test_the_attention_of_a_long_text_has_a_strongest_colour(browser, tmp_path):
    """A function takes about a hundred thousand arguments: the weights of 350 pieces are more."""
    _open(browser, tmp_path, [EXHIBITS[0][1]])
    layer = "{rows: 400, columns: 400, values: Uint8Array.from({length: 320000}, (_, k) => k < 160000 ? 1 : 204)}"
    assert [browser.run(f"largest({layer}, {head}, 'map')") for head in (0, 1)] == [64 / 255, 204 / 255]


@in_a_browser
@pytest.mark.slow
def test_a_page_without_parse_or_attention_shows_its_texts(browser, tmp_path):
    bare = Exhibit(1, "a b", "", ["a", "b"], [], [1, 1], ["a", "b", "</s>"], outputs={"x": Output("c d")})
    _open(browser, tmp_path, [bare])
    assert "c d" in browser.run(TEXT)
    assert browser.run("document.querySelector('#parse').hidden && document.querySelector('#attention').hidden") is True
    assert browser.errors == []


def test_a_score_of_minus_infinity_leaves_json_on_the_page():
    exhibit = Exhibit(1, "a b", "", ["a", "b"], [], [1, 1], ["a", "b", "</s>"])
    exhibit.outputs["x"] = Output("c", {"log-probability": float("-inf"), "BLEU": 12.5})
    text = page([exhibit], "en", "de", "t")
    assert (
        '"scores":{"BLEU":12.5}' in text and "Infinity" not in text.split("const data")[-1].split("</script>")[0][:400]
    )

"""Stages from a corpus to binarized data: text, filter, parses, pieces, control parses, fairseq's format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fairseq_syntax.corpus.gathering import split_files
from fairseq_syntax.lab.recipes.layout import Layout
from fairseq_syntax.lab.recipes.reading import as_yaml
from fairseq_syntax.lab.recipes.schema import ParseSide
from fairseq_syntax.lab.recipes.stages import PLUGIN, Free, In, Out, Stage, StageCommand, Word, options
from fairseq_syntax.runtime.files import plain_or_compressed
from fairseq_syntax.runtime.manifest import MANIFEST


def data_stages(layout: Layout, controls: list[str]) -> list[Stage]:
    """All stages of the data, in an executable order, with the named control parses."""
    stages = [corpus(layout), filtered(layout), *parses(layout), *pieces(layout), binarize_stage(layout)]
    return stages + [one for name in controls for one in (control(layout, name), binarize_stage(layout, name))]


def corpus(layout: Layout) -> Stage:
    """The stage that writes the corpus as plain text."""
    corpus, langs, folder = layout.recipe.corpus, layout.langs, layout.data / "text"
    words: list[Word] = ["fairseq-syntax", "corpus", "-s", langs[0], "-t", langs[1]]
    reads: list[Path] = []
    listed: list[Path] = []
    if corpus.reader is not None and corpus.data is not None:
        reader, data = corpus.reader, layout.place(corpus.data)
        if reader.endswith(".py"):
            reader = str(layout.place(reader))
        of_reader = {key: as_yaml(value) for key, value in corpus.options.items()}
        tests = {name: splits[0] for name, splits in corpus.tests.items()}
        words += options({"reader": reader, "data": Out(data), "option": of_reader, "test": tests})
        if corpus.download:  # the folder is still to be filled, so its content is not an input
            words.append(Free("--download"))
        else:
            listed.append(data)
    else:
        for name, texts in {"train": corpus.train, "valid": corpus.valid, **corpus.tests}.items():
            places = [layout.place(text) for text in texts]
            reads += split_files([str(place) for place in places], langs, corpus.references.get(name, 1))
            typed = [str(Out(place)) for place in places]
            if name in corpus.tests:
                words += ["--test", Free(f"{name}={typed[0]}"), *map(Free, typed[1:])]
            else:
                words += [f"--{name}", *map(Free, typed)]
    subset = {} if corpus.subset is None else {"subset": corpus.subset.pairs, "seed": corpus.subset.seed}
    words += options({"references": corpus.references, "words": corpus.words, **subset, "first": corpus.first})
    made = [folder / f"{split}.{lang}" for split in layout.splits for lang in langs]
    made += [path for test in layout.tests for path in layout.references(test)[1:]]
    commands = [StageCommand([*words, *options({"output": Out(folder)})])]
    return layout.stage("corpus", "corpus", commands, made, reads=tuple(reads), listed=tuple(listed))


def filtered(layout: Layout) -> Stage:
    """The stage that filters the training data."""
    rules, langs = layout.recipe.corpus.filter, layout.langs
    outputs = [layout.text("train", lang) for lang in langs]
    values: dict[str, Any] = {
        "input": [In(layout.data / "text" / f"train.{lang}") for lang in langs],
        "output": [Out(path) for path in outputs],
        **rules.model_dump(exclude_defaults=True),
    }
    values |= {"languages": langs} if rules.languages else {}
    side = layout.recipe.parse.source
    if side is not None and side.files is not None:
        outputs.append(layout.parse("train", langs[0]))
        values |= {"conllu": In(_existing(layout, side, "train")), "conllu-output": Out(outputs[-1])}
    return layout.stage("filter", "filter", [StageCommand(["fairseq-syntax", "filter", *options(values)])], outputs)


def _existing(layout: Layout, side: ParseSide, split: str) -> Path:
    """The existing parse of a split that the recipe names."""
    assert side.files is not None
    return plain_or_compressed(layout.place(side.files, split=split))


def parses(layout: Layout) -> list[Stage]:
    """The stages that parse each split of each parsed side."""
    stages, recipe = [], layout.recipe
    for lang, side in layout.sides().items():
        for split in layout.splits:
            if split == "train" and side.files is not None and lang == layout.langs[0]:
                continue  # the filter writes it
            text, parse = In(layout.text(split, lang)), layout.parse(split, lang)
            if side.files is not None:
                values = {"parser": "conllu", "input": In(_existing(layout, side, split)), "text": text}
            else:
                rest = {"files", "parser", "models", "tokenizer"}
                values = {
                    "parser": side.parser,
                    "lang": lang,
                    "input": text,
                    "model-dir": layout.models(side),
                    "device": Free(recipe.device),
                    "workers": Free(recipe.workers),
                    "pretokenized": side.tokenizer == "spaces",
                    "tokenizer": None if side.tokenizer in ("auto", "spaces") else side.tokenizer,
                    **side.model_dump(exclude_defaults=True, exclude=rest),
                }
            # `parse` does not replace the parse of another text, but this file belongs to this stage.
            words = ["fairseq-syntax", "parse", *options({**values, "output": Out(parse)}), Free("--overwrite")]
            stages.append(layout.stage("parse", f"parse {split}.{lang}", [StageCommand(words)], [parse]))
    return stages


def pieces(layout: Layout) -> list[Stage]:
    """The stages that segment each language; the source's stage trains a joint model."""
    stages: list[Stage] = []
    pieces, folder, sides = layout.recipe.pieces, layout.data / "pieces", layout.sides()
    for lang in layout.langs:
        values: dict[str, Any] = {"lang": lang, "input": [_words(layout, split, lang) for split in layout.splits]}
        if pieces.joint and lang == layout.langs[1]:
            values["model"] = In(layout.segmentation(folder, layout.langs[0])[0])
        elif lang in pieces.models:
            values["model"] = In(layout.place(pieces.models[lang]))
        else:
            values["train"] = pieces.method
            if pieces.method != "words":  # the number of words is limited by the dictionary, in `binarize`
                values["vocab-size"] = _pieces_of(layout, lang)
            if pieces.method == "sentencepiece":
                values |= pieces.model_dump(include={"model_type"}, exclude_defaults=True)
                values["character-coverage"] = pieces.character_coverage.get(lang)
            values["train-on"] = [_words(layout, "train", each) for each in layout.langs] if pieces.joint else None
        values |= {"workers": Free(layout.recipe.workers), "output": Out(folder)}
        made = [*layout.segmentation(folder, lang), *(folder / f"{split}.{lang}" for split in layout.splits)]
        made += [folder / f"{split}.{lang}.conllu" for split in layout.splits] if lang in sides else []
        command = StageCommand(["fairseq-syntax", "segment", *options(values)])
        stages.append(layout.stage("pieces", f"pieces {lang}", [command], made))
    return stages


def _words(layout: Layout, split: str, lang: str) -> In:
    """The file with the words to segment: the parse if there is one, otherwise the text."""
    return In(layout.parse(split, lang) if lang in layout.sides() else layout.text(split, lang))


def _pieces_of(layout: Layout, lang: str) -> int:
    """The size of a language's vocabulary; for words, all of them unless the recipe gives a size."""
    pieces = layout.recipe.pieces
    size = pieces.size.get(lang) if isinstance(pieces.size, dict) else pieces.size
    return size or (-1 if pieces.method == "words" else 8000)


def control(layout: Layout, name: str) -> Stage:
    """The stage that makes a control parse of the segmented source."""
    one, lang = layout.recipe.parse.controls[name], layout.langs[0]
    how = options({"seed": one.seed, "wrong-arcs": one.wrong_arcs})
    made = [layout.parse(split, lang, name) for split in layout.splits]
    commands = []
    for output in made:
        files = options({"input": In(layout.data / "pieces" / output.name), "output": Out(output)})
        commands.append(StageCommand(["fairseq-syntax", "control", *one.make, *how, *files]))
    return layout.stage("control", f"control {name}", commands, made)


def binarize_stage(layout: Layout, control: str = "parse") -> Stage:
    """The stage that binarizes pieces and syntax, with the parse or with a control parse of the source."""
    folder, langs, pieces = layout.data / "pieces", layout.langs, layout.recipe.pieces
    is_control = control != "parse"
    values: dict[str, Any] = {
        "trainpref": Out(folder / "train"),
        "validpref": Out(folder / "valid"),
        "testpref": Free(",".join(str(Out(folder / test)) for test in layout.tests)),
        "source-parses": Out(layout.data / "controls" / control) if is_control else None,
        "joined-dictionary": pieces.joint,
    }
    for side, lang in zip(("src", "tgt"), langs):
        if lang in pieces.dictionaries:
            values[f"{side}dict"] = In(layout.place(pieces.dictionaries[lang]))
    if pieces.threshold:
        values |= {"thresholdsrc": pieces.threshold, "thresholdtgt": pieces.threshold}
    if pieces.method == "words":
        values |= {"nwordssrc": _pieces_of(layout, langs[0]), "nwordstgt": _pieces_of(layout, langs[1])}
    values |= {"workers": Free(layout.recipe.workers), "destdir": Out(layout.bin(control))}
    reads = [layout.segmentation(folder, lang)[0] for lang in langs]
    for split in layout.splits:
        reads += [folder / f"{split}.{lang}" for lang in langs]
        for lang in layout.sides():
            its_control = is_control and lang == langs[0]
            reads.append(layout.parse(split, lang, control) if its_control else folder / f"{split}.{lang}.conllu")
    made = [*layout.dictionaries(control), *(path for s in layout.splits for path in layout.binarized(s, control))]
    # Commands that read the data verify them by the manifest, and cut text into pieces by the segmentation.
    made += [path for lang in langs for path in layout.segmentation(layout.bin(control), lang)]
    made.append(layout.bin(control) / MANIFEST)
    return layout.stage(
        "binarize",
        f"binarize {control}" if is_control else "binarize",
        [StageCommand(["fairseq-preprocess", *PLUGIN, "-s", langs[0], "-t", langs[1], *options(values)])],
        made,
        reads=tuple(reads),
        # fairseq-preprocess does not replace a dictionary.
        resumed=(f"{layout.bin(control)}/dict.*.txt", f"{layout.bin(control)}/.dict.*.json"),
    )

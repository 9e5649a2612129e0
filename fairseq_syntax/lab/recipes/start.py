"""A first recipe for a corpus, with sizes, training and vocabulary that suit the number of sentence pairs."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_syntax.corpus.gathering import read_split, split_files
from fairseq_syntax.corpus.parsing.parser import ParserOptions, model_path
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.lab.recipes.stages import shown_path
from fairseq_syntax.lab.scoring.names import tokenizer_of
from fairseq_syntax.plugins import name_hint
from fairseq_syntax.runtime.digests import fingerprint

_PARSE = "parse:{sides}{controls}"
_SIDE = "\n  {side}:\n    parser: {parser}\n    {models}{distributions}"
_NO_PARSE = "# parse: {source: {parser: stanza}}    # for systems that read a parse; none of these does"
_NO_MODELS = {
    "stanza": "# models: DIR             # default: the models that Stanza has downloaded",
    "spacy": "# models: NAME            # default: the one pipeline for the language that is installed",
}
_DISTRIBUTIONS = "\n    distributions: true         # the parser's probabilities"
_CONTROLS = "\n  controls: {shuffled: shuffled}    # the trees of other sentences of the same length"
_SHARES = "\n  shares: {controls: [shuffled]}    # how much of each gain these trees give"
_TEMPLATE = Path(__file__).with_name("first_recipe.txt")
_SIZE = """\
  encoder-layers: {scale.layers}
  decoder-layers: {scale.layers}
  encoder-embed-dim: {scale.width}
  decoder-embed-dim: {scale.width}
  encoder-ffn-embed-dim: {scale.inner}
  decoder-ffn-embed-dim: {scale.inner}
  encoder-attention-heads: {scale.heads}
  decoder-attention-heads: {scale.heads}{normalize}"""
_LSTM_SIZE = """\
  encoder-embed-dim: {scale.width}
  decoder-embed-dim: {scale.width}
  encoder-hidden-size: {scale.width}
  encoder-bidirectional: true
  decoder-hidden-size: {scale.inner}
  decoder-out-embed-dim: {scale.width}"""
SYSTEMS = Path(__file__).parents[2] / "systems"
_SYSTEM = re.compile(r'^@register_(?:encoder|decoder)_system\("(\w+)"\)$', re.M)
_LSTM = re.compile(r'^@register_lstm\("(\w+)"\)$', re.M)
BASELINE, PLACEBO, DEFAULT = "relative_positions", "shuffled", "supervised_heads"
# Options of systems as in the experiments whose results docs/what-syntax-gives.md reports.
_MEASURED: dict[str, dict[str, Any]] = {"supervised_heads": {"child-weight": 0}}
# Options with which a system takes little from a trained model in its first updates (docs/pretrained.md).
_GENTLE: dict[str, dict[str, Any]] = {
    "supervised_heads": {"child-weight": 0, "parent-weight": 0.1},
    "pascal": {"pascal-heads": 1, "pascal-layers": -1},
}


def recipe_system_names() -> list[str]:
    """The systems of this package that a first recipe can have, and LSTMs.

    They are read from the source code, since ``--help`` and completion list them, and importing them would import
    fairseq, which takes seconds; a test compares them with the registered ones.
    """
    texts = [path.read_text(encoding="utf-8") for path in SYSTEMS.rglob("*.py")]
    return sorted({name for text in texts for pattern in (_SYSTEM, _LSTM) for name in pattern.findall(text)})


class RecipeEntry(NamedTuple):
    """A system of a recipe: its architecture and options, and what it reads of the source's and the target's parse."""

    arch: str
    options: Mapping[str, Any] = {}
    criterion: str | None = None
    needs: frozenset[str] = frozenset()
    target_needs: frozenset[str] = frozenset()
    is_lstm: bool = False

    def text(self) -> str:
        """Its value in a recipe."""
        from fairseq_syntax.lab.recipes.reading import as_yaml

        quoted = {
            name: f'"{value}"' if "," in str(value) else as_yaml(str(value)) for name, value in self.options.items()
        }
        options = ", ".join(f"{name}: {value}" for name, value in quoted.items())
        parts = [f"arch: {self.arch}", f"options: {{{options}}}" if options else ""]
        parts.append(f"train: {{criterion: {self.criterion}}}" if self.criterion else "")
        line = "{" + ", ".join(filter(None, parts)) + "}"
        return line if len(line) < 90 else "".join(f"\n    {part}" for part in filter(None, parts))


def recipe_entry(name: str, user_dir: Sequence[str] = (), beside: str = "relative_positions") -> RecipeEntry:
    """The entry of a system, in any case and with hyphens or underscores; a Transformer has relative positions, too.

    Args:
        user_dir: folders of plugins, whose systems may be named
        beside: the system that every Transformer gets, too; none if empty, for a model that is already trained

    Raises:
        SyntaxDataError: there is no such system, or a plugin cannot be imported
    """
    from fairseq_syntax import register

    register(user_dir)
    from fairseq.models import ARCH_MODEL_REGISTRY

    from fairseq_syntax.model.decoder import DECODER_SYSTEMS
    from fairseq_syntax.model.encoder import ENCODER_SYSTEMS
    from fairseq_syntax.model.lstm import SyntaxLSTMModel
    from fairseq_syntax.model.transformer import PRESETS, criterion_of

    lstms = [arch for arch, model in ARCH_MODEL_REGISTRY.items() if issubclass(model, SyntaxLSTMModel)]
    if name == "transformer":
        return RecipeEntry("transformer")
    if name in lstms:
        model = ARCH_MODEL_REGISTRY[name]
        return RecipeEntry(name, needs=model.training_needs, is_lstm=True)
    if name not in (known := {**ENCODER_SYSTEMS, **DECODER_SYSTEMS}):
        message = f"there is no system {name}"
        raise SyntaxDataError(message, option="--system", hint=name_hint(name, [*sorted(known), *lstms]))
    last = {(preset.get("encoder_syntax") or preset.get("decoder_syntax", "")).split(",")[-1]: (arch, preset)
            for arch, preset in PRESETS.items()}  # fmt: skip
    arch, preset = last.get(name, ("syntax_transformer", {"encoder_syntax": name}))
    encoder = [one for one in preset.get("encoder_syntax", "").split(",") if one]
    decoder = [one for one in preset.get("decoder_syntax", "").split(",") if one]
    options: dict[str, Any] = {}
    if name != beside:
        chosen = _MEASURED if beside else _GENTLE
        options = {"encoder-syntax": ",".join(filter(None, [*encoder, beside])), **chosen.get(name, {})}
    criterion = criterion_of(preset)
    return RecipeEntry(
        arch,
        options,
        None if criterion == criterion_of({}) else criterion,
        frozenset().union(*(ENCODER_SYSTEMS[one].training_needs for one in encoder)),
        frozenset({"tree"} if decoder else ()),
    )


@dataclass(frozen=True)
class Scale:
    """The settings for a corpus of fewer than ``pairs`` sentence pairs."""

    pairs: float
    about: str
    layers: int
    width: int
    inner: int
    heads: int
    dropout: float
    max_tokens: int
    rate: float
    pieces: int  # for languages with spaces; others have more characters

    def updates(self, pairs: int) -> int:
        """The number of updates, rounded: about as many epochs as a small model needs."""
        if self.width > 128:
            return 50_000 if self.inner == 1024 else 100_000
        return max(800, min(8000, round(pairs * 0.28) // 100 * 100))


SCALES = (
    Scale(6_000, "A small model: minutes on a CPU", 3, 128, 256, 4, 0.2, 1600, 0.004, 1000),
    # Dropout by 19,900 pairs of German, examples/atlas/baseline.yaml.
    Scale(60_000, "A small model: an hour on a CPU", 3, 128, 256, 4, 0.1, 1600, 0.004, 4000),
    Scale(1_000_000, "As for IWSLT: for a GPU", 6, 512, 1024, 4, 0.3, 4096, 0.0005, 10_000),
    Scale(float("inf"), "The base Transformer: for a GPU", 6, 512, 2048, 8, 0.1, 8000, 0.0007, 32_000),
)


def first_recipe(
    path: Path,
    source: str,
    target: str,
    train: Sequence[str],
    valid: Sequence[str],
    tests: Mapping[str, Sequence[str]],
    chosen: Sequence[str],
    models: str | None = None,
    parser: str = "stanza",
    user_dir: Sequence[str] = (),
    pretrained: Path | None = None,
) -> str:
    """The text of a commented recipe in the file ``path``, relative to which other files are named.

    The first system is the baseline: a Transformer with relative positions, which are added to all others, or an LSTM.
    Each system that reads the source's parse has a placebo: the same with other sentences' trees.

    Args:
        train, valid, tests: splits, as for :func:`.gathering.split_files`
        chosen: names of systems in any case; if none of them reads a parse, the text is not parsed
        models: the models of the source parser; with them, it is parsed all the same
        parser: the source parser
        user_dir: folders of plugins, whose systems may be named, too
        pretrained: a folder of ``fairseq-syntax import``, from whose model all systems start. The baseline is then the
            model trained further without a parse, and the model as it is has a row, too.

    Raises:
        SyntaxDataError: there is no such system, a plugin cannot be imported, a split cannot be read, or a system needs
            probabilities that the parser does not have; or the imported model has other languages
    """
    from fairseq_syntax.lab.recipes.reading import as_yaml

    start = None if pretrained is None else Start.of(pretrained, source, target, path.absolute().parent)
    langs, base = (source, target), path.absolute().parent
    names = list(dict.fromkeys(name.lower().replace("-", "_") for name in chosen))
    entries = {name: recipe_entry(name, user_dir, BASELINE if start is None else "") for name in names}
    is_lstm = {entry.is_lstm for entry in entries.values()}
    if len(is_lstm) > 1:
        raise SyntaxDataError(
            "LSTMs and Transformers have other sizes and rates", option="--system", hint="write a recipe for each"
        )
    if start is not None:
        if True in is_lstm or "transformer" in entries:
            message = "a model that was imported is a Transformer, which is the baseline in any case"
            raise SyntaxDataError(message, option="--system", hint="name systems of Transformers")
        baseline = {"finetuned": RecipeEntry(start.arch)}
    else:
        baseline = {"lstm": RecipeEntry("lstm")} if True in is_lstm else {BASELINE: recipe_entry(BASELINE)}
    entries = {**baseline, **entries}
    read = frozenset().union(*(entry.needs for entry in entries.values()))
    read_of_target = frozenset().union(*(entry.target_needs for entry in entries.values()))
    systems = []
    for name, entry in entries.items():
        systems.append(f"  {name}: {entry.text()}\n".replace(": \n", ":\n"))
        if start is not None and len(systems) == 1:
            systems.append(f"  imported: {{arch: {start.arch}, checkpoint: {start.checkpoint}}}    # as it is\n")
        if entry.needs:
            systems.append(f"  {name}.{PLACEBO}: {{extends: {name}, parse: {PLACEBO}}}\n")
    ParserOptions(parser=parser, distributions="arcs" in read)
    of_parser, no_models = as_yaml(parser), _NO_MODELS.get(parser, _NO_MODELS["stanza"])
    named = models and (as_yaml(models) if model_path(parser, models, Path()) is None else _named([models], base))
    found = f"models: {named}" if models else no_models
    side = partial(_SIDE.format, parser=of_parser)
    of_source = side(side="source", models=found, distributions=_DISTRIBUTIONS if "arcs" in read else "")
    of_target = side(side="target", models=no_models if read else found, distributions="")
    parse = _PARSE.format(
        sides=(of_source if read or (models and not read_of_target) else "") + (of_target if read_of_target else ""),
        controls=_CONTROLS if read else "",
    )
    splits = [split_files(texts, langs) for texts in (train, valid, *tests.values())]
    pairs, _, *counts = (sum(1 for _ in read_split(files, langs)) for files in splits)
    scale = next(one for one in SCALES if pairs < one.pairs)
    is_small, updates = scale.width == 128, scale.updates(pairs)
    many_characters = [lang for lang in langs if tokenizer_of(lang) != "13a"]
    covered = ", ".join(f"{lang}: 0.9995" for lang in many_characters)
    sizes = ", ".join(f"{lang}: {max(scale.pieces, 4000 * (lang in many_characters))}" for lang in langs)
    # At a small model's learning rate, post-norm layers hardly learn a distant language.
    normalize = "\n  encoder-normalize-before: true\n  decoder-normalize-before: true" if is_small else ""
    size = (_LSTM_SIZE if True in is_lstm else _SIZE).format(scale=scale, normalize=normalize)
    size += "\n  share-decoder-input-output-embed: true"
    segmentation = f" {{method: sentencepiece, size: {{{sizes}}}"
    segmentation += f", character_coverage: {{{covered}}}}}" if covered else "}"
    about, dropout, rate, max_tokens = scale.about, scale.dropout, scale.rate, scale.max_tokens
    if start is not None:
        size, segmentation, dropout = start.size, start.pieces, start.dropout
        about, rate, max_tokens = "The sizes and the conventions of the imported model", 0.0001, 2000
        is_small = start.parameters < 20_000_000
    about_baseline = "a plain LSTM" if True in is_lstm else "a Transformer that needs no parse"
    if start is not None:
        about_baseline = "the model, trained further without a parse"
    sets = zip(tests.items(), counts)
    lines = [f"\n    {as_yaml(name)}: {_named(texts, base)}    # {count} pairs" for (name, texts), count in sets]
    return _TEMPLATE.read_text(encoding="utf-8").format(
        pairs=pairs,
        file=path.name,
        plugins=f"\nuser_dir: {_named(user_dir, base)}    # your plugins" if user_dir else "",
        source=source,
        target=target,
        train=_named(train, base),
        valid=_named(valid, base),
        tests="".join(lines),
        filter="{max_length: 500, characters: true}" if many_characters else "{max_length: 100, max_ratio: 3}",
        parse=parse if read or read_of_target or models else _NO_PARSE,
        pieces=segmentation,
        about=about,
        dropout=dropout,
        rate=rate,
        max_tokens=max_tokens,
        size=size,
        start=f"  finetune-from-model: {start.checkpoint}\n" if start is not None else "",
        updates=updates,
        warmup=min(4000, updates // 8),
        systems="".join(systems),
        shares=_SHARES if read else "",
        about_baseline=about_baseline,
        tokenize=tokenizer_of(target),
        device="cpu" if is_small else "cuda",
    )


@dataclass(frozen=True)
class Start:
    """An imported model, as a recipe names it.

    Attributes:
        checkpoint: its file
        arch, size: the architecture, and the other options of training that must be the model's, as lines of YAML
        pieces: its segmentation and dictionaries, as a value in YAML
        dropout: that with which it was trained
        parameters: their number
    """

    checkpoint: str
    arch: str
    size: str
    pieces: str
    dropout: float
    parameters: int

    @classmethod
    def of(cls, folder: Path, source: str, target: str, base: Path) -> Start:
        """Read a folder of ``fairseq-syntax import``; files are named relative to the recipe's folder ``base``."""
        from fairseq_syntax.compat.checkpoints import load_mapped
        from fairseq_syntax.lab.recipes.reading import as_yaml
        from fairseq_syntax.use.exported import CHECKPOINT, IMPORTED, Exported
        from fairseq_syntax.use.importing import read_train_options

        exported = Exported.load(folder)
        if exported.kind != IMPORTED:
            hint = "give a folder that fairseq-syntax import wrote"
            raise SyntaxDataError(f"is an export for {exported.kind}", path=folder, hint=hint)
        if (exported.source_lang, exported.target_lang) != (source, target):
            message = f"is a model for {exported.source_lang} to {exported.target_lang}"
            hint = f"import it with -s {source} -t {target}, with --source-name and --target-name for the model's names"
            raise SyntaxDataError(message, path=folder, hint=hint)
        values = read_train_options(folder)
        arch, dropout = values.pop("arch"), float(values.pop("dropout", 0.1))
        lines = [f"  {name}: {'true' if value is True else as_yaml(str(value))}" for name, value in values.items()]
        place = f"{{recipe}}/{os.path.relpath(folder, base)}"
        files = []
        for name, file in (("models", "segmentation.{}.json"), ("dictionaries", "dict.{}.txt")):
            of_langs = (f"{lang}: {shown_path(folder / file.format(lang), base)}" for lang in (source, target))
            files.append(f"{name}: {{{', '.join(of_langs)}}}")
        shapes = {t.data_ptr(): t.numel() for t in load_mapped(str(folder / CHECKPOINT))["model"].values()}
        pieces = "".join(f"\n  {line}" for line in files)
        return cls(f'"{place}/{CHECKPOINT}"', str(arch), "\n".join(lines), pieces, dropout, sum(shapes.values()))


def _named(texts: Sequence[str], base: Path) -> str:
    """Files as named in a recipe: one, or a list."""
    from fairseq_syntax.lab.recipes.reading import as_yaml  # here, since --help lists the systems: it imports pydantic

    names = [shown_path(text, base) for text in texts]
    return as_yaml(names[0] if len(names) == 1 else names)


_SIGNATURE = "# fingerprint of the lines above, by which init sees that nobody has changed them: "


def signed(text: str) -> str:
    """A recipe with a last line by which :func:`written_by_init` recognizes it."""
    return f"{text}{_SIGNATURE}{fingerprint(text)[:12]}\n"


def written_by_init(path: Path) -> bool:
    """Whether a recipe is as ``init`` wrote it, so that nothing of the user is lost when it is written again."""
    text, mark, digest = path.read_text(encoding="utf-8", errors="replace").rpartition(_SIGNATURE)
    return bool(mark) and digest.strip() == fingerprint(text)[:12]

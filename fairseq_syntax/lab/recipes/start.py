"""A first recipe for a corpus, with sizes, training and vocabulary that suit the number of sentence pairs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from fairseq_syntax.corpus.gathering import read_split, split_files
from fairseq_syntax.errors import SyntaxDataError, meant
from fairseq_syntax.lab.recipes.stages import shown
from fairseq_syntax.lab.scoring.names import tokenizer_of

_PARSE = "parse:\n  source:\n    parser: stanza\n    {models}{distributions}"
_NO_PARSE = "# parse: {source: {parser: stanza}}    # for systems that read a parse; none of these does"
_NO_MODELS = "# models: DIR             # default: the models that Stanza has downloaded"
_DISTRIBUTIONS = "\n    distributions: true         # the parser's probabilities"
_TEMPLATE = Path(__file__).with_name("first_recipe.txt")
SYSTEMS = Path(__file__).parents[2] / "systems"
_SYSTEM = re.compile(r'^@register_encoder_system\("(\w+)"\)$', re.M)
_CRITERION = re.compile(r'^    (?:\w+, )*criterion\b[^="]*= (?:\w+, )*"(\w+)"', re.M)  # also beside other attributes
_PRESET = re.compile(r'^register_presets\(\s*"(\w+)",\s*encoder_syntax="([\w,]+)"(.*?)\)$', re.M | re.S)


class Entry(NamedTuple):
    """A system of a recipe: its text, with architecture and criterion, and the encoder systems that it consists of."""

    text: str
    consists_of: list[str]


def systems() -> dict[str, Entry]:
    """The encoder systems by name.

    They are read from the source code, since ``--help`` and completion list them, and importing them would import
    fairseq, which takes seconds; a test compares them with the registered systems. Systems for both sides are left out,
    because a first recipe parses only the source.
    """
    texts = [path.read_text(encoding="utf-8") for path in sorted(SYSTEMS.glob("*.py"))]
    presets = {
        names.split(",")[-1]: (arch, names, more) for text in texts for arch, names, more in _PRESET.findall(text)
    }
    bodies: dict[str, str] = {}
    for text in texts:
        _, *parts = _SYSTEM.split(text)
        bodies.update(zip(parts[::2], parts[1::2]))
    entries = {}
    for system in bodies:
        arch, names, more = presets.get(system, ("syntax_transformer", system, ""))
        if "decoder_syntax" in more:
            continue
        options = "" if system in presets else f", options: {{encoder-syntax: {system}}}"
        criteria = [criterion for name in names.split(",") for criterion in _CRITERION.findall(bodies[name])]
        train = f", train: {{criterion: {criteria[-1]}}}" if criteria else ""
        entries[system] = Entry(f"{{arch: {arch}{options}{train}}}", names.split(","))
    return entries


def systems_of_plugins(folders: Sequence[str]) -> dict[str, Entry]:
    """The encoder systems of plugins that do not read the target's parse, by name; imports the plugins."""
    from fairseq_syntax import register

    register(folders)
    from fairseq_syntax.model.encoder import ENCODER_SYSTEMS
    from fairseq_syntax.model.transformer import PRESETS, criterion_of

    entries, ours = {}, systems()
    presets = {
        preset["encoder_syntax"].split(",")[-1]: (arch, preset)
        for arch, preset in PRESETS.items()
        if "encoder_syntax" in preset
    }
    for name, system in ENCODER_SYSTEMS.items():
        arch, preset = presets.get(name, ("", {"encoder_syntax": name}))
        if name in ours or system.__module__.startswith("fairseq_syntax.") or "decoder_syntax" in preset:
            continue
        parts = [f"arch: {arch or 'syntax_transformer'}"]
        parts += [] if arch else [f"options: {{encoder-syntax: {name}}}"]
        if (criterion := criterion_of(preset)) != criterion_of({}):
            parts.append(f"train: {{criterion: {criterion}}}")
        entries[name] = Entry("{" + ", ".join(parts) + "}", preset["encoder_syntax"].split(","))
    return entries


def _read_of_parses(chosen: Sequence[Entry]) -> set[str]:
    """What systems read of the source's parse in training, as :attr:`.HeadSystem.training_needs`."""
    from fairseq_syntax import register

    register()  # first: it imports fairseq without fairseq's notices
    from fairseq_syntax.model.encoder import ENCODER_SYSTEMS

    return {need for entry in chosen for name in entry.consists_of for need in ENCODER_SYSTEMS[name].training_needs}


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
    Scale(60_000, "A small model: an hour on a CPU", 3, 128, 256, 4, 0.2, 1600, 0.004, 4000),
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
    user_dir: Sequence[str] = (),
) -> str:
    """The text of a commented recipe in the file ``path``, relative to which other files are named.

    Args:
        train, valid, tests: splits, as for :func:`.gathering.split_files`
        chosen: names of systems; if none of them reads a parse, the text is not parsed
        models: the models of the source parser; with them, it is parsed all the same
        user_dir: folders of plugins, whose systems may be named, too

    Raises:
        SyntaxDataError: there is no such system, or a plugin cannot be imported
    """
    from fairseq_syntax.lab.recipes.reading import as_yaml

    langs, base = (source, target), path.absolute().parent
    known = systems()
    if user_dir or not known.keys() >= {*chosen}:  # it imports fairseq, which takes seconds
        known |= systems_of_plugins(user_dir)
    for name in chosen:
        if name not in known:
            raise SyntaxDataError(f"there is no system {name}", option="--system", hint=meant(name, known))
    entries = {name: known[name] for name in chosen}
    read = _read_of_parses([*entries.values()])
    parse = _PARSE.format(
        models=f"models: {_named([models], base)}" if models else _NO_MODELS,
        distributions=_DISTRIBUTIONS if "arcs" in read else "",
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
    sets = zip(tests.items(), counts)
    lines = [f"\n    {as_yaml(name)}: {_named(texts, base)}    # {count} pairs" for (name, texts), count in sets]
    return _TEMPLATE.read_text(encoding="utf-8").format(
        scale=scale,
        pairs=pairs,
        file=path.name,
        plugins=f"\nuser_dir: {_named(user_dir, base)}    # your plugins" if user_dir else "",
        source=source,
        target=target,
        train=_named(train, base),
        valid=_named(valid, base),
        tests="".join(lines),
        filter="{max_length: 500, characters: true}" if many_characters else "{max_length: 100, max_ratio: 3}",
        parse=parse if read or models else _NO_PARSE,
        pieces=f"{{{sizes}}}",
        coverage=f", character_coverage: {{{covered}}}" if covered else "",
        normalize=normalize,
        updates=updates,
        warmup=min(4000, updates // 8),
        systems="".join(f"  {name}: {entries[name].text}\n" for name in chosen),
        tokenize=tokenizer_of(target),
        device="cpu" if is_small else "cuda",
    )


def _named(texts: Sequence[str], base: Path) -> str:
    """Files as named in a recipe: one, or a list."""
    from fairseq_syntax.lab.recipes.reading import as_yaml  # here, since --help lists the systems: it imports pydantic

    names = [shown(text, base) for text in texts]
    return as_yaml(names[0] if len(names) == 1 else names)

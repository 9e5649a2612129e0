"""fairseq-preprocess with ``--task syntax_translation``: binarizes syntax together with tokens.

fairseq gives a plugin no hook there, so two of its functions are wrapped: the one that adds the command's options,
and the command's ``main``, which is looked up when it is called. Both do what they did for any other task. While
``main`` runs for ours, dictionaries and token datasets are made in parts.
"""

from __future__ import annotations

import functools
import logging
import os
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_syntax.corpus.store.schema import store_path
from fairseq_syntax.data.binarize import PARSE_SUFFIX, binarize, check_segmentation, copy_segmentation
from fairseq_syntax.data.directory import language_files, split_files
from fairseq_syntax.data.labels import LabelInventory, labels_path
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.files import as_data_error, atomic_open, make_folder, read_lines, remove_folder
from fairseq_syntax.runtime.jobs import Step, read_record
from fairseq_syntax.runtime.locks import locked
from fairseq_syntax.runtime.manifest import note_files
from fairseq_syntax.runtime.workers import Workers

TASK = "syntax_translation"
logger = logging.getLogger(__name__)


class Side(NamedTuple):
    """One side of one split."""

    split: str
    lang: str
    tokens: str
    parse: str


def languages(args: Namespace) -> list[str]:
    """The languages that a run of ``fairseq-preprocess`` binarizes: the source and, if there is one, the target."""
    return [args.source_lang] if args.only_source or not args.target_lang else [args.source_lang, args.target_lang]


def splits(args: Namespace) -> Iterator[tuple[str, str]]:
    """The splits that a run of ``fairseq-preprocess`` makes, with the prefix of each split's text files."""
    for kind, prefixes in (("train", args.trainpref), ("valid", args.validpref), ("test", args.testpref)):
        for number, prefix in enumerate(prefixes.split(",") if prefixes else []):
            yield f"{kind}{number or ''}", prefix


def sides(args: Namespace) -> Iterator[Side]:
    """The sides of each split to binarize: those with a parse.

    Raises:
        SyntaxDataError: neither side of a split has a parse, or one is not in the folder that was named for it
    """
    langs = languages(args)

    def parse_of(prefix: str, lang: str) -> str:
        if args.source_parses and lang == args.source_lang:
            prefix = os.path.join(args.source_parses, os.path.basename(prefix))
        return f"{prefix}.{lang}{PARSE_SUFFIX}"

    for lang in langs:
        for split, prefix in splits(args):
            side = Side(split, lang, f"{prefix}.{lang}", parse_of(prefix, lang))
            if os.path.exists(side.parse):
                yield side
            elif args.source_parses and lang == args.source_lang:
                raise SyntaxDataError("is not in the folder of --source-parses", path=side.parse)
            elif not any(os.path.exists(parse_of(prefix, other)) for other in langs):
                raise SyntaxDataError(
                    "the source has no parse, and neither has the target",
                    path=side.parse,
                    hint="run fairseq-syntax parse and fairseq-syntax segment; --task translation needs none",
                )


def check_text(args: Namespace) -> None:
    """Check, before hours of work, that both sides of each split are readable and have equally many lines.

    Raises:
        SyntaxDataError: a side is missing, empty or not UTF-8, the two sides differ in their number of lines, or
            splits are cut by two models, or parsed in two ways
    """
    for lang in languages(args):
        check_segmentation([f"{prefix}.{lang}" for _, prefix in splits(args)], lang)
        if not _labels_file(args, lang):
            labels = LabelInventory()
            for side in (side for side in sides(args) if side.lang == lang):
                labels.note_parse(side.parse)
    for _, prefix in splits(args):
        texts = [f"{prefix}.{lang}" for lang in languages(args)]
        align = f"{prefix}.{args.align_suffix}" if getattr(args, "align_suffix", None) else ""
        lines = {path: sum(1 for _ in read_lines(path)) for path in texts}
        for path in texts:
            if not lines[path]:
                raise SyntaxDataError("the file is empty", path=path)
        if os.path.exists(align) and (n := sum(1 for _ in read_lines(align))) != (due := max(lines.values())):
            raise SyntaxDataError(f"has {n} lines of links, and the text {due}", path=align)
        if lines[texts[0]] != lines[texts[-1]]:
            raise SyntaxDataError(
                f"has {lines[texts[-1]]} lines, but {texts[0]} has {lines[texts[0]]}",
                path=texts[-1],
                hint="the two sides go line by line",
            )


def _labels_file(args: Namespace, lang: str) -> str | None:
    """The label inventory given for a language."""
    path: str | None = args.source_labels if lang == args.source_lang else args.target_labels
    return path


def binarize_syntax(args: Namespace, workers: int | Workers | None = None) -> None:
    """Binarize the syntax of all splits that ``args`` names into ``args.destdir``, beside their token datasets.

    ``workers`` are those of a cluster, in place of ``args.workers`` processes.
    """
    inventories: dict[str, LabelInventory] = {}
    for side in sides(args):
        labels = inventories.get(side.lang)
        path = labels_path(args.destdir, side.lang)
        if labels is None:
            labels_file = _labels_file(args, side.lang)
            if labels_file or side.split != "train":
                labels = LabelInventory.load(labels_file or path)
            else:
                labels = LabelInventory()
            inventories[side.lang] = labels
            copy_segmentation(os.path.dirname(side.tokens) or ".", args.destdir, side.lang)
        out = store_path(args.destdir, side.split, args.source_lang, args.target_lang, side.lang)
        dictionary = os.path.join(args.destdir, f"dict.{side.lang}.txt")
        labels.note_parse(side.parse, may_differ=bool(_labels_file(args, side.lang)))
        options: dict[str, Any] = {"lang": side.lang, "dictionary": dictionary, "workers": workers or args.workers}
        summary = binarize(side.tokens, side.parse, out, labels, **options)
        logger.info("[%s] syntax of %s: %s", side.lang, side.parse, summary)
        if labels.unknown:
            logger.warning("[%s] labels not in the inventory: %s", side.lang, dict(labels.unknown.most_common(10)))
            labels.unknown.clear()
        labels.save(path)
        # The other splits must agree with the training data, for which ids are assigned.
        labels.frozen = True
    for lang in languages(args):
        if lang not in inventories:
            _, first = next(splits(args))
            copy_segmentation(os.path.dirname(first) or ".", args.destdir, lang)
    names = [name for lang in languages(args) for name in language_files(lang)]
    for split, _ in splits(args):
        names += filter(split_files(split, args.source_lang, args.target_lang).match, os.listdir(args.destdir))
    note_files(args.destdir, names)


def train_command(destdir: str) -> str:
    """The training command that is suggested after binarizing."""
    plugin = '--user-dir "$(fairseq-syntax user-dir)" --task syntax_translation'
    return f"fairseq-train {destdir} {plugin} --arch pascal_transformer … (or fairseq-syntax inspect {destdir} --check)"


def check_dataset(args: Namespace) -> None:
    """Check that the token dataset exists and that its sentence lengths match the text.

    Raises:
        SyntaxDataError: nothing to binarize, damaged tokens, or another number of lines or pieces than they have
    """
    from fairseq_syntax.data.tokens import load_tokens

    parsed_sides = list(sides(args))
    if not parsed_sides:
        raise SyntaxDataError("nothing to binarize", hint="name files with --trainpref, --validpref or --testpref")
    for side in parsed_sides:
        prefix = store_path(args.destdir, side.split, args.source_lang, args.target_lang, side.lang)
        prefix = prefix.removesuffix(".syntax.arrow")
        dataset = load_tokens(prefix)
        lines = 0
        for lines, line in enumerate(read_lines(side.tokens), start=1):
            count = len(line.split())
            if lines <= len(dataset) and count != dataset.sizes[lines - 1] - 1:
                raise SyntaxDataError(
                    f"{count} pieces, but the token dataset has {dataset.sizes[lines - 1] - 1}",
                    path=side.tokens,
                    line=lines,
                )
        if lines != len(dataset):
            raise SyntaxDataError(
                f"has {lines} lines, but the token dataset {prefix} has {len(dataset)}", path=side.tokens
            )


def add_syntax_options(parser: ArgumentParser) -> None:
    """Add the options of the syntax step, for ``fairseq-preprocess`` and ``fairseq-syntax binarize``."""
    group = parser.add_argument_group("Syntax")
    group.add_argument(
        "--source-parses",
        metavar="DIR",
        help="folder with the parses of the source, named like its pieces (default: next to the pieces)",
    )
    for side in ("source", "target"):
        group.add_argument(
            f"--{side}-labels",
            metavar="FILE",
            help=f"use this label inventory for the {side} (default: made from the training data, as labels.LANG.json)",
        )


def _dictionary_step(args: Namespace, langs: list[str]) -> Step:
    """The step that makes the dictionary of one language, or a joint one, from training text and options."""
    texts = langs if not args.joined_dictionary else [args.source_lang, args.target_lang]
    options = {"padding_factor": args.padding_factor, "joined": args.joined_dictionary}
    if args.source_lang in langs:
        options |= {"thresholdsrc": args.thresholdsrc, "nwordssrc": args.nwordssrc}
    else:
        options |= {"thresholdtgt": args.thresholdtgt, "nwordstgt": args.nwordstgt}
    inputs = [f"{args.trainpref}.{lang}" for lang in texts] if args.trainpref else []
    outputs = [os.path.join(args.destdir, f"dict.{lang}.txt") for lang in langs]
    return Step.of("dictionary", outputs, inputs, **options)


def _check_given(args: Namespace) -> None:
    """Check, before hours of work, that given dictionaries and label inventories are readable.

    Raises:
        SyntaxDataError: one is not there or is none, or there are two dictionaries in place of a joined one
    """
    for path in filter(None, (args.srcdict, args.tgtdict)):
        _symbols(path)
        for number, row in enumerate(read_lines(path), start=1):
            if row.rstrip().endswith("#fairseq:overwrite"):
                raise SyntaxDataError(
                    "#fairseq:overwrite: fairseq would write the dictionary without that, and could not read it then",
                    path=path,
                    line=number,
                    hint="leave the row out, or the one before of the same word",
                )
    if args.joined_dictionary and args.srcdict and args.tgtdict:
        raise SyntaxDataError("--joined-dictionary takes one dictionary", hint="drop --srcdict or --tgtdict")
    for path in filter(None, (args.source_labels, args.target_labels)):
        LabelInventory.load(path)


def _symbols(path: str | os.PathLike[str]) -> list[str]:
    """The symbols of a dictionary. Raises SyntaxDataError where it cannot be read."""
    from fairseq_syntax.data.tokens import load_dictionary

    return list(load_dictionary(path).symbols)


def _clear_joined(dictionary: str, other: Path, option: str) -> None:
    """Remove the other language's copy of a given joint dictionary: fairseq refuses to start if it exists.

    Args:
        dictionary: the one that is given
        other: ``dict.LANG.txt`` of the language whose option was not given
        option: that option

    Raises:
        SyntaxDataError: there is another dictionary under that name
    """
    if not other.exists():
        return
    if os.path.samefile(dictionary, other):
        raise SyntaxDataError("is the dictionary of the other language", path=dictionary, hint=f"give it by {option}")
    content = other.read_bytes()
    cut_off = not content.endswith(b"\n") and Path(dictionary).read_bytes().startswith(content)  # by a kill
    if not cut_off and _symbols(other) != _symbols(dictionary):
        raise SyntaxDataError(f"exists, and is another dictionary than {dictionary}", path=other, hint="remove it")
    other.unlink()


def _resume_dictionaries(args: Namespace) -> list[Step]:
    """Make fairseq reuse the dictionaries of an earlier run; returns those that are still to be made.

    fairseq refuses to begin where there is a dictionary, also its own of a killed run.

    Raises:
        SyntaxDataError: there is one that was made from another text or with other options
    """
    langs = languages(args)
    options = {args.source_lang: "srcdict", args.target_lang: "tgtdict"}
    chosen = {lang: getattr(args, options[lang]) for lang in langs}
    if args.joined_dictionary and any(chosen.values()):
        for lang in (lang for lang in langs if not chosen[lang]):
            one = next(filter(None, chosen.values()))
            _clear_joined(one, Path(args.destdir, f"dict.{lang}.txt"), f"--{options[lang]}")
        return []
    groups = [langs] if args.joined_dictionary else [[lang] for lang in langs if not chosen[lang]]
    to_make = []
    for group in groups:
        step = _dictionary_step(args, group)
        record = read_record(step.outputs[0])
        for path in step.outputs:
            if path.exists() and (record is None or record["made_from"] != step.made_from):
                raise SyntaxDataError(
                    "exists, and was made from another text or with other options",
                    path=path,
                    hint="give another --destdir, remove it, or take it with --srcdict and --tgtdict",
                )
        if step.record() is not None:
            # A run that was killed did not come to that.
            remove_folder(step.outputs[0].with_name(step.outputs[0].name + ".parts"))
            setattr(args, options[group[0]], os.fspath(step.outputs[0]))
            for copy in step.outputs[1:]:  # of a joined dictionary, which fairseq writes again from the first
                copy.unlink()
        else:
            for path in step.outputs:
                path.unlink(missing_ok=True)
            step.begin()
            to_make.append(step)
    return to_make


def _make_dictionary(steps: list[Step], filenames, task, args, src=False, tgt=False):
    """Make and save the dictionary of one text or two, equal to that of fairseq's ``task.build_dictionary``."""
    from fairseq_syntax.data.tokens import load_dictionary, make_dictionary

    path = Path(args.destdir, f"dict.{args.source_lang if src else args.target_lang}.txt")
    make_dictionary(
        next(step for step in steps if path in step.outputs),
        sorted(filenames),
        threshold=args.thresholdsrc if src else args.thresholdtgt,
        nwords=args.nwordssrc if src else args.nwordstgt,
        padding_factor=args.padding_factor,
        workers=args.workers,
    )
    return load_dictionary(path)


def _make_tokens(make, vocab, input_prefix, output_prefix, lang, num_workers, args) -> None:
    """Binarize the tokens of one side of a split, unless that is done."""
    base = os.path.join(args.destdir, f"{output_prefix}.{args.source_lang}-{args.target_lang}.{lang}")
    text, outputs = f"{input_prefix}.{lang}", [base + ".bin", base + ".idx"]
    step = Step.of("tokens", outputs, [text], symbols=vocab.symbols, kind=args.dataset_impl)
    done = False
    if args.dataset_impl == "mmap":
        from fairseq_syntax.data.tokens import binarize_tokens  # loads fairseq, for which --help does not wait

        logger.info("[%s] Dictionary: %d types", lang, len(vocab))
        summary = binarize_tokens(step, text, vocab, workers=num_workers)
        done = summary is None
        if not done:
            logger.info("[%s] %s: %s (by %s)", lang, text, summary, vocab.unk_word)
    else:
        with step.making() as record:
            done = record is not None
            if not done:
                step.begin()
                make(vocab, input_prefix, output_prefix, lang, num_workers, args)
                step.finish()
    if done:
        logger.info("[%s] %s is up to date", lang, outputs[0])


@contextmanager
def _writing_below(folder: str) -> Iterator[None]:
    """Turn an OSError in the block into a SyntaxDataError that names the folder, unless another file is at fault."""
    try:
        yield
    except OSError as error:
        name = error.filename
        if isinstance(name, str) and not Path(name).resolve().is_relative_to(Path(folder).resolve()):
            raise
        with as_data_error(folder):
            raise


@contextmanager
def _log_file_closed(log: logging.Logger) -> Iterator[None]:
    """Close fairseq-preprocess's log file at the end of the block.

    fairseq leaves its handler for the process's end: the next run in this process would write to this folder too.
    """
    before = list(log.handlers)
    try:
        yield
    finally:
        for handler in [h for h in log.handlers if h not in before]:
            log.removeHandler(handler)
            with suppress(OSError):  # of a full disk: the run says so, with the file that it was writing
                handler.close()


@contextmanager
def _whole_dictionaries() -> Iterator[None]:
    """Make fairseq save dictionaries atomically within the block.

    It does so over those that are done, too, as it is given them by ``--srcdict``: a full disk or a kill cut them off.
    """
    from fairseq.data import Dictionary

    save = Dictionary.save

    def save_whole(self, f):
        if not isinstance(f, str):
            return save(self, f)
        with atomic_open(f) as file:
            save(self, file)

    Dictionary.save = save_whole
    try:
        yield
    finally:
        Dictionary.save = save


def wrap_main(module: Any) -> None:
    """Extend ``main`` of fairseq-preprocess, once: for this package's task it binarizes the syntax too."""
    original = module.main
    if getattr(original, "with_syntax", False):
        return
    make_dictionary, make_tokens = module._build_dictionary, module._make_binary_dataset

    @functools.wraps(original)
    def main(args):
        if args.task != TASK:
            with _log_file_closed(module.logger):
                return original(args)
        list(sides(args))  # complain of a missing parse at once
        check_text(args)
        _check_given(args)
        make_folder(args.destdir)
        with locked(os.path.join(args.destdir, "preprocess")), _writing_below(args.destdir):
            steps = _resume_dictionaries(args)
            module._build_dictionary = functools.partial(_make_dictionary, steps)
            module._make_binary_dataset = functools.partial(_make_tokens, make_tokens)
            try:
                with _whole_dictionaries(), _log_file_closed(module.logger):
                    original(args)
            finally:
                module._build_dictionary, module._make_binary_dataset = make_dictionary, make_tokens
            if not args.dict_only:
                binarize_syntax(args)
                logger.info("%s: tokens and syntax; next: %s", args.destdir, train_command(args.destdir))
        return None

    main.with_syntax = True  # type: ignore[attr-defined]
    module.main = main

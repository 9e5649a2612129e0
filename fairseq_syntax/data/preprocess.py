"""fairseq-preprocess with ``--task syntax_translation``: binarizes syntax together with tokens.

Dictionaries and token datasets are made in parts, with the same bytes as fairseq's.
"""

from __future__ import annotations

import codecs
import functools
import inspect
import logging
import os
import re
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

import numpy as np

from fairseq_syntax.corpus.header import parsed_with
from fairseq_syntax.corpus.store.store_format import store_path, tokens_prefix
from fairseq_syntax.data.binarize import PARSE_SUFFIX, binarize, check_segmentation, copy_segmentation
from fairseq_syntax.data.directory import dictionary_path, language_files, split_pattern
from fairseq_syntax.data.labels import LabelInventory, labels_path
from fairseq_syntax.data.tokens import binarize_tokens, load_dictionary, load_tokens, make_dictionary
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.files import as_data_error, atomic_open_binary, make_folder, read_lines, read_raw_lines
from fairseq_syntax.runtime.jobs import RecordedStep, read_record
from fairseq_syntax.runtime.locks import locked
from fairseq_syntax.runtime.manifest import note_files
from fairseq_syntax.runtime.workers import Workers

TASK = "syntax_translation"
_OTHER_DICTIONARY = "give another --destdir, remove it, or take it with --srcdict and --tgtdict"
_LINK = re.compile(r"[0-9]+-[0-9]+")
logger = logging.getLogger(__name__)


class Side(NamedTuple):
    """One side of one split."""

    split: str
    lang: str
    tokens: str
    parse: str


def binarized_languages(args: Namespace) -> list[str]:
    """The languages that are binarized: the source and, if there is one, the target."""
    return [args.source_lang] if args.only_source or not args.target_lang else [args.source_lang, args.target_lang]


def splits(args: Namespace) -> Iterator[tuple[str, str]]:
    """The splits that ``fairseq-preprocess`` makes, with the prefixes of their text files."""
    for kind, prefixes in (("train", args.trainpref), ("valid", args.validpref), ("test", args.testpref)):
        for number, prefix in enumerate(prefixes.split(",") if prefixes else []):
            yield f"{kind}{number or ''}", prefix


def sides(args: Namespace) -> Iterator[Side]:
    """The sides of each split to binarize: those with a parse; none if no split has one.

    Raises:
        SyntaxDataError: neither side of a split has a parse, but another split has one, or a parse is not in the
            folder given for it
    """
    langs = binarized_languages(args)

    def parse_of(prefix: str, lang: str) -> str:
        if args.source_parses and lang == args.source_lang:
            prefix = os.path.join(args.source_parses, os.path.basename(prefix))
        return f"{prefix}.{lang}{PARSE_SUFFIX}"

    parsed = {prefix for _, prefix in splits(args) if any(os.path.exists(parse_of(prefix, lang)) for lang in langs)}
    for lang in langs:
        for split, prefix in splits(args):
            side = Side(split, lang, f"{prefix}.{lang}", parse_of(prefix, lang))
            if os.path.exists(side.parse):
                yield side
            elif args.source_parses and lang == args.source_lang:
                raise SyntaxDataError("is not in the folder of --source-parses", path=side.parse)
            elif parsed and prefix not in parsed:
                raise SyntaxDataError(
                    "the source has no parse, and neither has the target, but other splits have one",
                    path=side.parse,
                    hint="run fairseq-syntax parse and fairseq-syntax segment",
                )


def check_input(args: Namespace) -> None:
    """Check, before hours of work, all files that are read.

    Raises:
        SyntaxDataError: a text is missing, empty or not UTF-8; the sides differ in their number of lines; splits
            were segmented by different models or parsed with different options; or a given dictionary or label
            inventory is missing or invalid
    """
    if not list(sides(args)):
        logger.warning("no text has a parse (PREFIX.LANG%s), so the data are for models that need none", PARSE_SUFFIX)
    check_text_and_parses(args)
    files = _dictionary_files(args)
    for path in filter(None, files.values()):
        load_dictionary(path)
    if args.joined_dictionary and args.srcdict and args.tgtdict:
        raise SyntaxDataError("--joined-dictionary takes one dictionary", hint="drop --srcdict or --tgtdict")
    if not args.trainpref and not all(files.values()):
        message = "there is no training text to make a dictionary from"
        raise SyntaxDataError(message, option="--trainpref", hint="or give --srcdict and --tgtdict")
    for path in filter(None, (args.source_labels, args.target_labels)):
        LabelInventory.load(path)


def check_text_and_parses(args: Namespace) -> None:
    """Check the texts and parses; see :func:`check_input`."""
    _check_segmentations(args)
    for lang in binarized_languages(args):
        if not _labels_file(args, lang):
            labels = LabelInventory()
            for side in (side for side in sides(args) if side.lang == lang):
                labels.note_parse(side.parse)
    for _, prefix in splits(args):
        paths = [f"{prefix}.{lang}" for lang in binarized_languages(args)]
        links = f"{prefix}.{args.align_suffix}" if getattr(args, "align_suffix", None) else ""
        if os.path.exists(links):
            paths.append(links)
            _check_links(links)
        counts = [sum(1 for _ in read_lines(path)) for path in paths]
        if not counts[0]:
            raise SyntaxDataError("the file is empty", path=paths[0])
        for path, count in zip(paths, counts):
            if count != counts[0]:
                message = f"has {count} lines, but {paths[0]} has {counts[0]}"
                raise SyntaxDataError(message, path=path, hint="they go line by line")


def _check_links(path: str) -> None:
    """Check word alignments as fairseq reads them: ``0-0 1-2``, without a byte order mark."""
    for number, line in enumerate(read_lines(path), 1):
        if not all(_LINK.fullmatch(link) for link in line.split()):
            raise SyntaxDataError("not word alignments, such as 0-0 1-2", path=path, line=number)
    with open(path, "rb") as file:
        if file.read(3) == codecs.BOM_UTF8:
            message = "a byte order mark, which fairseq reads as a part of the first number"
            raise SyntaxDataError(message, path=path, line=1, hint="sed -i '1s/^\\xEF\\xBB\\xBF//' FILE removes it")


def _check_segmentations(args: Namespace) -> None:
    for lang in binarized_languages(args):
        texts = [f"{prefix}.{lang}" for _, prefix in splits(args)]
        check_segmentation(texts, lang, None if args.trainpref else args.destdir)


def check_dataset(args: Namespace) -> None:
    """Check that the token dataset exists and that its sentence lengths match the text. Raises SyntaxDataError."""
    _check_segmentations(args)
    parsed_sides = list(sides(args))
    if not parsed_sides:
        hint = f"name files with --trainpref, --validpref or --testpref, whose parse is PREFIX.LANG{PARSE_SUFFIX}"
        raise SyntaxDataError("nothing to binarize", hint=hint)
    for side in parsed_sides:
        prefix = tokens_prefix(args.destdir, side.split, args.source_lang, args.target_lang, side.lang)
        dataset = load_tokens(prefix)  # which closes its memory map when it is deleted
        sizes = dataset.sizes - 1  # without </s>
        counts = np.fromiter((len(line.split()) for line in read_lines(side.tokens)), np.int64)
        both = min(len(sizes), len(counts))
        for i in np.flatnonzero(counts[:both] != sizes[:both])[:1].tolist():
            message = f"{counts[i]} pieces, but the token dataset has {sizes[i]}"
            raise SyntaxDataError(message, path=side.tokens, line=i + 1)
        if len(sizes) != len(counts):
            message = f"has {len(counts)} lines, but the token dataset {prefix} has {len(sizes)}"
            raise SyntaxDataError(message, path=side.tokens)


def _labels_file(args: Namespace, lang: str) -> str | None:
    """The label inventory that was given for a language."""
    return args.source_labels if lang == args.source_lang else args.target_labels


def binarize_syntax(args: Namespace, workers: int | Workers | None = None) -> None:
    """Binarize the syntax of all splits next to their token datasets, by ``workers`` instead of ``args.workers``."""
    inventories: dict[str, LabelInventory] = {}
    for side in sides(args):
        path, given = labels_path(args.destdir, side.lang), _labels_file(args, side.lang)
        is_first, is_training = side.lang not in inventories, side.split.startswith("train")
        if is_first:
            made_here = is_training and not given
            inventories[side.lang] = LabelInventory() if made_here else LabelInventory.load(given or path)
        labels = inventories[side.lang]
        # The training data assign the ids. A label that occurs only in other splits becomes the unknown
        # label, like a word that is not in the dictionary.
        labels.frozen = labels.frozen or not is_training
        labels.note_parse(side.parse, may_differ=bool(given))
        if is_first and given:
            # A given inventory says how its own training text was parsed, not how that of the directory was.
            added = not is_training and os.path.exists(path)
            here = LabelInventory.load(path).parsed_with if added else parsed_with(side.parse)
            labels.parsed_with = here or labels.parsed_with
        summary = binarize(
            side.tokens,
            side.parse,
            store_path(args.destdir, side.split, args.source_lang, args.target_lang, side.lang),
            labels,
            lang=side.lang,
            dictionary=dictionary_path(args.destdir, side.lang),
            workers=workers or args.workers,
        )
        logger.info("[%s] syntax of %s: %s", side.lang, side.parse, summary.text())
        if labels.unknown:
            logger.warning("[%s] labels not in the inventory: %s", side.lang, dict(labels.unknown.most_common(10)))
            labels.unknown.clear()
        labels.save(path)
    _, first = next(splits(args))
    for lang in binarized_languages(args):
        copy_segmentation(os.path.dirname(first) or ".", args.destdir, lang)
    names = [name for lang in binarized_languages(args) for name in language_files(lang)]
    for split, _ in splits(args):
        names += filter(split_pattern(split, args.source_lang, args.target_lang).match, os.listdir(args.destdir))
    note_files(args.destdir, names)


def train_command(destdir: str) -> str:
    """The training command suggested after binarization."""
    plugin = '--user-dir "$(fairseq-syntax user-dir)" --task syntax_translation'
    data = quote(destdir)
    return f"fairseq-train {data} {plugin} --arch pascal_transformer … (or fairseq-syntax inspect {data} --check)"


def wrap_main(module: Any) -> None:
    """Replace ``main`` of fairseq-preprocess, so that it also binarizes syntax for this package's task."""
    original = inspect.unwrap(module.main)  # a process may build the command's parser more than once

    @functools.wraps(original)
    def main(args: Namespace) -> None:
        before = list(module.logger.handlers)
        try:
            if args.task == TASK:
                _preprocess(module, args)
            else:
                original(args)
        finally:
            # fairseq keeps the handler of the log file, so the next run in this process would write to it too.
            for handler in [h for h in module.logger.handlers if h not in before]:
                module.logger.removeHandler(handler)
                with suppress(OSError):  # on a full disk, the run itself reports the error with the file
                    handler.close()

    module.main = main


def _preprocess(module: Any, args: Namespace) -> None:
    """Make dictionaries, token datasets and stores, except for finished ones; ``module`` is fairseq's command."""
    check_input(args)
    make_folder(args.destdir)
    with locked(os.path.join(args.destdir, "preprocess")):
        with as_data_error(args.destdir):
            module.logger.addHandler(logging.FileHandler(Path(args.destdir, "preprocess.log")))
        module.logger.info(args)
        dictionaries = _make_dictionaries(args)
        if args.dict_only:
            return
        for lang, dictionary in dictionaries.items():
            for split, prefix in splits(args):
                _make_tokens(module._make_dataset, dictionary, prefix, split, lang, args)
        if args.align_suffix:
            module._make_all_alignments(args)
        if args.alignfile:
            module._align_files(args, dictionaries[args.source_lang], dictionaries.get(args.target_lang))
        binarize_syntax(args)
        if list(sides(args)):
            logger.info("%s: tokens and syntax; next: %s", args.destdir, train_command(args.destdir))


def _dictionary_files(args: Namespace) -> dict[str, str | None]:
    """The dictionary given for each language; None if it is made from the training text."""
    files = {args.source_lang: args.srcdict, args.target_lang: args.tgtdict}
    joined = args.srcdict or args.tgtdict
    return {lang: joined if args.joined_dictionary else files[lang] for lang in binarized_languages(args)}


def _make_dictionaries(args: Namespace) -> dict[str, Any]:
    """Make ``dict.LANG.txt`` for all languages: the given dictionary, or the one that fairseq would make.

    Raises:
        SyntaxDataError: a different dictionary already exists
    """
    files = _dictionary_files(args)
    copies = {dictionary_path(args.destdir, lang): file for lang, file in files.items() if file is not None}
    for path, file in copies.items():
        if os.path.exists(path) and load_dictionary(path).symbols != load_dictionary(file).symbols:
            raise SyntaxDataError(f"exists, and is another dictionary than {file}", path=path, hint=_OTHER_DICTIONARY)
    missing = [lang for lang in files if files[lang] is None]
    for langs in [missing] if args.joined_dictionary else [[lang] for lang in missing]:
        if langs:
            _make_dictionary(args, langs)
    for path, file in copies.items():
        content = b"".join(read_raw_lines(file))  # fairseq would take a byte order mark for a part of a word
        with atomic_open_binary(path) as output:
            output.write(content)
    return {lang: load_dictionary(dictionary_path(args.destdir, lang)) for lang in files}


def _make_dictionary(args: Namespace, langs: list[str]) -> None:
    """Make the dictionary of one language, or a joined one, from the training text; never replaces another one."""
    side = "src" if args.source_lang in langs else "tgt"
    limits = {"threshold": getattr(args, f"threshold{side}"), "nwords": getattr(args, f"nwords{side}")}
    # A joined dictionary covers both texts, even if it is only written for the source.
    sides = (args.source_lang, args.target_lang) if args.joined_dictionary else langs
    texts = [f"{prefix}.{lang}" for prefix in args.trainpref.split(",") for lang in sides]
    outputs = [dictionary_path(args.destdir, lang) for lang in langs]
    options = {"padding_factor": args.padding_factor, "joined": args.joined_dictionary}
    options |= {f"{name}{side}": value for name, value in limits.items()}
    step = RecordedStep.of("dictionary", outputs, texts, **options)
    record = read_record(outputs[0])
    for path in outputs:
        if os.path.exists(path) and (record is None or record["made_from"] != step.made_from):
            message = "exists, and was made from another text or with other options"
            raise SyntaxDataError(message, path=path, hint=_OTHER_DICTIONARY)
    make_dictionary(step, sorted(texts), **limits, padding_factor=args.padding_factor, workers=args.workers)


def _make_tokens(
    make: Callable[..., None], dictionary: Any, prefix: str, split: str, lang: str, args: Namespace
) -> None:
    """Binarize the tokens of one side of a split, unless this is done; fairseq's ``make`` does other types."""
    logger.info("[%s] Dictionary: %d types", lang, len(dictionary))
    if args.dataset_impl != "mmap":
        make(dictionary, prefix, split, lang, args, args.workers)
        return
    base = tokens_prefix(args.destdir, split, args.source_lang, args.target_lang, lang)
    text, outputs = f"{prefix}.{lang}", [base + ".bin", base + ".idx"]
    step = RecordedStep.of("tokens", outputs, [text], symbols=dictionary.symbols, kind=args.dataset_impl)
    summary = binarize_tokens(step, text, dictionary, workers=args.workers)
    if summary is None:
        logger.info("[%s] %s is up to date", lang, outputs[0])
    else:
        logger.info("[%s] %s: %s (by %s)", lang, text, summary, dictionary.unk_word)

"""Export of trained models to stock fairseq, CTranslate2 and transformers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from fairseq import utils
from omegaconf import OmegaConf

from fairseq_syntax.data.directory import dictionary_path
from fairseq_syntax.data.labels import labels_path
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.inference.alignment_head import load_head, save_head
from fairseq_syntax.inference.interactive import InteractiveInput
from fairseq_syntax.model.pretrained import OF_LANGUAGES
from fairseq_syntax.runtime.files import read_bytes
from fairseq_syntax.use import to_ctranslate2, to_transformers
from fairseq_syntax.use.exported import CHECKPOINT, FACTOR_MARK, Exported, new_folder
from fairseq_syntax.use.loading import load_models
from fairseq_syntax.use.plain import TrainedModel, checkpoint, write_checkpoint


def load_exported_folder(path: str | os.PathLike[str], data: str | os.PathLike[str] | None = None) -> TrainedModel:
    """Load a checkpoint for export.

    Args:
        data: the binarized data (default: those that the model was trained on)

    Raises:
        SyntaxDataError: the checkpoint or its data do not exist
    """
    (model,), cfg, task = load_models([path], data, device="cpu")
    options: Any = OmegaConf.to_container(cfg.model) if OmegaConf.is_config(cfg.model) else vars(cfg.model)
    return TrainedModel(model, dict(options), task, load_head(path, model))


def export(
    loaded: TrainedModel,
    kind: str,
    output: str | os.PathLike[str],
    *,
    quantization: str | None = None,
    source_tag: str = "",
) -> Exported:
    """Atomically write a folder with the model, its dictionaries and segmentation, and a README.

    Args:
        kind: ``fairseq``, ``ctranslate2`` or ``transformers``
        output: the folder, which must not exist or be empty
        quantization: for the weights in CTranslate2, one of ``exported.QUANTIZATIONS``; None for float32
        source_tag: for multi-task models, the piece that translators put before and after each source sentence

    Raises:
        SyntaxDataError: the target format does not support the model; the folder is not empty or cannot be written; a
            file of the data is damaged; or the data were parsed differently from the training data
    """
    if quantization is not None and kind != "ctranslate2":
        raise SyntaxDataError("only applies to --to ctranslate2", option="--quantization")
    if kind == "transformers" and source_tag:
        message = "does not apply to --to transformers: Marian's tokenizer adds none"
        raise SyntaxDataError(message, option="--source-tag")
    task = loaded.task
    InteractiveInput(task, source_tag=source_tag)  # as when it is translated with, it checks the tag
    with new_folder(output) as folder:
        factors: list[str] = []
        if kind == "ctranslate2":
            factors = to_ctranslate2.write(loaded, folder, quantization)
        elif kind == "fairseq":
            _write_fairseq(loaded, folder)
        else:
            to_transformers.write(*loaded.plain(pretrained=True), task, folder)
        longest = utils.resolve_max_positions(task.max_positions(), loaded.model.max_positions())
        exported = Exported(
            kind,
            task.cfg.source_lang,
            task.cfg.target_lang,
            factors,
            source_tag,
            quantization,
            loaded.head.shift,
            int(longest[0]),
            int(longest[1]),
            language_tokens={n: v for n, v in loaded.pretrained.items() if n in OF_LANGUAGES and kind == "ctranslate2"},
        )
        if kind != "transformers":  # transformers has its own names for these files
            _copy_data(task, folder, bool(factors))
            # Written last, because it records the checksums of all other files.
            exported.save(folder)
        readme = _readme(exported, "pieces" if task.segmenter("source") is None else "text")
        (folder / "README.md").write_text(readme, encoding="utf-8")
    return exported


def _write_fairseq(loaded: TrainedModel, folder: Path) -> None:
    """Write ``model.pt`` for stock fairseq."""
    plain, options = loaded.plain()
    write_checkpoint(folder / CHECKPOINT, checkpoint(plain.state_dict(), options, loaded.task))
    # After the model, because it records the model's checksum.
    save_head(loaded.head, folder / CHECKPOINT)


def _copy_data(task: Any, folder: Path, factors: bool) -> None:
    """Copy the dictionaries, the segmentations and, for source factors, the labels."""
    for side, lang in task.directory.langs.items():
        Path(dictionary_path(folder, lang)).write_bytes(read_bytes(dictionary_path(task.data_dir, lang)))
        if (segmenter := task.segmenter(side)) is not None:
            segmenter.save(os.path.join(folder, f"segmentation.{lang}"))
    if factors:
        task.parse_origins.check(task.directory.parsed_with("source"), task.data_dir)
        source = task.cfg.source_lang
        Path(labels_path(folder, source)).write_bytes(read_bytes(labels_path(task.data_dir, source)))


def _readme(exported: Exported, text: str) -> str:
    """The README: the folder's content, and how to translate with it. ``text``: the input, text or pieces."""
    source, target = exported.source_lang, exported.target_lang
    lines = [f"A translation model, {source} to {target}, of fairseq-syntax, for {exported.kind}."]
    if exported.kind == "transformers":
        lines += [
            "`AutoTokenizer.from_pretrained(FOLDER)` and `AutoModelForSeq2SeqLM.from_pretrained(FOLDER)` load it:",
            "`model.generate(**tokenizer(sentences, return_tensors='pt', padding=True))`, then "
            "`tokenizer.batch_decode(…, skip_special_tokens=True)`. No-break spaces and other white space "
            "are unknown to it: give `' '.join(sentence.split())`.",
        ]
        return "\n".join(lines) + "\n"
    parsed = ", which it parses for the labels" if exported.factors else ""
    tag = f", `{exported.source_tag}` before and after it" if exported.source_tag else ""
    if exported.kind == "fairseq":
        name = "fairseq"
        command = f"fairseq-interactive . --path {CHECKPOINT} -s {source} -t {target} --beam 4 < pieces"
    else:
        name, shape = "CTranslate2", FACTOR_MARK.join(["piece", *(column.upper() for column in exported.factors)])
        command = f'ctranslate2.Translator(".").translate_batch([["{shape}", …]], beam_size=4)[0].hypotheses[0]'
    lines += [
        f"`fairseq-syntax translate .` reads and writes {text}, a sentence a line{parsed}.",
        f"{name} alone takes pieces by `segmentation.{source}.*` (sentencepiece or subword-nmt){tag}:",
        f"`{command}`",
    ]
    return "\n".join(lines) + "\n"

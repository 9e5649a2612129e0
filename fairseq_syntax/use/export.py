"""Export of trained models to stock fairseq, CTranslate2 and transformers."""

from __future__ import annotations

import copy
import io
import os
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from fairseq import utils
from torch import Tensor

from fairseq_syntax.corpus.segmentation import Segmenter, load_segmenter
from fairseq_syntax.data.directory import segmentation_path
from fairseq_syntax.data.labels import labels_path
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.inference.alignment_head import AlignmentHead, load_head, save_head
from fairseq_syntax.runtime.files import as_data_error, make_folder, remove_folder
from fairseq_syntax.runtime.locks import locked
from fairseq_syntax.systems.sennrich_haddow import LabelEmbedding
from fairseq_syntax.use import to_transformers
from fairseq_syntax.use.exported import CHECKPOINT, FACTOR_MARK, Exported, factored
from fairseq_syntax.use.loading import load_models
from fairseq_syntax.use.plain import DISTIL, acts_at_inference, check_equal, checkpoint, plain_model, plain_options

TO_FAIRSEQ = f"--to fairseq; or {DISTIL}"


@dataclass
class Loaded:
    """A model in evaluation mode, its options, task and alignment head."""

    model: Any
    options: dict[str, Any]
    task: Any
    head: AlignmentHead


def load(path: str | os.PathLike[str], data: str | os.PathLike[str] | None = None) -> Loaded:
    """Load a checkpoint for export.

    Args:
        data: the binarized data (default: what the model was trained on)

    Raises:
        SyntaxDataError: no such checkpoint, or its data are gone
    """
    from omegaconf import OmegaConf

    (model,), cfg, task = load_models([path], data, device="cpu")
    options: Any = OmegaConf.to_container(cfg.model) if OmegaConf.is_config(cfg.model) else vars(cfg.model)
    return Loaded(model, dict(options), task, load_head(path, model))


def export(
    loaded: Loaded,
    kind: str,
    output: str | os.PathLike[str],
    *,
    quantization: str | None = None,
    segmentation: str | os.PathLike[str] | None = None,
    source_tag: str = "",
) -> Exported:
    """Write a folder with the model, its dictionaries and segmentation, and a README; whole or not at all.

    Args:
        kind: ``fairseq``, ``ctranslate2`` or ``transformers``
        output: the folder, which is made; what is there must be empty
        quantization: of CTranslate2's weights, one of ``exported.QUANTIZATIONS``; None leaves them in float32
        segmentation: a folder with ``segmentation.LANG.json`` (default: the data directory)
        source_tag: put before and after each source sentence by those who translate: for multi-task models

    Raises:
        SyntaxDataError: what the kind says cannot compute the model; the folder is not empty, or
            cannot be written; the segmentation that is named is not there, or something beside the model is damaged;
            or the data were parsed otherwise than those of the training
    """
    output = Path(os.path.realpath(output))
    if output == Path.cwd():
        raise SyntaxDataError("is the folder where this command runs", path=output, hint="name a folder below it")
    if quantization is not None and kind != "ctranslate2":
        raise SyntaxDataError("is for --to ctranslate2", option="--quantization")
    if kind == "transformers" and source_tag:
        raise SyntaxDataError("is not for --to transformers: Marian's tokenizer puts none", option="--source-tag")
    task = loaded.task
    if source_tag and source_tag not in task.source_dictionary.indices:
        message, hint = f"the source dictionary has no {source_tag}", "as in fairseq-syntax multitask --tags"
        raise SyntaxDataError(message, option="--source-tag", hint=hint)
    languages = task.cfg.source_lang, task.cfg.target_lang
    segmenters: list[Segmenter | None] = [task.source_segmenter, task.target_segmenter]
    if segmentation is not None:
        segmenters = [load_segmenter(segmentation_path(segmentation, lang)) for lang in languages]
    make_folder(output.parent)
    folder = output.with_name(f".{output.name}.part")
    with locked(output.with_name(f"{output.name}.export")):
        if output.exists() and (not output.is_dir() or any(output.iterdir())):
            message = "is there already, and not empty"
            raise SyntaxDataError(message, path=output, hint="give another folder, or empty it")
        remove_folder(folder)  # of a run that was killed
        try:
            with as_data_error(output):
                folder.mkdir()
                factors: list[str] = []
                if kind == "ctranslate2":
                    factors = write_ctranslate2(loaded, folder, quantization)
                elif kind == "fairseq":
                    write_fairseq(loaded, folder)
                else:
                    to_transformers.write(*_plain(loaded), task, segmenters, folder)
                longest = utils.resolve_max_positions(task.max_positions(), loaded.model.max_positions())
                exported = Exported(
                    kind,
                    *languages,
                    factors,
                    source_tag,
                    quantization,
                    loaded.head.shift,
                    int(longest[0]),
                    int(longest[1]),
                )
                if kind != "transformers":  # which has its own names for these
                    _copy_data(task, folder, segmenters, bool(factors))
                    exported.save(folder)
                text = "pieces" if segmenters[0] is None else "text"
                (folder / "README.md").write_text(_readme(exported, text), encoding="utf-8")
                folder.rename(output)
        except BaseException:
            remove_folder(folder)
            raise
    return exported


def _plain(loaded: Loaded) -> tuple[Any, dict[str, Any]]:
    """The model as one of fairseq's own, verified against the original, and its options."""
    model, options = plain_model(loaded.model, loaded.options, loaded.task)
    check_equal(loaded.model, lambda batch, _: model(**batch)[0], loaded.task, "the plain model")
    return model, options


def write_fairseq(loaded: Loaded, folder: Path) -> None:
    """Write ``model.pt`` for stock fairseq."""
    model, options = _plain(loaded)
    saved = io.BytesIO()  # to a full disk, torch.save has an error of its own
    torch.save(checkpoint(model, options, loaded.task), saved)
    (folder / CHECKPOINT).write_bytes(saved.getbuffer())
    save_head(loaded.head, folder / CHECKPOINT)


# ------------------------------------------------------------------------------------ CTranslate2


def write_ctranslate2(loaded: Loaded, folder: Path, quantization: str | None = None) -> list[str]:
    """Write a CTranslate2 model; returns the columns of the parse that it takes as source factors.

    The work is that of CTranslate2's own converter of fairseq models, which is told that the architecture is
    ``transformer``. Label embeddings in place of the last dimensions of a piece's are source factors that are
    concatenated.

    Raises:
        SyntaxDataError: CTranslate2 is not installed, or cannot compute the model
    """
    try:
        from ctranslate2.converters.converter import Converter
    except ImportError as error:
        hint = "pip install 'fairseq-syntax[export]'"
        raise SyntaxDataError("CTranslate2 is not installed", hint=hint) from error

    embedding = _label_embedding(loaded.model)
    if embedding is None:
        model, options = _plain(loaded)
        columns: list[str] = []
    else:
        model, options = loaded.model, plain_options("transformer", loaded.options)
        columns = list(embedding.embeddings)

    class Converted(Converter):
        def _load(self):  # quantizing changes it in place
            return _specification(model, options, loaded, embedding)

    Converted().convert(os.fspath(folder), force=True)  # with fewer bits, nobody could tell it from another model
    _check_scores(loaded, folder, columns)
    if quantization is not None:
        Converted().convert(os.fspath(folder), quantization=quantization, force=True)
    return columns


def _label_embedding(model: Any) -> LabelEmbedding | None:
    """The label embeddings of a model, if they are the only system that acts at inference."""
    systems = list(getattr(model.encoder, "systems", {}).values())
    embedding = next((system for system in systems if isinstance(system, LabelEmbedding)), None)
    if embedding is None:
        return None
    others = [s.name for s in systems if s is not embedding and acts_at_inference(s, model.encoder)]
    if others:
        raise SyntaxDataError(f"{' and '.join(others)} has no counterpart in CTranslate2", hint=DISTIL)
    if type(model.decoder).__module__.split(".")[0] != "fairseq":
        raise SyntaxDataError(f"{type(model.decoder).__name__} has no counterpart in CTranslate2", hint=DISTIL)
    return embedding


@torch.no_grad()
def _specification(model: Any, options: Mapping[str, Any], loaded: Loaded, embedding: LabelEmbedding | None) -> Any:
    """The model as a CTranslate2 specification."""
    from ctranslate2.converters import fairseq as converter
    from ctranslate2.specs import transformer_spec

    task, head = loaded.task, loaded.head
    heads = head.heads if head.head is None else 1
    args = Namespace(**{**options, "alignment_layer": head.layer, "alignment_heads": heads})
    if not hasattr(args, "encoder_attention_heads"):
        raise SyntaxDataError(f"CTranslate2 has no counterpart of {options['_name']}", hint=TO_FAIRSEQ)
    for option in ("cross_self_attention", "no_cross_attention", "adaptive_input", "adaptive_softmax_cutoff"):
        if getattr(args, option, None):
            raise SyntaxDataError(f"CTranslate2 has no counterpart of --{option.replace('_', '-')}", hint=TO_FAIRSEQ)
    try:
        spec = converter._get_model_spec(args)  # its checks of the options, too
    except ValueError as error:
        raise SyntaxDataError(f"CTranslate2 cannot take this model: {error}", hint=TO_FAIRSEQ) from None
    if embedding is not None:
        spec = transformer_spec.TransformerSpec.from_config(
            (args.encoder_layers, args.decoder_layers),
            args.encoder_attention_heads,
            pre_norm=args.encoder_normalize_before,
            activation=converter._SUPPORTED_ACTIVATIONS[args.activation_fn],
            alignment_layer=args.alignment_layer,
            alignment_heads=args.alignment_heads,
            layernorm_embedding=bool(args.layernorm_embedding),
            num_source_embeddings=1 + len(embedding.embeddings),
        )
    # the arrays below are the parameters themselves, which are quantized in place and whose heads change places
    model = copy.deepcopy(model)
    if head.head is not None:
        move_to_front(model.decoder.layers[head.layer].encoder_attn, head.head)
    converter.set_transformer_encoder(spec.encoder, model.encoder)
    converter.set_transformer_decoder(spec.decoder, model.decoder)
    spec.register_source_vocabulary(converter._get_vocab(task.source_dictionary))
    if embedding is not None:
        if marked := [s for s in task.source_dictionary.symbols if FACTOR_MARK in s]:
            raise SyntaxDataError(f"the piece {marked[0]!r} holds {FACTOR_MARK}, which marks factors in CTranslate2")
        spec.encoder.embeddings[0].weight = model.encoder.embed_tokens.weight[:, : embedding.kept].numpy()
        tables: list[tuple[str, Any]] = list(embedding.embeddings.items())
        for place, (column, labels) in zip(spec.encoder.embeddings[1:], tables):
            # The end of a sentence has the embedding of no label, and CTranslate2 looks for its symbols at the end.
            none = labels.weight[:1]
            place.weight = torch.cat([labels.weight, none, none, none]).numpy()
            spec.register_source_vocabulary([*task.source_labels[column], "<blank>", "<s>", "</s>"])
    spec.register_target_vocabulary(converter._get_vocab(task.target_dictionary))
    spec.config.decoder_start_token = spec.config.eos_token
    spec.config.add_source_eos = True
    return spec


@torch.no_grad()
def move_to_front(attention: Any, head: int) -> None:
    """Renumber an attention's heads so that ``head`` is the first, of which CTranslate2 reports the weights.

    What the attention computes stays as it was.
    """
    order = [head, *(h for h in range(attention.num_heads) if h != head)]
    rows = torch.arange(attention.embed_dim).view(attention.num_heads, -1)[order].flatten()
    for projection in (attention.q_proj, attention.k_proj, attention.v_proj):
        projection.weight.copy_(projection.weight[rows].clone())
        if projection.bias is not None:
            projection.bias.copy_(projection.bias[rows].clone())
    attention.out_proj.weight.copy_(attention.out_proj.weight[:, rows].clone())


def _check_scores(loaded: Loaded, folder: Path, columns: list[str]) -> None:
    """Compare CTranslate2's log-probabilities in float32 with the model's."""
    import ctranslate2

    task = loaded.task
    source, target = task.source_dictionary, task.target_dictionary
    translator = ctranslate2.Translator(os.fspath(folder), device="cpu", intra_threads=1)

    def scores_of(batch: dict[str, Any], targets: Tensor) -> Tensor:
        lengths = (batch["src_lengths"] - 1).tolist()
        labels = [(task.source_labels[c], getattr(batch["src_syntax"], c).split(lengths)) for c in columns]
        sources = []
        for number, (row, length) in enumerate(zip(batch["src_tokens"], lengths)):
            factors = [[names[i] for i in of_rows[number].tolist()] for names, of_rows in labels]
            sources.append(factored([source[i] for i in row[-1 - length : -1].tolist()], factors))
        results = translator.score_batch(sources, [[target[i] for i in row[:-1].tolist()] for row in targets])
        return torch.tensor([result.log_probs for result in results])

    check_equal(loaded.model, scores_of, task, "CTranslate2", columns)


# ------------------------------------------------------------------------------------ what lies beside the model


def _copy_data(task: Any, folder: Path, segmenters: Sequence[Segmenter | None], labels: bool) -> None:
    """Copy the dictionaries, the labels where wanted, and the segmentations."""
    languages = (task.cfg.source_lang, task.cfg.target_lang)
    for lang, segmenter in zip(languages, segmenters):
        _copy(os.path.join(task.data_dir, f"dict.{lang}.txt"), folder / f"dict.{lang}.txt")
        if segmenter is not None:
            segmenter.save(os.path.join(folder, f"segmentation.{lang}"))
    if labels:
        task.parse_origins.check(task.directory.parsed_with("source"), task.data_dir)
        _copy(labels_path(task.data_dir, languages[0]), labels_path(folder, languages[0]))


def _copy(source: str, target: str | os.PathLike[str]) -> None:
    try:
        content = Path(source).read_bytes()
    except OSError as error:
        raise SyntaxDataError(f"cannot be read: {error.strerror}", path=source) from error
    Path(target).write_bytes(content)


def _readme(exported: Exported, text: str) -> str:
    """What the folder is, and how to translate with it; ``text``: what is translated, text or pieces."""
    source, target = exported.source_lang, exported.target_lang
    tag = f", `{exported.source_tag}` before and after it" if exported.source_tag else ""
    lines = [f"A translation model, {source} to {target}, of fairseq-syntax, for {exported.kind}."]
    if exported.kind == "transformers":
        lines += [
            "`AutoTokenizer.from_pretrained(FOLDER)` and `AutoModelForSeq2SeqLM.from_pretrained(FOLDER)` load it: ",
            "`model.generate(**tokenizer(sentences, return_tensors='pt', padding=True))`, then "
            "`tokenizer.batch_decode(…, skip_special_tokens=True)`.",
        ]
    elif exported.kind == "fairseq":
        lines += [
            f"`fairseq-syntax translate .` reads and writes {text}, a sentence a line.",
            f"fairseq alone takes pieces by `segmentation.{source}.*` (sentencepiece or subword-nmt){tag}: ",
            f"`fairseq-interactive . --path {CHECKPOINT} -s {source} -t {target} --beam 4 < pieces`",
        ]
    else:
        shape = FACTOR_MARK.join(["piece", *(column.upper() for column in exported.factors)])
        lines += [
            f"`fairseq-syntax translate .` reads and writes {text}, a sentence a line"
            + (", which it parses for the labels." if exported.factors else "."),
            f"CTranslate2 alone takes pieces by `segmentation.{source}.*` (sentencepiece or subword-nmt){tag}: ",
            f'`ctranslate2.Translator(".").translate_batch([["{shape}", …]], beam_size=4)[0].hypotheses[0]`',
        ]
    return "\n".join(line.rstrip() for line in lines) + "\n"


# ------------------------------------------------------------------------------------ where export is not possible


def recipe(path: str | os.PathLike[str], loaded: Loaded) -> str:
    """The commands that train a plain student on this model's translations: sequence-level distillation."""
    source, target = loaded.task.cfg.source_lang, loaded.task.cfg.target_lang
    data = os.path.abspath(loaded.task.data_dir)

    def segment(lang: str) -> str:
        return f"fairseq-syntax segment --lang {lang} --model {data}/segmentation.{lang}.json"

    return f"""# Sequence-level distillation (Kim and Rush, 2016): a plain Transformer learns from this model's output,
# on the text that it was trained on and on any other that can be parsed. examples/distillation has it as a grid.
# train.{source}.conllu and valid.{source}.conllu are the parses, valid.{target} the validation data's own target.
mkdir -p distilled
fairseq-syntax translate {os.path.abspath(path)} --data {data} --input train.{source}.conllu \\
    --output distilled/train.{target}
{segment(source)} --input train.{source}.conllu valid.{source}.conllu --output distilled/pieces
{segment(target)} --input distilled/train.{target} valid.{target} --output distilled/pieces
fairseq-preprocess -s {source} -t {target} --trainpref distilled/pieces/train --validpref distilled/pieces/valid \\
    --srcdict {data}/dict.{source}.txt --tgtdict {data}/dict.{target}.txt --destdir distilled/bin
# With the sizes, the optimizer and the schedule of this model, and none of its options for syntax:
fairseq-train distilled/bin --arch transformer --save-dir distilled/student
fairseq-syntax export distilled/student/checkpoint_best.pt --segmentation {data} --to ctranslate2 --output exported"""

"""A trained model for those who translate with it: a folder for stock fairseq, CTranslate2 or transformers."""

from __future__ import annotations

import copy
import io
import os
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from fairseq import utils

from fairseq_syntax.corpus.segmentation import load_segmenter
from fairseq_syntax.corpus.store.flat import FlatSyntax
from fairseq_syntax.data.binarize import copy_segmentation
from fairseq_syntax.data.directory import segmentation_path
from fairseq_syntax.data.labels import labels_path
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.inference.alignment_head import AlignmentHead, load_head, save_head
from fairseq_syntax.runtime.files import as_data_error, locked, make_folder, remove_folder
from fairseq_syntax.systems.sennrich_haddow import LabelEmbedding
from fairseq_syntax.use.exported import CHECKPOINT, FACTOR_MARK, Exported, factored
from fairseq_syntax.use.loading import load_models
from fairseq_syntax.use.plain import (
    DISTIL,
    acts_at_inference,
    check_equal,
    checkpoint,
    plain_model,
    plain_options,
)

TO_FAIRSEQ = f"--to fairseq; or {DISTIL}"


@dataclass
class Loaded:
    """A checkpoint in evaluation mode, the options of its model, its task, and the head that its words align by."""

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
    options = cfg.model
    found = OmegaConf.to_container(options) if OmegaConf.is_config(options) else vars(options)
    return Loaded(model, dict(found), task, load_head(path, model))  # type: ignore[arg-type]


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
        raise SyntaxDataError("--quantization is for --to ctranslate2")
    if kind == "transformers" and source_tag:
        raise SyntaxDataError("--source-tag is for --to fairseq and --to ctranslate2: Marian's tokenizer puts none")
    task = loaded.task
    if source_tag and source_tag not in task.source_dictionary.indices:
        raise SyntaxDataError(
            f"the source dictionary has no {source_tag}", hint="as in fairseq-syntax multitask --tags"
        )
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
                if kind == "transformers":  # which takes part in it
                    _set_segmentation(task, segmentation)
                factors = WRITERS[kind](loaded, folder, quantization)
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
                )
                segmented = True
                if kind != "transformers":  # which has its own names for these
                    segmented = _copy_data(task, folder, segmentation, bool(factors))
                    exported.save(folder)
                (folder / "README.md").write_text(_readme(exported, segmented), encoding="utf-8")
                folder.rename(output)
        except BaseException:
            remove_folder(folder)
            raise
    return exported


def _plain(loaded: Loaded) -> tuple[Any, dict[str, Any]]:
    """The model as one of fairseq's own, compared with it, and its options."""
    model, options = plain_model(loaded.model, loaded.options, loaded.task)
    check_equal(loaded.model, lambda batch: model(**batch)[0], loaded.task, "the plain model")
    return model, options


def write_fairseq(loaded: Loaded, folder: Path, quantization: str | None = None) -> list[str]:
    """Write ``model.pt`` for stock fairseq. It has no factors, so the list is empty."""
    model, options = _plain(loaded)
    saved = io.BytesIO()  # to a full disk, torch.save has an error of its own
    torch.save(checkpoint(model, options, loaded.task), saved)
    (folder / CHECKPOINT).write_bytes(saved.getbuffer())
    save_head(loaded.head, folder / CHECKPOINT)
    return []


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
    """The label embeddings of a model whose encoder is plain but for them."""
    systems = list(getattr(model.encoder, "systems", {}).values())
    found = [s for s in systems if isinstance(s, LabelEmbedding)]
    if not found:
        return None
    others = [s.name for s in systems if s not in found and acts_at_inference(s, model.encoder)]
    if others:
        hint = DISTIL
        raise SyntaxDataError(f"{' and '.join(others)} has no counterpart in CTranslate2", hint=hint)
    if type(model.decoder).__module__.split(".")[0] != "fairseq":
        raise SyntaxDataError(f"{type(model.decoder).__name__} has no counterpart in CTranslate2", hint=DISTIL)
    return found[0]


@torch.no_grad()
def _specification(model: Any, options: Mapping[str, Any], loaded: Loaded, embedding: LabelEmbedding | None) -> Any:
    """The model in CTranslate2's terms."""
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


@torch.no_grad()
def _check_scores(loaded: Loaded, folder: Path, columns: list[str]) -> None:
    """Make sure that CTranslate2 gives random tokens the same probabilities, with weights in float32."""
    import ctranslate2

    task = loaded.task
    source, target = task.source_dictionary, task.target_dictionary
    generator = torch.Generator().manual_seed(1)
    translator = ctranslate2.Translator(os.fspath(folder), device="cpu", intra_threads=1)
    for length in (1, 7):
        src = torch.randint(4, max(5, len(source)), (length,), generator=generator)
        tgt = torch.randint(4, max(5, len(target)), (length,), generator=generator)
        labels = {c: torch.randint(0, len(task.source_labels[c]), (length,), generator=generator) for c in columns}
        names = [[task.source_labels[c][i] for i in ids.tolist()] for c, ids in labels.items()]
        pieces = factored([source[i] for i in src.tolist()], names)
        (found,) = translator.score_batch([pieces], [[target[i] for i in tgt.tolist()]])
        gold = torch.cat([tgt, torch.tensor([target.eos()])])
        inputs: dict[str, Any] = {
            "src_tokens": torch.cat([src, torch.tensor([source.eos()])])[None],
            "src_lengths": torch.tensor([length + 1]),
            "prev_output_tokens": torch.cat([gold[-1:], gold[:-1]])[None],
        }
        if columns:
            zeros = torch.zeros(length, dtype=torch.long)
            lengths = torch.tensor([length])
            inputs["src_syntax"] = FlatSyntax(
                n_pieces=lengths,
                n_words=lengths,
                pieces=torch.ones_like(zeros),
                head=zeros,
                deprel=labels.get("deprel", zeros),
                upos=labels.get("upos", zeros),
                xpos=labels.get("xpos", zeros),
                n_tree_arcs=None,
            )
        logits = loaded.model(**inputs)[0][0].float()
        expected = logits.log_softmax(-1)[torch.arange(length + 1), gold]
        difference = (torch.tensor(found.log_probs) - expected).abs().max().item()
        if not difference < 1e-3:
            raise SyntaxDataError(
                f"CTranslate2 computes something else: log-probabilities differ by {difference:.2g}", hint=DISTIL
            )


def write_transformers(loaded: Loaded, folder: Path, quantization: str | None = None) -> list[str]:
    """Write an FSMT model and its tokenizer, as :mod:`.to_transformers` says. It has no factors."""
    from fairseq_syntax.use import to_transformers

    model, options = _plain(loaded)
    to_transformers.write(model, options, loaded.task, folder)
    return []


WRITERS = {"fairseq": write_fairseq, "ctranslate2": write_ctranslate2, "transformers": write_transformers}


# ------------------------------------------------------------------------------------ what lies beside the model


def _copy_data(task: Any, folder: Path, segmentation: str | os.PathLike[str] | None, labels: bool) -> bool:
    """Copy the dictionaries, the labels where wanted, and the segmentation; whether the source has one."""
    languages = (task.cfg.source_lang, task.cfg.target_lang)
    beside = os.fspath(segmentation or task.data_dir)
    for lang in languages:
        _copy(os.path.join(task.data_dir, f"dict.{lang}.txt"), folder / f"dict.{lang}.txt")
        path = segmentation_path(beside, lang)
        if segmentation is not None and not os.path.exists(path):
            raise SyntaxDataError("there is no such segmentation", path=path, hint="--segmentation is a folder with it")
        copy_segmentation(beside, os.fspath(folder), lang)
    if labels:
        task.parse_origins.check(task.directory.parsed_with("source"), task.data_dir)
        _copy(labels_path(task.data_dir, languages[0]), labels_path(folder, languages[0]))
    return Path(segmentation_path(folder, languages[0])).exists()


def _set_segmentation(task: Any, folder: str | os.PathLike[str] | None) -> None:
    """Let the task cut text by the segmentation of a folder, where one is named."""
    if folder is not None:
        task.source_segmenter, task.target_segmenter = (
            load_segmenter(segmentation_path(folder, lang)) for lang in (task.cfg.source_lang, task.cfg.target_lang)
        )


def _copy(source: str, target: str | os.PathLike[str]) -> None:
    try:
        content = Path(source).read_bytes()
    except OSError as error:
        raise SyntaxDataError(f"cannot be read: {error.strerror}", path=source) from error
    Path(target).write_bytes(content)


def _readme(exported: Exported, segmented: bool) -> str:
    """Four lines: what it is, and how to translate with it."""
    source, target = exported.source_lang, exported.target_lang
    tag = f", `{exported.source_tag}` before and after it" if exported.source_tag else ""
    text = "text" if segmented else "pieces"
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

"""The options of ``--task syntax_translation``."""

# No postponed annotations: fairseq generates options from the types of the configuration, which must not be strings.

from dataclasses import dataclass, field
from typing import Optional

from fairseq.dataclass import ChoiceEnum
from fairseq.tasks.translation import TranslationConfig
from omegaconf import II

from fairseq_syntax import systems  # noqa: F401  (their searches add options to the task)
from fairseq_syntax.model.options import option
from fairseq_syntax.model.task import SEARCHES


@dataclass
class SyntaxTranslationConfig(*(search.config for search in SEARCHES), TranslationConfig):  # type: ignore[misc]
    """The options of the task in addition to fairseq's, including those of the systems' searches."""

    syntax_input: ChoiceEnum(["auto", "text", "conllu"]) = field(  # type: ignore[valid-type]
        default="auto",
        metadata={
            "help": "what fairseq-interactive reads: raw text, CoNLL-U sentences each ended by a blank line, or "
            "(auto) one line per input, raw or a CoNLL-U parse with its rows joined by \\n"
        },
    )
    syntax_parser: str = option(
        "",
        "parser for raw text in fairseq-interactive, as in fairseq-syntax parse",
        shown="that of the training text, with its options",
    )
    syntax_parser_lang: str = option("", "language of the parser's models", shown="as for the training text")
    syntax_parser_dir: str = option("", "directory of the parser's models (as --model-dir of parse)", shown="")
    missing_parse: ChoiceEnum(["error", "neutral"]) = field(  # type: ignore[valid-type]
        default="error",
        metadata={
            "help": "what to do with raw input that cannot be parsed (no parser, another language): stop, or "
            "translate it in each system's neutral form"
        },
    )
    search_rules: ChoiceEnum(["fairseq", "transformers"]) = field(  # type: ignore[valid-type]
        default="fairseq",
        metadata={
            "help": "when a beam search ends: fairseq, with as many translations as the beam is wide; transformers, as "
            "generate in Hugging Face's library, when no unfinished one can be better (both with --min-len 0 if an "
            "empty translation is allowed)"
        },
    )
    # fairseq passes a task only its own group of options, so those of other groups are references. If a task is created
    # without the other groups, these options are the strings of the references (``refusals.is_set``).
    seed: int = II("common.seed")
    cpu: bool = II("common.cpu")
    fp16: bool = II("common.fp16")
    memory_efficient_fp16: bool = II("common.memory_efficient_fp16")
    fp16_no_flatten_grads: bool = II("common.fp16_no_flatten_grads")
    bf16: bool = II("common.bf16")
    memory_efficient_bf16: bool = II("common.memory_efficient_bf16")
    tpu: bool = II("common.tpu")
    post_process: Optional[str] = II("common_eval.post_process")  # noqa: UP045  (as fairseq reads it)
    save_dir: str = II("checkpoint.save_dir")
    restore_file: str = II("checkpoint.restore_file")
    continue_once: Optional[str] = II("checkpoint.continue_once")  # noqa: UP045
    no_save: bool = II("checkpoint.no_save")
    best_checkpoint_metric: str = II("checkpoint.best_checkpoint_metric")
    maximize_best_checkpoint_metric: bool = II("checkpoint.maximize_best_checkpoint_metric")
    distributed_rank: int = II("distributed_training.distributed_rank")
    num_shards: int = II("dataset.num_shards")
    shard_id: int = II("dataset.shard_id")
    replace_unk: Optional[str] = II("generation.replace_unk")  # noqa: UP045
    update_freq: list[int] = II("optimization.update_freq")  # noqa: RUF009
    parse_dropout: float = option(
        0.0,
        "in training, the probability of removing a sentence's parse, drawn anew in each epoch; prepares "
        "a model for --missing-parse neutral",
        low=0,
        high=1,
    )
    fill_batches: bool = field(
        default=False,
        metadata={
            "help": "fill training batches up to --max-tokens: by sentences alike in the longer of source and target "
            "(fairseq: in the source), and any number of them (fairseq: --required-batch-size-multiple, 8)"
        },
    )
    alignment_head: str = option(
        "",
        "for --print-alignment: what fairseq-syntax align --choose wrote, a file for each model of --path, with colons",
        shown="the layer and heads that fairseq takes",
    )

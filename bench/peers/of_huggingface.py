"""Train and search with Hugging Face's transformers: Marian's Transformer, ``Seq2SeqTrainer`` and ``generate``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import meter
import torch
from transformers import MarianConfig, MarianMTModel, Seq2SeqTrainer, Seq2SeqTrainingArguments

SENTENCES = 92  # of a batch: the trainer has no batches of tokens
SPECIAL = ("<unk>", "<pad>", "</s>")
UNKNOWN, PADDING, END = range(3)
LEFT_OUT = -100  # the label that losses ignore


def lines(job: meter.Job, name: str) -> list[str]:
    """The lines of a file of the text."""
    return Path(job.path(name)).read_text(encoding="utf-8").split("\n")[:-1]


def encoded(job: meter.Job, name: str) -> list[list[int]]:
    """A file of pieces as numbers, with the end of the sentence."""
    number = {piece: at for at, piece in enumerate(lines(job, "vocabulary"), len(SPECIAL))}
    return [[*(number.get(piece, UNKNOWN) for piece in line.split()), END] for line in lines(job, name)]


def padded(rows: list[list[int]], value: int) -> torch.Tensor:
    """Rows of one length, [B, T]."""
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], True, value)


def new_model(pieces: int) -> MarianMTModel:
    """The plain Transformer of transformers' classes for translation."""
    sides: dict[str, Any] = {"attn_implementation": "sdpa"}
    for side in ("encoder", "decoder"):
        sides |= {f"{side}_layers": meter.LAYERS, f"{side}_attention_heads": meter.HEADS}
        sides |= {f"{side}_ffn_dim": meter.INNER}
    config = MarianConfig(
        vocab_size=pieces + len(SPECIAL), d_model=meter.WIDTH, dropout=meter.DROPOUT, attention_dropout=0.0,
        activation_dropout=0.0, activation_function="relu", scale_embedding=True, share_encoder_decoder_embeddings=True,
        tie_word_embeddings=True, pad_token_id=PADDING, eos_token_id=END, forced_eos_token_id=END,
        decoder_start_token_id=PADDING, **sides,
    )  # fmt: skip
    return MarianMTModel(config)


def train(job: meter.Job) -> dict[str, Any]:
    """Train, in batches of sentences of about the same length."""
    rows = zip(encoded(job, "train.en"), encoded(job, "train.de"))
    examples = [{"input_ids": source, "labels": target} for source, target in rows]
    torch.manual_seed(job.seed)
    model, training = new_model(len(lines(job, "vocabulary"))), meter.Training(job)

    def collate(batch: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
        source = padded([example["input_ids"] for example in batch], PADDING)
        labels = padded([example["labels"] for example in batch], LEFT_OUT)
        decoder_input = model.prepare_decoder_input_ids_from_labels(labels)
        mask = (source != PADDING).long()
        return {"input_ids": source, "attention_mask": mask, "labels": labels, "decoder_input_ids": decoder_input}

    arguments = Seq2SeqTrainingArguments(
        output_dir=job.folder, max_steps=job.warmup + job.updates, per_device_train_batch_size=SENTENCES,
        train_sampling_strategy="group_by_length", learning_rate=meter.LEARNING_RATE, lr_scheduler_type="constant",
        label_smoothing_factor=meter.SMOOTHING, max_grad_norm=0.0, weight_decay=0.0, logging_strategy="no",
        save_strategy="no", report_to="none", use_cpu=True, dataloader_num_workers=0, dataloader_pin_memory=False,
        disable_tqdm=True, seed=job.seed,
    )  # fmt: skip
    trainer = Seq2SeqTrainer(model=model, args=arguments, train_dataset=examples, data_collator=collate)
    meter.before(
        Seq2SeqTrainer, "training_step", lambda trainer, model, inputs, *_: training.count(inputs["labels"], LEFT_OUT)
    )
    trainer.train()
    trainer.save_model()
    return training.report()


def search(job: meter.Job) -> dict[str, Any]:
    """Translate batches of sentences in the order of the file."""
    sentences, lengths = encoded(job, "test.en"), []
    model = MarianMTModel.from_pretrained(job.folder, attn_implementation="sdpa").eval()
    options = {"num_beams": meter.BEAM, "min_new_tokens": job.steps, "max_new_tokens": job.steps}

    def run() -> None:
        for begin in range(0, len(sentences), meter.SENTENCES):
            source = padded(sentences[begin : begin + meter.SENTENCES], PADDING)
            with torch.inference_mode():
                best = model.generate(input_ids=source, attention_mask=(source != PADDING).long(), **options)
            lengths.extend([best.size(1) - 1] * len(source))  # all begin with the start symbol

    measured = meter.searching(run)
    meter.check(lengths, job.steps)
    return measured


if __name__ == "__main__":
    meter.run(train, search, "transformers")

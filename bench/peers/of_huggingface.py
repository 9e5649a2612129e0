"""Train and search with Hugging Face's transformers: Marian's Transformer, ``Seq2SeqTrainer`` and ``generate``."""

from __future__ import annotations

from typing import Any

import meter
import torch
from transformers import MarianConfig, MarianMTModel, Seq2SeqTrainer, Seq2SeqTrainingArguments

BATCH = 100  # sentences: the trainer has no batches of tokens
LEFT_OUT = -100  # the label that losses ignore


def pieces(job: meter.Job) -> dict[str, int]:
    """Number of each piece, and of the special symbols."""
    with open(job.path("pieces.txt"), encoding="utf-8") as file:
        return {line.rstrip("\n"): number for number, line in enumerate(file)}


def encoded(job: meter.Job, name: str, number: dict[str, int]) -> list[list[int]]:
    """A file of pieces as numbers, with the end of the sentence."""
    unknown, end = number["<unk>"], number["</s>"]
    with open(job.path(name), encoding="utf-8") as file:
        return [[*(number.get(piece, unknown) for piece in line.split()), end] for line in file]


def padded(rows: list[list[int]], value: int) -> torch.Tensor:
    """Rows of one length, [B, T]."""
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], True, value)


def new_model(number: dict[str, int]) -> MarianMTModel:
    """The plain Transformer of transformers' classes for translation."""
    sides: dict[str, Any] = {"attn_implementation": "sdpa"}
    for side in ("encoder", "decoder"):
        sides |= {f"{side}_layers": meter.LAYERS, f"{side}_ffn_dim": meter.INNER}
        sides |= {f"{side}_attention_heads": meter.HEADS}
    config = MarianConfig(
        vocab_size=len(number),
        d_model=meter.WIDTH,
        dropout=meter.DROPOUT,
        attention_dropout=0.0,
        activation_dropout=0.0,
        activation_function="relu",
        scale_embedding=True,
        share_encoder_decoder_embeddings=True,
        tie_word_embeddings=True,
        pad_token_id=number["<pad>"],
        eos_token_id=number["</s>"],
        forced_eos_token_id=number["</s>"],
        decoder_start_token_id=number["<pad>"],
        **sides,
    )
    return MarianMTModel(config)


def train(job: meter.Job) -> dict[str, Any]:
    """Train, in batches of sentences of about the same length."""
    number = pieces(job)
    padding = number["<pad>"]
    rows = zip(encoded(job, "train.en", number), encoded(job, "train.de", number))
    examples = [{"input_ids": source, "labels": target} for source, target in rows]
    torch.manual_seed(job.seed)
    model, training = new_model(number), meter.Training(job)

    class Counted(Seq2SeqTrainer):
        def training_step(self, model: torch.nn.Module, inputs: dict[str, torch.Tensor], *args: Any) -> torch.Tensor:
            training.count(inputs["labels"], LEFT_OUT)
            return super().training_step(model, inputs, *args)

    def collate(batch: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
        source = padded([example["input_ids"] for example in batch], padding)
        labels = padded([example["labels"] for example in batch], LEFT_OUT)
        decoder_input = model.prepare_decoder_input_ids_from_labels(labels)
        mask = (source != padding).long()
        return {"input_ids": source, "attention_mask": mask, "labels": labels, "decoder_input_ids": decoder_input}

    arguments = Seq2SeqTrainingArguments(
        output_dir=job.folder,
        max_steps=job.warmup + job.updates,
        per_device_train_batch_size=BATCH,
        train_sampling_strategy="group_by_length",
        learning_rate=meter.LEARNING_RATE,
        lr_scheduler_type="constant",
        label_smoothing_factor=meter.SMOOTHING,
        max_grad_norm=0.0,
        weight_decay=0.0,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        dataloader_num_workers=0,
        dataloader_pin_memory=False,
        disable_tqdm=True,
        seed=job.seed,
    )
    trainer = Counted(model=model, args=arguments, train_dataset=examples, data_collator=collate)
    trainer.train()
    trainer.save_model()
    return training.report()


def search(job: meter.Job) -> dict[str, Any]:
    """Translate batches of sentences in the order of the file."""
    number = pieces(job)
    padding = number["<pad>"]
    sentences = encoded(job, "test.en", number)
    model = MarianMTModel.from_pretrained(job.folder, attn_implementation="sdpa").eval()

    def run() -> None:
        for begin in range(0, len(sentences), meter.SENTENCES):
            source = padded(sentences[begin : begin + meter.SENTENCES], padding)
            lengths = {"min_new_tokens": job.length, "max_new_tokens": job.length}
            mask = (source != padding).long()
            with torch.inference_mode():
                model.generate(input_ids=source, attention_mask=mask, num_beams=meter.BEAM, **lengths)

    return meter.searching(run)


if __name__ == "__main__":
    given = meter.Job.given()
    meter.tell((search if given.work == "search" else train)(given), "transformers")

"""Train and search with eole's commands ``train`` and ``predict``."""

from __future__ import annotations

from typing import Any

import meter
from eole.bin.run.train import train
from eole.config.run import PredictConfig, TrainConfig
from eole.inference_engine import InferenceEnginePY
from eole.trainer import BatchProcessor


def config(job: meter.Job) -> TrainConfig:
    """The configuration, by eole's recipe of a Transformer; what its defaults compute besides is switched off."""
    model = {
        "architecture": "transformer",
        "layers": meter.LAYERS,
        "hidden_size": meter.WIDTH,
        "transformer_ff": meter.INNER,
        "heads": meter.HEADS,
        "share_embeddings": True,
        "share_decoder_embeddings": True,
        "add_qkvbias": True,
        "add_ffnbias": True,
        "embeddings": {
            "word_vec_size": meter.WIDTH,
            "position_encoding": True,
            "position_encoding_type": "SinusoidalInterleaved",
        },
    }
    training = {
        "model_path": job.folder,
        "batch_type": "tokens",
        "batch_size": 1800,
        "bucket_size": 10_000,
        "num_workers": 0,
        "normalization": "tokens",
        "optim": "adam",
        "learning_rate": meter.LEARNING_RATE,
        "max_grad_norm": 0,
        "dropout": [meter.DROPOUT],
        "attention_dropout": [0.0],
        "label_smoothing": meter.SMOOTHING,
        "param_init_method": "xavier_uniform",
        "param_init": 0.0,
        "log_attention_entropy": False,
        "train_steps": job.warmup + job.updates,
        "save_checkpoint_steps": job.warmup + job.updates,
        "valid_steps": 1_000_000,
        "compute_dtype": "fp32",
        "world_size": 1,
        "gpu_ranks": [],
    }
    texts = {"path_src": job.path("train.en"), "path_tgt": job.path("train.de"), "transforms": [], "weight": 1}
    return TrainConfig(
        data={"corpus_1": texts},
        src_vocab=job.path("vocabulary"),
        tgt_vocab=job.path("vocabulary"),
        share_vocab=True,
        transforms=[],
        seed=job.seed,
        report_every=1_000_000,
        model=model,
        training=training,
    )


def search(job: meter.Job) -> dict[str, Any]:
    """Translate as ``eole predict`` does."""
    given = PredictConfig(
        model_path=[job.folder],
        src=job.path("test.en"),
        output=str(job.model / "translations"),
        beam_size=meter.BEAM,
        batch_size=meter.SENTENCES,
        batch_type="sents",
        min_length=job.length,
        max_length=job.length,
        max_length_ratio=0,
        compute_dtype="fp32",
        world_size=1,
        gpu_ranks=[],
    )
    engine = InferenceEnginePY(given)
    measured = meter.searching(engine.infer_file)
    meter.check(job.model / "translations", job.length)
    return measured


def main() -> None:
    """The job of this process."""
    job = meter.Job.given()
    if job.work == "search":
        meter.tell(search(job), "eole")
        return
    training, process = meter.Training(job), BatchProcessor.process_batch

    def counted(self: BatchProcessor, batch: dict[str, Any], *args: Any) -> bool:
        training.count(batch["tgt"][:, 1:], self.train_loss.padding_idx)
        return process(self, batch, *args)

    BatchProcessor.process_batch = counted
    train(config(job))
    meter.tell(training.report(), "eole")


if __name__ == "__main__":
    main()

"""Train and search with eole's commands ``train`` and ``predict``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import meter
from eole.bin.run import train as command
from eole.config.run import PredictConfig, TrainConfig
from eole.inference_engine import InferenceEnginePY
from eole.trainer import BatchProcessor

TOKENS = 2360  # of a batch, with padding
ON_CPU = {"compute_dtype": "fp32", "world_size": 1, "gpu_ranks": []}


def train(job: meter.Job) -> dict[str, Any]:
    """By eole's recipe of a Transformer; what its defaults compute besides is switched off."""
    positions = {"position_encoding": True, "position_encoding_type": "SinusoidalInterleaved"}
    config = TrainConfig(
        data={"corpus": {"path_src": job.path("train.en"), "path_tgt": job.path("train.de"), "transforms": []}},
        src_vocab=job.path("vocabulary"), tgt_vocab=job.path("vocabulary"), share_vocab=True, transforms=[],
        seed=job.seed, report_every=1_000_000,
        model={
            "architecture": "transformer", "layers": meter.LAYERS, "hidden_size": meter.WIDTH,
            "transformer_ff": meter.INNER, "heads": meter.HEADS, "share_embeddings": True,
            # Without its being named, encoders are trained without this bias and searched with one of any values.
            "add_final_linear_bias": True,
            "share_decoder_embeddings": True, "add_qkvbias": True, "add_ffnbias": True,
            "embeddings": {"word_vec_size": meter.WIDTH, **positions},
        },
        training={
            "model_path": job.folder, "batch_type": "tokens", "batch_size": TOKENS, "bucket_size": 10_000,
            "num_workers": 0, "normalization": "tokens", "optim": "adam", "learning_rate": meter.LEARNING_RATE,
            "max_grad_norm": 0, "dropout": [meter.DROPOUT], "attention_dropout": [0.0],
            "label_smoothing": meter.SMOOTHING, "param_init_method": "xavier_uniform", "param_init": 0.0,
            "log_attention_entropy": False, "train_steps": job.warmup + job.updates,
            "save_checkpoint_steps": job.warmup + job.updates, "valid_steps": 1_000_000, **ON_CPU,
        },
    )  # fmt: skip
    training = meter.Training(job)
    meter.before(
        BatchProcessor,
        "process_batch",
        lambda trainer, batch, *_: training.count(batch["tgt"][:, 1:], trainer.train_loss.padding_idx),
    )
    command.train(config)
    return training.report()


def search(job: meter.Job) -> dict[str, Any]:
    """Translate the test set."""
    output = Path(job.output("translations"))
    config = PredictConfig(
        model_path=[job.folder], src=job.path("test.en"), output=str(output), beam_size=meter.BEAM,
        batch_size=meter.SENTENCES, batch_type="sents", min_length=job.steps, max_length=job.steps, max_length_ratio=0,
        **ON_CPU,
    )  # fmt: skip
    measured = meter.searching(InferenceEnginePY(config).infer_file)
    meter.check([len(line.split()) for line in output.read_text(encoding="utf-8").splitlines()], job.steps)
    return measured


if __name__ == "__main__":
    meter.run(train, search, "eole")

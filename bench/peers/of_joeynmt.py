"""Train and search with Joey NMT's commands ``train`` and ``test``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import meter
from joeynmt.prediction import test
from joeynmt.training import TrainManager, train


def config(job: meter.Job) -> dict[str, Any]:
    """The configuration, by Joey NMT's own of a Transformer."""
    side = {"level": "word", "voc_file": job.path("pieces.txt"), "max_length": 1000}
    layers = {
        "type": "transformer",
        "num_layers": meter.LAYERS,
        "num_heads": meter.HEADS,
        "embeddings": {"embedding_dim": meter.WIDTH, "scale": True, "dropout": meter.DROPOUT},
        "hidden_size": meter.WIDTH,
        "ff_size": meter.INNER,
        "dropout": meter.DROPOUT,
        "layer_norm": "post",
    }
    return {
        "name": "peers",
        "model_dir": job.folder,
        "use_cuda": False,
        "num_workers": 0,
        "random_seed": job.seed,
        "data": {
            "train": job.path("train"),
            "dev": job.path("test"),
            "test": job.path("test"),
            "dataset_type": "plain",
            "src": {"lang": "en", **side},
            "trg": {"lang": "de", **side},
        },
        "model": {
            "initializer": "xavier_uniform",
            "tied_embeddings": True,
            "tied_softmax": True,
            "encoder": layers,
            "decoder": layers,
        },
        "training": {
            "optimizer": "adam",
            "normalization": "tokens",
            "learning_rate": meter.LEARNING_RATE,
            "scheduling": "noam",  # its constant rate needs an older PyTorch
            "label_smoothing": meter.SMOOTHING,
            "batch_type": "token",
            "batch_size": 2400,
            "epochs": 1000,
            "updates": job.warmup + job.updates,
            "logging_freq": 1_000_000,
            "validation_freq": 1_000_000,
        },
        "testing": {
            "load_model": f"{job.folder}/latest.ckpt" if job.work == "search" else None,
            "beam_size": meter.BEAM,
            "beam_alpha": 1.0,
            "batch_type": "sentence",
            "batch_size": meter.SENTENCES,
            "min_output_length": job.length,
            "max_output_length": job.length,
            "eval_metrics": [],
        },
    }


def main() -> None:
    """The job of this process."""
    job = meter.Job.given()
    if job.work == "search":
        given = config(job)
        del given["data"]["dev"]
        measured = meter.searching(lambda: test(given, output_path=str(job.model / "translations")))
        meter.check(job.model / "translations.test", job.length)
        meter.tell(measured, "joeynmt")
        return
    Path(job.folder).mkdir(parents=True, exist_ok=True)
    training, step = meter.Training(job), TrainManager._train_step

    def counted(self: TrainManager, batch: Any) -> Any:
        training.count(batch.trg, self.model.pad_index)
        return step(self, batch)

    TrainManager._train_step = counted
    train(rank=0, world_size=0, cfg=config(job), skip_test=True)
    meter.tell(training.report(), "joeynmt")


if __name__ == "__main__":
    main()

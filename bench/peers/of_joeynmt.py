"""Train and search with Joey NMT's commands ``train`` and ``test``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import meter
from joeynmt import prediction
from joeynmt import training as command

TOKENS = 3150  # of a batch, with padding, on the longer side; it does not sort sentences by their lengths


def config(job: meter.Job) -> dict[str, Any]:
    """The configuration, by Joey NMT's own of a Transformer."""
    side = {"level": "word", "voc_file": job.path("vocabulary"), "max_length": 1000}
    layers = {
        "type": "transformer", "num_layers": meter.LAYERS, "num_heads": meter.HEADS, "hidden_size": meter.WIDTH,
        "embeddings": {"embedding_dim": meter.WIDTH, "scale": True, "dropout": meter.DROPOUT},
        "ff_size": meter.INNER, "dropout": meter.DROPOUT, "layer_norm": "post",
    }  # fmt: skip
    # A constant learning rate needs an older PyTorch.
    training = {
        "optimizer": "adam", "learning_rate": meter.LEARNING_RATE, "scheduling": "noam", "normalization": "tokens",
        "label_smoothing": meter.SMOOTHING, "batch_type": "token", "batch_size": TOKENS, "epochs": 1000,
        "updates": job.warmup + job.updates, "logging_freq": 1_000_000, "validation_freq": 1_000_000,
    }  # fmt: skip
    testing = {
        "load_model": job.output("latest.ckpt") if job.work == "search" else None, "beam_size": meter.BEAM,
        "beam_alpha": 1.0, "batch_type": "sentence", "batch_size": meter.SENTENCES, "max_output_length": job.steps,
        "eval_metrics": [],
    }  # fmt: skip
    return {
        "name": "peers", "model_dir": job.folder, "use_cuda": False, "num_workers": 0, "random_seed": job.seed,
        "data": {
            "train": job.path("train"), "test": job.path("test"), "dataset_type": "plain",
            "src": {"lang": "en", **side}, "trg": {"lang": "de", **side},
        },
        "model": {
            "initializer": "xavier_uniform", "tied_embeddings": True, "tied_softmax": True,
            "encoder": layers, "decoder": layers,
        },
        "training": training,
        "testing": testing,
    }  # fmt: skip


def train(job: meter.Job) -> dict[str, Any]:
    """Train."""
    given, training = config(job), meter.Training(job)
    given["data"]["dev"] = job.path("test")
    meter.before(
        command.TrainManager,
        "_train_step",
        lambda trainer, batch: training.count(batch.trg, trainer.model.pad_index),
    )
    command.train(rank=0, world_size=0, cfg=given, skip_test=True)
    return training.report()


def search(job: meter.Job) -> dict[str, Any]:
    """Translate the test set."""
    output = job.output("translations")
    # Its option for the least length does not arrive at the search.
    prediction.search = partial(prediction.search, min_output_length=job.steps)
    measured = meter.searching(lambda: prediction.test(config(job), output_path=output))
    translations = Path(f"{output}.test").read_text(encoding="utf-8").splitlines()
    meter.check([len(line.split()) for line in translations], job.steps)
    return measured


if __name__ == "__main__":
    meter.run(train, search, "joeynmt")

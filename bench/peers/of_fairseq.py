"""Train and search with fairseq's commands: its own Transformer, or this package's systems."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import meter
from fairseq.sequence_generator import SequenceGenerator
from fairseq.tasks.fairseq_task import FairseqTask
from fairseq_cli import generate
from fairseq_cli.train import cli_main

TOKENS = 2400  # of a batch, with padding, on the longer side
OURS = "--task syntax_translation --criterion chunked_cross_entropy"
SYSTEMS = {
    "fairseq": "--task translation --criterion label_smoothed_cross_entropy --arch transformer",
    "plain": f"{OURS} --arch transformer",
    "pascal": f"{OURS} --arch pascal_transformer --pascal-heads 2",
    "supervised_heads": f"{OURS} --arch supervised_head_transformer --child-weight 0",
}
SIZES = " ".join(
    f"--{side}-layers={meter.LAYERS} --{side}-attention-heads={meter.HEADS} --{side}-embed-dim={meter.WIDTH} "
    f"--{side}-ffn-embed-dim={meter.INNER}"
    for side in ("encoder", "decoder")
)


def command(job: meter.Job, options: str) -> list[str]:
    """The words of a command, the same for training and search but for some options."""
    package = Path(__file__).resolve().parents[2] / "fairseq_syntax"
    user = [] if job.system == "fairseq" else [f"--user-dir={package}"]
    common = [job.path("bin"), "--cpu", "--num-workers=0", f"--seed={job.seed}", "--log-format=none", *user]
    return [*sys.argv[:1], *common, *options.split()]


def train(job: meter.Job) -> dict[str, Any]:
    """``fairseq-train``."""
    options = f"{SYSTEMS[job.system]} {SIZES} --share-all-embeddings --dropout={meter.DROPOUT} --max-tokens={TOKENS}"
    options += f" --label-smoothing={meter.SMOOTHING} --optimizer=adam --lr={meter.LEARNING_RATE} --clip-norm=0"
    options += f" --max-update={job.warmup + job.updates} --save-dir={job.folder} --no-epoch-checkpoints"
    sys.argv = command(job, f"{options} --disable-validation")
    training = meter.Training(job)
    meter.before(FairseqTask, "train_step", lambda task, sample, *_, **__: training.count(sample["target"], 1))
    cli_main()
    return training.report()


def search(job: meter.Job) -> dict[str, Any]:
    """``fairseq-generate``."""
    length = job.steps - 1  # and the end
    options = f"{SYSTEMS[job.system].partition(' --criterion')[0]} --path={job.output('checkpoint_last.pt')}"
    options += f" --gen-subset=test --beam={meter.BEAM} --batch-size={meter.SENTENCES}"
    sys.argv = command(job, f"{options} --min-len={length} --max-len-a=0 --max-len-b={length}")
    lengths: list[int] = []
    finalize = SequenceGenerator.generate

    def kept(*args: Any, **named: Any) -> Any:
        translations = finalize(*args, **named)
        lengths.extend(len(best["tokens"]) for best, *_ in translations)
        return translations

    SequenceGenerator.generate = kept
    measured = meter.searching(generate.cli_main)
    meter.check(lengths, job.steps)
    return measured


if __name__ == "__main__":
    meter.run(train, search, "fairseq-fixed" if meter.Job.given().system == "fairseq" else "fairseq-syntax")

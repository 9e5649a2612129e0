"""Train and search with fairseq's commands: its own Transformer, or this package's systems."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import meter
from fairseq.tasks.fairseq_task import FairseqTask
from fairseq_cli import generate, train

ROOT = Path(__file__).resolve().parents[2]
OURS = "--task syntax_translation --criterion chunked_cross_entropy"
SYSTEMS = {
    "fairseq": "--task translation --criterion label_smoothed_cross_entropy --arch transformer",
    "plain": f"{OURS} --arch transformer",
    "pascal": f"{OURS} --arch pascal_transformer --pascal-heads 2",
    "supervised_heads": f"{OURS} --arch supervised_head_transformer --child-weight 0",
}
SIZES = [
    f"--{side}-{name}={value}"
    for side in ("encoder", "decoder")
    for name, value in (
        ("layers", meter.LAYERS),
        ("embed-dim", meter.WIDTH),
        ("ffn-embed-dim", meter.INNER),
        ("attention-heads", meter.HEADS),
    )
]


def command(job: meter.Job) -> list[str]:
    """The options of ``fairseq-train`` or ``fairseq-generate``."""
    of_system = SYSTEMS[job.system].split()
    common = [job.path("bin"), "--cpu", "--num-workers=0", f"--seed={job.seed}", "--log-format=none"]
    common += ["--user-dir", str(ROOT / "fairseq_syntax")] * (job.system != "fairseq")
    if job.work == "search":
        lengths = [f"--min-len={job.length}", "--max-len-a=0", f"--max-len-b={job.length}"]
        batch = [f"--beam={meter.BEAM}", f"--batch-size={meter.SENTENCES}", "--gen-subset=test"]
        return [*common, *of_system[:2], f"--path={job.model / 'checkpoint_last.pt'}", *lengths, *batch]
    training = f"--dropout={meter.DROPOUT} --label-smoothing={meter.SMOOTHING} --share-all-embeddings --max-tokens=2000"
    training += f" --optimizer=adam --lr={meter.LEARNING_RATE} --clip-norm=0 --disable-validation"
    training += f" --max-update={job.warmup + job.updates} --save-dir={job.folder} --no-epoch-checkpoints"
    return [*common, *of_system, *SIZES, *training.split()]


def main() -> None:
    """The job of this process."""
    job = meter.Job.given()
    sys.argv[1:] = command(job)
    if job.work == "search":
        meter.tell(meter.searching(generate.cli_main), "fairseq-fixed")
        return
    training, step = meter.Training(job), FairseqTask.train_step

    def counted(self: FairseqTask, sample: dict[str, Any], *args: Any, **named: Any) -> Any:
        training.count(sample["target"], 1)
        return step(self, sample, *args, **named)

    FairseqTask.train_step = counted
    train.cli_main()
    meter.tell(training.report(), "fairseq-fixed")


if __name__ == "__main__":
    main()

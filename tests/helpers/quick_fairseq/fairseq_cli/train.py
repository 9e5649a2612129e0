"""fairseq-train: goes on from its last checkpoint, and ends with the same parameters however often it was stopped."""

import hashlib
import json
import time

from fairseq_cli import arguments, write

args = arguments()
last = args.save_dir / "checkpoint_last.pt"
state = (
    json.loads(last.read_text("utf-8"))
    if last.exists()
    else {"updates": 0, "parameters": args.seed + args.arch + args.lr}
)
data = b"".join(path.read_bytes() for path in sorted(args.data.glob("train.*")))
while state["updates"] < 20:
    time.sleep(0.02)
    step = f"{state['updates']} {state['parameters']}".encode()
    state = {"updates": state["updates"] + 1, "parameters": hashlib.sha256(step + data).hexdigest()}
    write(last, json.dumps(state))
write(args.save_dir / "checkpoint_best.pt", json.dumps(state))

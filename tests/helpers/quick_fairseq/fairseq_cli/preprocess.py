"""fairseq-preprocess: the pieces as they are, under the names of a binarized corpus."""

import shutil
from pathlib import Path

from fairseq_cli import arguments, write

args = arguments()
prefixes = {"train": args.trainpref, "valid": args.validpref}
prefixes |= {f"test{number or ''}": Path(text) for number, text in enumerate(args.testpref.split(","))}
for lang in (args.s, args.t):
    parsed = Path(f"{args.trainpref}.{lang}.conllu").exists()
    words = sorted(set(Path(f"{args.trainpref}.{lang}").read_text("utf-8").split()))
    write(args.destdir / f"dict.{lang}.txt", "\n".join(words))
    for subset, prefix in prefixes.items():
        name = f"{subset}.{args.s}-{args.t}.{lang}"
        for end in ("bin", "idx"):
            write(args.destdir / f"{name}.{end}", Path(f"{prefix}.{lang}").read_text("utf-8"))
        if parsed:
            write(args.destdir / f"{name}.syntax.arrow", Path(f"{prefix}.{lang}.conllu").read_text("utf-8"))
    if parsed:
        write(args.destdir / f"labels.{lang}.json", "{}")
    for file in args.trainpref.parent.glob(f"segmentation.{lang}.*"):
        shutil.copy(file, args.destdir)
write(args.destdir / "manifest.json", "{}")

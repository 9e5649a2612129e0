"""Translate with varied tag sequences of a LaSyn model.

The sequences are each source's most likely one, and random valid ones at given edit distances from it. A sequence is
valid if all its new pairs of neighbouring tags occur in the training data. Writes translations.tsv, diversity.json,
diversity.md and diversity.png.

    fairseq-syntax diversify lasyn/checkpoint_best.pt --random 100 --distances 0 2 4 --output diversity
"""

import logging
import random
from argparse import Namespace
from pathlib import Path

from fairseq_syntax.cli.arguments import (
    BEAM,
    DATA,
    DEVICE,
    OUTPUT_FOLDER,
    SEED,
    SEVERAL,
    TOKENIZE,
    USER_DIR,
    batch_size,
    natural,
    positive,
    sentences,
)
from fairseq_syntax.cli.command import Command, Option
from fairseq_syntax.cli.common import sentence_numbers
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.bounds import check_sentences
from fairseq_syntax.runtime.console import finished
from fairseq_syntax.runtime.files import atomic_open, make_folder, write_json
from fairseq_syntax.runtime.named_files import files_of

ARGUMENTS = [
    Option("model MODEL[,MODEL…]", "checkpoint; commas join an ensemble"),
    DATA,
    Option("--split NAME", "split whose sentences are translated", default="test"),
    sentences("--random of them"),
    Option("--random", "number of random sentences", type=positive, default=100),
    Option("--distances D", "edit distances (default: 0 1 2 4 6 8 10)", type=natural, **SEVERAL),
    Option("--samples", "sequences per distance", type=positive, default=10),
    BEAM,
    batch_size(64),
    DEVICE,
    USER_DIR,
    SEED,
    TOKENIZE,
    OUTPUT_FOLDER,
]
COMMAND = Command(__doc__, "research", ARGUMENTS, step=4, needs_fairseq=True)


def main(args: Namespace) -> None:
    from fairseq_syntax.lab.figures.plot import diversity_curves, save_figure
    from fairseq_syntax.lab.scoring.diversity import Diversifier, measure_diversity, table
    from fairseq_syntax.lab.scoring.metrics import Scorer
    from fairseq_syntax.lab.scoring.names import tokenizer_of_text
    from fairseq_syntax.systems.lasyn.templates import tag_string
    from fairseq_syntax.use.loading import load_models

    logging.getLogger("sacrebleu").setLevel(logging.WARNING)
    distances = list(dict.fromkeys(args.distances or [0, 1, 2, 4, 6, 8, 10]))
    # all checks come before hours of translating
    if args.tokenize is not None:
        Scorer("bleu", [[""]], args.tokenize)
    output = Path(args.output)
    make_folder(output)
    models, _, task = load_models(files_of(args.model), args.data, device=args.device)
    task.load_dataset(args.split)
    dataset = task.dataset(args.split)
    if dataset.tgt is None:
        raise SyntaxDataError(f"{args.split} has no references to compare with", path=task.data_dir, option="--split")
    diversifier = Diversifier(models, task, dataset, args.beam, args.batch_size)
    rng = random.Random(args.seed)
    if numbers := sentence_numbers(args):
        check_sentences(numbers, len(dataset), task.data_dir)
        sentences = [n - 1 for n in numbers]
    else:
        sentences = sorted(rng.sample(range(len(dataset)), min(args.random, len(dataset))))
    variations = diversifier.vary(sentences, distances, args.samples, rng)
    with atomic_open(output / "translations.tsv") as file:
        file.write("line\tdistance\ttags\ttranslation\n")
        lines = [
            f"{v.sentence + 1}\t{v.distance}\t{tag_string(v.tags, diversifier.names)}\t{v.text}\n"
            for v in sorted(variations, key=lambda v: (v.sentence, v.distance))
        ]
        file.writelines(dict.fromkeys(lines))  # at distance 0, the translation is repeated for each sample
    references = {i: diversifier.reference(i) for i in sentences}
    rows = measure_diversity(variations, references, args.tokenize or tokenizer_of_text(list(references.values())))
    results = table(rows, args.samples)
    write_json(output / "diversity.json", rows)
    with atomic_open(output / "diversity.md") as file:
        file.write(results.render("markdown") + "\n")
    save_figure(diversity_curves(rows), output / "diversity.png")
    print(results.render())
    finished(args.output, "translations.tsv, diversity.json, diversity.md and diversity.png")

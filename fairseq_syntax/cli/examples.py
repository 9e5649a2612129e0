"""An example of every subcommand, below its ``--help`` and in the reference; a test gives each to its parser."""

from __future__ import annotations

import argparse

EXAMPLES = {
    "demo": "fairseq-syntax demo --out runs/toy",
    "filter": """
        fairseq-syntax filter --input train.en train.de --output clean/train.en clean/train.de \\
            --max-length 80 --max-ratio 2.5 --languages en de""",
    "parse": """
        fairseq-syntax parse --input train.en --output train.en.conllu --lang en --distributions --workers 4""",
    "control": "fairseq-syntax control linear --input train.en.conllu --output linear/train.en.conllu",
    "segment": """
        fairseq-syntax segment --lang en --input train.en.conllu valid.en.conllu test.en.conllu --outdir pieces \\
            --train sentencepiece --vocab-size 8000""",
    "inventory": "fairseq-syntax inventory --lang en --input pieces/0/train.en pieces/1/train.en --outdir common",
    "binarize": """
        fairseq-syntax binarize -s en -t de --trainpref pieces/train --validpref pieces/valid --testpref pieces/test \\
            --destdir bin""",
    "inspect": "fairseq-syntax inspect bin --check",
    "user-dir": 'fairseq-train bin --user-dir "$(fairseq-syntax user-dir)" --task syntax_translation',
    "translate": "fairseq-syntax translate checkpoints/checkpoint_best.pt --input test.en --output test.de",
    "serve": "fairseq-syntax serve plain=plain/checkpoint_best.pt PASCAL=pascal/checkpoint_best.pt --port 8000",
    "align": """
        fairseq-syntax align checkpoints/checkpoint_best.pt --input test.en --translations test.de \\
            --output test.align""",
    "export": """
        fairseq-syntax export checkpoints/checkpoint_best.pt --to ctranslate2 --output exported --quantization int8""",
    "score": """
        fairseq-syntax score --ref test.de --sys plain=plain.out PASCAL=pascal.1.out,pascal.2.out --metrics bleu chrf \\
            --conllu test.en.conllu --by dependency-length""",
    "contrast": """
        fairseq-syntax contrast --set lingeval97.de.json --model plain=plain.pt PASCAL=pascal.pt \\
            --conllu lingeval97.en.conllu""",
    "plot": """
        fairseq-syntax plot curves plain=plain.log PASCAL=pascal.log --metrics loss bleu --out curves.svg""",
    "show": """
        fairseq-syntax show bin --model plain=plain/checkpoint_best.pt PASCAL=pascal/checkpoint_best.pt --split test \\
            --sentences 1-20 --out page.html""",
    "experiment": "fairseq-syntax experiment experiment.yaml --jobs 2",
    "calibrate": """
        fairseq-syntax calibrate --gold en_ewt-ud-dev.conllu --lang en --output report.json --picture diagram.svg""",
    "tree": "fairseq-syntax tree --path checkpoints/checkpoint_best.pt --input test.en --output trees.conllu",
    "eval-tree": "fairseq-syntax eval-tree gold.conllu trees.conllu",
    "multitask": """
        fairseq-syntax multitask --src en --tgt de --train pieces/train --translate-only pieces/valid pieces/test \\
            --outdir multitask""",
    "diversify": "fairseq-syntax diversify lasyn/checkpoint_best.pt --sentences 100 --distances 0 2 4 --out diversity",
    # the figures of plot
    "plot box": "fairseq-syntax plot box --ref test.de --sys plain=plain.out PASCAL=pascal.out --out box.svg",
    "plot length": """
        fairseq-syntax plot length --ref test.de --src test.en --sys plain=plain.out PASCAL=pascal.out \\
            --out length.svg""",
    "plot by": """
        fairseq-syntax plot by --ref test.de --sys plain=plain.out PASCAL=pascal.out --conllu test.en.conllu \\
            --by dependency-length --out by.svg""",
    "plot curves": "fairseq-syntax plot curves plain=plain.log PASCAL=pascal.log --metrics loss bleu --out curves.svg",
    "plot reliability": "fairseq-syntax plot reliability stanza=report.json --out reliability.svg",
}


class _KeepsExample(argparse.HelpFormatter):
    """Folds every text but the example, which is to be copied."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith("example:") else super()._fill_text(text, width, indent)


def example(name: str) -> str:
    """The example of a subcommand, or of a figure (``plot box``), in lines that a shell reads."""
    lines = EXAMPLES[name].strip().splitlines()
    return "\n".join([lines[0], *("    " + line.strip() for line in lines[1:])])


def add_examples(name: str, parser: argparse.ArgumentParser) -> None:
    """Put the example below a subcommand's help, and below those of its own subcommands."""
    parser.formatter_class = _KeepsExample
    parser.epilog = "example:\n  " + example(name).replace("\n", "\n  ")
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below, sub in action.choices.items():
                add_examples(f"{name} {below}", sub)

"""The options of fairseq's commands, and the ledger that says of each what becomes of it here."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import yaml
from fairseq import options
from fairseq.criterions import CRITERION_REGISTRY
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.tasks import TASK_REGISTRY

# Options of examples that fairseq imports where its checkout is importable, but not from a wheel.
ONLY_IN_A_CHECKOUT = {"--simul-type"}
LEDGER = Path(__file__).resolve().parents[1] / "systems" / "fairseq_options.yaml"
_PARTS = [
    *((ARCH_MODEL_REGISTRY, name) for name in ("transformer", "lstm")),
    *((CRITERION_REGISTRY, name) for name in ("label_smoothed_cross_entropy_with_alignment", "adaptive_loss")),
    *((CRITERION_REGISTRY, name) for name in ("label_smoothed_cross_entropy_with_rdrop", "cross_entropy")),
    (TASK_REGISTRY, "syntax_translation"),
]


def fairseq_options() -> set[frozenset[str]]:
    """Every option of the five commands, as the set of its names."""
    return _training() | _names(
        options.get_preprocessing_parser("translation"),
        options.get_generation_parser(default_task="translation"),
        options.get_interactive_generation_parser("translation"),
        options.get_validation_parser("translation"),
    )


def _names(*parsers: argparse.ArgumentParser) -> set[frozenset[str]]:
    return {frozenset(a.option_strings) for parser in parsers for a in parser._actions if a.option_strings}


def _training() -> set[frozenset[str]]:
    """The options of fairseq-train."""
    parsers = [options.get_training_parser("translation")]
    for registry, name in _PARTS:
        parser = argparse.ArgumentParser(add_help=False, conflict_handler="resolve")
        registry[name].add_args(parser)
        parsers.append(parser)
    return _names(*parsers)


def ledger() -> dict[str, str]:
    """What becomes of each option that the ledger has, by its name: the part and the reason."""
    result: dict[str, str] = {}
    for part, content in yaml.safe_load(LEDGER.read_text(encoding="utf-8")).items():
        for reason, names in content.items() if isinstance(content, dict) else [("", content)]:
            for name in names.split():
                assert re.fullmatch(r"--?[\w-]+", name), name
                result[name] = f"{part}: {reason}"
    return result


def of_training() -> set[str]:
    """The names in the ledger of the options of fairseq-train."""
    return set().union(*_training()) & {*ledger()} - {"-h", "--help"}


def without_effect(where: str = "in translations") -> list[str]:
    """The options that change nothing: ``in translations`` of these models, or ``in training`` on this machine."""
    return [name for name, actual in ledger().items() if actual.startswith(f"without effect: {where}")]

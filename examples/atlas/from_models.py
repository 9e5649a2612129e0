"""Tables of what only models can say: which words attend to their parents, and which translations are preferred."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shared import NOT_RUN, Cell, shown, table

from fairseq_syntax.lab.scoring.tables import Table

BASELINE = "relative"
SETS = {
    "subj_verb_agreement": "subject and verb",
    "np_agreement": "noun phrase",
    "clause_omission": "omitted clause",
}


def runs_with(attachment: Mapping[str, Any], suffix: str) -> list[tuple[float, float]]:
    """UAS and gain in BLEU of all runs of the system with this suffix of which both are known."""
    return [
        (run["uas"], run["gain"])
        for runs in attachment.get("languages", {}).values()
        for name, run in runs.items()
        if name.partition("/")[0] == f"{BASELINE}+{suffix}" and run["gain"] is not None
    ]


def correlation(points: list[tuple[float, float]]) -> float:
    """Spearman's rank correlation."""
    from scipy.stats import spearmanr

    return float(spearmanr(*zip(*points)).statistic)


def attachment_table(
    attachment: Mapping[str, Any], system: str, controls: list[str], planned: Mapping[str, Sequence[int]] | None = None
) -> Table:
    """By language and seed: UAS of the baseline's best head, and of the trained head, with what its run gains.

    Args:
        planned: the seeds of the recipe of each language, if known; those without a run share a row over the languages
    """
    names, rows = [system, *(f"{system}.{control}" for control in controls)], []
    missing: dict[str, list[str]] = {}
    for language, seeds in (planned or {}).items():
        run = {name.rpartition("/")[2] for name in attachment.get("languages", {}).get(language, {})}
        for seed in map(str, seeds):
            if seed not in run:
                missing.setdefault(seed, []).append(language)
    for language, runs in attachment.get("languages", {}).items():
        for seed in sorted({name.rpartition("/")[2] for name in runs}):
            of_seed = [runs.get(f"{name}/{seed}") for name in (BASELINE, *(f"{BASELINE}+{one}" for one in names))]
            uas = [NOT_RUN if run is None else f"{run['uas']:.1f}" for run in of_seed]
            gains = [NOT_RUN if run is None or run["gain"] is None else f"{run['gain']:+.2f}" for run in of_seed[1:]]
            rows.append([language, seed, *uas[:1], *(cell for pair in zip(uas[1:], gains) for cell in pair)])
    gaps = ["not measured"] * (2 * len(names) + 1)
    rows += [[", ".join(languages), seed, *gaps] for seed, languages in missing.items()]
    titles = [shown(system), *(f"*{control}*" for control in controls)]
    head = ["corpus", "seed", f"UAS of {BASELINE}", *(text for one in titles for text in (f"UAS of {one}", "its gain"))]
    notes = [
        "UAS: the share of words whose parent in the tree of the head is that of the parse, also where the head was "
        "trained on a control; of *relative*, of the head that attends to most parents on the validation set",
        "gain: BLEU over *relative* of the same seed",
    ]
    if trees := attachment.get("controls"):
        notes.append(
            "UAS of trees that need no model, of which *next word* is a chain: "
            + ", ".join(f"*{n}* {uas:.1f}" for n, uas in trees.items())
        )
    if len(points := runs_with(attachment, system)) > 2:
        rho = f"{correlation(points):+.2f} (n = {len(points)})"
        notes.append(f"Spearman's rank correlation of UAS and gain over the runs of {titles[0]}: {rho}")
    return table("Attachment of heads, and gain in BLEU", head, rows or [[NOT_RUN] + [""] * (len(head) - 1)], notes)


def agreement_table(agreement: Mapping[str, Any]) -> Table:
    """Accuracy of each system on the contrastive sets, for subject and verb also by distance, and the differences."""
    rows: list[list[Cell]] = []
    of = agreement.get("rows") or [{"set": "", "pairs": 0, "accuracy": {}, "against": {}}]
    of = sorted(of, key=lambda one: [*SETS, ""].index(one["set"]))  # a set, and what it consists of
    systems, others = list(of[0]["accuracy"]), list(of[0]["against"])
    for one in of:
        name = SETS.get(one["set"], NOT_RUN)
        of_each = ["{:.1f} ({:.1f} to {:.1f})".format(*one["accuracy"][system]) for system in systems]
        title = f"– {one['distance']}" if "distance" in one else name
        rows.append([title, f"{one['pairs']:,}", *of_each, *(one["against"][system] for system in others)])
    titles = {name: name_of(name) for name in systems}
    head = ["contrast", "pairs", *titles.values(), *(f"{titles[name]} − {BASELINE}" for name in others)]
    notes = []
    if agreement:
        notes = [
            f"{agreement['language']}, seed {agreement['seed']}, on a CPU; the translation with the higher mean "
            "log-probability of its pieces is preferred; accuracies in % (chance: 50) with Wilson's intervals, "
            "differences in points with those of a bootstrap over the sources",
            "–: subject and verb by the words between them in the source, of sources with one subject in their parse",
        ]
        (sets, own) = (agreement["pieces"][kind] for kind in ("sets", "test"))
        notes.append(
            f"pieces per word: {sets['source'][0]:.1f} in the sources and {sets['target'][0]:.1f} in the translations, "
            f"against {own['source'][0]:.1f} and {own['target'][0]:.1f} in the test set of the software's help"
        )
    return table("Contrastive pairs of news", head, rows, notes)


def name_of(system: str) -> str:
    """A system's name in a table: its control, or what it has besides relative positions."""
    name, _, control = system.removeprefix(f"{BASELINE}+").partition(".")
    return f"*{control}*" if control else shown(name)

"""The figures that some pages state in their prose, made from the tables that programs wrote.

A test looks for each piece of text in its file, and for figures in those files that are in no piece. When a table
changes, the test says what the prose must say now.
"""

from __future__ import annotations

import json
import re

import pictures

from bench.harness import on_one_thread
from bench.peers import meter
from bench.peers.table import records, table
from fairseq_syntax.lab.recipes.kept import Kept

ROOT = pictures.ROOT
# What has to be vouched for: shares and decimal numbers.
INTERVAL = "95 %"  # the level of an interval is no measurement
FIGURE = re.compile(r"\d+(?:\.\d+)? ?%|(?<![\w.])[+−-]?\d+\.\d+(?![\w.]*\.\d)")


def stated() -> dict[str, list[str]]:
    """File -> pieces of its text, as the tables would have them."""
    toy = {(row["corpus"], row["system"]): row for row in pictures.toy_rows()}
    names = ("CPU.md", "TRAINED.md", "TRAINED-LONGER.md", "FIELD-LSTM.md")
    cpu, trained, longer, field_lstm = map(pictures.multi30k_scores, names)
    speed = bench()

    def exact(system: str, digits: int = 1, corpus: str = "attachment") -> str:
        return f"{float(toy[corpus, system]['exact']):.{digits}f}"

    def best(system: str, digits: int = 0, corpus: str = "attachment") -> str:
        return f"{float(toy[corpus, system]['best']):.{digits}f}"

    plain, unsure = "transformer", "uncertain-0.8"
    unsure_systems = sorted(float(exact(name, corpus=unsure)) for name in ("UDD", "LDD"))
    differences = {test: _differences(scores) for test, scores in cpu.items()}
    (low, high), (low_2, high_2) = ((min(d), max(d)) for d in differences.values())
    tests = _bootstrap("CPU.md")
    significant = sum(p.endswith("*") for _, p in tests)
    assert not any(p.endswith("*") for name, p in tests if name in ("pascal", "LDD")), (
        "docs/which-system.md: none significant"
    )
    newer = _bootstrap("FIELD.md")
    first = [p for name, p in newer[: len(newer) // 2] if name.endswith(".no-parser")]
    assert first and all(p.endswith("*") for p in first), "docs: significant on 2016"
    _check_grids(trained, longer)
    read_all = ("SDRNMT-1", "SDRNMT-2")
    assert all(exact(name, corpus="lstm") == "100.0" for name in read_all), "which-system.md: they read all"
    nearly = ("Tree2Seq", "GCN", "GCN.embeddings")
    assert all(float(exact(name, corpus="lstm")) >= 99 for name in nearly), "which-system.md: they read nearly all"
    guided = [of_test["dlaa-guided"] - of_test["lstm"] for of_test in field_lstm.values()]
    assert min(guided) >= -0.5, "which-system.md: DLAA is level with the plain LSTM if it starts guided"
    lstms = pictures.multi30k_scores("LSTM.md")
    best_lstm = " and ".join(f"{of_test['sdrnmt2'] - of_test['lstm']:.1f}" for of_test in lstms.values())
    assert all(max(of_test, key=lambda name: of_test[name]) == "sdrnmt2" for of_test in lstms.values())
    lstm = lstms["test_2016"]
    gcn = " and ".join(f"{of_test['gcn'] - of_test['lstm']:.1f}" for of_test in field_lstm.values())
    ahead = [f"{gain:.2f}" for gain in _gains("PSH", page="TRAINED-LONGER.md")]
    pascal, ldd = ([f"{gain:.2f}" for gain in _gains(name, page="TRAINED-LONGER.md")] for name in ("PASCAL", "LDD"))
    guide = [
        f"it resolves nearly every attachment ({exact('PASCAL')} %)",
        f"at a parser accuracy of 80 %, {unsure_systems[0]:.0f} to {unsure_systems[1]:.0f} % are right, "
        f"against {exact('PASCAL', 0, unsure)} % for PASCAL",
        f"about {min(_uas('cpu')) * 100:.0f} % of words have the parser's head on Multi30k",
        f"{exact('sennrich_haddow', 0)} % on the toy corpus, where labels alone allow "
        f"{best('sennrich_haddow')} %",
        f"GCN resolves {exact('GCN')} % of the toy corpus's attachments",
        f"nearly every attachment with all three seeds, DLAA {_over_seeds('DLAA')} and SE-NMT "
        f"{_over_seeds('SE-NMT')}, depending on the seed",
        f"SDRNMT-2 has the highest scores on Multi30k, {best_lstm} BLEU above the plain LSTM",
        f"otherwise it is {lstm['lstm'] - lstm['dlaa']:.0f} BLEU behind on 2016",
        f"The GCN is ahead by {gcn} BLEU",
        *(
            f"| {accuracy} % | {best(plain, corpus=unsure)} | {best('UDP', corpus=p)} | {exact('UDP', corpus=p)} | "
            f"{best('UDD', corpus=p)} | {exact('UDD', corpus=p)} |"
            for accuracy, p in ((60, "uncertain-0.6"), (80, unsure), (95, "uncertain-0.95"))
        ),
        f"supervised heads (PSH) gain {ahead[0]} and {ahead[2]} BLEU, which is significant. The gains of "
        f"PASCAL ({pascal[0]} and {pascal[2]}) and LDD ({ldd[0]} and {ldd[2].replace('-', '−')}) are not.",
        "At 60 %, a parse is worth almost nothing: the systems reach what the text alone allows",
        "At 95 %, there is little difference",
        f"runs at {speed['train/pascal_transformer']} (PASCAL), {speed['train/ldd_transformer']} (LDD) and "
        f"{speed['train/supervised_head_transformer']} (supervised heads) of the speed of the plain Transformer with "
        f"fairseq's loss, LaSyn at "
        f"{speed['train/lasyn_transformer@K1']} with K = 1 and {speed['train/lasyn_transformer@K5']} with K = 5",
        f"by {low:.1f} to {high:.1f} BLEU on the test set of 2016 and by {low_2:.1f} to +{high_2:.1f} on that of 2017"
        .replace("-", "−"),
        f"Of these {len(tests)} differences, {significant} are significant by sacrebleu's one-sided bootstrap "
        "with Holm's correction",
    ]  # fmt: skip
    return {
        "docs/which-system.md": guide,
        "docs/cluster.md": _cluster(),
        "docs/results.md": [*_by_dependency(), *_peers()],
        "examples/missing_parse/README.md": _missing_parse(),
        "examples/tree_planting/README.md": _tree_planting(),
    }


def _cluster() -> list[str]:
    """What the page of clusters says of costs, from the last measure of Stanza's speed and from the parser's README."""
    parser = on_one_thread()["parse/stanza"]["detail"]
    speed = parser["words_per_second"]
    hours = [f"{sentences * 25 / speed / 3600:,.0f}" for sentences in (10**7, 10**8, 10**9)]
    about_parses = (ROOT / "fairseq_syntax/corpus/parsing/README.md").read_text("utf-8")
    (alone,) = re.findall(r"; (\d+) bytes per word without distributions", about_parses)
    (with_arcs,) = re.findall(r"^\| \*\*0\.01\*\* \|.*\| (\d+) \|$", about_parses, re.M)
    terabytes = [f"{int(size) * 25 * 10**9 / 10**12:.1f}" for size in (alone, with_arcs)]
    return [
        f"{hours[0]}, {hours[1]} and {hours[2]} core-hours at 25 words a sentence and {speed:,} words a second and "
        "core",
        f"Stanza's own pipeline had {parser['plain_words_per_second']:,} there",
        f"one machine with 32 cores parses it in {10**7 * 25 / speed / 60 / 32:.0f} minutes",
        f"a word takes {alone} bytes in the parse and {with_arcs} with distributions",
        f"10^9 sentences of 25 words are {terabytes[0]} or {terabytes[1]} TB of parse",
        "0.5 for two workers on one",  # no measures, these two
        "`ray start --head` of Ray 2.60 makes one that does",
    ]


def _by_dependency() -> list[str]:
    """What the page of results says of sentences with long dependencies, in both tests."""
    first, second = (
        [group["differences"]["BLEU"]["PSH"]["difference"] for group in pictures.by_property("dependency-length", year)]
        for year in (2016, 2017)
    )
    assert first[-1] < min(first[1:-1]) and second[-1] == max(second), "docs/results.md: in one test"
    return [
        f"gain {first[-1]:.1f} BLEU on the test set of 2016, less than in the middle groups, and {second[-1]:.1f} on "
        f"that of 2017, more than in the others ({min(second[:-1]):.1f} to {max(second[:-1]):.1f})",
    ]


def _peers() -> list[str]:
    """What the page of results says of training beside other toolkits."""
    rows = records()
    ours = [row for row in rows if row["system"] in ("plain", "pascal", "supervised_heads")]
    others = [row for row in rows if row not in ours and "missing" not in row]
    for measure, sign in (("tokens_per_second", 1), ("training_mb", -1), ("search_seconds", -1)):
        worst, best = min(sign * row[measure] for row in ours), max(sign * row[measure] for row in others)
        assert worst > best, f"README.md: in {measure}, ours are ahead of every other toolkit"
    return [f"dropout {meter.DROPOUT}, label smoothing {meter.SMOOTHING}, Adam", *table(rows).splitlines()]


def _tree_planting() -> list[str]:
    """What the example of tree planting says of its one seed."""
    kept = Kept.read(ROOT / "examples/tree_planting/toy.jsonl.gz")
    assert {name.rpartition("/")[2] for name in kept.runs} == {"1"}, "one seed of three"
    systems = kept.scores["test.ambiguous"]["report"]["systems"]
    exact = {one["name"].removeprefix("tree_planting"): f"{one['mean']['exact']:.1f} %" for one in systems}
    return [
        f"the plain Transformer translates {exact['transformer']} exactly, tree planting {exact['']} with the parse, "
        f"{exact['.linear']} with sequential trees and {exact['.random']} with random ones",
        "| λ; 0 turns it off | 0.5 | 0.5 |",
        "arxiv.org/abs/2402.12691",
    ]


def _missing_parse() -> list[str]:
    """What the example of sentences without a parse says of its three tables."""
    toy, short, long = (
        (ROOT / "examples" / name).read_text("utf-8")
        for name in (
            "missing_parse/TOY.md",
            "multi30k/WITHOUT-PARSER.md",
            "multi30k/WITHOUT-PARSER-TRAINED.md",
        )
    )
    scores = Kept.read(ROOT / "examples/missing_parse/toy.jsonl.gz").scores
    told = [scores[name]["report"]["systems"] for name in ("test.ambiguous", "test.text-alone.ambiguous")]
    parsed_alone = zip(*([f"{one['mean']['exact']:.1f}" for one in systems] for systems in told), strict=True)
    exact = dict(zip((one["name"] for one in told[0]), parsed_alone, strict=True))
    (_, of_toy, *_), trained = _against(toy), _against(long)
    level = [of_toy["PASCAL.dropout"], of_toy["LDP.dropout"], *(test["PASCAL.dropout"] for test in trained[2:])]
    assert not any(p.endswith("*") for _, p in level), "level: not significant"
    assert all(-4 < test["PASCAL"][0] < -3 for test in trained[2:]), "three to four points behind"

    def behind(system: str) -> str:
        return f"{of_toy[system][0]:.2f}".replace("-", "−")

    def rows(label: str, system: str, first: int, mark: str = "") -> str:
        six_epochs, updates = (
            " / ".join(bleu[first : first + 2]) for bleu in (_bleu(short, system), _bleu(long, system))
        )
        return f"| {label} | {six_epochs}{mark} | {updates} |"

    ahead = {name: [f"{test[name][0]:.2f}" for test in trained[:2]] for name in ("PASCAL", "PASCAL.dropout")}
    on_text = [f"{test['PASCAL.dropout'][0]:+.2f}".replace("-", "−") for test in trained[2:]]
    with_dropout = "with `--parse-dropout` (0.15; with 4,000 updates 0.2), with the parse"
    (parsed, alone), (parsed_ldp, alone_ldp) = exact["PASCAL.dropout"], exact["LDP.dropout"]
    parsed_labels, alone_labels = exact["sennrich_haddow.dropout"]
    return [
        f"relative to the plain Transformer ({exact['plain'][1]} % exact)",
        f"| PASCAL | none | {exact['PASCAL'][0]} % | {exact['PASCAL'][1]} % | {behind('PASCAL')} |",
        f"| PASCAL | 0.15 | {parsed} % | {alone} % | {behind('PASCAL.dropout')} |",
        f"(`LDP`) | none | {exact['LDP'][0]} % | {exact['LDP'][1]} % | {behind('LDP')} |",
        f"(`LDP`) | 0.15 | {parsed_ldp} % | {alone_ldp} % | {behind('LDP.dropout')} |",
        f"(S&H) | none | | {exact['sennrich_haddow'][1]} % | |",
        f"(S&H) | 0.15 | {parsed_labels} % | {alone_labels} % | |",
        rows("plain Transformer", "transformer", 0),
        rows("PASCAL, with the parse", "PASCAL", 0),
        rows("PASCAL, the text alone", "PASCAL", 2, " ¹"),
        rows(with_dropout, "PASCAL.dropout", 0),
        rows("with `--parse-dropout`, the text alone", "PASCAL.dropout", 2, " ¹"),
        f"level with it on the text alone: {on_text[0]} on 2016 and {on_text[1]} on 2017",
        f"ahead of the plain one by {' and '.join(ahead['PASCAL.dropout'])}; PASCAL without dropout is ahead by "
        f"{' and '.join(ahead['PASCAL'])}.",
        "--parse-dropout 0.15 ...",
        "Models with and without `--parse-dropout 0.15`",
    ]


def _against(page: str) -> list[dict[str, tuple[float, str]]]:
    """Of each comparison in BLEU of a page: system -> its difference and the p of the bootstrap."""
    tables = page.split("**Against ")[1:]
    row = re.compile(r"^\| (\S+) \| BLEU \| ([+-][\d.]+) \| [\d.]+ \| (\S+) \|", re.M)
    return [{name: (float(difference), p) for name, difference, p in row.findall(table)} for table in tables]


def _bleu(page: str, system: str) -> list[str]:
    """The BLEU of a system, in each table of scores of a page."""
    return re.findall(rf"^\| {re.escape(system)} \| ([\d.]+) \| [\d.]+ \|$", page, re.M)


def _check_grids(trained: dict[str, dict[str, float]], longer: dict[str, dict[str, float]]) -> None:
    """What the prose says in words of the grids with 4,000 and 8,000 updates holds of their tables."""
    in_bleu = [low > 0 for low, _ in _intervals("PASCAL")]
    assert in_bleu == [True, False, True, False], "docs: PASCAL gains in BLEU, not in chrF"
    for grid, scores in (("trained", trained), ("trained-longer", longer)):
        runs = {f"{name}/{seed}" for name in scores["test_2016"] for seed in (1, 2, 3)}
        assert runs == set(pictures.kept(grid).runs), "docs: three seeds of each"
    longer_gains = _intervals("PSH", page="TRAINED-LONGER.md")
    assert all(low > 0 for low, _ in longer_gains), "docs: all four are significant"
    not_significant = [
        interval
        for system, controls in {"PASCAL": ("", "linear", "random"), "LDD": ("", "random"), "UDD": ("",)}.items()
        for control in controls
        for interval in _intervals(system, "gain", control, page="TRAINED-LONGER.md")
    ]
    not_significant += [
        interval
        for system, control in (("PASCAL", "linear"), ("PASCAL", "random"), ("LDD", "random"))
        for interval in _intervals(system, "syntax", control, page="TRAINED-LONGER.md")
    ]
    assert all(low < 0 < high for low, high in not_significant), "docs: gains of PASCAL, LDD, UDD are not significant"
    significant = [
        low for name in ("CSH+PSH", "sennrich_haddow") for low, _ in _intervals(name, page="TRAINED-LONGER.md")
    ]
    assert len(significant) == 8 and min(significant) > 0, "docs: those of CSH+PSH and S&H are"
    above_random = [low for low, _ in _intervals("PSH", "syntax", "random", page="TRAINED-LONGER.md")]
    assert min(above_random) > 0, "docs: above random trees after 8,000 updates, in both tests and both scores"
    assert _loss("PSH", "train") >= _loss("transformer", "train"), "docs/results.md: no faster in training"
    assert _loss("PSH", "valid") < _loss("transformer", "valid"), "docs/results.md: better on new sentences"


def bench() -> dict[str, str]:
    """The last ratio of each measure on one CPU thread, with two digits."""
    return {name: f"{row['ratio']:.2f}" for name, row in on_one_thread().items()}


def _differences(scores: dict[str, float]) -> list[float]:
    """Of all systems from the Transformer but the multi-task one, which the prose names as far behind."""
    return [score - scores["transformer"] for name, score in scores.items() if name not in ("transformer", "multitask")]


def _bootstrap(name: str) -> list[tuple[str, str]]:
    """Systems and p values, with a star or without, of a table's comparisons in BLEU, without the multi-task system."""
    text = (ROOT / "examples/multi30k" / name).read_text("utf-8")
    detectable = r" \S+ \|" if "| MDD |" in text else ""
    return re.findall(rf"^\| (?!multitask)(\S+) \| BLEU \| [+-][\d.]+ \|{detectable} (\S+) \|", text, re.M)


def _intervals(
    system: str, which: str = "gain", control: str = "", page: str = "TRAINED.md"
) -> list[tuple[float, float]]:
    """The intervals of a system's ``gain``, of its gain with a control or of the ``syntax`` above that control.

    Over tests and scores, BLEU before chrF.
    """
    cells = _of_verdict(system, which, control, page)
    return [(float(low), float(high)) for low, high in re.findall(r"\((\S+) to (\S+)\)", " ".join(cells))]


def _gains(system: str, page: str) -> list[float]:
    """What a system gains, over tests and scores, BLEU before chrF."""
    return [float(cell.split()[0]) for cell in _of_verdict(system, "gain", "", page)]


def _of_verdict(system: str, which: str, control: str, page: str) -> list[str]:
    """Cells of a verdict's page, where a system's rows follow each other, one for each control."""
    found, of = [], ""
    for line in (ROOT / "examples/multi30k" / page).read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) != 6:
            continue
        of = cells[0] or of
        if of == system and (cells[2] == control if control else cells[0]):
            found.append(cells[{"syntax": 4, "gain": 3 if control else 1}[which]])
    assert len(found) == 4, f"{page}: {system} has {len(found)} rows of two tests and two scores"
    return found


def _over_seeds(system: str) -> str:
    """The least and the largest exact match of a row's seeds, as ``24 to 100 %``."""
    report = Kept.read(ROOT / "examples/toy/table/lstm.jsonl.gz").scores["test.ambiguous"]["report"]
    (runs,) = (one["runs"] for one in report["systems"] if one["name"] == system)
    found = [run["scores"]["exact"] for run in runs]
    assert len(found) == 3, f"which-system.md: three seeds of {system}"
    return f"{min(found):.0f} to {max(found):.0f} %"


def _loss(run: str, kind: str) -> float:
    """The translation loss of a run's last whole epoch, ``train`` or ``valid``, as docs/data keeps it."""
    losses = dict(map(tuple, json.loads(pictures.CURVES.read_text("utf-8"))[run][kind]["nll_loss"]))
    return losses[7986]


def _uas(name: str) -> list[float]:
    """The attachment scores of a table's systems."""
    values = (run["facts"]["values"] for run in pictures.kept(name).runs.values())
    return [one["UAS, test_2016"] / 100 for one in values if "UAS, test_2016" in one]


def unstated(text: str, pieces: list[str]) -> list[str]:
    """Figures of a text that stand in none of the pieces."""
    text = " ".join(text.split())
    covered = [(at, at + len(piece)) for piece in pieces for at in [text.find(piece)] if at >= 0]
    return [
        text[max(0, m.start() - 30) : m.end() + 10]
        for m in FIGURE.finditer(text)
        if m[0] != INTERVAL and not any(start <= m.start() and m.end() <= end for start, end in covered)
    ]

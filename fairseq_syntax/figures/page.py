"""One self-contained HTML page of exhibits: nothing is fetched, so that the file can be sent and kept."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fairseq_syntax.figures.fonts import CSS
from fairseq_syntax.figures.sentences import Exhibit, Output

_TEMPLATE = Path(__file__).with_name("page.html")


def page(exhibits: Sequence[Exhibit], src: str, tgt: str, title: str) -> str:
    """The page.

    Args:
        exhibits: at least one
        src, tgt: language codes, for fonts and the direction of writing
        title: of the page

    Attention weights are kept in eight bits, 1/255 apart.
    """
    if not exhibits:
        raise ValueError("a page of nothing")
    data = {"src": src.split("_")[0], "tgt": tgt.split("_")[0], "sentences": [_sentence(e) for e in exhibits]}
    # "</script>" in a sentence must not end the script; in JSON, < may be written as an escape
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    template = _TEMPLATE.read_text(encoding="utf-8")
    for mark, value in (("__TITLE__", html.escape(title)), ("__FONTS__", CSS), ("__DATA__", text)):
        template = template.replace(mark, value)
    return template


def _sentence(exhibit: Exhibit) -> dict:
    return {
        "number": exhibit.number,
        "source": exhibit.source,
        "reference": exhibit.reference,
        "words": exhibit.words,
        "tags": exhibit.tags,
        "counts": exhibit.counts,
        "pieces": exhibit.pieces,
        "arcs": [(i, h, label, round(p, 4)) for i, h, label, p in exhibit.arcs],
        "trees": {
            name: {"heads": t.heads, "labels": t.labels, "p": [None if p is None else round(p, 4) for p in t.p]}
            for name, t in exhibit.trees.items()
        },
        "outputs": {name: _output(output) for name, output in exhibit.outputs.items()},
    }


def _output(output: Output) -> dict:
    attention = {kind: [_layer(w) for w in layers] for kind, layers in output.attention.items()}
    scores = {name: round(score, 4) for name, score in output.scores.items()}
    return {"text": output.text, "scores": scores, "pieces": output.pieces, "attention": attention}


def _layer(weights: np.ndarray) -> dict:
    """Weights [H, rows, columns] as bytes."""
    heads, rows, columns = weights.shape
    small = np.round(np.clip(weights, 0, 1) * 255).astype(np.uint8)
    return {"heads": heads, "rows": rows, "columns": columns, "data": base64.b64encode(small.tobytes()).decode()}

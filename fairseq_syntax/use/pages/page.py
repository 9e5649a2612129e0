"""Self-contained HTML pages that show exhibits."""

from __future__ import annotations

import base64
import html
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fairseq_syntax.corpus.words import RIGHT_TO_LEFT, WITHOUT_SPACES, language_of
from fairseq_syntax.use.pages.fonts import CSS

if TYPE_CHECKING:
    from fairseq_syntax.use.pages.exhibit import Exhibit, Output

_HERE = Path(__file__).parent


def page(exhibits: Sequence[Exhibit], src: str, tgt: str, title: str) -> str:
    """Render a page; ``src`` and ``tgt`` are language codes, for fonts and the writing direction.

    Attention weights are stored in eight bits, in steps of 1/255.
    """
    data = {"src": language_of(src), "tgt": language_of(tgt), "sentences": [exhibit_data(e) for e in exhibits]}
    return self_contained(_HERE / "page.html", title=title, data=data)


def self_contained(template: Path, *, title: str, data: Any) -> str:
    """Fill a template with the shared drawing code, a title and data."""
    # "</script>" in a sentence must not end the script element, so < is escaped
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    whole = template.read_text(encoding="utf-8")
    for mark, value in (
        # Placeholders occur in the style sheet and the script. The data are filled in last, because a sentence may
        # look like a placeholder.
        ("__DRAWING_CSS__", (_HERE / "drawing.css").read_text(encoding="utf-8")),
        ("__DRAWING_JS__", (_HERE / "drawing.js").read_text(encoding="utf-8")),
        ("__FONTS__", CSS),
        ("__RIGHT_TO_LEFT__", json.dumps(sorted(RIGHT_TO_LEFT))),
        ("__WITHOUT_SPACES__", json.dumps(sorted(WITHOUT_SPACES))),
        ("__TITLE__", html.escape(title)),
        ("__DATA__", text),
    ):
        whole = whole.replace(mark, value)
    return whole


def exhibit_data(exhibit: Exhibit) -> dict[str, Any]:
    """An exhibit as JSON values, in the form of the drawing code."""
    return {
        **vars(exhibit),
        "arcs": [(i, h, label, round(p, 4)) for i, h, label, p in exhibit.arcs],
        "trees": {
            name: {**vars(tree), "p": [None if p is None else round(p, 4) for p in tree.p]}
            for name, tree in exhibit.trees.items()
        },
        "outputs": {name: _output(output) for name, output in exhibit.outputs.items()},
    }


def _output(output: Output) -> dict:
    attention = {kind: [_layer(w) for w in layers] for kind, layers in output.attention.items()}
    # JSON has no infinity, so the score of a translation with probability 0 is left out.
    scores = {name: round(score, 4) for name, score in output.scores.items() if math.isfinite(score)}
    return {**vars(output), "scores": scores, "attention": attention}


def _layer(weights: np.ndarray) -> dict:
    """Encode weights [H, rows, columns] as bytes."""
    heads, rows, columns = weights.shape
    small = np.round(np.clip(weights, 0, 1) * 255).astype(np.uint8)
    return {"heads": heads, "rows": rows, "columns": columns, "data": base64.b64encode(small.tobytes()).decode()}

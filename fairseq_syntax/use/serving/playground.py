"""The self-contained pages at ``/`` and, about the API, at ``/docs``."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_syntax.use.pages.page import self_contained

if TYPE_CHECKING:
    from fairseq_syntax.use.serving.messages import Models


def playground(models: Models, examples: Sequence[str] = ()) -> tuple[str, str]:
    """The page for these models, with a content security policy that allows only its own script.

    Args:
        examples: example sentences
    """
    page = self_contained(
        Path(__file__).with_name("playground.html"),
        title="fairseq-syntax playground",
        data={**models.model_dump(), "examples": list(examples)},
    )
    # The data are in a script element whose type is not executable.
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts)
    policy = (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return page, policy


_API = """<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>API</title><style>
:root { color-scheme: light dark }
body { font: 1rem/1.5 sans-serif; max-width: 50rem; margin: 2rem auto; padding: 0 1rem }
pre { overflow-x: auto; padding: .6rem; border: 1px solid #8885; border-radius: 6px }
h2 { margin-top: 2rem }
</style>"""


def api_page(description: Mapping[str, Any]) -> str:
    """Render an OpenAPI description as a self-contained page with paths, examples and responses."""
    info = description["info"]
    parts = [_API, f"<h1>{html.escape(info['title'])} {info['version']}</h1><p>{html.escape(info['description'])}</p>"]
    parts.append(
        '<p>For programs: <a href="/openapi.json">openapi.json</a>. <a href="/">The page to try models on.</a></p>'
    )
    for path, methods in description["paths"].items():
        for method, about in methods.items():
            parts.append(f"<h2>{method.upper()} {html.escape(path)}</h2><p>{html.escape(about.get('summary', ''))}. ")
            parts.append(html.escape(about.get("description", "")) + "</p>")
            content = about.get("requestBody", {}).get("content", {}).get("application/json", {})
            for example in content.get("examples", {}).values():
                body = html.escape(json.dumps(example["value"], ensure_ascii=False, indent=1))
                parts.append(f"<p>{html.escape(example['summary'])}</p><pre>{body}</pre>")
            answers = about["responses"].items()
            rows = "".join(f"<li>{status}: {html.escape(a.get('description', ''))}</li>" for status, a in answers)
            parts.append(f"<p>Answers:</p><ul>{rows}</ul>")
    return "".join(parts)

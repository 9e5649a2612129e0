"""The page at ``/``: one file, with what it must know of the models in it; nothing is fetched from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_syntax.use.pages.page import self_contained

if TYPE_CHECKING:
    from fairseq_syntax.use.serving.messages import Models


@dataclass(frozen=True)
class Page:
    """A page and the policy that lets a browser run its own script and no other."""

    html: str
    policy: str


def playground(models: Models) -> Page:
    """The page for these models."""
    html = self_contained(
        Path(__file__).with_name("playground.html"), title="fairseq-syntax playground", data=models.model_dump()
    )
    scripts = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts)
    policy = (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return Page(html, policy)

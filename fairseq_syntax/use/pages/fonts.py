"""Fonts for text in any script: matplotlib draws each character with the first font that contains it."""

from __future__ import annotations

import logging
from contextlib import contextmanager

from fairseq_syntax.corpus.words import language_of

FAMILIES = (
    *("DejaVu Sans", "Noto Sans"),
    *("Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans SC", "Noto Sans JP", "Noto Sans KR", "Source Han Sans SC"),
    *("PingFang SC", "Hiragino Sans", "Microsoft YaHei", "WenQuanYi Zen Hei"),
    *("Noto Naskh Arabic", "Noto Sans Arabic", "Geeza Pro", "Arial Unicode MS"),
    *("Noto Sans Hebrew", "Noto Sans Devanagari", "Noto Sans Thai", "Noto Sans Symbols2"),
)
# For browsers, which shape text and fall back by themselves once the families are named. They prefer Japanese to
# Chinese fonts only if the lang attribute says so.
CSS = ", ".join(f'"{family}"' for family in ("Noto Sans", *FAMILIES[2:])) + ", system-ui, sans-serif"


def plain(text: str) -> str:
    """Text that matplotlib draws as it is.

    Otherwise what stands between two dollar signs is mathematics, and legends leave out names that begin with an
    underscore.
    """
    return (" " if text.startswith("_") else "") + text.replace("$", r"\$")


@contextmanager
def any_script(language: str | None = None):
    """A context in which matplotlib draws text with the installed fonts of :data:`FAMILIES`.

    Args:
        language: the text's language; ``ja`` prefers the Japanese forms of characters to the Chinese ones
    """
    # fairseq and stanza configure the root logger
    if logging.getLogger("matplotlib").level == logging.NOTSET:
        logging.getLogger("matplotlib").setLevel(logging.WARNING)
    import matplotlib
    from matplotlib import font_manager

    installed = {font.name for font in font_manager.fontManager.ttflist}
    families = [family for family in FAMILIES if family in installed]
    if language is not None and language_of(language) == "ja":
        families.sort(key=lambda family: 0 if family == "DejaVu Sans" else 2 - ("JP" in family or "Hiragino" in family))
    logger = logging.getLogger("matplotlib.font_manager")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        # glyphs as paths, so that SVG files look the same without these fonts
        with matplotlib.rc_context({"font.family": families or ["sans-serif"], "svg.fonttype": "path"}):
            yield
    finally:
        logger.setLevel(level)

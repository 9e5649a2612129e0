"""Fonts for text in any script: matplotlib takes each letter from the first font that has it."""

from __future__ import annotations

import logging
from contextlib import contextmanager

FAMILIES = (
    "DejaVu Sans",
    "Noto Sans",
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Noto Sans SC",
    "Noto Sans JP",
    "Noto Sans KR",
    "Source Han Sans SC",
    "PingFang SC",
    "Hiragino Sans",
    "Microsoft YaHei",
    "WenQuanYi Zen Hei",
    "Noto Naskh Arabic",
    "Noto Sans Arabic",
    "Geeza Pro",
    "Arial Unicode MS",
    "Noto Sans Hebrew",
    "Noto Sans Devanagari",
    "Noto Sans Thai",
    "Noto Sans Symbols2",
)
# For a browser, which shapes and falls back by itself once the families are named; Japanese before Chinese only where
# the text is marked as such (lang attribute).
CSS = ", ".join(f'"{family}"' for family in ("Noto Sans", *FAMILIES[2:])) + ", system-ui, sans-serif"
HINT = "install Noto fonts (Debian: fonts-noto-core fonts-noto-cjk)"


@contextmanager
def any_script(language: str | None = None):
    """A context in which matplotlib draws text with the installed fonts of :data:`FAMILIES`.

    Args:
        language: of the text: for ``ja`` the Japanese forms of the characters go before the Chinese
    """
    # fairseq and stanza turn logging on for everybody
    if logging.getLogger("matplotlib").level == logging.NOTSET:
        logging.getLogger("matplotlib").setLevel(logging.WARNING)
    import matplotlib
    from matplotlib import font_manager

    installed = {font.name for font in font_manager.fontManager.ttflist}
    families = [family for family in FAMILIES if family in installed]
    if language == "ja":
        families.sort(key=lambda family: 0 if family == "DejaVu Sans" else 2 - ("JP" in family or "Hiragino" in family))
    logger = logging.getLogger("matplotlib.font_manager")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        # paths in SVG: the picture looks the same where the fonts are not installed
        with matplotlib.rc_context({"font.family": families or ["sans-serif"], "svg.fonttype": "path"}):
            yield
    finally:
        logger.setLevel(level)

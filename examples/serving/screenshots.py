#!/usr/bin/env python3
"""Pictures of the playground of a running server: on a desktop, in dark mode, and on a phone.

    fairseq-syntax serve plain=… PASCAL=… LDD=… --model-dir … &
    python examples/serving/screenshots.py http://127.0.0.1:8000/ examples/serving

Needs Chromium. Types the sentence, attaches the phrase to another head, and waits for the translations that follow.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import urllib.parse
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parents[2] / "tests" / "helpers"))

from browser import Browser, find

SENTENCE = "the man saw the girl with the telescope."
PHRASE, HEAD = 7, 4  # telescope, girl
SIZES = {"desktop": (1280, 900), "dark": (1280, 900), "phone": (390, 844)}
DONE = (
    "document.querySelector('#cards').getAttribute('aria-busy') === 'false' && !asking.text && !asking.inside"
    " && document.querySelectorAll('#panels .cells').length > 0"
)


def wait(browser: Browser, seconds: float = 60) -> None:
    """Until the page has all its answers."""
    end = time.time() + seconds
    while not browser.run(DONE):
        if time.time() > end:
            raise SystemExit(f"the page does not come to rest: {browser.run('document.body.innerText')}")
        time.sleep(0.1)


def whole_page(browser: Browser, path: Path, width: int) -> None:
    """A picture from the top of the page to its end."""
    height = browser.run("document.documentElement.scrollHeight")
    browser.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
    browser.screenshot(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="of the server")
    parser.add_argument("output", type=Path, help="directory")
    parser.add_argument("--sentence", default=SENTENCE)
    args = parser.parse_args()
    program = find()
    if program is None:
        print("no Chromium is installed", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        for name, (width, height) in SIZES.items():
            browser = Browser(program, Path(profile) / name, width, height)
            scheme = {"name": "prefers-color-scheme", "value": "dark" if name == "dark" else "light"}
            browser.send("Emulation.setEmulatedMedia", features=[scheme])
            try:
                browser.open(args.url + "#" + urllib.parse.quote(args.sentence))
                wait(browser)
                browser.run(f"attach({PHRASE}, {HEAD})")
                wait(browser)
                whole_page(browser, args.output / f"{name}.png", width)
                if browser.errors:
                    print("\n".join(browser.errors), file=sys.stderr)
                    return 1
            finally:
                browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())

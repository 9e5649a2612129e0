"""A headless Chromium, driven through its debugging pipe: no network, no port, no further package."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find() -> str | None:
    """The program, where there is one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


_MOVE = 'exec 3<&"$1" 4>&"$2"; shift 2; exec "$@"'


class Browser:
    """One page in a browser of its own; ``errors`` collects what its scripts throw, ``requests`` what it fetches."""

    def __init__(self, program: str, profile: Path, width: int = 1400, height: int = 1200) -> None:
        to_browser, self._in = os.pipe()
        self._out, from_browser = os.pipe()
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
        options += ["--remote-debugging-pipe", f"--user-data-dir={profile}", "--no-first-run"]
        self._process = subprocess.Popen(
            # Chromium reads commands from descriptor 3 and answers on 4
            ["bash", "-c", _MOVE, "-", str(to_browser), str(from_browser), program, *options],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._buffer, self._number, self._session = b"", 0, None
        self.errors: list[str] = []
        self.requests: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "DOM", "CSS"):
            self.send(f"{domain}.enable")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.send("Emulation.setDeviceMetricsOverride", **size)

    def send(self, method: str, **parameters):
        """Send a command of the DevTools protocol and wait for its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session and not method.startswith("Target."):
            message["sessionId"] = self._session
        os.write(self._in, json.dumps(message).encode() + b"\0")
        end = time.time() + 120  # in all: a page that goes on reporting events may yet never answer
        while True:
            answer = self._receive(end)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def _receive(self, end: float) -> dict:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._out], [], [], max(0.0, end - time.time()))
            chunk = os.read(self._out, 1 << 16) if ready else b""
            if not chunk:
                raise RuntimeError("the browser does not answer")
            self._buffer += chunk
        raw, _, self._buffer = self._buffer.partition(b"\0")
        answer = json.loads(raw)
        if answer.get("method") == "Runtime.exceptionThrown":
            details = answer["params"]["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description", details["text"]))
        elif answer.get("method") == "Network.requestWillBeSent":
            self.requests.append(answer["params"]["request"]["url"])
        return answer

    def open(self, url: str) -> None:
        """Load a page, and wait until it is drawn."""
        self.send("Page.navigate", url="about:blank")
        self.send("Page.navigate", url=url)
        end = time.time() + 120
        # the page itself may change what follows the #
        while self.run("document.readyState + location.href.split('#')[0]") != "complete" + url.split("#")[0]:
            if time.time() > end:
                raise RuntimeError(f"{url} does not load")
            time.sleep(0.02)
        self.run("document.fonts.ready.then(() => new Promise(done => requestAnimationFrame(() => done(1))))")

    def run(self, script: str):
        """The value of a JavaScript expression; promises are waited for."""
        options = {"returnByValue": True, "awaitPromise": True}
        result = self.send("Runtime.evaluate", expression=script, **options)
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"].get("exception", {}).get("description", "exception"))
        return result["result"].get("value")

    def key(self, name: str) -> None:
        """Press a key."""
        for kind in ("keyDown", "keyUp"):
            self.send(
                "Input.dispatchKeyEvent", type=kind, key=name, text=name if len(name) == 1 and kind == "keyDown" else ""
            )

    def mouse(self, selector: str, click: bool = False) -> None:
        """Point at the middle of an element, and click it."""
        self.run(f"document.querySelector({json.dumps(selector)}).scrollIntoView({{block: 'center'}})")
        box = self.run(
            f"(r => [r.x + r.width / 2, r.y + r.height / 2])(document.querySelector({json.dumps(selector)})"
            ".getBoundingClientRect())"
        )
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=box[0], y=box[1])
        if click:
            for kind in ("mousePressed", "mouseReleased"):
                self.send("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)

    def fonts(self, selector: str) -> dict[str, int]:
        """The fonts that an element's text is drawn with, and the number of letters in each."""
        root = self.send("DOM.getDocument")["root"]["nodeId"]
        node = self.send("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        actual = self.send("CSS.getPlatformFontsForNode", nodeId=node)["fonts"]
        return {font["familyName"]: int(font["glyphCount"]) for font in actual}

    def screenshot(self, path: Path) -> None:
        """Write a PNG of the window."""
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"]))

    def close(self) -> None:
        os.close(self._in)
        os.close(self._out)
        self._process.terminate()
        self._process.wait(timeout=60)

"""Chromium without a screen, driven over its DevTools protocol by a pipe."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""

_FLAGS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",  # as root in a container there is none
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
# It reads commands from 3 and writes to 4; a shell can't name numbers over 9.
_LAUNCH = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); "
    "os.execv(sys.argv[3], sys.argv[3:])"
)
_WAIT_S = 20


class Page:
    """One page of a browser: it is opened, asked and looked at."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._left = b""
        self._number = 0
        self._session = ""
        self.events: list[dict[str, Any]] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Send one command; return its result. Events that come before it are kept."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method}
        message |= {"params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while (told := self._next()).get("id") != self._number:
            self.events.append(told)
        assert "error" not in told, told
        return told["result"]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._left:
            piece = os.read(self._from, 1 << 16)
            assert piece, "the browser has gone"
            self._left += piece
        line, _, self._left = self._left.partition(b"\0")
        return json.loads(line)

    def open(self, url: str) -> None:
        """Go to *url*; returns once it is loaded."""
        self.events.clear()
        self.send("Page.navigate", url=url)
        while not any(e.get("method") == "Page.loadEventFired" for e in self.events):
            self.events.append(self._next())

    def run(self, script: str) -> Any:
        """Return what *script*, an expression, comes to; promises are waited for."""
        told = self.send(
            "Runtime.evaluate",
            expression=script,
            awaitPromise=True,
            returnByValue=True,
        )
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    def wait(self, condition: str) -> None:
        """Return once *condition* holds; fails where it does not come to hold."""
        held = self.run(
            f"""new Promise((done) => {{
                const look = () => {{ if ({condition}) {{ end(true); }} }};
                const end = (how) => {{ watch.disconnect(); done(how); }};
                const watch = new MutationObserver(look);
                watch.observe(document, {{subtree: true, childList: true,
                    attributes: true, characterData: true}});
                setTimeout(() => end(false), {_WAIT_S * 1000});
                look();
            }})"""
        )
        assert held, f"{condition}\n{self.text}"

    def type(self, selector: str, text: str) -> None:
        """Put the cursor there and type, as a keyboard does."""
        self.run(f"document.querySelector({json.dumps(selector)}).focus()")
        self.send("Input.insertText", text=text)

    def press(self, key: str, code: int) -> None:
        """Press and let go one key."""
        row = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        text = {"text": "\r"} if key == "Enter" else {}
        self.send("Input.dispatchKeyEvent", type="keyDown", **row, **text)
        self.send("Input.dispatchKeyEvent", type="keyUp", **row)

    @property
    def text(self) -> str:
        """What can be read on it."""
        return self.run("document.body.innerText")

    @property
    def complaints(self) -> list[str]:
        """What the browser has to say of errors, blocked parts and policies."""
        return [
            event["params"]["entry"]["text"]
            for event in self.events
            if event.get("method") == "Log.entryAdded"
        ]

    @property
    def requested(self) -> list[Mapping[str, Any]]:
        """What the page has asked for since it was opened."""
        return [
            event["params"]["request"]
            for event in self.events
            if event.get("method") == "Network.requestWillBeSent"
        ]

    def shot(self, path: Path, *, width: int = 1000, dark: bool = False) -> None:
        """Save what the whole page looks like."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        self.resize(width)
        height = self.run("document.documentElement.scrollHeight")
        self.resize(width, height)
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot")["data"]))

    def resize(self, width: int, height: int = 800) -> None:
        """Give the window another size."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )


@contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """Yield an empty page of a browser whose profile is in *folder*."""
    commands, to_browser = os.pipe()
    from_browser, answers = os.pipe()
    child = subprocess.Popen(
        [
            *(sys.executable, "-c", _LAUNCH, str(commands), str(answers)),
            *(CHROMIUM, *_FLAGS, f"--user-data-dir={folder}"),
        ],
        pass_fds=(commands, answers),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(commands)
    os.close(answers)
    try:
        page = Page(to_browser, from_browser)
        yield page
        page._session = ""
        with suppress(AssertionError, OSError):
            page.send("Browser.close")
        child.wait(_WAIT_S)
    finally:
        child.kill()
        child.wait()
        os.close(to_browser)
        os.close(from_browser)

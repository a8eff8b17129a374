"""A real Chromium without a screen, driven over a pipe with the DevTools protocol, so that no library is needed."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from relay.errors import Unavailable
from relay.services import debian
from tests import needs

_PACKAGE = "chromium-headless-shell"
_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
_SECONDS = 60.0

SCREENSHOTS = "RELAY_SCREENSHOTS"
"""The environment variable with the folder that keeps the pictures; without it pytest's temporary folder does."""

# Of the status page.
LIVE = "document.querySelector('main').dataset.live !== undefined"
OVERALL = "document.querySelector('.overall').innerText"


def program() -> tuple[Path, dict[str, str]]:
    """Return a browser, that of the PATH or else Debian's, and its environment. Raises ``Unavailable``."""
    for name in _NAMES:
        if found := shutil.which(name):
            return Path(found), {}
    folder = debian.unpacked(_PACKAGE, _others)
    libraries = ":".join(map(str, debian.library_folders(folder)))
    browser = folder / "usr" / "lib" / "chromium" / _PACKAGE
    if not browser.exists():
        raise Unavailable(f"the package {_PACKAGE} has no {browser.name}: install chromium")
    fonts = {"XDG_DATA_HOME": str(folder / "usr" / "share")}
    return browser, {"LD_LIBRARY_PATH": libraries, **fonts}


def _others(apt: debian.Apt) -> list[str]:
    """Return all packages that are not installed here and that the browser needs; a font, to write with."""
    wanted = apt(f"apt-get -qq -y -s --no-install-recommends install {_PACKAGE} fonts-dejavu-core")
    found = {line.split()[1] for line in wanted.splitlines() if line.startswith("Inst ")}
    return sorted(found - {_PACKAGE})


class Browser:
    """One browser with one page, for one thread. ``close`` ends it."""

    def __init__(self, folder: Path) -> None:
        browser, environment = program()
        to_browser, self._commands = os.pipe()
        self._answers, from_browser = os.pipe()
        arguments = [
            "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            "--hide-scrollbars", "--disable-background-networking", "--disable-component-update",
            f"--user-data-dir={folder}", "--remote-debugging-pipe", "about:blank",
        ]  # fmt: skip
        # It reads commands from the descriptor 3, and writes to 4.
        shell = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
        with (folder / "browser.log").open("wb") as log:
            self._process = subprocess.Popen(
                ["/bin/bash", "-c", shell, "browser", str(browser), *arguments],
                pass_fds=(to_browser, from_browser),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "HOME": str(folder), **environment},
            )
        os.close(to_browser)
        os.close(from_browser)
        self._log = folder / "browser.log"
        self._sent = 0
        self._read = b""
        self._session: str | None = None
        self.messages: list[str] = []
        """What the page has written to its console, and what the browser has refused."""
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def open(self, url: str, *, width: int = 1280, dark: bool = False, authorization: str | None = None) -> None:
        """Open a page as wide as a screen, in light or dark."""
        # The page before goes on asking its server, and complains when that has ended.
        self._call("Page.navigate", url="about:blank")
        self.until("location.href === 'about:blank' && document.readyState === 'complete'")
        self.messages.clear()
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 720
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        headers = {"Authorization": authorization} if authorization else {}
        self._call("Network.setExtraHTTPHeaders", headers=headers)
        self.value("window.isBefore = true")
        self._call("Page.navigate", url=url)
        self.until("window.isBefore === undefined && document.readyState === 'complete'")

    def value(self, expression: str) -> Any:
        """Return the value of a JavaScript expression, as JSON."""
        found = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, expression: str) -> Any:
        """Wait until an expression is true, and return its value."""
        end = time.monotonic() + 2 * _SECONDS
        while not (found := self.value(expression)):
            assert time.monotonic() < end, f"not true: {expression}; {self.messages}\n{self.text()}"
            time.sleep(0.1)
        return found

    def text(self) -> str:
        """Return what the page shows, as text."""
        return str(self.value("document.body.innerText"))

    def press(self, key: str, code: int) -> None:
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            self._call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)

    def screenshot(self, path: Path) -> None:
        """Write a picture of the whole page."""
        size = self._call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        taken = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(taken["data"]))

    def close(self) -> None:
        os.close(self._commands)  # which ends it
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._answers)

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._sent += 1
        command = {"id": self._sent, "method": method, "params": parameters}
        if self._session is not None:
            command["sessionId"] = self._session
        os.write(self._commands, json.dumps(command).encode() + b"\0")
        while True:
            message = self._next()
            if message.get("id") == self._sent:
                assert "error" not in message, f"{method}: {message['error']}"
                found: dict[str, Any] = message["result"]
                return found
            self._note(message)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._read:
            part = os.read(self._answers, 1 << 20)
            assert part, f"the browser has ended: {self._log.read_text(errors='replace')[-2000:]}"
            self._read += part
        text, _, self._read = self._read.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        happened, found = message.get("method"), message.get("params", {})
        if happened == "Log.entryAdded":
            self.messages.append(f"{found['entry']['text']} {found['entry'].get('url', '')}")
        elif happened == "Runtime.exceptionThrown":
            self.messages.append(str(found["exceptionDetails"].get("exception", found["exceptionDetails"])))
        elif happened == "Runtime.consoleAPICalled":
            self.messages.append(str(found["args"]))
        elif happened == "Page.javascriptDialogOpening":
            self.messages.append(f"a dialog: {found['message']}")
            self._call("Page.handleJavaScriptDialog", accept=True)


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """Yield a browser that keeps its files in a folder; without one skip the test, or fail if one is required."""
    try:
        found = Browser(folder)
    except Unavailable as error:
        needs.lacking("BROWSER", f"no browser for the status page: {error}")
    try:
        yield found
    finally:
        with suppress(OSError):
            found.close()

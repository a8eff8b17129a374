"""A running relay that is looked at over HTTP."""

from __future__ import annotations

import json
import re
import signal
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import yaml

from tests.faults.scripted_relay import start_relay
from tests.waiting import wait_until


def get(url: str, path: str) -> tuple[int, str]:
    """Return the status code and the text of the response."""
    try:
        with urllib.request.urlopen(url + path, timeout=60) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


class ObservedRelay:
    """A running relay and its endpoints, on a port that it chose itself."""

    def __init__(self, config: Path) -> None:
        raw = yaml.safe_load(config.read_text())
        config.write_text(yaml.safe_dump({**raw, "http": "127.0.0.1:0"}))
        self.relay = start_relay(config, "--log-format", "json")
        self.url = wait_until(self._find, 60)

    def _find(self) -> str | None:
        assert self.relay.is_running, self.relay.log()
        found = re.search(r"http://127\.0\.0\.1:\d+", self.relay.log())
        return found[0] if found else None

    def get(self, path: str) -> tuple[int, str]:
        return get(self.url, path)

    def until(self, path: str, code: int) -> Any:
        """Wait until ``path`` answers with ``code``; return the body."""

        def asked() -> Any:
            found, body = self.get(path)
            return json.loads(body) if found == code else None

        return wait_until(asked, 60)

    def metric(self, name: str) -> float | None:
        """Return the value of one metric; None if it is absent."""
        return self.metrics(name)[0]

    def metrics(self, *names: str) -> list[float | None]:
        """Return the values of several at one moment."""
        text = self.get("/metrics")[1]
        found = [re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE) for name in names]
        return [float(each[1]) if each else None for each in found]

    def until_metric(self, name: str, least: float) -> None:
        wait_until(lambda: True if (self.metric(name) or 0.0) >= least else None, 60)

    def stop(self) -> None:
        """Stop, and check every line of the log."""
        assert self.relay.stop(signal.SIGTERM) == 0, self.relay.log()
        for line in self.relay.log().splitlines()[1:]:  # the first may be cut
            assert {"time", "level", "logger", "message"} <= json.loads(line).keys()

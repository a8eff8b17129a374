"""The demo as a user runs it: its checks hold, and it leaves nothing running."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from relay.jvm.java import find_java
from tests import needs
from tests.browser import LIVE, browser
from tests.waiting import wait_until

pytestmark = pytest.mark.services


class Running(NamedTuple):
    """A demo that runs. ``mark``: is in the environment of all its processes."""

    process: subprocess.Popen[bytes]
    folder: Path
    mark: str


def start(folder: Path, mark: str, seconds: int, *options: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "RELAY_TEST_MARK": mark, "TMPDIR": str(folder)}
    command = [sys.executable, "-m", "relay.cli", "demo", "--seconds", str(seconds), *options]
    with (folder / "demo.log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)


def running(mark: str) -> list[str]:
    """Return the command lines of all processes that the demo started."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"RELAY_TEST_MARK={mark}\0".encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue  # it has ended
    return found


def checked(folder: Path, mark: str, seconds: int, *options: str) -> str:
    """Run a demo, and check that all holds and nothing is left. Return what it printed, in one line."""
    demo = start(folder, mark, seconds, *options)
    code = demo.wait(800)
    text = (folder / "demo.log").read_text()
    assert code == 0, text
    assert "NO," not in text
    assert running(mark) == []
    assert [path.name for path in folder.iterdir() if path.name.startswith("relay-")] == []
    return " ".join(text.split())


def test_every_check_of_the_demo_holds_and_nothing_is_left_behind(tmp_path: Path, unique: str) -> None:
    """I1, I2, I3, I6, I7"""
    assert "commit → invalidated" in checked(tmp_path, unique, 8)


@pytest.mark.faults("the demo of another source: its parts have tests of their own, such as vitess/test_on_vitess.py")
def test_every_check_holds_on_a_vitess_that_is_resharded(tmp_path: Path, unique: str) -> None:
    """I1, I2, I3, I6, I7"""
    needs.vitess()
    text = checked(tmp_path, unique, 6, "--source", "vitess")
    assert "shard shop/c0- is split" in text
    assert "from shard shop/resharded/e0-" in text


@pytest.mark.faults("the demo of another source: its parts have tests of their own, such as mysql/test_relayed.py")
def test_every_check_holds_on_a_mariadb_with_old_rows_whose_primary_is_killed(tmp_path: Path, unique: str) -> None:
    """I1, I2, I3, I6, I7"""
    text = checked(tmp_path, unique, 6, "--source", "mysql", "--json")
    result = json.loads((tmp_path / "demo.log").read_text().splitlines()[-1])
    assert [name for name, check in result["checks"].items() if not check["held"] or check["problems"]] == []
    assert result["counts"]["changes on the topic"] == result["counts"]["writes acknowledged"]
    assert result["latencies"]["commit → invalidated"]["p50_ms"] > 0
    assert "a snapshot of all tables was requested" in text
    assert "was killed and" in text
    assert "every row from before the relay is on the topic" in text


def test_without_go_the_vitess_demo_says_what_to_install(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "relay.cli", "demo", "--source", "vitess"]
    java = find_java().resolve().parents[1]
    environment = {**os.environ, "RELAY_CACHE": str(tmp_path), "PATH": str(tmp_path), "JAVA_HOME": str(java)}
    ran = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, env=environment)
    assert (ran.returncode, ran.stdout) == (3, "")
    assert ran.stderr.startswith("relay: error: Go 1.21 or newer is needed to build Vitess")


@pytest.fixture(scope="module")
def running_demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder, mark = tmp_path_factory.mktemp("demo"), f"t{uuid.uuid4().hex[:10]}"
    demo = start(folder, mark, 600)  # it is killed before
    try:
        wait_until(lambda: "everything is up" in (folder / "demo.log").read_text() or None, 600)
        yield Running(demo, folder, mark)
    finally:
        demo.kill()
        demo.wait()


@pytest.mark.faults("another demo: observe/test_live_page.py has a worker's page, test_page_json.py that of consumers")
def test_while_it_runs_its_page_shows_the_worker_and_all_consumers(
    running_demo: Running, tmp_path: Path, screenshots: Path
) -> None:
    said = re.search(r"http://127\.0\.0\.1:\d+/(?=\s)", (running_demo.folder / "demo.log").read_text())
    assert said is not None
    url = said[0]
    with browser(tmp_path) as page:
        page.open(url)
        page.until(LIVE)
        page.until(
            "[...document.querySelectorAll('tr')].filter(each => each.innerText.includes('up to date')).length >= 4"
        )
        shown = page.text()
        for text in ("worker 0 (this page)", "cache", "log", "copy", "64 of 64 partitions"):
            assert text in shown
        # Of the last 15 minutes. A line is in parts where a busy machine has missed samples.
        page.until("document.querySelectorAll('figure:has(.line)').length === 3")
        assert page.messages == []
        (log,) = running_demo.folder.glob("relay-demo-*/tables.log")
        assert "FairSchedulableBuilder" not in log.read_text()
        for width, dark in ((1280, False), (390, True)):
            page.open(url, width=width, dark=dark)
            page.until(LIVE)
            page.screenshot(screenshots / f"demo-{'dark' if dark else 'light'}-{width}.png")


@pytest.mark.faults("another end of a demo: process/test_supervisor.py kills what has children that end with it")
def test_all_that_a_demo_has_started_ends_if_it_is_killed(running_demo: Running) -> None:
    """The last test of this demo."""
    assert any("consume" in command for command in running(running_demo.mark))
    running_demo.process.kill()
    running_demo.process.wait()
    wait_until(lambda: not running(running_demo.mark) or None, 30)


def test_an_interrupted_demo_leaves_nothing_running(tmp_path: Path, unique: str) -> None:
    demo = start(tmp_path, unique, seconds=60)
    wait_until(lambda: any("consume" in command for command in running(unique)) or None, 120)
    demo.send_signal(signal.SIGINT)
    assert demo.wait(300) == 130, (tmp_path / "demo.log").read_text()
    wait_until(lambda: not running(unique) or None, 10)

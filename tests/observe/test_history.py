"""The samples and events of the last minutes, and how they outlive the process."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import orjson
import pytest

from relay import __version__
from relay.config import Config
from relay.observe import history
from relay.observe.history import EVENTS, KEPT, Event, History, Recent, Sample, Totals
from relay.observe.server import serve_observer
from relay.process.folders import state_folder
from relay.process.managed import free_port
from tests.waiting import wait_until

log = logging.getLogger("relay.mysql.current_server")


def test_the_history_is_as_long_as_a_quarter_of_an_hour_and_no_longer() -> None:
    kept = History()
    for second in range(4000):
        if kept.is_due(second):
            kept.add(second, 1000 + second, Totals(2 * second, second / 10, second), 3.14)
    samples = kept.samples()
    assert len(samples) == KEPT == 15 * 60 / 5
    assert samples[-1] == (4995, 2.0, 3.1, 0.1)
    kept.add(4100, 5100, Totals(2 * 3995, 399.5, 3995), None)
    assert kept.samples()[-1] == (5100, 0.0, None, None)


def logged(recent: Recent) -> list[tuple[str, str]]:
    return [(each.kind, each.what) for each in recent.events()]


@pytest.fixture
def recent(caplog: pytest.LogCaptureFixture) -> Recent:
    caplog.set_level(logging.INFO, logger="relay")
    return Recent()


def test_warnings_and_lines_that_are_marked_as_events_are_kept_without_secrets(recent: Recent) -> None:
    with recent.kept_in(None):
        log.info("connected")
        log.info("switching from %s", "mysql://me:hunter2@db/", extra={"event": "failover"})
        logging.getLogger("relay.kafka.librdkafka").error("REQTMOUT: one of many")
        log.warning("on_alter has changed rows unseen")
        log.warning("a folder with half a pair: \udcff")
    log.warning("after its end")
    assert logged(recent) == [
        ("failover", "switching from mysql://***@db/"),
        ("warning", "on_alter has changed rows unseen"),
        ("warning", "a folder with half a pair: ?"),
    ]
    orjson.dumps(recent.events(), default=list)


def test_a_draft_of_a_process_that_was_killed_does_not_stay(recent: Recent, tmp_path: Path) -> None:
    draft = tmp_path / "page-9400.draft"
    draft.write_text("{")
    with recent.kept_in(tmp_path / "page-9400.json"):
        log.warning("begins")
    assert [each.name for each in tmp_path.iterdir()] == ["page-9400.json"]


def test_a_line_that_cannot_be_formatted_does_not_stop_who_logs_it(
    recent: Recent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I12"""
    monkeypatch.setattr(logging, "raiseExceptions", False)
    recent.handle(log.makeRecord(log.name, logging.WARNING, __file__, 1, "%d changes", ("no",), None))
    assert logged(recent) == []


def test_of_what_comes_again_and_again_the_last_is_shown_and_nothing_else_is_pushed_out(recent: Recent) -> None:
    recent.add([Event(0.0, "restart", "begins"), *(Event(at, "warning", "again") for at in range(99))])
    assert recent.events() == [Event(0.0, "restart", "begins"), Event(98, "warning", "again")]
    recent.add(Event(at, "warning", f"other {at}") for at in range(99))
    assert len(recent.events()) == EVENTS


def config(port: int) -> Config:
    table = {"name": "orders", "type": "dynamodb", "table": "orders"}
    kafka = {"bootstrap_servers": "127.0.0.1:1"}
    http = f"127.0.0.1:{port}"
    return Config.model_validate({"name": "shop", "kafka": kafka, "sources": [table], "http": http})


def test_a_worker_that_is_started_again_shows_what_happened_before(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="relay")
    port, now = free_port(), round(time.time())
    with serve_observer(config(port)) as observer:
        observer.recent.history.restore([Sample(now - 15 * 60 - 1, 1.0, 1.0, None), Sample(now - 9, 7.0, 0.5, 0.1)])
        log.warning("table orders has no key any longer")
    with serve_observer(config(port)) as observer:
        assert observer.recent.history.samples() == [(now - 9, 7.0, 0.5, 0.1)]
        begins = ("restart", f"worker 0 begins, version {__version__}")
        assert logged(observer.recent) == [begins, ("warning", "table orders has no key any longer"), begins]


@pytest.mark.parametrize(
    "left",
    [b"", b"{", b"[]", b'{"history": [[1]], "events": []}', b'{"history": [], "events": [["x", "warning", ""]]}'],
)
def test_what_cannot_be_read_is_left_behind(left: bytes) -> None:
    port = free_port()
    file = state_folder() / "shop" / f"page-{port}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(left)
    with serve_observer(config(port)) as observer:
        assert observer.recent.history.samples() == []
        assert observer.recent.events() == []


def test_a_disk_that_cannot_be_written_ends_nothing_and_is_tried_again(
    recent: Recent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "_KEPT_EVERY", 0.02)
    (tmp_path / "file").touch()
    with recent.kept_in(tmp_path / "file" / "page.json"):
        log.warning("it goes on")
        time.sleep(0.1)
        (tmp_path / "file").unlink()
        wait_until(lambda: (tmp_path / "file" / "page.json").exists() or None, 60)
    assert logged(recent) == [("warning", "it goes on")]

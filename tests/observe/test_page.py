"""The status page in a real browser: what it shows of each state, and how it behaves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.browser import LIVE, OVERALL, Browser, browser
from tests.listening import NOBODY
from tests.observe import page_states
from tests.observe.known import NOW, WALL
from tests.observe.page_states import EVIL, STATES, served, shard

pytestmark = pytest.mark.services

TO_OTHERS = "performance.getEntriesByType('resource').filter(each => !each.name.startsWith(location.origin)).length"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a worker wait for the others for almost as long as the page waits for it, and not for two seconds."""
    monkeypatch.setattr("relay.observe.peers._SECONDS", 8.0)


SHOWN = {
    "healthy": (
        "Up to date",
        [
            "worker 0 (this page)",
            "worker 1",
            "32 of 64 partitions",
            "cache",
            "400 ms",
            "read to its end",
            "…0001764674-b54cda26",
        ],
    ),
    "snapshotting": (
        "Snapshotting 1,204,500 of about 3,010,000 rows",
        ["catching up", "1 h 30 min", "snapshot", "segment-1", "6 min 50 s", "369,000 records"],
    ),
    "stalled": (
        "Stalled",
        [f"{shard(6)}: no successful poll of the shard", "For 5 min 12 s", "http://***@dynamodb:8000/", "relay status"],
    ),
    "gap": (
        "Stopped at a gap",
        [
            "relay gaps accept relay.yaml 5f3a9c0d21e88b47 skip",
            "relay gaps accept relay.yaml 5f3a9c0d21e88b47 resnapshot",
            "6 dead letters since the start",
            "relay dead-letters list relay.yaml",
            "relay dead-letters redrive relay.yaml --all",
            "at a gap",
            "relay gaps list relay.yaml",
        ],
    ),
    "failing consumer": (
        "A consumer fails",
        ["consumer cache fails, and tries again", "no server answers at redis://***@redis:6379/0"],
    ),
    "silent process": ("A process does not answer", [f"http://{NOBODY} does not answer"]),
    "late consumer": ("Catching up The consumer copy is 21.7 min behind.", ["catching up"]),
    "published gap": (
        "Needs attention",
        ["changes of orders are missing", "relay snapshot relay.yaml orders", "4 dead letters since the start"],
    ),
    "repaired gap": ("Up to date", ["up to date"]),
    "unmet gap": ("Stopped at a gap", ["relay gaps accept relay.yaml 5f3a9c0d21e88b47 skip"]),
    "set aside": ("Stalled", ["-80: the shard waits for a person", "mysql://***@db/"]),
    "left out": ("Stalled", ["table orders is not relayed", "The table has no primary key"]),
    "source away": ("Stalled", ["billing: the source is not read", "mysql://***@db/", "relay check relay.yaml"]),
    "fenced": ("Stalled", ["no transaction has been committed", "7 attempts failed; the last was fenced"]),
    "copy": ("Stalled", ["consumer copy: table orders is set aside", "redis://***@x"]),
    "store away": ("Stalled", ["consumer cache: its store is bypassed", "redis://***@redis:6379/0", "For 20 s"]),
    "store full": ("Stalled", ["consumer cache: its store is bypassed", "redis:6379: 9.0 MB of 9.0 MB, noeviction"]),
    "altered": (
        "Needs attention",
        [
            "table orders of legacy may differ from its copies",
            "ALTER TABLE orders MODIFY total DECIMAL(10,3)",
            "relay snapshot relay.yaml legacy items",
        ],
    ),
    "absent copy": (
        "Needs attention",
        [
            "consumer copy is behind, and seems not to run",
            "It is 14 offsets behind, and no page shows it",
            "relay consume copy relay.yaml",
        ],
    ),
    "absent for a moment": ("Catching up The consumer copy is 14 offsets behind", []),
    "starting": ("Starting", ["worker 0: source orders: not planned yet"]),
    "without coordinator": ("Stalled", ["orders: the source is not planned", "has not joined group shop.relay"]),
    "hostile": (
        "Stalled",
        [f"orders {EVIL}", "waits for pool", "consumer cache has stopped", "'$(reboot) ", "\"'\"'\"'&{{7*7}}"],
    ),
}


@pytest.mark.parametrize("name", STATES)
def test_the_page_shows_the_state_in_light_in_dark_and_on_a_phone(name: str, page: Browser, screenshots: Path) -> None:
    overall, texts = SHOWN[name]
    with served(STATES[name]()) as found:
        for width, dark in ((1280, False), (1280, True), (390, False)):
            page.open(found.url, width=width, dark=dark)
            page.until(LIVE)
            page.until(f"{OVERALL}.startsWith({json.dumps(overall)})")
            shown = page.text()
            missing = [text for text in texts if text not in shown]
            # The drawing is not part of the text.
            drawn = str(page.value("[...document.querySelectorAll('svg text')].map(each => each.textContent).join()"))
            assert not [text for text in missing if text not in drawn], shown
            assert "hunter2" not in page.value("document.documentElement.outerHTML")
            # Nothing was refused by the policy, loaded from elsewhere, run, or left unescaped.
            assert page.messages == []
            assert page.value(TO_OTHERS) == 0
            assert page.value("document.querySelectorAll('img, script').length") == 1
            assert page.value("document.documentElement.scrollWidth") == width
            page.screenshot(screenshots / f"{name}-{'dark' if dark else 'light'}-{width}.png")
        assert page.value("getComputedStyle(document.body).backgroundColor") == "rgb(246, 247, 249)"
        assert page.value("document.querySelectorAll('svg a rect').length") >= 4


def test_it_changes_without_a_reload_and_keeps_focus_and_what_is_open(page: Browser) -> None:
    with served(page_states.healthy()) as found:
        page.open(found.url)
        page.until(LIVE)
        page.value("document.querySelector('details.whole').open = window.here = true")
        page.value(f"document.querySelector('[data-key=\"{shard(6)}\"]').focus()")
        for observer, known in zip(found.workers, page_states.stalled().workers, strict=True):
            observer._status = known
        page.until(f"{OVERALL}.startsWith('Stalled')")
        assert page.value("window.here")
        assert page.value("document.querySelectorAll('details[open]').length") == 1
        assert page.value("document.activeElement.querySelector('rect').classList.contains('stalled')")
        found.workers[1].worker = 7  # one that has started anew
        page.until("document.body.innerText.includes('worker 7')")
    page.until("document.body.innerText.includes('No answer for')")
    assert "Stalled" in page.text()


def test_the_rate_of_a_table_is_how_much_it_has_grown_while_one_looks(page: Browser) -> None:
    with served(page_states.healthy()) as found:
        page.open(found.url)
        page.until(LIVE)
        rate = "document.querySelector('[data-key=\"table orders/orders\"]').cells[3].innerText"
        assert page.value(rate) == "–"
        found.workers[1].metrics.tables["orders", "orders"] += 100
        for each in found.workers:
            each.wall = lambda: WALL + 20
        page.until(f"{rate} === '5'")


SHARD_ROWS = "[...document.querySelectorAll('tr[id]')].filter(each => each.checkVisibility())"


def test_the_row_of_a_shard_that_needs_a_person_comes_first_and_its_error_leaves_names_whole(page: Browser) -> None:
    for state, place in ((page_states.stalled, "stalled"), (page_states.gap_and_dead_letters, "at a gap")):
        with served(state()) as found:
            page.open(found.url)
            page.until(LIVE)
            rows = page.value(f"{SHARD_ROWS}.map(each => each.innerText)")
            assert [place in row for row in rows[:2]] == [True, False]
            lines = "(cell) => { const all = document.createRange(); all.selectNodeContents(cell); "
            lines += "return new Set([...all.getClientRects()].map(each => each.top)).size; }"
            assert page.value(f"{SHARD_ROWS}.map(each => each.cells[0]).map({lines})") == [1] * len(rows)


def test_of_a_source_without_snapshots_a_gap_can_only_be_skipped(page: Browser) -> None:
    state = page_states.gap_and_dead_letters()
    workers = [
        replace(worker, sources=tuple(replace(each, has_snapshots=False) for each in worker.sources))
        for worker in state.workers
    ]
    with served(replace(state, workers=workers)) as found:
        page.open(found.url)
        page.until(LIVE)
        shown = page.text()
        assert "continue after the gap." in shown
        assert "relay gaps accept relay.yaml 5f3a9c0d21e88b47 skip" in shown
        assert "resnapshot" not in shown


def test_a_table_that_cannot_be_relayed_is_named_with_the_reason(page: Browser) -> None:
    """I12"""
    state = page_states.healthy()
    worker, *others = state.workers
    first, *more = worker.sources
    worker = replace(worker, sources=(replace(first, left_out={"gaps": "has a topic of the relay"}), *more))
    with served(replace(state, workers=[worker, *others])) as found:
        page.open(found.url)
        page.until(LIVE)
        assert f"{first.stream.source}: table gaps is not relayed" in page.text()
        assert "The table has a topic of the relay." in page.text()
        assert "Needs attention" in page.text()


def test_a_shard_is_found_from_the_drawing_and_a_command_is_copied_by_keyboard_alone(page: Browser) -> None:
    with served(page_states.gap_and_dead_letters()) as found:
        page.open(found.url)
        page.until(LIVE)
        page.press("Tab", 9)
        assert page.value("document.activeElement.dataset.copy") == "relay gaps accept relay.yaml 5f3a9c0d21e88b47 skip"
        page.press("Enter", 13)
        page.until("getSelection().toString() === document.querySelector('[data-copy]').dataset.copy")
        while page.value("document.activeElement.dataset.key") != shard(0):
            page.press("Tab", 9)
            assert page.value("document.activeElement !== document.body")
        page.press("Enter", 13)
        # The row of a shard that has ended is shown for it.
        page.until("document.querySelector('tr:target')?.checkVisibility()")
        assert str(page.value("document.querySelector('tr:target').innerText")).startswith(shard(0))


def test_with_a_password_the_page_and_what_it_asks_for_need_it(page: Browser) -> None:
    with served(page_states.healthy(), user="ops", password="hunter2") as found:
        page.open(found.url)
        assert "`http`" in page.text()
        page.open(found.url, authorization="Basic b3BzOmh1bnRlcjI=")
        page.until(LIVE)
        page.until("document.body.innerText.includes('worker 1')")


def test_a_worker_that_hangs_is_shown_as_stalled(page: Browser) -> None:
    """I10"""
    with served(page_states.healthy()) as found:
        found.workers[0].liveness.turned = NOW - 61
        page.open(found.url)
        page.until(LIVE)
        page.until("document.body.innerText.includes('main loop hangs')")


def test_the_row_of_a_shard_shows_its_error_from_the_beginning(page: Browser) -> None:
    with served(page_states.stalled()) as found:
        page.open(found.url)
        page.until(LIVE)
        said = str(page.value(f"{SHARD_ROWS}[0].cells[6].innerText"))
        assert said.startswith("ProvisionedThroughputExceededException: Rate exceeded for shard")

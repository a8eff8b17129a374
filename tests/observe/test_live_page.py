"""The status page of a relay that runs, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.browser import LIVE, OVERALL, Browser, browser
from tests.dynamodb.answering_server import Refused
from tests.dynamodb.endpoint import TABLE, ScriptedStream, full
from tests.faults.harness import Scene
from tests.observe.observed_relay import ObservedRelay

pytestmark = pytest.mark.services


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


def node(shard: str) -> str:
    """Return an expression for the class of a shard in the drawing, as it is now."""
    return f"document.querySelector('[data-key=\"{full(shard)}\"] rect')?.getAttribute('class')"


def test_a_shard_that_stalls_is_shown_with_its_reason_until_it_goes_on(
    scene: Scene, page: Browser, screenshots: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I10"""
    monkeypatch.setenv("RELAY_STALLED_AFTER", "5")
    with ScriptedStream() as stream:
        raw = yaml.safe_load(scene.path.read_text())
        raw["sources"][0] |= {"table": TABLE, "endpoint_url": stream.url}
        scene.path.write_text(yaml.safe_dump(raw))
        stream.shard("root")
        for version in range(1, 6):
            stream.put("root", "a", version)
        stream.split("root", "hot", "calm")
        stream.put("hot", "b", 1)
        stream.put("calm", "c", 1)
        observed = ObservedRelay(scene.path)
        page.open(observed.url)
        page.until(LIVE)
        page.until(f"{node('root')} === 'node finished'")
        page.until(f"{node('hot')} === 'node current' && {node('calm')} === 'node current'")
        page.until(f"{OVERALL}.startsWith('Up to date')")
        assert "1 shard read to its end" in page.text()
        page.screenshot(screenshots / "live-running.png")

        def throttle(operation: str) -> None:
            asked = stream.requests[-1]
            if full("hot") in (asked.get("ShardId", ""), asked.get("ShardIterator", "").partition("|")[0]):
                raise Refused("ThrottlingException")

        stream.before = throttle
        page.until(f"{node('hot')} === 'node stalled'")
        page.until(f"{OVERALL}.startsWith('Stalled')")
        page.until("document.body.innerText.includes('Throttling')")
        shown = page.text()
        assert f"{full('hot')}: no successful poll of the shard" in shown
        assert f"relay status {scene.path}" in shown
        page.until(f"{node('calm')} === 'node current'")
        page.screenshot(screenshots / "live-stalled.png")

        stream.before = lambda operation: None
        page.until(f"{node('hot')} === 'node current'")
        page.until(f"{OVERALL}.startsWith('Up to date')")
        assert page.messages == []
        observed.stop()

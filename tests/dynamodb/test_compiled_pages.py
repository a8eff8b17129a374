"""Which pages of a shard the compiled core makes, and that they are those of plain Python."""

from __future__ import annotations

from dataclasses import replace

import pytest

from relay.change import ChangeParts
from relay.dynamodb.source import DynamoDBSource
from relay.errors import RelayError
from relay.source import Page
from relay.token import EventToken
from tests import needs
from tests.dynamodb.endpoint import ScriptedStream
from tests.dynamodb.opened_source import reader, versions
from tests.reads import read_page


@pytest.fixture(autouse=True)
def core() -> None:
    needs.compiled_core()


@pytest.mark.parametrize("refused", [None, 4])
def test_both_ways_read_the_same_pages(
    source: DynamoDBSource, stream: ScriptedStream, monkeypatch: pytest.MonkeyPatch, refused: int | None
) -> None:
    """I1, I4, I8: clocks that go back, and a record that is refused in the middle of a page."""
    stream.page = 3
    stream.shard("s")
    for version, created in enumerate([100, 50, 120, 120, 90, 130, 140]):
        stream.put("s", f"k{version % 2}", version, created=created, old=version if version % 3 else None)
    if refused is not None:
        del stream.shards[next(iter(stream.shards))].records[refused]["dynamodb"]["Keys"]
    stream.close("s")
    outcomes = []
    for native in ("off", "required"):
        monkeypatch.setenv("RELAY_NATIVE", native)
        token = EventToken(60, "orders/l/s", "DynamoDB/0")
        reading = reader(source, position={"type": "trim_horizon"}, token=token, floor=110)
        pages: list[Page] = []
        error = ""
        try:
            while not (pages and pages[-1].finished):
                pages.append(read_page(reading))
        except RelayError as failure:
            error = str(failure)
        made = [type(page.changes) for page in pages]
        blocks = list if native == "off" else ChangeParts
        assert blocks in made
        outcomes.append(([replace(page, begun=0.0, changes=list(page.changes)) for page in pages], error))
    assert outcomes[0] == outcomes[1]
    assert bool(outcomes[0][1]) == (refused is not None)


def test_the_first_page_of_a_shard_is_a_block_unless_its_records_may_be_too_old(
    source: DynamoDBSource, stream: ScriptedStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream with many shards has many first pages."""
    monkeypatch.setenv("RELAY_NATIVE", "required")
    stream.page = 3
    stream.shard("s")
    for version, created in enumerate([100, 250, 270]):
        stream.put("s", "k", version, created=created)
    everything, recent = (
        read_page(reader(source, start=start)) for start in ({"type": "trim_horizon"}, {"since": 200.0})
    )
    assert isinstance(everything.changes, ChangeParts)
    assert versions(everything) == [0, 1, 2]
    assert not isinstance(recent.changes, ChangeParts)
    assert versions(recent) == [1, 2]

"""A backlog that is relayed over a link which carries much less than the relay could publish."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.dynamodb.endpoint import ScriptedStream, full
from tests.faults.scripted_relay import published_versions, start_relay, write_config
from tests.kafka.proxy import Link, ProxiedBroker

pytestmark = pytest.mark.services

SHARDS, EACH = 12, 200
SIZE = 3900  # bytes of an item that no compression makes smaller


@pytest.mark.faults("the link is busy for a minute")
@pytest.mark.parametrize("rate", [200_000, 700_000])
def test_a_relay_behind_a_slow_link_uses_it_and_sends_nothing_twice(
    tmp_path: Path, broker: ProxiedBroker, unique: str, rate: int, record_property: Any
) -> None:
    """I3, I10: it made no progress, since what took too long was abandoned, went on using the link, and came again."""
    chance = random.Random(rate)
    with ScriptedStream(page=250) as stream:
        for shard in (f"s{number}" for number in range(SHARDS)):
            stream.shard(shard)
            for version in range(EACH):
                stream.put(shard, f"{shard}-{version % 50}", version)
                image = stream.shards[full(shard)].records[-1]["dynamodb"]["NewImage"]
                image["text"] = {"S": chance.randbytes(SIZE // 2).hex()}
        path = write_config(tmp_path, stream, broker.bootstrap_servers, unique, transaction_timeout=10_000)
        broker.proxy.link = link = Link(rate)
        try:
            relay = start_relay(path, "--until-caught-up")
            code = relay.wait(400)
        finally:
            broker.proxy.link = None
        assert code == 0, relay.log()
        share = link.passed / (link.rate * link.seconds)
        record_property("share of the rate", share)
        print(f"{link.passed:,} bytes, {share:.0%} of {rate:,} bytes a second for {link.seconds:.0f} s")
        assert "fenced (" not in relay.log()
        assert "was aborted" not in relay.log()
        assert link.passed < 1.3 * SHARDS * EACH * SIZE, "some of it was sent more than once"
        histories, ids = published_versions(path)
        assert set(ids.values()) == {1}
        assert sum(map(len, histories.values())) == SHARDS * EACH

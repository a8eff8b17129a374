"""The table of verdicts: each of its cells, brought about by a server of a shard that has no other."""

from __future__ import annotations

import re
from itertools import product

import pytest

from relay.errors import RelayError, Unavailable
from relay.gtid import parse
from relay.mysql.errors import BinlogPurged, Diverged
from relay.mysql.roles import VERDICTS, ServerHistory, ServerVerdict, Standing
from relay.mysql.servers import LOST, LostPosition
from tests.mysql.fake_servers import A, B, FakeServer, FakeShard

READ = f"{A}:1-100"
ROLES = {
    Standing.REPLICA: {"read_only": "ON"},
    Standing.STANDBY: {"read_only": "ON"},
    Standing.MEMBER: {"group_replication_group_name": "11111111-2222-3333-4444-555555555555"},
    Standing.PRIMARY: {},
}
REFUSALS: dict[ServerHistory, RelayError] = {
    ServerHistory.OTHER: Diverged("its binlogs were reset"),
    ServerHistory.PURGED: BinlogPurged("its binlogs were purged"),
}
# As for `VERDICTS`, in words.
TABLE = """
                REPLICA  STANDBY  MEMBER   PRIMARY
COMPLETE        READ     READ     READ     READ
BEHIND          BEHIND   STANDBY  BEHIND   LACKING
UNACKNOWLEDGED  BEHIND   STANDBY  BEHIND   WAITING
OTHER           OTHER    OTHER    LACKING  LACKING
PURGED          PURGED   PURGED   PURGED   PURGED
"""
STANDINGS, *ROWS = (line.split() for line in TABLE.strip().splitlines())
CELLS = {
    (ServerHistory[history], Standing[standing]): ServerVerdict[verdict]
    for history, *verdicts in ROWS
    for standing, verdict in zip(STANDINGS, verdicts, strict=True)
}


def test_the_table_has_each_history_of_each_standing() -> None:
    assert VERDICTS.keys() == set(product(ServerHistory, Standing))
    assert CELLS == VERDICTS


@pytest.mark.parametrize(("history", "standing"), CELLS, ids=lambda each: each.name)
def test_a_server_is_good_for_what_the_table_says(history: ServerHistory, standing: Standing) -> None:
    """I9: nothing is taken for lost too early, and nothing lost goes unnoticed."""
    is_short = history in (ServerHistory.BEHIND, ServerHistory.UNACKNOWLEDGED)
    uuid = A if history is ServerHistory.UNACKNOWLEDGED else B
    server = FakeServer("one", f"{A}:1-99" if is_short else READ, replica=standing is Standing.REPLICA, uuid=uuid)
    server.settings = {**server.settings, **ROLES[standing]}
    server.waiting = 1
    shard = FakeShard(server)
    if history in REFUSALS:
        shard.servers.failed("one:3306", REFUSALS[history])
    verdict = CELLS[history, standing]
    if verdict is ServerVerdict.READ:
        assert shard.find(READ) == "one"
        return
    if verdict is ServerVerdict.PURGED:
        assert shard.find(READ) == LostPosition("purged", parse(READ))
        return
    with pytest.raises(Unavailable, match=re.escape(f"one:3306 {verdict.value}")):
        shard.find(READ)
    shard.now += 2
    if verdict is ServerVerdict.LACKING:
        common = f"{A}:1-99" if is_short else READ
        assert shard.find(READ) == LostPosition(LOST, parse(common))
    else:
        with pytest.raises(Unavailable):
            shard.find(READ)

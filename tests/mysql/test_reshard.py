"""Reshards by overlapping ranges: which shards replace which, and that no change is lost or duplicated."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.errors import RelayError, Unavailable
from relay.gtid import parse
from relay.keyrange import KeyRange
from relay.mysql.connection import ServerConnection, connect
from relay.mysql.origins import CheckpointTable
from relay.mysql.reshard import Handover, HandoverCheck, Reshard, first_shards, reshard_of, start_of_target, unfinished
from relay.mysql.source import MySQLSource
from relay.records import ShardCheckpoint, ShardState
from relay.services.mariadb import PASSWORD, USER, MariaDB
from tests.listening import NOBODY
from tests.mysql.fake_servers import A, B, FakeServer
from tests.mysql.reading import session
from tests.mysql.resharding import PLAIN, VITESS, World, create_tables, reshard_under_load
from tests.mysql.shards import config
from tests.waiting import wait_until

ALL = KeyRange()


@pytest.mark.parametrize(
    ("listed", "shard", "expected"),
    [
        ("- -80 80-", "-", "- > -80 80-"),
        ("- -80 80-", "-80", None),
        ("-80 80- -", "-80", "-80 80- > -"),
        ("-80 80- -", "80-", "-80 80- > -"),
        ("-80 80- -", "-", None),
        ("-80 80- -40 40-80", "-80", "-80 > -40 40-80"),
        ("-80 80- -40 40-80", "80-", None),
        ("-80 80- -40 40-c0 c0-", "80-", "-80 80- > -40 40-c0 c0-"),
        ("- -80 80- -40 40-80", "-", "- > -80 80-"),
        ("- -80 80- -40 40-80", "-80", "-80 > -40 40-80"),
        ("- -80", "-", None),
        ("-80 80- -40 40-c0", "-80", None),
        ("0 -80 80-", "0", "0 > -80 80-"),
    ],
)
def test_a_shard_is_replaced_by_the_shards_listed_after_it(listed: str, shard: str, expected: str | None) -> None:
    reshard = reshard_of(shard, tuple(listed.split()))
    if expected is None:
        assert reshard is None
    else:
        participants, targets = (tuple(names.split()) for names in expected.split(">"))
        assert reshard == Reshard(participants, targets)


def test_reading_starts_with_the_shards_listed_first() -> None:
    assert first_shards(ALL, ["-", "-80", "80-"]) == ["-"]
    assert first_shards(ALL, ["80-", "-80", "-"]) == ["-80", "80-"]
    assert first_shards(KeyRange.parse("-80"), ["-80", "80-"]) == ["-80"]
    assert unfinished(("-", "-80")) == ["-"]
    assert unfinished(("-", "-80", "80-")) == []
    with pytest.raises(ValueError, match="80-"):
        first_shards(ALL, ["-80"])


def ranges(cuts: Sequence[int]) -> list[str]:
    edges = ["", *(f"{cut:02x}" for cut in sorted(set(cuts))), ""]
    return [f"{edges[n]}-{edges[n + 1]}" for n in range(len(edges) - 1)]


@given(st.lists(st.lists(st.integers(1, 255), max_size=4), min_size=1, max_size=4))
def test_all_workers_agree_on_every_reshard_and_what_it_covers(generations: list[list[int]]) -> None:
    listed = tuple(dict.fromkeys(name for cuts in generations for name in ranges(cuts)))
    assert KeyRange.parse(first_shards(ALL, listed)[0]).start == b""
    for shard in listed:
        reshard = reshard_of(shard, listed)
        if reshard is None:
            continue
        assert shard in reshard.participants
        assert not set(reshard.participants) & set(reshard.targets)
        for participant in reshard.participants:
            assert reshard_of(participant, listed) == reshard
        for names in (reshard.participants, reshard.targets):
            parts = [KeyRange.parse(name) for name in names]
            whole = parts[0]
            for part in parts[1:]:
                whole += part
            assert whole.covers(KeyRange.parse(shard))
        assert reshard.journal().id == Reshard(reshard.participants, reshard.targets).journal().id


def test_a_target_starts_at_the_earliest_position_of_its_parents() -> None:
    def ended(gtid: str) -> ShardCheckpoint:
        return ShardCheckpoint(ShardState.FINISHED, {"gtid": "MariaDB/0-1-99", "targets": {"-": gtid}})

    assert start_of_target("-", {"-80": ended("MariaDB/0-5-7"), "80-": ended("MariaDB/0-5-4")}).position == (
        "MariaDB/0-5-4"
    )
    with pytest.raises(RelayError, match="relay reset"):
        start_of_target("-", {"-80": ShardCheckpoint(ShardState.FINISHED, {"gtid": "MariaDB/0-1-99"})})


class Target(FakeServer):
    """A target of a reshard. ``position``: of the shard ``-``, in the row of its replication, which is ``state``.

    ``others``: the other rows of its checkpoint table.
    """

    def __init__(self, position: str, state: str = "Running", *others: Mapping[str, object]) -> None:
        super().__init__("target", f"{B}:1-9")
        self.position = position
        self.state = state
        self.others = others

    def named_rows(self, statement: str) -> Sequence[Mapping[str, object]]:
        if statement.startswith("SELECT *"):
            return [{"source_shard": "-", "pos": self.position, "state": self.state}, *self.others]
        return super().named_rows(statement)

    def check(self, clock: Callable[[], float] = time.monotonic) -> HandoverCheck:
        """Return the check of the shard ``-``, with this as all its targets."""
        listed = ("-", "-80", "80-")
        return HandoverCheck("-", lambda: listed, lambda _: self, CheckpointTable.named("r.t"), clock=clock)


def test_a_shard_does_not_hand_over_in_the_middle_of_what_a_running_replication_groups() -> None:
    """I3: some of the transactions that it commits as one after this would have been published here."""
    now = 1000.0
    target = Target(f"MySQL56/{A}:1-5")
    check = target.check(lambda: now)
    with pytest.raises(Unavailable, match="the replication from shard - is running"):
        decided(check, f"MySQL56/{A}:1-7")
    target.position = f"MySQL56/{A}:1-7"
    now += 3600
    handover = check(parse(f"{A}:1-7"))
    assert handover is not None
    assert handover.targets == {"-80": f"MySQL56/{B}:1-9", "80-": f"MySQL56/{B}:1-9"}


def test_a_shard_hands_over_once_it_has_read_the_positions_of_all_rows_for_it() -> None:
    """I1: an old workflow's row says nothing about what another replication has already applied."""
    old = {"source_shard": "-", "pos": f"MySQL56/{A}:1-2", "state": "Stopped"}
    check = Target(f"MySQL56/{A}:1-9", "Stopped", old).check()
    assert decided(check, f"MySQL56/{A}:1-8") is None
    assert decided(check, f"MySQL56/{A}:1-9") is not None


def test_a_shard_waits_for_a_row_that_it_never_reaches_and_says_so_until_the_row_is_removed() -> None:
    """I1, I12: the row of another database's shard with the same name."""
    now = 1000.0
    target = Target(f"MySQL56/{A}:1-5", "Stopped", {"source_shard": "-", "pos": "MariaDB/7-9-10", "state": "Stopped"})
    check = target.check(lambda: now)
    assert decided(check, f"MySQL56/{A}:1-5") is None
    now += 3600
    with pytest.raises(
        Unavailable, match=r"r\.t of a shard that replaces - has the position MariaDB/7-9-10, .* remove"
    ):
        check(parse(f"{A}:1-5"))
    target.others = ()
    assert decided(check, f"MySQL56/{A}:1-5") is not None


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"source_shard": "zz", "pos": "FilePos/mysql-bin.000001:4"}, "the position of shard zz is not a GTID set"),
        ({"id": 1, "checked": "x"}, "has the columns id, checked"),
    ],
)
def test_a_shard_is_read_on_although_the_checkpoint_table_has_a_row_that_cannot_be_read(
    other: Mapping[str, object], reason: str
) -> None:
    """I12: the rows may belong to replications that have nothing to do with the shard."""
    now = 1000.0
    target = Target(f"MySQL56/{A}:1-5", "Stopped", other)
    check = target.check(lambda: now)
    with pytest.raises(Unavailable, match=reason):
        decided(check, f"MySQL56/{A}:1-5")
    target.others = ()
    now += 3600
    assert decided(check, f"MySQL56/{A}:1-5") is not None


# ---------------------------------------------------------------------- on real servers


@pytest.fixture(scope="module")
def servers() -> Iterator[list[MariaDB]]:
    with MariaDB() as one, MariaDB() as two, MariaDB() as three:
        yield [one, two, three]


@pytest.mark.services
@pytest.mark.parametrize(
    ("seed", "table", "before", "after"),
    [(1, VITESS, "-", "-80 80-"), (2, PLAIN, "-", "-80 80-"), (3, VITESS, "-80 80-", "-"), (4, PLAIN, "-80 80-", "-")],
    ids=["split", "split, plain table", "merge", "merge, plain table"],
)
def test_a_reshard_under_load_neither_loses_nor_duplicates(
    servers: list[MariaDB], unique: str, seed: int, table: str, before: str, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I1, I2, I3."""
    monkeypatch.setattr("relay.mysql.transactions.STREAMED_PAGE", 300)
    reshard_under_load(servers, unique, seed, table, before, after)


@pytest.mark.services
def test_transactions_that_are_too_big_to_hold_are_read_twice(
    servers: list[MariaDB], unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I11: with the same event ids."""
    monkeypatch.setattr("relay.mysql.origins.HELD", 40)
    reshard_under_load(servers, unique, 5, VITESS, "-", "-80 80-")


@pytest.mark.services
def test_a_shard_is_read_until_its_replication_writes_checkpoints(
    servers: list[MariaDB], unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    """I1: without them it is not known where the targets start."""
    meta = create_tables(servers, unique)
    origin, low, high = servers
    world = World(unique, meta, {"-": origin}, 1)
    world.reload({"-": origin, "-80": low, "80-": high})
    origin.execute(f"INSERT {unique}.t VALUES (1, 1)")
    with caplog.at_level(logging.WARNING):
        world.run(lambda: world.is_at("-", origin))
        world.step()
    world.close()
    assert [change.key for change in world.published] == [{"id": 1}]
    assert "-80" not in world.checkpoints
    assert f"{meta} of shard -80" in caplog.text
    assert "has no row for shard -" in caplog.text
    low.execute(f"DROP TABLE {meta}")
    end = HandoverCheck("-", lambda: ("-", "-80", "80-"), lambda _: connected_to(low), CheckpointTable.named(meta))
    with pytest.raises(Unavailable, match="reshard_checkpoint_table"):
        decided(end, "MariaDB/0-1-1")


@pytest.mark.services
def test_a_check_asks_no_server_of_a_shard_that_others_replace(mariadb: Any, unique: str) -> None:
    """It may have ended, and its servers be gone, while the config still lists it."""
    halves = {half: [mariadb.address] for half in ("-80", "80-")}
    with session(mariadb, unique):
        assert MySQLSource(config(unique, {"-": [NOBODY], **halves})).unreadable() == {}
        assert list(MySQLSource(config(unique, {"-": [NOBODY]})).unreadable()) == [NOBODY]


@pytest.mark.services
def test_a_shard_hands_over_only_at_positions_that_were_read(servers: list[MariaDB], unique: str) -> None:
    """I1: what the replication of its targets has already skipped must still be read here."""
    meta = create_tables(servers, unique)
    origin, low, high = servers
    targets = {"-80": low, "80-": high}
    for target in targets.values():
        values = ('shard:"0"', f"MariaDB/{origin.gtid}", "Copying")
        target.execute(f"INSERT {meta} (source, pos, state) VALUES (%s, %s, %s)", values)
    listed = ("0", *targets)
    end = HandoverCheck("0", lambda: listed, lambda shard: connected_to(targets[shard]), CheckpointTable.named(meta))
    with pytest.raises(Unavailable, match="is Copying"):
        decided(end, f"MariaDB/{origin.gtid}")
    for target in targets.values():
        target.execute(f"UPDATE {meta} SET state = 'Running'")
    end = HandoverCheck("0", lambda: listed, lambda shard: connected_to(targets[shard]), CheckpointTable.named(meta))
    assert decided(end, f"MariaDB/0-{origin.server_id}-1") is None
    at = {shard: f"MariaDB/{server.gtid}" for shard, server in targets.items()}
    low.execute(f"INSERT {unique}.t VALUES (1, 1)")
    ended = decided(end, f"MariaDB/{origin.gtid}")
    assert ended is not None
    assert ended.journal.participants == ("0",)
    assert ended.targets == at


def test_a_shard_hands_over_between_two_commits_of_a_replication_that_groups_transactions(
    servers: list[MariaDB], unique: str
) -> None:
    """I3: otherwise it publishes a part of a commit, which the target publishes again under another name."""
    meta = create_tables(servers, unique)
    origin, low, high = servers
    targets = {"-80": low, "80-": high}
    at = int(origin.gtid.rpartition("-")[2])

    def position(ahead: int) -> str:
        return f"MariaDB/{origin.gtid.rpartition('-')[0]}-{at + ahead}"

    for shard, target in targets.items():
        values = ('shard:"0"', position(5 if shard == "-80" else 7), "Running")
        target.execute(f"INSERT {meta} (source, pos, state) VALUES (%s, %s, %s)", values)
    now = 0.0
    end = HandoverCheck(
        "0",
        lambda: ("0", *targets),
        lambda shard: connected_to(targets[shard]),
        CheckpointTable.named(meta),
        clock=lambda: now,
    )
    assert decided(end, position(6)) is None
    with pytest.raises(Unavailable, match="as soon as"):
        decided(end, position(7))
    low.execute(f"UPDATE {meta} SET pos = %s", (position(9),))
    now += 10
    assert decided(end, position(8)) is None
    with pytest.raises(Unavailable, match="as soon as"):
        decided(end, position(9))
    high.execute(f"UPDATE {meta} SET pos = %s", (position(9),))
    now += 10
    assert decided(end, position(9)) is not None


def test_a_shard_hands_over_once_the_replication_is_stopped(servers: list[MariaDB], unique: str) -> None:
    """Targets never get what the origin logs after that, for example by the reverse replication."""
    meta = create_tables(servers, unique)
    origin, low, high = servers
    targets = {"-80": low, "80-": high}
    for target in targets.values():
        values = ('shard:"0"', f"MariaDB/{origin.gtid}", "Stopped")
        target.execute(f"INSERT {meta} (source, pos, state) VALUES (%s, %s, %s)", values)
    origin.execute(f"INSERT {unique}.t VALUES (1, 1)")
    end = HandoverCheck(
        "0", lambda: ("0", *targets), lambda shard: connected_to(targets[shard]), CheckpointTable.named(meta)
    )
    assert decided(end, f"MariaDB/{origin.gtid}") is not None


def decided(end: HandoverCheck, position: str) -> Handover | None:
    """Return what ``end`` says at a position, once its targets are connected."""
    found: list[Handover | None] = []

    def is_connected() -> bool:
        found[:] = [end(parse(position))]
        return found[0] is not None or not end._connecting.is_asking

    wait_until(is_connected)
    return found[0]


def connected_to(server: MariaDB) -> ServerConnection:
    return connect(server.host, server.port, USER, PASSWORD)

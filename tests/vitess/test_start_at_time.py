"""Where a shard of Vitess is read from at a time: found in the binlogs of a tablet, through vtgate."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from typing import Any

import pytest

from relay.config import VitessConfig
from relay.config.value_types import iso_time
from relay.errors import Unavailable
from relay.gtid import parse
from relay.records import Shard
from relay.services.vitess import Vitess, database
from relay.vitess.client import EventKind, Vtgate
from relay.vitess.position import VitessShard
from relay.vitess.proto import vtgate_pb2 as pb
from relay.vitess.source import VitessSource
from relay.vitess.start_at_time import ShardHistory
from relay.vitess.tablets import Tablets
from tests import needs
from tests.examples import examples
from tests.mysql.kept_binlogs import binlogs
from tests.vitess.reading import is_at_head, opened, until
from tests.vitess.scripted import HOLDS, KEYSPACE, ScriptedVtgate, Step

UUID = "00010203-0405-0607-0809-0a0b0c0d0e0f"
SHARD = VitessShard("shop", KEYSPACE, "0", f"shop/{KEYSPACE}/0")


class Past:
    """A shard's binlogs. ``times``: of its transactions; ``files``: how many each file is preceded by."""

    def __init__(self, times: list[int], files: list[int], flavour: str = "MariaDB") -> None:
        self.times = times
        self.files = files
        self.flavour = flavour

    def position(self, count: int) -> str:
        """Return the position after so many transactions."""
        return f"MariaDB/0-1-{count}" if self.flavour == "MariaDB" else f"MySQL56/{UUID}:1-{count}"

    def count_of(self, position: str) -> int:
        return int(re.split("[-:]", position)[-1])

    @property
    def head(self) -> str:
        return self.position(len(self.times))

    @property
    def answers(self) -> dict[str, list[dict[str, str | None]] | str]:
        names = [f"binlog.{number:06}" for number in range(1, len(self.files) + 1)]
        found: dict[str, list[dict[str, str | None]] | str] = {
            "show binary logs": [{"Log_name": name, "File_size": "1"} for name in names]
        }
        for name, before in zip(names, self.files, strict=True):
            begin = self.position(before).partition("/")[2] if before else ""
            first = self.position(before + 1).partition("/")[2].replace(":1-", ":")
            events: list[dict[str, str | None]] = [{"Event_type": "Format_desc", "Info": "Binlog ver: 4"}]
            if self.flavour == "MariaDB":
                found[f"select binlog_gtid_pos('{name}', 4)"] = [{"position": begin}]
                events.append({"Event_type": "Gtid_list", "Info": f"[{begin}]"})
                events.append({"Event_type": "Gtid", "Info": f"BEGIN GTID {first}"})
            else:
                events.append({"Event_type": "Previous_gtids", "Info": begin})
                events.append({"Event_type": "Gtid", "Info": f"SET @@SESSION.GTID_NEXT= '{first}'"})
            found[f"show binlog events in '{name}' limit 20"] = events
        return found

    def script(self, request: pb.VStreamRequest) -> Iterator[Step]:
        (own,) = request.vgtid.shard_gtids
        if own.gtid == "current":
            yield [self._vgtid(self.head)]
        else:
            assert own.gtid != f"{self.flavour}/", "vtgate takes no empty position"
            done = self.count_of(own.gtid)
            for number, at in enumerate(self.times[done:], start=done + 1):
                kind = EventKind.DDL if number % 5 == 0 else EventKind.COMMIT
                begin = [] if kind is EventKind.DDL else [pb.VEvent(type=EventKind.BEGIN, timestamp=at)]
                yield [*begin, self._vgtid(self.position(number)), pb.VEvent(type=kind, timestamp=at)]
        yield HOLDS

    def _vgtid(self, gtid: str) -> pb.VEvent:
        own = pb.ShardGtid(keyspace=KEYSPACE, shard="0", gtid=gtid)
        return pb.VEvent(type=EventKind.VGTID, vgtid=pb.VGtid(shard_gtids=[own]))


@contextmanager
def history_of(past: Any, answers: dict[str, Any] | None = None) -> Iterator[ShardHistory]:
    with ScriptedVtgate(past.script, past.answers | (answers or {})) as vtgate, closing(Vtgate(vtgate.address)) as gate:
        yield ShardHistory(Tablets(gate, SHARD, "REPLICA"), silence=20.0)


def drawn(chance: random.Random) -> Past:
    """Draw binlogs in which some transactions are long: they have the time when their statement began."""
    now, times = 1_700_000_000, []
    for number in range(chance.randrange(15, 60)):
        now += chance.choice([0, 0, 1, 7])
        # Not all of the first ten in a file are long.
        times.append(now - chance.randrange(300) if chance.random() < 0.3 and number % 5 else now)
    oldest = chance.choice([0, chance.randrange(1, len(times) - 10)])
    files = {oldest, *(chance.randrange(oldest + 1, len(times)) for _ in range(chance.randrange(6)))}
    return Past(times, sorted(files), chance.choice(["MariaDB", "MySQL56"]))


def oldest_in(error: Unavailable) -> float:
    """Return the oldest time that is possible by an error."""
    (said,) = re.findall(r"start at (\S+) or later", str(error))
    return datetime.fromisoformat(said).timestamp()


@pytest.mark.parametrize("seed", range(examples(25)))
def test_no_transaction_of_the_time_or_later_precedes_its_position(seed: int) -> None:
    """I1. In either flavour, and although times do not ascend."""
    chance = random.Random(seed)
    past = drawn(chance)
    head = parse(past.head)
    first = max(past.files[0], 1)
    with history_of(past) as history:
        for wanted in sorted({chance.choice(past.times) + chance.randrange(-3, 4) for _ in range(6)}):
            possible = None
            try:
                found = past.count_of(history.position_at(wanted + 0.5, head))
            except Unavailable as error:
                possible = oldest_in(error)
            if possible is not None:
                assert possible > wanted
                assert history.position_at(possible, head)
                continue
            assert found >= first
            assert all(at < wanted for at in past.times[:found])
            assert found == len(past.times) or past.times[found] >= wanted


def test_a_time_after_all_transactions_is_the_head() -> None:
    past = Past([100, 101, 102], [0, 2])
    with history_of(past) as history:
        assert history.position_at(103, parse(past.head)) == past.head


def test_a_time_before_the_binlogs_is_refused_with_the_oldest_that_is_possible() -> None:
    past = Past([1_700_000_000 + number for number in range(30)], [20, 25])
    with history_of(past) as history, pytest.raises(Unavailable) as raised:
        history.position_at(1_700_000_010, parse(past.head))
    expected = iso_time(1_700_000_030)  # after the first ten of the oldest file
    assert f"shard 0 cannot be read from {iso_time(1_700_000_010)}: " in str(raised.value)
    assert f"do not go back so far: start at {expected} or later" in str(raised.value)


def test_binlogs_that_cannot_be_looked_into_are_an_error_that_says_so() -> None:
    past = Past([100, 101], [1])
    for statement, answer, said in [
        ("show binary logs", "Access denied; you need the BINLOG MONITOR privilege", "BINLOG MONITOR"),
        ("show binary logs", [], "list no binlogs"),
        ("select binlog_gtid_pos('binlog.000001', 4)", [{"position": None}], "has no binlog binlog.000001"),
        ("select binlog_gtid_pos('binlog.000001', 4)", [{"position": "x"}], "begins with 'x'"),
    ]:
        with history_of(past, {statement: answer}) as history, pytest.raises(Unavailable, match=f"shard 0.*{said}"):
            history.position_at(101, parse(past.head))


def test_a_shard_that_was_resharded_since_is_refused() -> None:
    """I1: its rows went elsewhere meanwhile."""
    past = Past([100, 101, 102, 103], [1])

    class Left(Past):
        def script(self, request: pb.VStreamRequest) -> Iterator[Step]:
            own = pb.KeyspaceShard(keyspace=KEYSPACE, shard="0")
            journal = pb.Journal(id=7, migration_type=1, participants=[own])
            yield [pb.VEvent(type=EventKind.JOURNAL, timestamp=102, journal=journal)]
            yield HOLDS

    with history_of(Left(past.times, past.files)) as history, pytest.raises(Unavailable, match="was resharded at"):
        history.position_at(101, parse(past.head))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Vitess]:
    needs.vitess()
    table = "create table customer (id bigint primary key, v int)"
    vschema = {"sharded": False, "tables": {"customer": {}}}
    with Vitess(keyspaces={"one": ["0"]}, schemas={"one": (table, vschema)}) as vitess:
        yield vitess


def source_at(cluster: Vitess, start: str) -> VitessSource:
    entry = {"name": "shop", "type": "vitess", "vtgate": cluster.vtgate, "keyspace": "one", "start": start}
    source = VitessSource(VitessConfig.model_validate(entry))
    source.connect()
    return source


def start_at(cluster: Vitess, start: str) -> dict[str, Any]:
    with closing(source_at(cluster, start)) as source:
        return dict(source.starting_points([Shard("0")]).shards["0"])


@pytest.mark.services
def test_a_real_shard_is_read_from_the_first_transaction_of_a_time(cluster: Vitess) -> None:
    """I1: over several binlogs, and until the oldest is purged."""
    begin = int(time.time()) + 1000  # later than what the cluster does by itself
    times = {}
    with closing(cluster.mariadb.connect(database=database("one", "0"))) as connection, connection.cursor() as cursor:
        for number in range(36):
            if number % 12 == 0:
                cursor.execute("flush binary logs")
            times[number] = begin + 10 * number - (25 if number % 7 == 3 else 0)
            cursor.execute(f"set timestamp = {times[number]}")
            cursor.execute(f"insert into customer values ({number}, {number})")

    def read_from(wanted: int) -> list[int]:
        start = start_at(cluster, iso_time(wanted))
        with opened(cluster.vtgate, start, keyspace="one") as reader:
            return [change.key["id"] for page in until(reader, is_at_head) for change in page.changes if change.key]

    for wanted in (begin + 1, begin + 55, begin + 120, begin + 231, begin + 350, begin + 1000):
        first = next((number for number, at in times.items() if at >= wanted), len(times))
        assert read_from(wanted) == list(range(first, len(times)))
    with pytest.raises(Unavailable, match=r"source shop: shard 0 cannot be read from .*: start at \S+ or later"):
        start_at(cluster, "-30d")
    assert read_from(begin + 120) == read_from(begin + 115)
    cluster.mariadb.execute("purge binary logs to %s", (binlogs(cluster.mariadb)[-1],))
    with pytest.raises(Unavailable) as raised:
        start_at(cluster, iso_time(begin + 55))
    oldest = int(oldest_in(raised.value))
    first = next(number for number, at in times.items() if number >= 24 and at >= oldest)
    assert read_from(oldest) == list(range(first, len(times)))

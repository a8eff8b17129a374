"""The demo's table in Vitess: the writers' record is true, even while the table is resharded."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from relay.demo.sql_orders import SQLWriter
from relay.demo.truth import check_versions, final_versions
from relay.demo.vitess_orders import AFTER, BEFORE, KEYSPACES, SPLIT, TARGETS, Placement, VitessOrders
from relay.demo.workload import cache_key, version_of
from tests import needs
from tests.demo.received import received

ON_VITESS = pytest.mark.faults(
    "only the demo on Vitess, itself in make faults, has this writer: the relay is tried on Vitess in tests/vitess"
)

CUSTOMERS = [f"customer-{number:03}" for number in range(25)]


@pytest.fixture
def orders() -> Iterator[VitessOrders]:
    needs.vitess()
    with ExitStack() as stack:
        orders = VitessOrders()
        orders.start(stack)
        yield orders


@pytest.fixture
def writer(orders: VitessOrders) -> Iterator[SQLWriter]:
    writer = orders.workload(pause=0).writers[0]
    assert isinstance(writer, SQLWriter)
    with closing(writer):
        yield writer


def transactions(orders: VitessOrders) -> int:
    """Return the number of transactions in the binlog that changed the table. vttablet adds some of its own."""
    mariadb = orders.vitess.mariadb
    ((log, *_),) = mariadb.execute("SHOW MASTER STATUS")
    count, changes_table = 0, False
    for _, _, kind, _, _, info in mariadb.execute(f"SHOW BINLOG EVENTS IN '{log}'"):
        changes_table |= kind == "Table_map" and info.endswith(".orders)")
        if kind == "Xid":
            count, changes_table = count + changes_table, False
    return count


@pytest.mark.services
@ON_VITESS
def test_a_writer_that_timed_out_on_a_row_repeats_only_what_failed(orders: VitessOrders, writer: SQLWriter) -> None:
    """Else the topic would have more changes than the writer recorded."""
    kept, deleted = writer.items[:2]
    assert kept[0] == deleted[0], "the items are in two shards"
    writer.store([(kept, 1), (deleted, 1)])
    with closing(orders.vitess.connect(BEFORE)) as connection, connection.cursor() as other:
        other.execute("BEGIN")
        other.execute("UPDATE orders SET version = 7 WHERE customer = %s AND order_id = %s", deleted)
        before = transactions(orders)
        release = threading.Timer(2.5, other.execute, ("ROLLBACK",))
        started = time.monotonic()
        release.start()
        writer.store([(kept, 2), (deleted, None)])
        assert time.monotonic() - started > 2.0, "the writer did not wait"
        release.join()
        assert transactions(orders) == before + 2, "one for each of the two statements"
        assert orders.versions() == {kept: 2}


@pytest.mark.services
@ON_VITESS
def test_a_writer_whose_transaction_was_ended_repeats_it(orders: VitessOrders, writer: SQLWriter) -> None:
    """A statement that waits too long is killed with its connection, so there is nothing to roll back any longer."""
    item = writer.items[0]
    writer.store([(item, 1)])
    with closing(orders.vitess.mariadb.connect()) as connection, connection.cursor() as locking:
        locking.execute("SELECT table_schema FROM information_schema.tables WHERE table_name = 'orders'")
        locking.execute("LOCK TABLES " + ", ".join(f"`{schema}`.orders WRITE" for (schema,) in locking.fetchall()))
        before = transactions(orders)
        release = threading.Timer(11.5, locking.execute, ("UNLOCK TABLES",))
        started = time.monotonic()
        release.start()
        writer.store([(item, 2)], in_transaction=True)
        assert time.monotonic() - started > 10.0, "the writer did not wait"
        release.join()
        assert transactions(orders) == before + 1
        assert orders.versions() == {item: 2}


@pytest.mark.services
@ON_VITESS
def test_the_writers_record_equals_the_table_after_a_split(orders: VitessOrders) -> None:
    workload = orders.workload(pause=0.002)
    workload.warm_up()
    workload.start()
    descriptions = []
    for incident in orders.incidents():
        time.sleep(0.7)
        descriptions.append(incident.do())
    time.sleep(0.7)
    history = workload.stop()
    found = orders.versions()
    assert check_versions("table", final_versions(history), found) == []
    assert all(SPLIT in text for text in descriptions)
    for shard in set(KEYSPACES[AFTER]) - set(TARGETS):
        assert orders.vitess.execute("SELECT count(*) FROM orders", f"{AFTER}:{shard}") == ((0,),)
    assert orders.vitess.execute("SELECT count(*) FROM orders", f"{BEFORE}:{SPLIT}") == ((0,),)
    assert all(orders.vitess.execute("SELECT count(*) > 0 FROM orders", f"{AFTER}:{s}") == ((1,),) for s in TARGETS)
    load = orders.load()
    for item in random.sample(workload.items, 100):
        value = load(cache_key(item), None).value
        assert version_of(value) == found.get(item)


def moved_customers() -> list[str]:
    placement = Placement()
    placement.move(lambda: (0, 0))
    return [customer for customer in CUSTOMERS if placement.keyspace(customer) == AFTER]


def test_a_move_waits_for_running_writes_to_its_shard_and_delays_new_ones() -> None:
    placement = Placement()
    (moved, *_), seen = moved_customers(), list[str]()
    writing, copying, go_on = threading.Event(), threading.Event(), threading.Event()

    def copy() -> tuple[int, int]:
        seen.append("copied")
        copying.set()
        go_on.wait(120)
        return 0, 0

    def write_before() -> None:
        with placement.writing([moved]):
            writing.set()
            time.sleep(0.05)
            seen.append(f"written in {placement.keyspace(moved)}")

    def write_meanwhile() -> None:
        copying.wait(120)
        with placement.writing([moved]):
            seen.append(f"written in {placement.keyspace(moved)}")

    threads = [threading.Thread(target=each) for each in (write_before, write_meanwhile)]
    threads[0].start()
    writing.wait(120)
    mover = threading.Thread(target=placement.move, args=(copy,))
    mover.start()
    threads[1].start()
    copying.wait(120)
    go_on.set()
    for thread in (*threads, mover):
        thread.join(120)
    assert seen == [f"written in {BEFORE}", "copied", f"written in {AFTER}"]


def test_a_move_does_not_delay_writes_to_other_shards() -> None:
    placement = Placement()
    others = sorted(set(CUSTOMERS) - set(moved_customers()))

    def copy() -> tuple[int, int]:
        with placement.writing(others):
            return len(others), 7

    assert placement.move(copy) == (len(others), 7)
    assert {placement.keyspace(customer) for customer in others} == {BEFORE}


def test_a_split_that_is_missing_from_the_topic_is_a_problem() -> None:
    shards = [*KEYSPACES[BEFORE], *(f"{AFTER}/{shard}" for shard in TARGETS)]
    changes = [received(("c", str(n)), 1, "INSERT", shard=f"orders/{BEFORE}/{shard}") for n, shard in enumerate(shards)]
    orders = VitessOrders()
    assert orders.problems(changes) == []
    assert orders.problems(changes[:-1]) == [f"no change came from shard {shards[-1]}"]

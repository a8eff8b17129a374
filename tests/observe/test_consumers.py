"""What consumers show of themselves: lag, and a health that is red when nothing advances (I10)."""

from __future__ import annotations

import orjson
import pytest

from relay.errors import RelayError
from relay.observe.consumer_metrics import CONSUMER_CATALOGUE
from relay.observe.consumers import ConsumersObserver, ConsumerWatch
from relay.observe.server import answer
from relay.process.store_memory import ServerMemory
from tests.clock import Clock
from tests.observe.documented import documented


@pytest.fixture
def clock() -> Clock:
    return Clock(1000.0)


@pytest.fixture
def observer(clock: Clock) -> ConsumersObserver:
    found = ConsumersObserver("shop")
    for name in ("log", "copy"):
        watch = ConsumerWatch(name, ["shop.orders"], found.counted, clock=clock)
        watch.start_at(at(0))
        found.watches.append(watch)
    return found


def at(offset: int) -> dict[str, dict[str, int]]:
    return {"shop.orders": {"0": offset}}


def look(watch: ConsumerWatch, end: int, clock: Clock) -> None:
    watch.look(watch.reached or {}, at(end), clock.now)


def health(observer: ConsumersObserver) -> list[str]:
    code, _, _ = answer(observer, "/healthz")
    assert (code == 503) == bool(observer.stalls())
    return [stall.what for stall in observer.stalls()]


def test_the_lag_is_the_time_since_which_records_wait(observer: ConsumersObserver, clock: Clock) -> None:
    log = observer.watches[0]
    assert log.lag() is None
    look(log, 0, clock)
    assert log.lag() == (0, 0.0)
    clock.now += 5
    look(log, 10, clock)
    clock.now += 5
    look(log, 30, clock)
    assert log.lag() == (30, 10.0)
    log.reach(at(10))
    clock.now += 2
    assert log.lag() == (30, 7.0)  # as counted at the last look
    log.reach(at(30))
    assert log.lag() == (0, 0.0)


def test_looks_are_kept_in_bounded_memory(observer: ConsumersObserver, clock: Clock) -> None:
    """I11"""
    log = observer.watches[0]
    begun = clock.now
    for end in range(1, 5000):
        look(log, end, clock)
        clock.now += 5
    assert len(log._progress.open) <= 1000
    assert log.lag() == (4999, clock.now - begun)


def test_health_is_red_when_records_wait_and_nothing_advances(observer: ConsumersObserver, clock: Clock) -> None:
    """I10"""
    log, copy = observer.watches
    for _ in range(61):
        look(log, 7, clock)
        look(copy, 0, clock)
        clock.now += 5
    assert health(observer) == ["consumer log makes no progress while 7 records wait"]
    log.reach(at(5))
    assert health(observer) == []


def test_records_that_wait_to_be_applied_together_are_not_a_stall(clock: Clock) -> None:
    observer = ConsumersObserver("shop")
    watch = ConsumerWatch("copy", ["shop.orders"], observer.counted, apply_every=3600, stalled_after=60, clock=clock)
    watch.start_at(at(0))
    observer.watches.append(watch)
    look(watch, 5, clock)
    clock.now += 3660
    look(watch, 6, clock)
    assert health(observer) == []
    clock.now += 1
    assert health(observer) == ["consumer copy makes no progress while 6 records wait"]


def test_health_is_red_when_the_ends_of_the_topics_are_not_seen(observer: ConsumersObserver, clock: Clock) -> None:
    look(observer.watches[0], 0, clock)
    clock.now += 301
    look(observer.watches[0], 0, clock)
    assert health(observer) == ["consumer copy cannot look up the ends of its topics; see the brokers"]


def test_only_a_consumer_that_hangs_is_red_for_what_restarts_processes(
    observer: ConsumersObserver, clock: Clock
) -> None:
    """I10: while the store is down, a restart would not help, and it would wait for longer between its attempts."""
    log, copy = observer.watches
    for watch in observer.watches:
        look(watch, 10, clock)
    for _ in range(5):
        copy.fail("the store is down")
    assert len(health(observer)) == 1
    assert answer(observer, "/livez")[0] == 200
    clock.now += 301
    copy.fail("the store is down")
    for watch in observer.watches:
        look(watch, 10, clock)
    assert len(health(observer)) == 3
    assert b"consumer copy" not in answer(observer, "/livez")[2]
    assert b"consumer log" in answer(observer, "/livez")[2]
    log.reach(at(10))
    clock.now += 301
    look(copy, 10, clock)
    assert b"consumer copy" in answer(observer, "/livez")[2]  # it failed before, and now its next attempt hangs
    copy.reach(at(10))
    assert answer(observer, "/livez")[0] == 200
    log.fail("its topic was created again", for_good=True)
    assert len(health(observer)) == 1
    assert answer(observer, "/livez")[0] == 200  # a new process would refuse to start, and the copy end with it


def test_health_is_red_while_a_consumer_fails_again_and_again(observer: ConsumersObserver, clock: Clock) -> None:
    copy = observer.watches[1]
    for number in range(5):
        assert health(observer) == []
        copy.fail(f"number {number} of https://me:secret@host")
        assert not copy.is_ready
    assert health(observer) == ["consumer copy fails again and again"]
    assert "number 4" in str(observer.stalls()[0].error)
    assert "secret" not in str(observer.report())
    clock.now += 61
    assert health(observer) == ["consumer copy fails again and again"]  # as long as its next attempt lasts
    copy.reach(at(1))
    assert health(observer) == []


def test_a_consumer_that_failed_is_failing_until_it_has_advanced(observer: ConsumersObserver, clock: Clock) -> None:
    """I10: an attempt may last longer than the pause before it."""
    copy = observer.watches[1]
    look(copy, 7, clock)
    copy.fail("the store is down")
    copy.start_at(at(0))
    for _ in range(12):
        clock.now += 5
        look(copy, 7, clock)
        assert (copy.report()["state"], copy.is_ready, health(observer)) == ("failing", False, [])
    clock.now += 5
    assert health(observer) == ["consumer copy fails again and again"]
    assert observer.stalls()[0].seconds == 65
    copy.reach(at(1))
    assert (copy.report()["state"], copy.report()["error"], health(observer)) == ("running", None, [])


def test_a_consumer_that_failed_and_has_nothing_to_do_is_well_after_a_minute(
    observer: ConsumersObserver, clock: Clock
) -> None:
    copy = observer.watches[1]
    copy.fail("a broker did not answer")
    for _ in range(12):
        clock.now += 5
        look(copy, 0, clock)
        assert copy.report()["state"] == "failing"
    clock.now += 1
    look(copy, 0, clock)
    assert (copy.report()["state"], copy.report()["error"], health(observer)) == ("running", None, [])


def test_health_is_red_after_dead_letters_that_could_not_be_written_until_one_was(
    observer: ConsumersObserver, clock: Clock
) -> None:
    log = observer.watches[0]
    lost = {"rows": 3, "dead_letters": 0, "lost_dead_letters": 2}
    for counts, said in ((lost, 1), ({"rows": 1}, 1), ({"rows": 1, "dead_letters": 1}, 0)):
        log.count_batch(counts, 0.1)
        log.reach(at(1))
        assert health(observer) == ["consumer log could not write dead letters; see its log"] * said


def test_health_is_red_once_a_consumer_has_stopped_for_good_but_not_after_its_end(
    observer: ConsumersObserver, clock: Clock
) -> None:
    observer.watches[0].stop()
    clock.now += 10_000
    look(observer.watches[1], 0, clock)
    assert health(observer) == []
    observer.watches[1].fail("no such column", for_good=True)
    assert health(observer) == ["consumer copy has stopped; restart it"]


def test_exactly_the_metrics_of_the_consumers_catalogue_are_exposed(observer: ConsumersObserver, clock: Clock) -> None:
    log = observer.watches[0]
    log.count_batch({"rows": 5, "applied": 3, "ignored": 2, "dead_letters": 1, "gaps": 2}, 0.5)
    look(log, 4, clock)
    exposed = {
        (family.name + ("_total" if family.type == "counter" else ""), family.type, family.documentation)
        for family in observer.registry.collect()
    }
    named = {metric.name for metric in CONSUMER_CATALOGUE}
    assert exposed == {(row.name, row.kind, row.help) for row in documented() if row.name in named}
    body = answer(observer, "/metrics")[2].decode()
    for line in (
        'relay_consumer_records_total{consumer="log"} 5.0',
        'relay_consumer_changes_total{consumer="log",outcome="ignored"} 2.0',
        'relay_consumer_gaps_total{consumer="log"} 2.0',
        'relay_consumer_lag_records{consumer="log"} 4.0',
        'relay_consumer_batch_seconds_count{consumer="copy"} 0.0',
    ):
        assert f"\n{line}\n" in body


def test_a_table_that_is_set_aside_makes_health_red_at_once_and_no_process_is_restarted_for_it(
    observer: ConsumersObserver,
) -> None:
    """I12: with the reason, and what to do; a new process would meet the same."""
    why = "a view at postgresql://me:secret@host is in the way; remove the cause"
    observer.watches[1].set_aside = lambda: {"orders": (1_700_000_000.0, why)}
    assert health(observer) == ["consumer copy: table orders is set aside"]
    (stall,) = observer.stalls()
    assert "is in the way; remove the cause" in str(stall.error)
    assert "secret" not in str(observer.report())
    assert stall.seconds > 1000
    assert answer(observer, "/livez")[0] == 200
    lines = answer(observer, "/metrics")[2].decode().splitlines()
    assert 'relay_consumer_tables_set_aside{consumer="copy"} 1.0' in lines
    assert 'relay_consumer_tables_set_aside{consumer="log"} 0.0' in lines


def test_the_memory_of_each_server_of_the_cache_is_shown(observer: ConsumersObserver) -> None:
    memory = [ServerMemory("cache1:6379", 5, 9, "noeviction"), ServerMemory("cache2:6379", 7, 0, "")]
    observer.watches[0].store.look(memory)
    lines = answer(observer, "/metrics")[2].decode().splitlines()
    assert 'relay_consumer_store_used_bytes{consumer="log",server="cache1:6379"} 5.0' in lines
    limit = 'relay_consumer_store_limit_bytes{consumer="log",policy="noeviction",server="cache1:6379"} 9.0'
    assert limit in lines


def test_a_store_is_bypassed_that_has_not_answered_or_has_had_no_room_for_a_while(
    observer: ConsumersObserver, clock: Clock
) -> None:
    """I10: nothing is known of one that answers late."""
    store = observer.watches[0].store
    full, evicts = ServerMemory("c:1", 9, 9, "noeviction"), ServerMemory("c:1", 9, 9, "allkeys-lru")
    store.look(RelayError("no answer at redis://me:secret@c:1"))
    clock.now += 15
    assert health(observer) == []
    store.look([full])
    clock.now += 1
    assert health(observer) == ["consumer log: its store is bypassed, and values come from the source"]
    assert observer.stalls()[0].seconds == 16
    store.look(RelayError("no answer at redis://me:secret@c:1"))
    assert "secret" not in str(observer.stalls())
    for fine in ([evicts], [ServerMemory("c:1", 8, 9, "noeviction"), ServerMemory("d:1", 8, 0, "noeviction")]):
        store.look(fine)
        clock.now += 20
        assert health(observer) == []
        store.look([full])
        clock.now += 20
        assert len(health(observer)) == 1


def test_the_longest_lag_of_the_cache_from_a_commit_shows_for_five_minutes(
    observer: ConsumersObserver, clock: Clock
) -> None:
    """A look at it may miss the batch that was late."""
    cache = ConsumerWatch("cache", ["shop.orders"], observer.counted, tombstone_ttl=60.0, clock=clock)
    observer.watches.append(cache)

    def shown() -> float:
        lines = answer(observer, "/metrics")[2].decode().splitlines()
        assert 'relay_consumer_tombstone_ttl_seconds{consumer="cache"} 60.0' in lines
        lags = [line.split() for line in lines if line.startswith("relay_consumer_commit_lag_seconds{")]
        [[name, lag]] = lags  # of no other consumer
        assert name == 'relay_consumer_commit_lag_seconds{consumer="cache"}'
        return float(lag)

    assert shown() == 0
    for lag, at_least in ((5, 5), (40, 40), (3, 40), (10, 40)):
        cache.count_batch({"rows": 1, "lag": lag}, 0.1)
        cache.count_batch({"rows": 1}, 0.1)  # without a change
        assert shown() == at_least
        clock.now += 60
    clock.now += 121  # the one of 40 s was 301 s ago
    assert shown() == 10
    clock.now += 300
    assert shown() == 0


def test_the_lags_of_a_consumer_that_catches_up_are_kept_in_bounded_memory(
    observer: ConsumersObserver, clock: Clock
) -> None:
    """I11"""
    log = observer.watches[0]
    for lag in range(5000, 0, -1):
        log.count_batch({"rows": 1, "lag": lag}, 0.1)
        clock.now += 0.01
    assert len(log._commit_lags) <= 1000
    assert log.commit_lag() == 5000


def test_the_status_has_the_offsets_that_were_reached_by_topic_and_partition(observer: ConsumersObserver) -> None:
    observer.watches[0].reach(at(5))
    code, _, body = answer(observer, "/status.json")
    assert code == 200
    [log, copy] = orjson.loads(body)["consumers"]
    assert (log["consumer"], log["state"], log["reached"]) == ("log", "running", {"shop.orders": {"0": 5}})
    assert (copy["reached"], copy["dead_letters"]) == (at(0), 0)

"""Where changes were lost, the log and the copy say so, until a snapshot has repaired the copy (I9)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from relay.change import Change, Operation, Snapshot
from relay.config import Config
from relay.records import Gap
from relay.services.postgres import execute
from spark_consumers.applied_notes import AppliedNotes
from spark_consumers.change_log import log_consumer
from spark_consumers.dead_letters import NonChangeRecord
from spark_consumers.gaps import Hole, LostChanges, from_json, lost_changes, to_json
from spark_consumers.records import DecodeStatus
from spark_consumers.sinks.copy_table import GAPS, CopyTable
from tests.log_lines import log_lines
from tests.spark_consumers import delta_rows
from tests.spark_consumers.noted_gaps import noted_gaps, publish_records
from tests.spark_consumers.topic import Topic, change, mark, read

FOUND_AT = 1_700_000_500.0


def non_change(value: bytes, status: DecodeStatus = DecodeStatus.GAP) -> NonChangeRecord:
    return NonChangeRecord(status, "shop.gaps", 0, 7, value)


def test_a_gap_is_known_by_its_id_and_one_that_cannot_be_read_by_its_place() -> None:
    gap = Gap("orders", "orders/2026", "s1", "trimmed", None, None, FOUND_AT)
    timeless = json.dumps(json.loads(gap.to_json()) | {"found_at": 1e18}).encode()
    records = [*map(non_change, (gap.to_json(), b"{}", timeless)), non_change(b"?", DecodeStatus.FRAMING)]
    found = lost_changes(records)
    assert [(each.id, each.source) for each in found] == [(gap.id, "orders"), *[("shop.gaps/0/7", None)] * 2]
    assert from_json(to_json(found)) == found
    assert from_json("") == []


def test_a_hole_of_a_topic_is_noted_for_each_of_its_tables() -> None:
    """I9: also for a table that comes later."""
    stored: dict[str, str] = {}

    def change_note(session: Any, room: str, rule: Callable[[str], str]) -> str:
        stored[room] = rule(stored.get(room, ""))
        return stored[room]

    notes, session = AppliedNotes({"shop": ["shop.all"]}, dict, change_note), cast(Any, None)
    hole = Hole("shop.all", "0", 5, 9)
    gaps = [LostChanges.between(hole, "shop", table, FOUND_AT) for table in ("orders", "lines")]
    for _ in range(2):
        notes.add_gaps(session, gaps)
    assert notes.gaps(session, "shop") == gaps


def altered(number: int, table: str = "orders") -> LostChanges:
    gap = Gap("shop", "db", None, "altered", None, None, FOUND_AT + number, table, f"ALTER TABLE {table} ADD c{number}")
    return lost_changes([non_change(gap.to_json())])[0]


def test_of_the_statements_about_a_table_the_first_and_the_last_are_kept() -> None:
    """I11: a snapshot after the last repairs all, and a table may be altered each day and never read again."""
    stored: dict[str, str] = {}

    def change_note(session: Any, room: str, rule: Callable[[str], str]) -> str:
        stored[room] = rule(stored.get(room, ""))
        return stored[room]

    class Target:
        source_table = ("shop", "orders")

        def properties(self, batch: Any) -> dict[str, str]:
            return {name: text for name, text in stored.items() if name == GAPS}

        def replace_property(self, batch: Any, name: str, before: str | None, after: str) -> bool:
            stored[name] = after
            return True

    lost = LostChanges("lost", "shop", "trimmed", FOUND_AT + 2, "")
    notes, table, session = (
        AppliedNotes({"shop": []}, dict, change_note),
        CopyTable(cast(Any, Target()), 1),
        cast(Any, 0),
    )
    for number in (1, 3, 2, 4):
        notes.add_gaps(session, [altered(number), altered(number, "lines"), lost])
        table.add_gaps(session, [altered(number), lost])
    of_all = [altered(1), altered(1, "lines"), lost, altered(4), altered(4, "lines")]
    assert notes.gaps(session, "shop") == of_all
    assert from_json(stored[GAPS]) == [altered(1), lost, altered(4)]
    table.remove_gaps(session, Snapshot("s", int(FOUND_AT) + 2))
    assert from_json(stored[GAPS]) == [altered(4)]


def test_the_consumers_of_tables_read_the_gaps_beside_the_changes() -> None:
    """I9"""
    raw = {
        "name": "shop",
        "kafka": {"bootstrap_servers": "127.0.0.1:9"},
        "sources": [{"name": "orders", "type": "dynamodb", "table": "orders"}],
        "log": {"path": "file:///log"},
    }
    config = Config.model_validate(raw)
    assert config.log is not None
    assert log_consumer(config, config.log).topics == ["shop.orders", "shop.gaps"]


@pytest.mark.parametrize(("as_of", "repaired"), [(FOUND_AT - 66, False), (FOUND_AT - 65, True)])
def test_a_snapshot_repairs_the_gaps_that_were_found_before_it_began(as_of: float, repaired: bool) -> None:
    """The ``as_of`` of a snapshot is 65 s before its beginning."""
    gap = LostChanges("g", "orders", "trimmed", FOUND_AT, "")
    assert gap.is_repaired_by(Snapshot("s", int(as_of))) is repaired
    assert not LostChanges("g", None, "cannot be read", 0.0, "").is_repaired_by(Snapshot("s", int(as_of)))


def test_the_gap_of_a_statement_is_repaired_by_rows_that_replace_all_from_before_it_and_concerns_its_table() -> None:
    """I9, I12"""
    made = Gap("shop", "db", None, "altered", {"gtid": "0-1-2"}, None, FOUND_AT, "orders", "ALTER TABLE orders ...")
    (gap,) = lost_changes([non_change(made.to_json())])
    assert [gap.is_repaired_by(Snapshot("s", int(FOUND_AT) + more)) for more in (-1, 0)] == [False, True]
    names = [("shop", "orders"), ("shop", "lines"), ("other", "orders")]
    assert [gap.concerns(*name) for name in names] == [True, False, False]
    assert (gap.statement, *from_json(to_json([gap]))) == (made.statement, gap)


@pytest.mark.services
def test_a_statement_of_several_shards_is_one_gap_of_its_table_until_it_is_read_after_the_last_of_them(
    topic: Topic, database_url: str
) -> None:
    """I9, I12"""
    topic.set_copy_url(database_url)
    line = change("c1", 1, Operation.INSERT)
    line.table = "lines"
    topic.publish([change("c0", 1, Operation.INSERT), line])
    gap = Gap("orders", "db", None, "altered", None, None, FOUND_AT, "orders", "ALTER TABLE orders")
    publish_records(topic, replace(gap, found_at=FOUND_AT + 100).to_json(), gap.to_json())
    noted = []
    for as_of in (0, int(FOUND_AT), int(FOUND_AT) + 100):
        topic.publish([mark("begin", as_of), read("c0", 1, as_of), mark("end", as_of)] if as_of else [])
        topic.consume("log copy", checkpoint="one")
        noted.append([noted_gaps(topic.path, "orders", table) for table in ("orders", "lines")])
    assert noted == [[["altered"], []], [["altered"], []], [[], []]]
    assert [each for (each,) in delta_rows.rows(topic.folder / "log_gaps", ["reason"])] == ["altered"]


@pytest.mark.services
def test_gaps_are_beside_the_log_and_the_copy_and_a_snapshot_repairs_the_copy(topic: Topic, database_url: str) -> None:
    """I9: under `skip` nothing else says that rows may be wrong."""
    topic.set_copy_url(database_url)

    def look(checkpoint: str) -> Any:
        topic.consume("log copy", checkpoint=checkpoint)
        logged = delta_rows.rows(topic.folder / "log_gaps", ["reason", "source", "found_at"])
        noted = {table: noted_gaps(topic.path, table, table) for table in ("orders", "lines")}
        return {"log": [[source, reason, found_at.timestamp()] for reason, source, found_at in logged], **noted}

    line = change("c1", 1, Operation.INSERT)
    line.source = line.table = "lines"
    topic.publish([change("c0", 1, Operation.INSERT), line])
    trimmed = Gap("orders", "orders/2026", "s1", "trimmed", None, None, FOUND_AT).to_json()
    publish_records(topic, trimmed, trimmed, Gap("others", "x", None, "purged", None, None, FOUND_AT).to_json())
    logged = [["others", "purged", FOUND_AT], ["orders", "trimmed", FOUND_AT]]
    assert look("one") == {"log": logged, "orders": ["trimmed"], "lines": []}
    batches = log_lines(topic.log, "batch")
    assert {batch["consumer"]: batch["gaps"] for batch in batches} == {"log": 3, "copy": 3}
    # Applied again, and after a snapshot that began before, and then after the gap.
    as_of = int(FOUND_AT) - 100
    topic.publish([mark("begin", as_of), read("c0", 1, as_of), mark("end", as_of)])
    assert look("two") == {"log": logged, "orders": ["trimmed"], "lines": []}
    as_of += 100
    topic.publish([mark("begin", as_of), read("c0", 1, as_of), mark("end", as_of)])
    publish_records(topic, b"{}")
    unreadable = [None, "the gap record cannot be read", 0.0]
    assert look("two") == {
        "log": [logged[0], unreadable, logged[1]],
        "orders": ["the gap record cannot be read"],
        "lines": ["the gap record cannot be read"],
    }


@pytest.mark.services
def test_the_tables_of_a_source_that_is_copied_only_after_a_gap_say_so_too(topic: Topic) -> None:
    """I9: its first changes may be among those that were lost, and nothing was known of the tables then."""
    publish_gaps(topic, ("orders", "trimmed"), ("others", "purged"))
    assert topic.consume("copy", checkpoint="copy-one")["gaps"] == 2
    topic.publish([change("c0", 1, Operation.INSERT), line_of("orders", 1)])
    topic.consume("copy", checkpoint="copy-one")
    assert [noted_gaps(topic.path, "orders", table) for table in ("orders", "lines")] == [["trimmed"], ["trimmed"]]
    # Not those of a source that has none.
    topic.publish([line_of("lines", 1)])
    topic.consume("copy", checkpoint="copy-one")
    assert noted_gaps(topic.path, "lines", "lines") == []


@pytest.mark.services
def test_a_copy_notes_no_gap_from_before_its_beginning_and_none_that_it_has_seen_repaired(
    topic: Topic, database_url: str
) -> None:
    """Nothing would ever remove it, but a snapshot that nobody needs."""
    topic.set_copy_url(database_url)
    publish_gaps(topic, ("orders", "trimmed"))
    topic.consume("copy", "--from", "latest", checkpoint="copy-one")
    topic.publish([change("c0", 1, Operation.INSERT)])
    assert gaps_of(topic) == []
    # Repaired with brokers that give topics no ids.
    publish_gaps(topic, ("orders", "purged"))
    as_of = int(FOUND_AT)
    topic.publish([mark("begin", as_of), read("c0", 1, as_of), mark("end", as_of)])
    assert gaps_of(topic) == []
    execute(database_url, "DELETE FROM orders._relay_properties WHERE name = 'relay.topic_ids'")
    topic.publish([change("c0", 2)])
    assert gaps_of(topic) == []


@pytest.mark.services
def test_a_gap_is_noted_after_a_restart_although_the_registry_was_asked_for_no_schema_yet(
    topic: Topic, database_url: str, schema_registry: Any
) -> None:
    """I9: the tables that are there were not known until they had their next changes."""
    topic.set_copy_url(database_url)
    topic.use_registry(schema_registry.url)
    topic.publish([change("c0", 1, Operation.INSERT)])
    assert gaps_of(topic) == []
    publish_gaps(topic, ("orders", "trimmed"))
    assert gaps_of(topic) == ["trimmed"]


def line_of(source: str, version: int) -> Change:
    line = change("c1", version, Operation.INSERT)
    line.source, line.table = source, "lines"
    return line


def publish_gaps(topic: Topic, *gaps: tuple[str, str]) -> None:
    """Publish gaps, each with its source and reason."""
    found = (Gap(source, "x", reason, reason, None, None, FOUND_AT) for source, reason in gaps)
    publish_records(topic, *(gap.to_json() for gap in found))


def gaps_of(topic: Topic) -> list[str]:
    """Bring the copy up to date, and return the reasons of the gaps that are noted at the table of orders."""
    topic.consume("copy", checkpoint="copy-one")
    return noted_gaps(topic.path, "orders", "orders")

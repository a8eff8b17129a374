"""Tables that MoveTables takes to another keyspace, and back: where streams end, and what goes on where."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from relay.source import Page
from relay.vitess.proto import vtgate_pb2 as pb
from tests import needs
from tests.vitess.reading import NOW, START, TABLES, failure, is_at_head, journal, new, opened, until
from tests.vitess.scripted import JOURNALS, KEYSPACE, Fails, Log, ScriptedVtgate, Step, moved

OTHER = ("other", None, (b"1", b"x"))
ONLY = {"only": ["customer"]}


def read(
    log: Log, journals: list[Any] | dict[str, Any], start: dict[str, Any], after: Page | None = None
) -> list[Page]:
    """Read to the end of the shard, or to its head. ``journals``: its journals, or all that vtgate answers."""
    answers = journals if isinstance(journals, dict) else {JOURNALS: journals}
    with (
        ScriptedVtgate(log.script, answers) as vtgate,
        opened(vtgate.address, start, after=after, tables=TABLES, now=NOW) as reader,
    ):
        return until(reader, lambda page: page.finished or is_at_head(page))


def changed(pages: list[Page]) -> list[tuple[str, Any]]:
    return [(change.table, change.key and change.key["id"]) for page in pages for change in page.changes]


def switched(*, names: bool = True) -> Log:
    """A log whose shard had its last change of customer at 0-1-12, and whose journal is 0-1-14."""
    log = Log(names=names)
    log.add(*new(1))
    log.add(*new(2))
    log.add(OTHER)
    log.add()  # its journal, which vtgate leaves out
    log.add(*new(3))  # replicated back
    return log


@pytest.mark.parametrize("names", [True, False])
def test_a_stream_ends_where_a_table_was_moved_and_its_journal_says_what_goes_on_where(names: bool) -> None:
    """I3: what Vitess replicates back would be on the topic twice."""
    pages = read(switched(names=names), [moved("0-1-12")], START)
    found = changed(pages)
    assert found in ([("customer", 1), ("customer", 2)], [("customer", 1), ("customer", 2), ("other", 1)])
    ending = pages[-1].journal
    assert ending is not None
    assert (ending.id, ending.participants) == ("7", ("0",))
    assert ending.targets == {
        "customers/-": {"gtid": "MariaDB/0-9-5", "only": ["customer"]},
        "0": {"gtid": f"MariaDB/0-1-{10 + len(found)}", "without": ["customer"], "moves": ["7"]},
    }
    # The journal comes later than its position, and another change of the shard may be on the topic before it.
    found += changed(read(switched(), [moved("0-1-12")], dict(ending.targets["0"])))
    assert found == [("customer", 1), ("customer", 2), ("other", 1)]


def test_the_compiled_core_ends_a_stream_there_too() -> None:
    """I3: the first answer, with the columns of both tables, is read alone, and the core has all others at once."""
    needs.compiled_core()
    log = Log()
    log.add(*new(1, text=b"x" * 200_000), ("other", None, (b"9", b"x")))
    log.transactions += switched().transactions[1:]
    pages = read(log, [moved("0-1-12")], START)
    assert changed(pages)[:3] == [("customer", 1), ("other", 9), ("customer", 2)]
    assert changed(pages)[3:] in ([], [("other", 1)])
    assert pages[-1].finished


@pytest.mark.parametrize("transactions", range(6))
def test_a_stream_ends_there_wherever_the_relay_was_started_again(transactions: int) -> None:
    """Also where other changes from after the move are on the topic already: the journal comes later."""
    log = switched()
    rest, log.transactions = log.transactions[transactions:], log.transactions[:transactions]
    first = read(log, [moved("0-1-12")] if transactions > 3 else [], START)
    if not first[-1].finished:
        log.transactions += rest
        first += read(log, [moved("0-1-12")], START, after=first[-1])
    found = changed(first)
    assert found == [("customer", 1), ("customer", 2), ("other", 1)][: len(found)]
    assert first[-1].journal is not None
    assert first[-1].journal.targets["0"]["gtid"] == ("MariaDB/0-1-13" if len(found) == 3 else "MariaDB/0-1-12")


@pytest.mark.parametrize(
    ("start", "journals"),
    [
        (START, []),
        (START, [moved("0-1-12", tables="unknown")]),
        (START, [moved("0-1-9")]),  # before the plan
        (START, [moved("0-1-30")]),  # not reached yet
        ({**START, "moves": ["7"]}, [moved("0-1-12")]),
        ({**START, "without": ["customer"], "moves": ["5"]}, [moved("0-1-12")]),
    ],
)
def test_a_move_that_the_stream_has_no_part_in_does_not_end_it(start: dict[str, Any], journals: list[Any]) -> None:
    pages = read(switched(), journals, start)
    assert not pages[-1].finished
    wanted = "without" not in start
    assert changed(pages) == [*[("customer", 1), ("customer", 2)] * wanted, ("other", 1), *[("customer", 3)] * wanted]


def test_the_first_of_several_moves_ends_the_stream() -> None:
    log = switched()
    log.add()  # its journal, which vtgate leaves out
    both = [moved("0-1-14", number=8, tables="other"), moved("0-1-12")]
    ending = read(log, both, START)[-1].journal
    assert ending is not None
    assert ending.id == "7"
    last = read(log, both, dict(ending.targets["0"]))[-1]
    assert last.journal is not None
    assert last.journal.targets["0"]["without"] == ["customer", "other"]
    assert last.journal.targets["0"]["moves"] == ["7", "8"]


def test_a_stream_of_one_table_that_is_moved_on_leaves_nothing() -> None:
    """The stream of a table that was moved has no other one, whatever the keyspace has."""
    pages = read(switched(), [moved("0-1-12", to=KEYSPACE)], {**START, "only": ["customer"]})
    assert changed(pages) == [("customer", 1), ("customer", 2)]
    assert pages[-1].journal is not None
    assert pages[-1].journal.targets == {"-": {"gtid": "MariaDB/0-9-5", "only": ["customer"]}}


def test_a_reshard_of_the_other_keyspace_leaves_its_shards_the_moved_tables_alone() -> None:
    log = Log()
    log.add(*new(1))
    log.add(OTHER)
    log.add(journal=journal(["0"], ["-80", "80-"]))
    with (
        ScriptedVtgate(log.script) as vtgate,
        opened(vtgate.address, {**START, **ONLY}, shard=f"{KEYSPACE}/0", keyspace="home", tables=TABLES) as reader,
    ):
        pages = until(reader, lambda page: page.finished)
    assert changed(pages) == [("customer", 1)]
    assert pages[-1].journal is not None
    assert pages[-1].journal.participants == (f"{KEYSPACE}/0",)
    starts = {f"{KEYSPACE}/{shard}": {"gtid": "MariaDB/0-2-5", **ONLY} for shard in ("-80", "80-")}
    assert pages[-1].journal.targets == starts


def test_a_keyspace_that_vtgate_does_not_serve_is_named_with_the_tables_that_are_there() -> None:
    """I10: a shard of the source's own keyspace that vtgate does not know was removed before it was read."""

    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        yield Fails("FAILED_PRECONDITION", "shard provided in VGTID, 0, not found in the commerce keyspace")

    with (
        ScriptedVtgate(script) as vtgate,
        opened(vtgate.address, {**START, **ONLY}, shard=f"{KEYSPACE}/0", keyspace="home") as reader,
    ):
        assert "MoveTables moved customer to keyspace commerce: let vtgate serve it" in failure(reader, "moved")


def test_the_removal_of_a_table_that_was_moved_is_none_of_its_former_streams() -> None:
    """I1"""
    log = Log()
    log.add(statement="drop table customer")
    log.add(OTHER)
    assert changed(read(log, [], {**START, "without": ["customer"], "moves": ["7"]})) == [("other", 1)]


def test_nothing_behind_a_possible_move_is_published_while_nobody_says_whether_it_was_one() -> None:
    with (
        ScriptedVtgate(switched().script, {JOURNALS: "Select command denied"}) as vtgate,
        opened(vtgate.address, START, tables=TABLES, now=NOW) as reader,
    ):
        said = failure(reader, "denied")
        assert "cannot find out which tables were moved to another keyspace: vtgate" in said
        assert "let the relay's user read _vt.resharding_journal" in said
        assert reader.position.executed in ("MariaDB/0-1-10", "MariaDB/0-1-11", "MariaDB/0-1-12", "MariaDB/0-1-13")


def test_journals_are_asked_for_also_where_no_table_is_known_yet() -> None:
    """I3: a shard that serves answers, whatever the relay knows about its tables."""
    log = Log()
    log.add()
    start = {**START, "without": ["other"], "moves": ["1"]}
    with (
        ScriptedVtgate(log.script, {JOURNALS: [moved("0-1-10")]}) as vtgate,
        opened(vtgate.address, start, tables=None) as reader,
    ):
        assert until(reader, lambda page: page.finished or is_at_head(page))[-1].finished
        assert reader.position.executed == "MariaDB/0-1-10"


def test_journals_are_asked_for_only_after_a_transaction_without_rows() -> None:
    log = Log()
    log.add(*new(1))
    log.add(OTHER)
    with ScriptedVtgate(log.script) as vtgate, opened(vtgate.address, START, tables=TABLES, now=NOW) as reader:
        until(reader, is_at_head)
        assert not reader.tables.moves.is_due
    assert changed(read(log, [], START)) == [("customer", 1), ("other", 1)]


def test_a_move_whose_journal_is_in_a_gap_ends_the_stream_behind_the_gap() -> None:
    """I3, I9: what Vitess replicates back comes behind it."""
    log = switched()
    head = log.head

    def script(request: pb.VStreamRequest) -> Iterator[Step]:
        if request.vgtid.shard_gtids[0].gtid == START["gtid"]:
            yield Fails("UNKNOWN", "the source purged required binary logs (errno 1236) (sqlstate HY000)")
        else:
            yield from log.script(request)

    with (
        ScriptedVtgate(script, {JOURNALS: [moved("0-1-12")], "show binary logs": "denied"}) as vtgate,
        opened(vtgate.address, START, tables=TABLES, now=NOW) as reader,
    ):
        pages = until(reader, lambda page: page.finished)
    assert sum(page.gap is not None for page in pages) == 1
    assert changed(pages) == []
    assert pages[-1].journal is not None
    assert pages[-1].journal.targets["0"]["gtid"] == head


def test_journals_are_found_in_a_sidecar_database_with_another_name() -> None:
    log = switched()
    databases = f"{KEYSPACE}:0@primary select table_schema from information_schema.tables where table_name = "
    answers: dict[str, Any] = {
        f"{databases}'resharding_journal'": [{"table_schema": "own"}],
        JOURNALS.replace("_vt.", "`own`."): [moved("0-1-12")],
    }
    with ScriptedVtgate(log.script, answers) as vtgate, opened(vtgate.address, START, tables=TABLES, now=NOW) as reader:
        assert until(reader, lambda page: page.finished)[-1].journal is not None


def test_an_error_of_the_topology_does_not_say_that_there_is_no_journal() -> None:
    """I1"""
    with (
        ScriptedVtgate(switched().script, {JOURNALS: "node doesn't exist: keyspaces/commerce"}) as vtgate,
        opened(vtgate.address, START, tables=TABLES, now=NOW) as reader,
    ):
        assert "cannot find out which tables were moved" in failure(reader, "node")


def test_a_table_that_is_made_under_the_name_of_a_moved_one_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    log = Log()
    log.add(statement="create table customer (id bigint primary key)")
    log.add(OTHER)
    assert changed(read(log, [], {**START, "without": ["customer"], "moves": ["7"]})) == [("other", 1)]
    assert "creates table customer, but another table of that name was moved to another keyspace" in caplog.text


def test_the_removal_of_a_table_that_came_back_empties_it_whatever_became_of_the_other_keyspace() -> None:
    """I7"""
    log = Log(before="MariaDB/0-1-50")
    log.add(statement="drop table customer")
    start = {"gtid": "MariaDB/0-1-50", **ONLY}
    gone = pb.RPCError(message="no healthy tablet", code=14)
    answers: dict[str, Any] = {JOURNALS: [moved("0-1-12")], JOURNALS.replace(f"{KEYSPACE}:0@", "customers:-@"): gone}
    with ScriptedVtgate(log.script, answers) as vtgate, opened(vtgate.address, start, tables=TABLES, now=NOW) as reader:
        pages = until(reader, is_at_head)
    assert [change.operation.value for page in pages for change in page.changes] == ["TRUNCATE"]


def test_a_removal_waits_for_a_keyspace_that_may_say_that_the_table_is_back() -> None:
    """I7"""
    log = Log()
    log.add(*new(1))
    log.add(statement="drop table customer")
    answers: dict[str, Any] = {
        JOURNALS: [moved("0-1-11")],
        JOURNALS.replace(f"{KEYSPACE}:0@", "customers:-@"): pb.RPCError(message="no healthy tablet", code=14),
        "show vitess_shards": [{"Shards": f"{KEYSPACE}/0"}, {"Shards": "customers/-"}],
    }
    with ScriptedVtgate(log.script, answers) as vtgate, opened(vtgate.address, START, tables=TABLES, now=NOW) as reader:
        assert "no healthy tablet" in failure(reader, "healthy")


def resharded(here: str, there: str) -> dict[str, Any]:
    """What vtgate says once a reshard has ended the shard: ``here``, a table of the keyspace; ``there``, of another."""
    shards = (f"{KEYSPACE}/-80", f"{KEYSPACE}/80-", "customers/-")
    return {
        JOURNALS: pb.RPCError(message="no healthy tablet", code=14),
        "show vitess_shards": [{"Shards": shard} for shard in shards],
        "show vitess_keyspaces": [{"Keyspace": KEYSPACE}, {"Keyspace": "customers"}],
        f"{KEYSPACE}@primary show tables": [{"Tables": "other"}, {"Tables": here}],
        "customers@primary show tables": [{"Tables": there}],
    }


@pytest.mark.parametrize(("here", "there"), [("customer", "customer"), ("another", "orders")])
def test_a_shard_that_was_resharded_is_read_to_its_end_though_it_answers_no_questions(here: str, there: str) -> None:
    """A table that is in no keyspace any more was dropped."""
    log = switched()
    log.add(journal=journal(["0"], ["-80", "80-"]))
    pages = read(log, resharded(here, there), START)
    assert changed(pages) == [("customer", 1), ("customer", 2), ("other", 1), ("customer", 3)]
    assert pages[-1].journal is not None
    assert sorted(pages[-1].journal.targets) == ["-80", "80-"]


def test_the_removal_of_a_table_empties_it_though_the_shard_answers_no_questions() -> None:
    log = Log()
    log.add(statement="drop table customer")
    log.add(journal=journal(["0"], ["-80", "80-"]))
    pages = read(log, resharded("another", "orders"), START)
    assert [change.operation.value for page in pages for change in page.changes] == ["TRUNCATE"]


@pytest.mark.parametrize("known", [{"now": NOW}, {"now": {"other": NOW["other"]}, "relayed": NOW}])
def test_nothing_is_published_if_a_table_may_have_been_moved_before_the_shard_was_resharded(known: Any) -> None:
    """I1: its later changes are in the other keyspace, and the journal that says so cannot be read any more."""
    log = Log()
    log.add()
    log.add(OTHER)
    log.add(journal=journal(["0"], ["-80", "80-"]))
    with (
        ScriptedVtgate(log.script, resharded("another", "customer")) as vtgate,
        opened(vtgate.address, START, tables=TABLES, **known) as reader,
    ):
        said = failure(reader, "may have been moved")
    assert "customer may have been moved to keyspace customers before that: run `relay reset CONFIG shop --to" in said
    assert reader.position.executed == START["gtid"]


@pytest.mark.parametrize(
    ("here", "answer", "why"),
    [
        ("customer", {"show vitess_shards": [{"Shards": "customers/-"}]}, "no healthy tablet"),
        (
            "another",
            {"customers@primary show tables": "it is away"},
            "the tables of keyspace customers cannot be listed",
        ),
        ("another", {"show vitess_keyspaces": "it is away"}, "rejected 'show vitess_keyspaces'"),
    ],
    ids=lambda given: next(iter(given)) if isinstance(given, dict) else "",
)
def test_nothing_is_published_while_nobody_says_which_keyspaces_have_which_tables(
    here: str, answer: dict[str, Any], why: str
) -> None:
    """I1: vtgate leaves out of its shards the keyspaces that it cannot look up."""
    log = Log()
    log.add()
    log.add(OTHER)
    with (
        ScriptedVtgate(log.script, resharded(here, "orders") | answer) as vtgate,
        opened(vtgate.address, START, tables=TABLES, now=NOW) as reader,
    ):
        failure(reader, why)
        assert reader.position.executed == START["gtid"]


def test_a_table_whose_move_is_a_gap_already_does_not_keep_a_resharded_shard_from_its_end() -> None:
    log = Log()
    log.add(OTHER)
    log.add(journal=journal(["0"], ["-80", "80-"]))
    start = {**START, "left_out": ["customer"]}
    assert read(log, resharded("another", "customer"), start)[-1].journal is not None

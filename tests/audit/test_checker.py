"""The checker finds each planted fault, finds nothing in a right history, and needs nothing of this project."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.audit.checker import Checker, main

Histories = dict[str, list[dict[str, Any]]]
ITEMS = ("a", "b", "c")
LENGTH = 12  # changes of each item
BATCH = 4  # records that a consumer applies at once


def right() -> Histories:
    """Three items whose every fourth change is a delete, on two partitions, with all that reads and applies them."""
    histories: Histories = {
        name: [] for name in ("committed", "writes", "topic", "log", "copy", "applied", "reads", "gaps")
    }
    states: dict[str, int | None] = dict.fromkeys(ITEMS)
    offsets = {0: 0, 1: 0}
    for n in range(LENGTH):
        at = 1000.0 + n * 10
        first = n * len(ITEMS) + 1
        for place, item in enumerate(ITEMS):
            version = None if n % 4 == 3 else first + place
            partition = place % 2
            name = {"table": "t", "item": [item]}
            histories["committed"].append({**name, "version": version, "at": at})
            event = {"event": f"{item}-{n}"}
            where = {"partition": partition, "offset": offsets[partition]}
            histories["topic"].append({**name, **where, **event, "old": states[item], "version": version})
            histories["log"].append(event)
            states[item] = version
            offsets[partition] += 1
        last = first + len(ITEMS) - 1
        wrote = n % 4 != 3
        histories["writes"].append(
            {"who": "w", "table": "t", "first": first, "last": last, "wrote": wrote, "result": "ok"}
        )
        for partition, end in offsets.items():
            histories["applied"].append({"table": "t", "partition": partition, "end": end, "at": at + 3})
        for item in ITEMS:
            read = {"who": "r", "table": "t", "item": [item], "version": states[item]}
            histories["reads"].append({**read, "invoked": at + 4, "completed": at + 4.1})
        histories["copy"].append({"table": "t", "read": n})
        rows = [(item, version) for item, version in states.items() if version is not None]
        histories["copy"] += [{"table": "t", "read": n, "item": [item], "version": version} for item, version in rows]
    return histories


def write(folder: Path, histories: Histories) -> Path:
    for name, lines in histories.items():
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return folder


def numbered(topic: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Give the records of each partition offsets in the order of the list."""
    offsets = {0: 0, 1: 0}
    for line in topic:
        line["offset"] = offsets[line["partition"]]
        offsets[line["partition"]] += 1
    return topic


def of(histories: Histories, name: str, item: str) -> list[dict[str, Any]]:
    return [line for line in histories[name] if line.get("item") == [item]]


def a_change_is_lost(histories: Histories) -> None:
    lost = of(histories, "topic", "a")[7]
    histories["topic"].remove(lost)
    histories["log"].remove({"event": lost["event"]})
    numbered(histories["topic"])


def a_change_is_lost_that_a_transaction_had(histories: Histories) -> None:
    lost = of(histories, "topic", "b")[5]
    histories["topic"].remove(lost)
    histories["log"].remove({"event": lost["event"]})


def a_change_is_there_twice(histories: Histories) -> None:
    histories["topic"].append(dict(of(histories, "topic", "b")[-1]))
    numbered(histories["topic"])


def a_change_is_there_twice_under_another_id(histories: Histories) -> None:
    histories["topic"].append({**of(histories, "topic", "b")[-1], "event": "other"})
    histories["log"].append({"event": "other"})
    numbered(histories["topic"])


def two_changes_change_places(histories: Histories) -> None:
    first, second = of(histories, "topic", "c")[4:6]
    at, to = histories["topic"].index(first), histories["topic"].index(second)
    histories["topic"][at], histories["topic"][to] = second, first
    numbered(histories["topic"])


def an_item_is_in_two_partitions(histories: Histories) -> None:
    of(histories, "topic", "a")[-1]["partition"] = 1
    numbered(histories["topic"])


def nobody_made_a_change(histories: Histories) -> None:
    line = {**of(histories, "topic", "a")[-1], "event": "invented", "old": 1, "version": 999}
    histories["topic"].append(line)
    histories["log"].append({"event": "invented"})
    numbered(histories["topic"])


def a_commit_was_acknowledged_that_the_source_lacks(histories: Histories) -> None:
    histories["writes"].append({"who": "w", "table": "t", "first": 900, "last": 901, "wrote": True, "result": "ok"})


def a_read_is_older_than_what_the_cache_had_applied(histories: Histories) -> None:
    reads = of(histories, "reads", "a")
    reads[6]["version"] = reads[5]["version"]


def a_read_finds_what_was_deleted(histories: Histories) -> None:
    reads = of(histories, "reads", "a")
    reads[7]["version"] = reads[6]["version"]


def the_copy_ends_with_an_old_version(histories: Histories) -> None:
    for item in ("a", "b", "c"):
        histories["copy"].append({"table": "t", "read": LENGTH, "item": [item], "version": 1 + ITEMS.index(item)})


def the_copy_keeps_what_was_deleted(histories: Histories) -> None:
    read = max(line["read"] for line in histories["copy"])
    histories["copy"].append({"table": "t", "read": read, "item": ["a"], "version": 31})


def the_copy_has_a_row_twice(histories: Histories) -> None:
    histories["copy"].append(dict(of(histories, "copy", "b")[-1]))


def the_copy_goes_back(histories: Histories) -> None:
    rows = of(histories, "copy", "a")
    rows[5]["version"] = rows[3]["version"]


def the_copy_shows_what_nobody_committed(histories: Histories) -> None:
    of(histories, "copy", "a")[2]["version"] = 999


def the_log_lacks_a_change(histories: Histories) -> None:
    histories["log"].pop(9)


def the_log_has_a_change_twice(histories: Histories) -> None:
    histories["log"].append(histories["log"][3])


def a_gap_lacks_nothing(histories: Histories) -> None:
    histories["gaps"].append({"table": "t", "from": 1000.0, "to": 1020.0})


def a_gap_is_of_another_time(histories: Histories) -> None:
    a_change_is_lost(histories)
    histories["gaps"].append({"table": "t", "from": 900.0, "to": 1000.0})


PLANTED: list[tuple[Callable[[Histories], None], set[str]]] = [
    (a_change_is_lost, {"lost"}),
    (a_change_is_lost_that_a_transaction_had, {"lost", "torn"}),
    (a_change_is_there_twice, {"doubled"}),
    (a_change_is_there_twice_under_another_id, {"doubled"}),
    (two_changes_change_places, {"disordered"}),
    (an_item_is_in_two_partitions, {"disordered"}),
    (nobody_made_a_change, {"invented"}),
    (a_commit_was_acknowledged_that_the_source_lacks, {"forgotten"}),
    (a_read_is_older_than_what_the_cache_had_applied, {"stale"}),
    (a_read_finds_what_was_deleted, {"stale"}),
    (the_copy_ends_with_an_old_version, {"diverged"}),
    (the_copy_keeps_what_was_deleted, {"diverged"}),
    (the_copy_has_a_row_twice, {"diverged"}),
    (the_copy_goes_back, {"went back"}),
    (the_copy_shows_what_nobody_committed, {"diverged"}),
    (the_log_lacks_a_change, {"missing in the log"}),
    (the_log_has_a_change_twice, {"wrong in the log"}),
    (a_gap_lacks_nothing, {"false gap"}),
    (a_gap_is_of_another_time, {"lost", "false gap"}),
]


@pytest.mark.parametrize(("plant", "kinds"), PLANTED, ids=[plant.__name__ for plant, _ in PLANTED])
def test_each_planted_fault_is_found_and_nothing_else(
    tmp_path: Path, plant: Callable[[Histories], None], kinds: set[str]
) -> None:
    histories = right()
    plant(histories)
    assert set(Checker(write(tmp_path, histories)).check().counts) >= kinds
    unexpected = {"stale", "missing in the log"} if "lost" in kinds else set()
    assert set(Checker(tmp_path).check().counts) - kinds <= unexpected | {"torn"}


def test_nothing_is_found_in_a_right_history(tmp_path: Path) -> None:
    found = Checker(write(tmp_path, right())).check()
    assert not found.counts, found.examples
    assert found.looked_at["topic"] == LENGTH * len(ITEMS)
    assert found.looked_at["reads"] == LENGTH * len(ITEMS)


def test_a_loss_that_a_gap_reports_is_counted_and_not_accused(tmp_path: Path) -> None:
    histories = right()
    a_change_is_lost(histories)
    histories["gaps"].append({"table": "t", "from": 1069.0, "to": 1071.0})
    found = Checker(write(tmp_path, histories)).check()
    assert not found.counts, found.examples
    assert found.looked_at["lost, and a gap says so"] == 1


def test_a_read_while_its_change_is_being_applied_may_see_either(tmp_path: Path) -> None:
    histories = right()
    for line in histories["reads"]:
        line["invoked"] -= 2  # after the commit, before it was applied
    older = of(histories, "reads", "b")
    older[6]["version"] = older[5]["version"]
    found = Checker(write(tmp_path, histories)).check()
    assert not found.counts, found.examples


def test_it_runs_as_a_script_that_imports_nothing_of_this_project(tmp_path: Path) -> None:
    script = Path(__file__).with_name("checker.py")
    histories = right()
    a_change_is_lost(histories)
    command = [sys.executable, "-I", "-S", str(script), str(write(tmp_path, histories))]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert answer.returncode == 4, answer.stderr
    assert json.loads(answer.stdout)["wrong"] == {"lost": 1}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "topic.jsonl, line 1 is not JSON"),
        ('{"table": "t"}', "topic.jsonl, line 1 lacks event, item"),
        ("7", "lacks event"),
    ],
    ids=["no JSON", "a field is missing", "a number"],
)
def test_a_history_that_cannot_be_read_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, said: str
) -> None:
    write(tmp_path, right())
    (tmp_path / "topic.jsonl").write_text(line + "\n")
    assert main(tmp_path) == 2
    assert said in capsys.readouterr().err


def test_a_folder_without_histories_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(tmp_path) == 2
    assert str(tmp_path) in capsys.readouterr().err

"""Tables whose rows an ALTER TABLE or a RENAME has changed unseen, read again while the relay is killed: I1, I3, I7."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from relay.avro.registry import open_schemas
from relay.change import MARK
from relay.config import load
from tests.command_line import run_until_caught_up
from tests.faults.altered import Altered
from tests.faults.copied import copied, seen
from tests.mysql.alter_forms import CHANGED, KEPT, LOOSE, ROWS, TABLE
from tests.topic_changes import read_changes

pytestmark = [
    pytest.mark.services,
    pytest.mark.faults(
        "kills: test_snapshots_beside_statements.py; which statements change rows: mysql/test_kept_values.py"
    ),
]

PARTITIONS = 2
FORMS = (*CHANGED, *LOOSE)


def changes_of(path: Path, table: str) -> list[tuple[int, int, dict[str, Any]]]:
    config = load(path)
    with closing(open_schemas(config)) as schemas:
        return sorted(read_changes(config.kafka.client(), config.topic(table), schemas), key=lambda each: each[:2])


def copy_of(path: Path, table: str) -> dict[Any, Any]:
    """Return the values of a copy that applies the topic, by key and column."""

    def values(change: dict[str, Any]) -> Any:
        row = change["new"] or {}
        return {name: value for name, value in row.items() if value is not None}

    return copied(
        seen(partition, change, item=change["key"] and change["key"]["id"], new=change["new"] and values(change))
        for partition, _, change in changes_of(path, table)
    )


def read_from_the_beginning(altered: Altered, folder: Path) -> Path:
    """Return the config of another relay, which has read the tables as they are now."""
    content = yaml.safe_load(altered.path.read_text())
    content["name"] = f"{altered.name}-now"
    content["sources"][0] |= {"snapshot": "initial", "on_alter": "warn"}
    path = folder / "now.yaml"
    path.write_text(yaml.safe_dump(content))
    run_until_caught_up(path)
    return path


@pytest.mark.parametrize("server", ["mariadb", "mysql"])
def test_topics_equal_the_tables_after_statements_that_change_rows_unseen_though_the_relay_is_killed(
    tmp_path: Path, kafka: Any, server: str, unique: str, request: pytest.FixtureRequest
) -> None:
    """I1, I3, I7: each changed table is read again, once, and no other one is."""
    altered = Altered(tmp_path, kafka.bootstrap_servers, request.getfixturevalue(server), unique)
    try:
        altered.configure(snapshot="none", on_alter="resnapshot", snapshot_rows_per_second=10_000)
        changed = {f"changed_{number}": form for number, form in enumerate(FORMS)}
        unmodified = [form for form in KEPT if "MODIFY" not in form and "CHANGE" not in form]
        kept = {f"kept_{number}": form for number, form in enumerate(unmodified)}
        tables = [*changed, *kept, "spare", "gone"]
        altered.within(*(TABLE.format(table) for table in tables))
        altered.catch_up()
        altered.within(*(ROWS.format(table) for table in tables))
        altered.within(*(f"ALTER TABLE {table} {form}" for table, form in kept.items()))
        strict = ["SET sql_mode = 'STRICT_TRANS_TABLES'", "SET sql_mode = ''"]
        altered.within("RENAME TABLE spare TO taken")
        for table, form in changed.items():
            altered.within(strict[form in LOOSE], f"ALTER TABLE {table} {form}")
        altered.within("ALTER TABLE gone ADD n INT DEFAULT 5", "DROP TABLE gone")
        relay = altered.start()
        relay.wait_for("was requested")
        relay.kill()
        altered.catch_up()
        now = read_from_the_beginning(altered, tmp_path)
        for table in [*changed, *kept, "taken"]:
            assert copy_of(altered.path, table) == copy_of(now, table), (table, changed.get(table))
        altered.catch_up()
        for table in [*changed, "taken", *kept]:
            found = [change["attributes"] for *_, change in changes_of(altered.path, table)]
            begins = sum(each.get(MARK) == "begin" for each in found)
            assert begins == (0 if table in kept else PARTITIONS), (table, changed.get(table))
        assert copy_of(altered.path, "gone") == {}
    finally:
        altered.close()

"""Two workers of one relay, of which one has fewer tables of each source in its config."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from relay.avro.registry import open_schemas
from relay.config import load
from relay.services.mariadb import PASSWORD, USER, MariaDB
from tests.command_line import run_until_caught_up
from tests.faults.harness import Relay
from tests.faults.scripted_relay import start_relay
from tests.topic_changes import read_changes

pytestmark = pytest.mark.services

SOURCES = 8  # so that each worker gets the only shard of some
ROWS = 5


@contextmanager
def worker(path: Path) -> Iterator[Relay]:
    relay = start_relay(path)
    try:
        yield relay
        assert relay.terminate() == 0, relay.log()
    finally:
        relay.kill()


def test_no_row_of_a_table_that_only_one_of_two_workers_has_is_passed(
    kafka: Any, mariadb: MariaDB, unique: str, tmp_path: Path
) -> None:
    """I1, I10: the worker without it went past its rows where it owned the shard, and all were green."""
    paths = []
    for kinds in (("kept", "wanted"), ("kept",)):
        path = tmp_path / f"with-{len(kinds)}" / "relay.yaml"
        path.parent.mkdir()
        sources = [
            {
                "name": f"s{number}",
                "type": "mysql",
                "database": f"{unique}_{number}",
                "user": USER,
                "password": PASSWORD,
                "shards": {"-": [mariadb.address]},
                "tables": [f"{kind}{number}" for kind in kinds],
            }
            for number in range(SOURCES)
        ]
        servers = {"bootstrap_servers": kafka.bootstrap_servers, "partitions": 1}
        path.write_text(yaml.safe_dump({"name": unique, "kafka": servers, "sources": sources}))
        paths.append(path)
    for number in range(SOURCES):
        mariadb.execute(f"CREATE DATABASE {unique}_{number}")
        for kind in ("kept", "wanted"):
            mariadb.execute(f"CREATE TABLE {unique}_{number}.{kind}{number} (id INT PRIMARY KEY)")
    both, fewer = paths
    run_until_caught_up(both)
    with worker(both) as right:
        right.wait_for("took over 64 partitions")
        with worker(fewer) as wrong:
            for relay in (right, wrong):
                relay.wait_for("publishes source s0 differently, and only one of the two is in force")
            for number in range(SOURCES):
                for row in range(ROWS):
                    for kind in ("kept", "wanted"):
                        mariadb.execute(f"INSERT {unique}_{number}.{kind}{number} VALUES ({row})")
        assert "reading shard" not in wrong.log()
    run_until_caught_up(both)
    config = load(both)
    with closing(open_schemas(config)) as schemas:
        for table in (f"{kind}{number}" for kind in ("kept", "wanted") for number in range(SOURCES)):
            found = read_changes(config.kafka.client(), config.topic(table), schemas)
            assert [change["key"]["id"] for _, _, change in sorted(found, key=lambda each: each[:2])] == [*range(ROWS)]

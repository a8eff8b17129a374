"""Snapshots of a real Vitess: initial, on demand, after a reset and after a gap, beside writers: I1, I3, I7, I9."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from relay.avro.registry import open_schemas
from relay.change import MARK
from relay.config import load
from tests import command_line, needs
from tests.faults.audited import changes_in, problems
from tests.faults.clustered import Cluster, cluster_of
from tests.faults.harness import Relay
from tests.mysql.kept_binlogs import purge_binlogs
from tests.topic_changes import read_changes
from tests.waiting import wait_until

pytestmark = pytest.mark.services

ROWS = 12_000


@pytest.fixture
def world(tmp_path: Path, kafka: Any, unique: str) -> Iterator[Cluster]:
    needs.vitess()
    # Small batches, so that a copy has many places to die at.
    with cluster_of(**{"vstream-packet-size": 3000, "vstream-dynamic-packet-size": "false"}) as cluster:
        seed = int(os.environ.get("RELAY_SEED") or 20)
        world = Cluster(tmp_path, kafka.bootstrap_servers, unique, cluster, seed, start="copy")
        yield world
        world.close()


def command(world: Cluster, *arguments: str) -> str:
    name, *others = arguments
    done = command_line.relay(name, world.path, *others)
    assert done.exit_code == 0, (done.output, done.exception)
    return done.stdout


def configure(world: Cluster, **settings: Any) -> None:
    content = yaml.safe_load(world.path.read_text())
    content["sources"][0] |= settings
    world.path.write_text(yaml.safe_dump(content))


def is_done(world: Cluster) -> bool:
    """Whether the last snapshot has finished and no other one is waited for."""
    (source,) = orjson.loads(command(world, "status", "--json"))["sources"]
    return (
        source["snapshot"] is not None and source["snapshot"]["state"] == "finished" and not source["snapshot_requests"]
    )


def disturbed(world: Cluster, relay: Relay, chance: random.Random, steps: list[str]) -> Relay:
    """Do what ``steps`` name, at random places of the copy that is under way. Return the relay that goes on."""
    chance.shuffle(steps)
    for step in steps:
        wait_until(partial(copies_or_is_done, world, relay), 60)
        time.sleep(chance.uniform(0.0, 0.6))
        relay = world.going(relay)
        relay = world.disturbed(relay, step, chance)
    return world.going(relay)


def copies_or_is_done(world: Cluster, relay: Relay) -> bool:
    return relay.has_logged("copying table items of shard") or is_done(world)


def check(world: Cluster, snapshots: int, least: int = ROWS // 2) -> None:
    """The copy is what the table is, and each snapshot has read each row once, and is marked in each partition."""
    assert world.copy() == world.rows()
    reads = world.reads()
    assert max(Counter(read["event_id"] for read in reads).values()) == 1
    assert len({read["snapshot"]["id"] for read in reads}) == snapshots
    assert len(reads) >= snapshots * least
    partitions = load(world.path).kafka.partitions
    assert world.marks() == {"begin": snapshots * partitions, "end": snapshots * partitions}


@pytest.mark.faults("kills of another source: vitess/test_on_vitess.py interrupts a copy at any page")
def test_copies_equal_the_table_whatever_is_killed_and_however_often_it_is_copied(world: Cluster) -> None:
    """Its seed is ``RELAY_SEED``."""
    chance = random.Random(world.seed)
    world.fill(ROWS)
    relay = world.start()
    relay.wait_for("reading shard c0-")
    world.start_writers()
    relay = disturbed(world, relay, chance, ["relay", "relay", "vtgate", "database"])
    wait_until(lambda: is_done(world), 120)

    relay = world.going(relay)
    relay.wait_for("took over")  # one that has only just been started handles no signal yet
    assert relay.terminate() == 0, relay.log()
    command(world, "snapshot", "commerce", "items")
    relay = disturbed(world, world.start(), chance, ["relay", "relay", "vtgate", "split"])
    wait_until(lambda: is_done(world), 120)
    wait_until(lambda: changes_in(world.truth()) > 500)
    world.finish(relay)
    truth = world.truth()
    assert changes_in(truth) > 500
    assert problems(truth, [each for each in world.changes() if each[2]["operation"] != "READ"]) == []
    check(world, 2)


def test_what_is_deleted_in_a_gap_or_before_a_reset_leaves_the_copy_and_an_added_table_is_read_alone(
    world: Cluster,
) -> None:
    """I1, I7, I9: under ``on_gap: resnapshot``, and ``start: copy``. Nobody reads the deletions."""
    configure(world, on_gap="resnapshot")
    world.fill(ROWS // 10)
    world.catch_up()
    check(world, 1, ROWS // 10)
    for at in world.databases:
        world.execute(f"delete from `{at}`.items where customer % 3 = 0")
        world.execute(f"create table `{at}`.others (id bigint primary key)")
    world.execute(f"insert into `{world.databases[0]}`.others values (1), (2)", "flush binary logs")
    purge_binlogs(world.cluster.mariadb)
    world.catch_up()
    check(world, 2, ROWS // 15)
    configure(world, tables=["items", "others"])
    world.catch_up()
    check(world, 2, ROWS // 15)
    config = load(world.path)
    with closing(open_schemas(config)) as schemas:
        changes = [change for _, _, change in read_changes(config.kafka.client(), config.topic("others"), schemas)]
    assert Counter(change["key"]["id"] for change in changes if change["key"]) == {1: 1, 2: 1}
    marks = Counter(change["attributes"][MARK] for change in changes if not change["key"])
    assert marks == {"begin": config.kafka.partitions, "end": config.kafka.partitions}

    for at in world.databases:
        world.execute(f"delete from `{at}`.items where customer % 3 = 1")
        world.execute(f"update `{at}`.items set version = 2 where customer % 3 = 2")
    assert len(world.copy()) - len(world.rows()) == ROWS // 30
    configure(world, snapshot_rows_per_second=50)  # so that a kill meets the copy
    command(world, "reset", "commerce", "--to", "copy")
    relay = world.start()
    relay.wait_for("copying table items of shard")
    relay.kill()
    world.catch_up()
    assert len(world.rows()) == ROWS // 30
    check(world, 3, ROWS // 30)

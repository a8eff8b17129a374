"""``relay snapshot``: requests a snapshot of a source beside its stream, or stops or resumes it.

The workers serve the requests, now or once they run, whichever stream is read then. A request has an id, so that
removing it never removes a later one. It is written without the fence: it cannot make anything be published twice (I3).
The owner of the control record begins its snapshot (``relay.snapshots.lifecycle``), and the owner of the request's own
partition removes it once it is fulfilled.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from relay.config import Config, SourceConfig
from relay.config.errors import did_you_mean
from relay.config.per_table import NO_READS
from relay.errors import ConfigError, RelayError
from relay.kafka import topics
from relay.kafka.checkpoints import read_checkpoints
from relay.kafka.group import members
from relay.kafka.settings import KafkaSettings
from relay.kafka.unfenced import write_unfenced
from relay.operations.status import find_source
from relay.records import SnapshotControl, SnapshotRequest
from relay.snapshots.control import fulfilled_by, is_running, is_stopped


@dataclass(frozen=True, slots=True)
class RequestedSnapshot:
    request: SnapshotRequest
    resumed: bool  # a stopped snapshot continues
    behind: str | None  # the id of the running snapshot that it waits for
    workers: int  # how many are running

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values. ``tables``: None for all of them."""
        return {**_json(self.request), "resumed": self.resumed, "behind": self.behind, "workers": self.workers}


@dataclass(frozen=True, slots=True)
class StoppedSnapshot:
    """The effect of a stop. ``snapshot``: the id of the stopped one. ``withdrawn``: requests that had not begun."""

    snapshot: str | None
    stopped: Sequence[SnapshotRequest]
    withdrawn: Sequence[SnapshotRequest]

    def to_json(self) -> dict[str, Any]:
        stopped, withdrawn = ([_json(each) for each in found] for found in (self.stopped, self.withdrawn))
        return {"snapshot": self.snapshot, "stopped": stopped, "withdrawn": withdrawn}


def _json(request: SnapshotRequest) -> dict[str, Any]:
    return {"request": request.id, "tables": list(request.tables) or None}


def request(config: Config, name: str, tables: Sequence[str]) -> RequestedSnapshot:
    """Request a snapshot of ``tables``, or of all tables, of the source ``name``; or resume a stopped one.

    Raises ``ConfigError`` for an unknown source or table, or a source in Debezium's envelope; ``RelayError`` if the
    relay has never run, or another snapshot is stopped; ``Unavailable``.
    """
    entry = find_source(config, name)
    if entry.is_debezium:  # I7
        raise ConfigError(f"source {name}: a snapshot {NO_READS}")
    wanted = _wanted(entry, tables)
    settings, workers = _connect(config)
    control, waiting = _read(settings, name)
    same = [each for each in waiting if each.stopped and each.tables == wanted]
    others = [each for each in waiting if each.stopped and each.id in fulfilled_by(control)]
    running = control.id if control is not None and is_running(control) else None
    if same:
        goes_on = any(each in others for each in same)
        # A snapshot for several requests is stopped as long as one of them is.
        for each in {*same, *others} if goes_on else same:
            _write(settings, each.changed(stopped=False, now=time.time()))
        return RequestedSnapshot(same[0], True, None if goes_on else running, workers)
    if wanted and others and is_running(control):
        arguments = " ".join((name, *others[0].tables))
        raise RelayError(
            f"source {name}: a snapshot of {others[0].subject} is stopped, and copies wait for its end: resume it with "
            f"`relay snapshot CONFIG {arguments}`, or replace it by a snapshot of all tables with "
            f"`relay snapshot CONFIG {name}`"
        )
    asked = SnapshotRequest.new(name, wanted, time.time())
    _write(settings, asked)
    return RequestedSnapshot(asked, False, None if is_stopped(control, waiting) else running, workers)


def stop(config: Config, name: str) -> StoppedSnapshot:
    """Stop the requested snapshot of the source ``name`` where it is, and withdraw requests that have not begun.

    Raises ``ConfigError`` for an unknown source; ``RelayError`` if there is nothing to stop; ``Unavailable``.
    """
    find_source(config, name)
    settings, _ = _connect(config)
    control, waiting = _read(settings, name)
    stopped = _served(name, control, waiting)
    withdrawn = [each for each in waiting if each not in stopped]
    if not stopped and not withdrawn:
        why = "none is running or waiting"
        if control is not None and is_running(control):
            what = "is the initial one or repairs a gap"
            if control.repetitions:
                what = "reads again what was emptied or renamed during the one before it"
            why = f"snapshot {control.id} {what}, and copies wait for it"
        raise RelayError(f"source {name}: there is no requested snapshot to stop: {why}")
    for each in stopped:
        _write(settings, each.changed(stopped=True, now=time.time()))
    for each in withdrawn:
        _withdraw(settings, each)
    if withdrawn:
        # A worker may have begun one of them since they were read; its snapshot stops, too.
        control, _ = _read(settings, name)
        taken = [each for each in withdrawn if is_running(control) and each.id in fulfilled_by(control)]
        for each in taken:
            _write(settings, each.changed(stopped=True, now=time.time()))
        stopped, withdrawn = [*stopped, *taken], [each for each in withdrawn if each not in taken]
    return StoppedSnapshot(control.id if control is not None and stopped else None, stopped, withdrawn)


def _write(settings: KafkaSettings, request: SnapshotRequest) -> None:
    write_unfenced(settings, request.key, request.to_json(), "relay status")


def _withdraw(settings: KafkaSettings, request: SnapshotRequest) -> None:
    write_unfenced(settings, request.key, None, "relay status")


def _served(name: str, control: SnapshotControl | None, waiting: Sequence[SnapshotRequest]) -> list[SnapshotRequest]:
    """Return the requests that the running snapshot serves. ``waiting``: the requests that wait."""
    if control is None or not is_running(control):
        return []
    ids = fulfilled_by(control)
    # The request that names the tables comes first.
    tables = control.tables or ()
    found = sorted((each for each in waiting if each.id in ids), key=lambda each: each.tables != tables)
    if ids and not found:
        # A worker began it while it was being withdrawn.
        found = [SnapshotRequest(name, min(ids), tables, control.updated_at)]
    return found


def _wanted(entry: SourceConfig, tables: Sequence[str]) -> tuple[str, ...]:
    """Return the tables to read, sorted; an empty result means all."""
    if unknown := [table for table in tables if table not in entry.table_names]:
        hint = did_you_mean(unknown[0], entry.table_names, "its tables are ")
        raise ConfigError(f"source {entry.name} has no table {unknown[0]}; {hint}")
    return () if set(tables) == set(entry.table_names) else tuple(sorted(set(tables)))


def _connect(config: Config) -> tuple[KafkaSettings, int]:
    settings = KafkaSettings.from_config(config)
    admin = topics.connect(config)
    if settings.checkpoints not in topics.list_topics(admin, config):
        raise RelayError(
            f"relay {config.name} has not run yet: start it first, with `snapshot: initial` on the source if it is to "
            "read its tables from the start"
        )
    return settings, len(members(admin, settings.group, settings.checkpoints))


def _read(settings: KafkaSettings, name: str) -> tuple[SnapshotControl | None, list[SnapshotRequest]]:
    """Return the control record of a source's newest snapshot, and the unfulfilled requests."""
    view = read_checkpoints(settings.client, settings.checkpoints)
    committed = view.newest(name)
    return committed.control if committed is not None else None, view.requests_of(name)

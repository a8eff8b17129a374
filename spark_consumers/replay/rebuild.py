"""Rebuilds the copy or the log from the topics, in a new target: ``relay replay``.

It runs batches of the consumer itself, with a different target, so the consumer's rules apply.
"""

import json
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Self

from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from relay.avro.registry import open_schemas
from relay.change import MARK, REDRIVEN
from relay.config import Config
from relay.config.value_types import iso_time
from relay.errors import ConfigError, RelayError
from relay.kafka.group_offsets import GroupOffsets, Offsets, group, topic_ids, up_to
from relay.kafka.topics import connect, survey
from spark_consumers import kafka_source
from spark_consumers.causes import cause
from spark_consumers.dead_letters import DeadLetterTopic, NonChangeRecord, UnknownSchemas
from spark_consumers.decode import Decoder
from spark_consumers.launch import session_for, state_folder
from spark_consumers.locations import Lock, lock_of
from spark_consumers.records import DecodeStatus
from spark_consumers.replay import bounds
from spark_consumers.replay.state import ReplayState, StateFile, refuse_another, refuse_emptied, refuse_lost
from spark_consumers.replay.target import ReplayTarget, Swap
from spark_consumers.running import RETRY_DELAYS, log_event, pause, signals
from spark_consumers.schema_wait import SchemaWait

_MINUTE = 60.0  # seconds whose progress the estimate of the time left uses


@dataclass(frozen=True)
class ReplayOutcome:
    """The result of a replay. ``end``: where it ends, and a consumer continues.

    ``done`` of ``total`` offsets are read; both are None if this run only finished a swap. ``kept``: what a swap has
    kept of the earlier target, or None without a swap.
    """

    kind: Literal["copy", "log"]
    into: str
    finished: bool
    done: int | None
    total: int | None
    end: Offsets
    kept: Sequence[str] | None = None


class ReplayProgress:
    """A bar on a terminal, otherwise JSON lines, for a ``with``. ``done`` of ``total`` offsets are read already."""

    def __init__(self, consumer: str, total: int, done: int) -> None:
        self._consumer = consumer
        self._total = total
        self._is_shown = sys.stderr.isatty()
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("records, left:")
        console, hidden = Console(stderr=True), not self._is_shown
        self._bar = Progress(
            *columns, TimeRemainingColumn(), console=console, disable=hidden, speed_estimate_period=_MINUTE
        )
        self._task = self._bar.add_task(f"replay of the {consumer}", total=total, completed=done)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_shown:  # otherwise rich may print a line break
            self._bar.stop()

    def show(self, done: int, counts: Mapping[str, int]) -> None:
        """Show that ``done`` offsets are read. ``counts``: the counts of the last batch."""
        self._bar.update(self._task, completed=done)
        if not self._is_shown:
            left = self._bar.tasks[0].time_remaining  # None with the first batch
            log_event("progress", self._consumer, done=done, total=self._total, seconds_left=left, **counts)


class _LettersOfReplay(DeadLetterTopic):
    """Sends only what the new target refuses, and counts the others, which the consumer has sent."""

    def send(self, records: Iterable[NonChangeRecord]) -> int:
        letters = [record for record in records if record.is_undecodable]
        refused = [letter for letter in letters if letter.status is DecodeStatus.REFUSED]
        return super().send(refused) + len(letters) - len(refused)  # I12


def run(
    kind: Literal["copy", "log"],
    config: Config,
    into: str,
    *,
    start: str = "earliest",
    to: str = "latest",
    partial: bool = False,
    swap: bool = False,
    checkpoint: Path | str | None = None,
) -> ReplayOutcome:
    """Rebuild ``kind`` from the topics in a new target ``into``; with ``swap``, replace the current one with it.

    After a stop or crash, a call with the same arguments continues. ``start`` and ``to``: the options ``--from`` and
    ``--to``. ``partial``: even if earlier records are missing. ``checkpoint``: the consumer's, which a swap replaces.
    Raises ``RelayError``. SIGTERM ends it after the running batch, SIGINT too, as ``KeyboardInterrupt``.
    """
    bounds.check(start, to)
    target = ReplayTarget(kind, config, into)
    exchange = Swap(target, str(checkpoint or state_folder(config, kind))) if swap else None
    files = StateFile(state_folder(config, ""), kind, target.identity)
    with ExitStack() as stack:
        stack.enter_context(Lock(files.path / "lock", f"the replay into {target.name}"))
        if exchange is not None and exchange.is_pending:
            end, kept = exchange.finish(files.remove)
            return ReplayOutcome(kind, target.name, True, None, None, end, kept)
        replay = _Replay(target, config, files, stack)
        with signals(replay.stop):
            replay.open({"--from": start, "--to": to}, partial)
            if not replay.run():
                if replay.stopping == signal.SIGINT:
                    raise KeyboardInterrupt
                return replay.outcome()
    # Only now, because the JVM holds the lock of the target until it ends.
    if exchange is None:
        return replay.outcome()
    exchange.begin(replay.state.end, replay.state.topics)
    _, kept = exchange.finish(files.remove)
    return replace(replay.outcome(), kept=kept)


class _Replay:
    """One run of a replay, in one thread. Call ``open`` first, then ``run``."""

    def __init__(self, target: ReplayTarget, config: Config, files: StateFile, stack: ExitStack) -> None:
        self._target = target
        self._config = config
        self._files = files
        self._stack = stack
        self.stopping = 0

    def stop(self, signum: int) -> None:
        self.stopping = signum

    def open(self, asked: dict[str, str], partial: bool) -> None:
        """Find or create the state, and open Spark's session."""
        self._consumer = self._target.consumer()
        topics = self._consumer.topics
        self._admin = connect(self._config)
        self._ids = topic_ids(self._admin, self._config, topics)
        # Its client is the replay's, and `committed` means the consumer's group.
        self._group = GroupOffsets(self._config, "replay", topics, name=group(self._config, self._consumer.name))
        self._stack.enter_context(closing(self._group))
        self._schemas = self._stack.enter_context(closing(open_schemas(self._config)))
        self._schemas.refresh()
        self._schema_wait = SchemaWait(self._schemas, self._consumer.name)
        self._dead_letters = _LettersOfReplay(self._config, self._consumer.name, self._schemas)
        self._target.refuse_cluster()
        lock = lock_of(self._consumer.location)
        locks = [] if lock is None else [self._stack.enter_context(lock)]
        found = self._files.read()
        if found is not None:
            refuse_another(found, asked, self._ids, self._files.path)
            refuse_lost(found, self._group.locate({})[0], self._files.path)
            self.state = found
            self._open_session(locks)
            applied = self._consumer.notes.applied(self._session)
            refuse_emptied(found, applied, self._target.name, self._files.path)
            return
        begin = self._group.locate(self._group.resolve(asked["--from"]))[0]
        wanted = bounds.watermark_time(asked["--to"])
        end = bounds.resolve_end(self._config, self._group, asked["--to"])
        self._target.refuse_local_content()
        self._open_session(locks)
        self._target.refuse_content(self._session)
        if wanted is not None:
            end = self._end_of(wanted, end)
        begin = up_to(begin, end)  # a partition whose end is before its begin has nothing to read
        self.state = ReplayState(asked, self._ids, begin, end, begin)
        if not partial:
            self._refuse_partial()
        self._files.write(self.state)

    def _open_session(self, locks: Sequence[Lock]) -> None:
        self._session: SparkSession = session_for([self._consumer], self._config, None, locks, self._stack)

    def _end_of(self, committed_before: float, end: Offsets) -> Offsets:
        # Changes published before then were committed before.
        first = self._group.locate(self._group.resolve(iso_time(committed_before, "milliseconds")))[0]
        first = up_to(first, end)
        # All gaps, because a gap is found after the changes that it stands for.
        first[self._config.internal("gaps")] = end[self._config.internal("gaps")]
        return bounds.end_of(self._changes(first, end), committed_before, first, end)

    def _refuse_partial(self) -> None:
        found = bounds.beginnings(self._config, self.state.start)
        if found and self._consumer.name == "copy":
            topic = self._config.topic
            left = bounds.uncovered(found, self._marks(), ((topic(table), table) for table in self._config.tables))
            found = {where: offset for where, offset in found.items() if where in left}
        if found:
            raise bounds.partial_error(self._config, self._consumer.name, found)
        if self._consumer.name == "log":
            bounds.refuse_compacted(survey(self._admin, self._config, list(self._config.tables)))

    def _changes(self, begin: Offsets, end: Offsets) -> DataFrame:
        """Return the decoded records between two offsets. The schemas of all of them were published before."""
        self._schemas.learn(end)
        return self._decoder().changes(self._between(begin, end))

    def _marks(self) -> list[bounds.Mark]:
        mark, redriven = (F.try_element_at("attributes", F.lit(name)) for name in (MARK, REDRIVEN))
        changes = self._changes(self.state.start, self.state.end)
        is_mark = mark.isin("begin", "end") & redriven.isNull()  # the copy ignores one that is sent again
        found = changes.where((F.col("status") == DecodeStatus.CHANGE) & is_mark)
        return [
            tuple(row) for row in found.select("topic", "partition", "offset", "table", "snapshot_id", mark).collect()
        ]

    def outcome(self) -> ReplayOutcome:
        target, state = self._target, self.state
        return ReplayOutcome(target.kind, target.name, state.is_complete, state.done, state.total, state.end)

    def run(self) -> bool:
        """Apply batches up to the end; return False if a signal came before."""
        state = self.state
        log_event("replay", self._consumer.name, into=self._target.name, start=state.start, end=state.end)
        with ReplayProgress(self._consumer.name, state.total, state.done) as progress:
            while not state.is_complete:
                if self.stopping:
                    log_event("stopped", self._consumer.name, done=state.done, total=state.total)
                    return False
                end = state.next_end(self._consumer.at_most, self._config.internal("gaps"))
                counts = self._apply(state.reached, end)
                if counts is None:
                    continue
                state.reached = end
                self._files.write(state)
                progress.show(state.done, counts)
        self._refuse_lacking()  # I7
        log_event("replayed", self._consumer.name, into=self._target.name, offsets=json.dumps(state.end))
        return True

    def _refuse_lacking(self) -> None:
        """Raise ``RelayError`` if tables are set aside, or were for a while. Their notes outlive this process."""
        found = self._consumer.notes.incomplete().items()
        if lines := [f"  {table}: {gap.reason}" for (_, table), gap in found if table in self._config.tables]:
            problem = f"the replay into {self._target.name} lacks changes of these tables, and nothing was swapped:"
            cure = f"remove the cause, {self._target.name} and {self._files.path}, and start over"
            later = "if the cause is on the topics, start over with a --from past it and before a snapshot of the table"
            raise RelayError("\n".join([problem, *lines, f"{cure}; {later}"]))

    def _apply(self, begin: Offsets, end: Offsets) -> dict[str, int] | None:
        """Apply a batch, and retry if it fails; return None if a signal came meanwhile. Raises ``RelayError``."""
        attempt = 0
        while not self.stopping:
            try:
                decoder = self._decoder()
                batch = self._consumer.stream(self._between(begin, end), decoder)
                return self._consumer.apply(batch, 0, self._dead_letters, begin, end)
            except UnknownSchemas as unknown:
                self._schema_wait.wait(unknown, lambda: self.stopping)
            except ConfigError:
                raise
            except (RelayError, PySparkException, Py4JError, OSError) as error:
                if isinstance(error, Py4JNetworkError):
                    raise RelayError(f"Spark's JVM ended ({cause(error)}): run the same command again") from error
                if attempt == len(RETRY_DELAYS):
                    if isinstance(error, RelayError):
                        raise
                    raise RelayError(f"replay: gave up after {attempt + 1} attempts: {cause(error)}") from error
                log_event("retry", self._consumer.name, wait=RETRY_DELAYS[attempt], error=cause(error))
                pause(RETRY_DELAYS[attempt], lambda: self.stopping)
                attempt += 1
        return None

    def _decoder(self) -> Decoder:
        return Decoder.of(self._config, self._schemas.all(), self._schema_wait.given_up)

    def _between(self, begin: Offsets, end: Offsets) -> DataFrame:
        return kafka_source.read_between(self._session, self._config, "replay", begin, end)

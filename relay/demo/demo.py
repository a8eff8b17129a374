"""The demo: the complete system on embedded services, under a real workload, checked against the writers' record.

It starts the processes that a user would start: ``relay run`` and ``relay consume``.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import yaml
from rich.console import Console
from rich.live import Live

from relay.cache import RedisStore, TokenCache
from relay.config import Config, load
from relay.demo import report
from relay.demo.dynamodb_orders import DynamoDBOrders
from relay.demo.mysql_orders import MySQLOrders
from relay.demo.orders import TABLE, Incident, Orders, run_all
from relay.demo.vitess_orders import VitessOrders
from relay.demo.watching import BatchLog, TopicWatch
from relay.demo.workload import CACHE_KEY, Reader, Workload
from relay.errors import CheckFailed, RelayError
from relay.jvm.connectors import installed_connectors
from relay.jvm.jars import fetch_all
from relay.jvm.java import find_java
from relay.kafka import topics
from relay.process.managed import HOST, ManagedProcess, free_port
from relay.services.kafka import KafkaBroker
from relay.services.redis import RedisServer
from spark_consumers.session import delta_session

# By process. What an application waits for is not in one with large batches, and comes first where CPUs are few.
CONSUMERS = {"cache": ("cache",), "tables": ("log", "copy")}
_NICE = {"tables": 10}
DATABASES: dict[str, type[Orders]] = {"dynamodb": DynamoDBOrders, "mysql": MySQLOrders, "vitess": VitessOrders}
_READERS = 2
_SNAPSHOT_AT = 0.1  # as a fraction of the load's duration
_TIMEOUT = 600.0  # seconds of each step
_EXIT_TIMEOUT = 10.0  # seconds


def run(source: str, seconds: int, *, as_json: bool = False) -> None:
    """Run the demo for ``seconds`` of load. ``as_json``: print only the result, as JSON, to stdout.

    Raises ``CheckFailed`` if a check fails, ``Unavailable`` if something it needs is missing.
    """
    console = Console(stderr=as_json)
    orders = DATABASES[source]()
    find_java()
    orders.prepare()
    with ExitStack() as stack:
        stack.callback(signal.signal, signal.SIGTERM, signal.signal(signal.SIGTERM, _interrupt))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="relay-demo-")))
        stack.callback(_await_exits, folder)
        # Temporary files of all parts are removed with the folder.
        os.environ.update({**orders.environment, "TMPDIR": str(folder), "SPARK_LOCAL_DIRS": str(folder)})
        tempfile.tempdir = str(folder)
        stack.callback(setattr, tempfile, "tempdir", None)
        _Demo(folder, orders, stack, console, seconds, as_json).run()


@dataclass
class _Demo:
    folder: Path
    orders: Orders
    stack: ExitStack
    console: Console
    seconds: int
    as_json: bool
    processes: dict[str, ManagedProcess] = field(default_factory=dict)
    batches: dict[str, BatchLog] = field(default_factory=dict)
    watch: TopicWatch = field(init=False)

    def run(self) -> None:
        with self.console.status("fetching the services"):
            fetch_all(("kafka", *self.orders.jars, "redis"), installed_connectors().spark)
        started = time.monotonic()
        config = self._start_services()
        # The consumers need the topics, which the relay creates when it starts, so both can start at the same time.
        topics.create_missing(topics.connect(config), config, [TABLE])
        assert config.http is not None
        watch = self.watch = TopicWatch(config, TABLE)
        watch.start()
        self.stack.callback(watch.close)
        batches = self.batches
        for (place, consumers), peer in zip(CONSUMERS.items(), config.http.peers, strict=True):
            options = ["--checkpoint", f"{self.folder}/checkpoints", "--http", peer]
            log = self._start(place, ["consume", *consumers], options)
            batches |= {consumer: BatchLog(log, config.topic(TABLE), consumer) for consumer in consumers}
        self._start("relay", ["run"])
        workload = self.orders.workload(pause=0.04)
        with self.console.status("starting the relay and three consumers"):
            workload.warm_up()
            self._wait(lambda: all(b.times for b in batches.values()), "the consumers to start")
        self.console.print(f"everything is up after {time.monotonic() - started:.0f} s; writing for {self.seconds} s")

        readers = self._readers(config, workload)
        workload.start()
        for reader in readers:
            reader.start()
        self._watch_load(workload)
        for reader in readers:
            reader.stop()
        history = workload.stop()
        with self.console.status("waiting until everything is applied"):
            # Started while the consumers still work.
            session = self.stack.enter_context(delta_session(config.spark))
            total = workload.count()
            marks = config.partitions(TABLE) if self.orders.has_rows_before else 0
            self._wait(lambda: len(watch.changes) >= total and watch.ended >= marks, "all changes to be on the topic")
            ends = dict(watch.ends)
            self._wait(lambda: all(b.has_reached(ends) for b in batches.values()), "the consumers to apply all changes")
            for name, process in self.processes.items():
                process.stop(30.0)
                if process.returncode not in (0, -signal.SIGKILL):
                    raise _unexpected_exit(name, process)
            watch.stop()
        reads = [read for reader in readers for read in reader.reads]
        with self.console.status("comparing everything with the writers' record"):
            result = report.compare(config, self.orders, history, watch, batches, reads, session)
        seconds = time.monotonic() - started
        if self.as_json:
            print(json.dumps(result.to_json(seconds), ensure_ascii=False))
        else:
            self.console.print(result.tables(seconds))
        if result.problems:
            raise CheckFailed("\n".join(result.problems))

    def _start_services(self) -> Config:
        kafka, redis = KafkaBroker(), RedisServer()
        with self.console.status(f"starting Kafka, {self.orders.title} and Redis"), ThreadPoolExecutor(2) as pool:
            starts = [pool.submit(self.stack.enter_context, server) for server in (kafka, redis)]
            self.orders.start(self.stack)
            for start in starts:
                start.result()
        path = self.path = self.folder / "relay.yaml"
        path.write_text(yaml.safe_dump(_config(self.folder, kafka, self.orders, redis), sort_keys=False))
        self.console.print(
            f"Kafka {kafka.bootstrap_servers} · {self.orders.title} {self.orders.address} · Redis {redis.url} · "
            f"config {path}"
        )
        config = load(path)
        assert config.http is not None
        self.page = f"http://{config.http.address}/"
        self.console.print(f"status page, while it runs: {self.page} {self.orders.on_its_times}".rstrip())
        return config

    def _start(self, name: str, command: Sequence[str], options: Sequence[str] = ()) -> Path:
        """Start a process, which the stack stops; return its log."""
        command = [sys.executable, "-m", "relay", *command, str(self.path), *options]
        if nice := _NICE.get(name):
            command = ["nice", "-n", str(nice), *command]
        environment = {**self.orders.environment, "RELAY_STATE": str(self.folder / "state")}
        process = ManagedProcess(command, self.folder / f"{name}.log", environment)
        process.start()
        self.stack.callback(process.stop, 5.0)
        self.processes[name] = process
        return process.log

    def _readers(self, config: Config, workload: Workload) -> list[Reader]:
        assert config.cache is not None
        store = RedisStore(config.cache.url)
        cache = TokenCache(store, config.cache.namespace, tombstone_ttl=config.cache.tombstone_ttl)
        load = self.orders.load()
        return [Reader(cache, load, workload.items, n) for n in range(_READERS)]

    def _watch_load(self, workload: Workload) -> None:
        """Show progress while the writers write, and start the incidents when they are due."""
        incidents = self.orders.incidents()
        if self.orders.has_rows_before:
            incidents = [Incident(_SNAPSHOT_AT, self._request_snapshot), *incidents]

        def show(left: float) -> None:
            self._poll()
            written, published = workload.count(), len(self.watch.changes)
            live.update(report.progress(self.orders.title, self.page, written, published, self.batches, left))

        with Live(console=self.console, refresh_per_second=4, transient=True) as live:
            run_all(incidents, self.seconds, self.console.print, show)

    def _request_snapshot(self) -> str:
        command = [sys.executable, "-m", "relay", "snapshot", str(self.path), self.orders.source()["name"]]
        ran = subprocess.run(command, env={**os.environ, **self.orders.environment}, capture_output=True, text=True)
        if ran.returncode:
            raise RelayError(f"relay snapshot exited with {ran.returncode}: {ran.stderr}")
        return f"relay snapshot reads the rows from before the relay, alongside the stream: {ran.stdout.strip()}"

    def _wait(self, done: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _TIMEOUT
        while True:
            self._poll()
            if done():
                return
            if time.monotonic() > deadline:
                tails = "\n".join(f"--- log of {n}\n{p.log_tail(15)}" for n, p in self.processes.items())
                raise CheckFailed(f"timed out after {_TIMEOUT:.0f} s of waiting for {what}\n{tails}")
            time.sleep(0.1)

    def _poll(self) -> None:
        """Check that all processes run and the topic is read, and read their new batch lines."""
        if self.watch.failure is not None:
            raise self.watch.failure
        for name, process in self.processes.items():
            if not process.alive:
                raise _unexpected_exit(name, process)
        for log in self.batches.values():
            log.refresh()


def _unexpected_exit(name: str, process: ManagedProcess) -> RelayError:
    return RelayError(f"{name} exited with {process.returncode}; the end of its log:\n{process.log_tail()}")


def _config(folder: Path, kafka: KafkaBroker, orders: Orders, redis: RedisServer) -> dict[str, Any]:
    return {
        "name": "shop",
        "kafka": {"bootstrap_servers": kafka.bootstrap_servers, "partitions": 4},
        "sources": [orders.source()],
        "cache": {"url": redis.url, "namespace": "shop", "keys": {TABLE: [CACHE_KEY]}, "tombstone_ttl": "1h"},
        "log": {"path": f"{folder.as_uri()}/log"},
        "copy": {"url": f"delta:{folder.as_uri()[5:]}/copy"},
        "http": {"address": f"{HOST}:{free_port()}", "peers": [f"{HOST}:{free_port()}" for _ in CONSUMERS]},
    }


def _await_exits(folder: Path) -> None:
    """Wait until all processes started for ``folder`` have ended: Spark's JVMs briefly outlive their drivers."""
    mark = f"RELAY_STATE={folder}/".encode()
    deadline = time.monotonic() + _EXIT_TIMEOUT
    while running := list(_processes_with(mark)):
        if time.monotonic() > deadline:
            for pid in running:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def _processes_with(mark: bytes) -> Iterator[int]:
    """Yield the processes that have ``mark`` in their environment; nothing where there is no /proc, as on macOS."""
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # it has ended, or belongs to another user
            if mark in environment.read_bytes():
                yield int(environment.parent.name)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    """Unwind the stack as Ctrl-C does, so that nothing keeps running."""
    raise SystemExit(128 + signum)

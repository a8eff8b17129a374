"""A relay as a process that can be killed, paused and woken, beside a workload whose writes are known."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import boto3
import yaml
from confluent_kafka import Consumer, KafkaException, TopicPartition

from relay.avro.registry import open_schemas
from relay.config import Config, load
from relay.demo.dynamodb_orders import create_table, workload
from relay.demo.truth import check_topic
from relay.demo.workload import Item, RecordedWrite, Workload
from relay.kafka.changes import ReceivedChange
from relay.kafka.transient_errors import is_transient
from relay.process.managed import ManagedProcess
from tests.command_line import run_until_caught_up
from tests.topic_changes import read_topic
from tests.waiting import PATIENCE, is_paused, patience, wait_until

PAUSED_WORKER = "tests.faults.paused_worker"


def relay_command(*arguments: str) -> list[str]:
    """Return what runs a command in a process of its own."""
    return [sys.executable, "-m", "relay.cli", *arguments]


class Scene:
    """One table, its config, and the relays that read it."""

    def __init__(self, folder: Path, name: str, bootstrap_servers: str, endpoint_url: str) -> None:
        self.folder = folder
        self.table = f"orders-{name}"
        self.client = boto3.client("dynamodb", endpoint_url=endpoint_url, region_name="us-east-1")
        create_table(self.client, self.table)
        self.path = folder / "relay.yaml"
        self.path.write_text(
            yaml.safe_dump(
                {
                    "name": name,
                    "kafka": {
                        "bootstrap_servers": bootstrap_servers,
                        # Short, so that a dead worker is missed soon.
                        "producer": {"transaction.timeout.ms": 2000},
                    },
                    "sources": [
                        {
                            "name": "orders",
                            "type": "dynamodb",
                            "table": self.table,
                            "region": "us-east-1",
                            "endpoint_url": endpoint_url,
                        }
                    ],
                }
            )
        )
        self.processes: list[Relay] = []
        # What `wait_for_more` reads with, and how many changes it has read.
        self._reader: Consumer | None = None
        self._read = 0

    @property
    def config(self) -> Config:
        return load(self.path)

    def workload(self, **options: Any) -> Workload:
        return workload(self.client, self.table, **options)

    def relay(self, *arguments: str) -> Relay:
        return self._start(relay_command("run", str(self.path), *arguments))

    def paused_relay(self, step: str, number: int, delay: float, transaction_timeout: int) -> Relay:
        """A relay that stops itself at the ``number``-th ``step``, and waits ``delay`` seconds once woken."""
        arguments = [str(self.path), step, str(number), str(delay), str(transaction_timeout)]
        return self._start([sys.executable, "-m", PAUSED_WORKER, *arguments])

    def events(self) -> list[ReceivedChange]:
        config = self.config
        schemas = open_schemas(config)
        return read_topic(config.kafka.client(), config.topic(self.table), schemas)

    def wait_for_more(self, than: int, timeout: float = 60.0) -> int:
        """Wait until a read_committed reader finds more than ``than`` changes; return how many."""

        def more() -> int | None:
            if self._reader is None:
                self._reader = self._open_reader()
            while self._reader is not None and (message := self._reader.poll(0.01)) is not None:
                if (error := message.error()) is None:
                    self._read += 1
                elif not is_transient(error):  # its leader is being chosen
                    raise KafkaException(error)
            return self._read if self._read > than else None

        return wait_until(more, timeout)

    def _open_reader(self) -> Consumer | None:
        """Return what reads the topic once, from its beginning on, if the topic exists."""
        config = self.config
        topic = config.topic(self.table)
        settings = {"group.id": f"{topic}.more", "enable.auto.commit": False, "isolation.level": "read_committed"}
        reader = Consumer(config.kafka.client() | settings)
        found = reader.list_topics(topic, timeout=60).topics[topic]
        if found.error is not None:
            reader.close()
            return None
        reader.assign([TopicPartition(topic, partition, 0) for partition in found.partitions])
        return reader

    def finish(self, history: Mapping[Item, Sequence[RecordedWrite]]) -> list[str]:
        """Relay the rest, and return what is wrong with the topic."""
        run_until_caught_up(self.path)
        return check_topic(history, self.events())

    def close(self) -> None:
        for process in self.processes:
            process.kill()
        if self._reader is not None:
            self._reader.close()
        self.client.close()

    def _start(self, command: list[str]) -> Relay:
        process = Relay(command, self.folder / f"relay-{len(self.processes)}.log")
        self.processes.append(process)
        return process


class Relay:
    """A relay process and its log, which may hold those of earlier ones. It dies with the tests."""

    def __init__(self, command: list[str], log: Path) -> None:
        self._log = log
        started = ManagedProcess(command, log, {"PYTHONFAULTHANDLER": "1"})
        started.start()
        self._process = started.process

    def log(self) -> str:
        return self._log.read_text(errors="replace")[-4000:]

    def has_logged(self, text: str) -> bool:
        return text in self._log.read_text(errors="replace")

    def wait_for(self, *texts: str, timeout: float = 60.0) -> None:
        """Wait until the log has one of ``texts``. AssertionError with the log if the process ends or hangs.

        ``timeout``: seconds on a quiet host.
        """
        deadline = time.monotonic() + patience(timeout)
        while not any(map(self.has_logged, texts)):
            assert self.is_running, f"it has ended without {texts}: {self.log()}"
            assert time.monotonic() < deadline, f"it has not logged {texts}: {self.where_it_hangs()}"
            time.sleep(0.05)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self, signum: signal.Signals = signal.SIGTERM, timeout: float = 30.0) -> int:
        """Return the exit code. ``timeout``: seconds on a quiet host. AssertionError with the log if it hangs."""
        timeout = patience(timeout)
        self._process.send_signal(signum)
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it has not stopped in {timeout:.0f} s: {self.where_it_hangs()}") from None

    def where_it_hangs(self) -> str:
        """End the process, and return its log, which ends with the stacks of its threads."""
        self._process.send_signal(signal.SIGABRT)
        self._process.wait(PATIENCE)
        return self.log()

    def terminate(self) -> int:
        return self.stop(signal.SIGTERM)

    def wait(self, timeout: float) -> int:
        """Return the exit code. ``timeout``: seconds on a quiet host. AssertionError with the log if it hangs."""
        try:
            return self._process.wait(patience(timeout))
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it has not ended: {self.where_it_hangs()}") from None

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def reload(self) -> None:
        self._process.send_signal(signal.SIGHUP)

    def wake(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def wait_until_paused(self, timeout: float = 60.0) -> None:
        def state() -> bool | None:
            assert self.is_running, self.log()
            return is_paused(self._process.pid) or None

        wait_until(state, timeout)


def stop_self() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)

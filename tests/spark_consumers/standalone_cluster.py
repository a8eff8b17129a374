"""A standalone cluster of Spark on this machine: a master, and workers of one core each, from PySpark's own jars."""

from __future__ import annotations

import os
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import pyspark

from relay.jvm.java import find_java
from relay.process.managed import HOST, ManagedProcess, accepts, free_port

_TIMEOUT = 60.0  # seconds for the cluster to start
_PACKAGE = "org.apache.spark.deploy"


class StandaloneCluster:
    """``url``: of the master. ``workers``: their processes."""

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._port = free_port()
        self.url = f"spark://{HOST}:{self._port}"
        master = ["master.Master", "--host", HOST, "--port", str(self._port), "--webui-port", str(free_port())]
        self._master = self._process("master", master)
        self.workers = [self._worker(number) for number in range(workers)]

    def _worker(self, number: int) -> ManagedProcess:
        resources = ["--cores", "1", "--memory", "1g", "--work-dir", str(self._folder / f"work-{number}")]
        address = ["--host", HOST, "--webui-port", str(free_port())]
        return self._process(f"worker-{number}", ["worker.Worker", *address, *resources, self.url])

    def _process(self, name: str, arguments: list[str]) -> ManagedProcess:
        home = Path(pyspark.__path__[0])
        java = [str(find_java()), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", f"{home}/jars/*"]
        # Executors are started with what this Spark has, and not for anybody outside this machine.
        environment = {"SPARK_HOME": str(home), "SPARK_SCALA_VERSION": "2.13", "SPARK_LOCAL_IP": HOST}
        command = [*java, f"{_PACKAGE}.{arguments[0]}", *arguments[1:]]
        return ManagedProcess(command, self._folder / f"{name}.log", {**os.environ, **environment})

    def __enter__(self) -> Self:
        try:
            self._start(self._master)
            self._master.wait_until(lambda: accepts(self._port), _TIMEOUT, "Spark's master")
            for worker in self.workers:
                self._start(worker)
            for worker in self.workers:
                worker.wait_until(partial(_is_registered, worker.log), _TIMEOUT, "a worker of Spark")
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _start(self, process: ManagedProcess) -> None:
        self._stack.callback(process.stop)
        process.start()


def _is_registered(log: Path) -> bool:
    return "Successfully registered with master" in log.read_text()

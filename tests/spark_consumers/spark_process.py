"""A process with one Spark, which runs scripts and ``relay consume`` one after another.

A Spark of its own takes each test ten seconds of CPU. In a process of its own, since py4j leaves its sockets to the
garbage collector: a warning in the process of the tests.
"""

from __future__ import annotations

import io
import json
import os
import select
import signal
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

from relay.config.spark import SparkConfig
from relay.jvm.connectors import installed_connectors
from tests.spark_consumers.iceberg_catalog import settings
from tests.waiting import patience

_RELAY = "from relay.cli import main; main()"

# Spark compiles the code of each query that it has not had before. Most tests have few rows and tables of their own, so
# that takes half of their CPU.
INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
_COMPILED = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}


class SparkProcess:
    """Starts with its first script.

    ``folder``: for what the process and the scripts write. ``iceberg``: whether it has Iceberg's extension, with which
    the log has no functions, and catalogs.
    """

    def __init__(self, folder: Path, *, iceberg: bool = True) -> None:
        self._folder = folder
        self._iceberg = iceberg
        self._process: subprocess.Popen[str] | None = None
        self._running: RunningInSpark | None = None
        self._scripts = 0

    def run(
        self,
        script: str,
        *arguments: str,
        given: str = "",
        log: Path | None = None,
        compiled: bool = False,
        timeout: float = 600.0,
    ) -> str:
        """Return what a Python script prints that reads ``given``. AssertionError with its log if it fails.

        ``compiled``: whether Spark compiles the queries, as it does for users. Tests of values and of SQL need it.
        """
        self._scripts += 1
        output, log = self._folder / f"{self._scripts}.out", log or self._folder / f"{self._scripts}.log"
        started = self._start(script, arguments, output, log, given=given, compiled=compiled)
        assert self._exit_code(started, timeout) == 0, log.read_text(errors="replace")
        return output.read_text()

    def relay(self, *arguments: str, log: Path, code: int = 0, timeout: float = 400.0) -> None:
        """Run the command line of the relay. AssertionError with its log if it ends with another exit code."""
        found = self._exit_code(self._start(_RELAY, arguments, log, log), timeout)
        assert found == code, log.read_text(errors="replace")

    def start(self, script: str, *arguments: str, log: Path, compiled: bool = False) -> RunningInSpark:
        """Start a script that runs until SIGTERM. What is started before it ends kills it, and gets a new Spark."""
        log.touch()
        self._running = RunningInSpark(self._start(script, arguments, log, log, compiled=compiled), log)
        return self._running

    def start_relay(self, *arguments: str, log: Path) -> RunningInSpark:
        """Start the command line of the relay, as ``start`` does a script."""
        return self.start(_RELAY, *arguments, log=log)

    def close(self) -> None:
        self._kill_running()
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                self._process.wait(60)
            finally:
                self._kill()

    def _kill_running(self) -> None:
        """Kill what ``start`` has started, with its Spark, if its test has failed before it ended."""
        if self._running is not None and self._running.is_running:
            self._kill()
        self._running = None

    def _kill(self) -> None:
        assert self._process is not None
        with self._process:  # closes its pipes
            self._process.kill()
        self._process = None

    def _start(
        self,
        script: str,
        arguments: tuple[str, ...],
        output: Path,
        log: Path,
        *,
        given: str = "",
        compiled: bool = False,
    ) -> subprocess.Popen[str]:
        process = self._started()
        assert process.stdin is not None
        task = {
            "script": script,
            "arguments": arguments,
            "given": given,
            "settings": _COMPILED if compiled else INTERPRETED,
            "output": str(output),
            "log": str(log),
        }
        process.stdin.write(f"{json.dumps(task)}\n")
        process.stdin.flush()
        return process

    def _exit_code(self, process: subprocess.Popen[str], timeout: float) -> int:
        code = None
        try:
            code = _answer(process, timeout)
        finally:
            if code is None:
                self._kill()  # the next script gets another one, even if the time of this test is up
        return -1 if code is None else code

    def _started(self) -> subprocess.Popen[str]:
        self._kill_running()
        if self._process is not None and self._process.poll() is not None:
            self._kill()
        if self._process is None:
            conf = settings(self._folder) if self._iceberg else {}
            with (self._folder / "spark.log").open("ab") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "tests.spark_consumers.spark_process", json.dumps(conf)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                )
        return self._process


class RunningInSpark:
    """A script in a process of Spark that goes on afterwards, and its log."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process = process
        self._log = log
        self._code: int | None = None

    def log(self) -> str:
        return self._log.read_text(errors="replace")[-4000:]

    def has_logged(self, text: str) -> bool:
        return text in self._log.read_text(errors="replace")

    @property
    def is_running(self) -> bool:
        if self._code is None:
            self._code = _answer(self._process, 0)
        return self._code is None

    def terminate(self) -> int:
        return self.stop(signal.SIGTERM)

    def stop(self, signum: signal.Signals) -> int:
        """Return the exit code. AssertionError with the log if it hangs."""
        assert self.is_running, self.log()
        self._process.send_signal(signum)
        return self.wait(30)

    def kill(self) -> None:
        """End it with its Spark. The next script gets another one."""
        self._process.kill()
        self._process.wait()

    def wait(self, timeout: float) -> int:
        """Return the exit code. ``timeout``: seconds on a quiet host. AssertionError with the log if it hangs."""
        if self._code is None:
            self._code = _answer(self._process, patience(timeout))
        assert self._code is not None, f"it has not ended: {self.log()}"
        return self._code


def _answer(process: subprocess.Popen[str], timeout: float) -> int | None:
    """Return the exit code of the script that runs, -1 if the process has ended; None if neither comes in time."""
    assert process.stdout is not None
    if not select.select([process.stdout], [], [], timeout)[0]:
        return None
    if answer := process.stdout.readline():
        return int(answer)
    process.wait(60)
    return -1


def serve() -> None:
    """Run each script that comes on stdin, and answer with its exit code."""
    from spark_consumers.session import close_session, open_session

    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    conf = json.loads(sys.argv[1])
    if installed_connectors().iceberg is None:
        conf = {key: value for key, value in conf.items() if not key.startswith("spark.sql.catalog.")}
    session = open_session("tests", delta=True, spark=SparkConfig(conf=conf))
    context: Any = session.sparkContext
    of_new_sessions = context._jsc.sc().conf()
    for line in sys.stdin:
        task = json.loads(line)
        for key, value in task["settings"].items():
            session.conf.set(key, value)
            of_new_sessions.set(key, value)
        answers.write(f"{_run(task)}\n")
    close_session(session)


def _run(task: dict[str, Any]) -> int:
    streams = sys.stdout, sys.stderr
    kept = [os.dup(stream.fileno()) for stream in streams]
    for stream, path in zip(streams, (task["output"], task["log"]), strict=True):
        with Path(path).open("ab") as file:
            os.dup2(file.fileno(), stream.fileno())
    stdin, sys.stdin = sys.stdin, io.StringIO(task["given"])
    sys.argv = ["script", *task["arguments"]]
    try:
        exec(compile(task["script"], "script", "exec"), {"__name__": "script"})
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdin = stdin
        for stream, descriptor in zip(streams, kept, strict=True):
            stream.flush()
            os.dup2(descriptor, stream.fileno())
            os.close(descriptor)
    return 0


if __name__ == "__main__":
    serve()

"""A process with one Spark, which runs scripts and ``relay consume`` one after another.

A Spark of its own takes each test ten seconds of CPU. In a process of its own, since py4j leaves its sockets to the
garbage collector: a warning in the process of the tests.
"""

from __future__ import annotations

import io
import json
import os
import select
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

_RELAY = "from relay.cli import main; main()"

# Spark compiles the code of each query that it has not had before. Most tests have few rows and tables of their own, so
# that takes half of their CPU.
_INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
_COMPILED = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}


class SparkProcess:
    """Starts with its first script. ``folder``: for what the process and the scripts write."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None
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
        code = self._exit_code(script, arguments, output, log, timeout, given=given, compiled=compiled)
        assert code == 0, log.read_text(errors="replace")
        return output.read_text()

    def relay(self, *arguments: str, log: Path, code: int = 0, timeout: float = 400.0) -> None:
        """Run the command line of the relay. AssertionError with its log if it ends with another exit code."""
        found = self._exit_code(_RELAY, arguments, log, log, timeout)
        assert found == code, log.read_text(errors="replace")

    def close(self) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                self._process.wait(60)
            finally:
                self._kill()

    def _kill(self) -> None:
        assert self._process is not None
        with self._process:  # closes its pipes
            self._process.kill()
        self._process = None

    def _exit_code(
        self,
        script: str,
        arguments: tuple[str, ...],
        output: Path,
        log: Path,
        timeout: float,
        *,
        given: str = "",
        compiled: bool = False,
    ) -> int:
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        task = {
            "script": script,
            "arguments": arguments,
            "given": given,
            "settings": _COMPILED if compiled else _INTERPRETED,
            "output": str(output),
            "log": str(log),
        }
        answer = ""
        try:
            process.stdin.write(f"{json.dumps(task)}\n")
            process.stdin.flush()
            if select.select([process.stdout], [], [], timeout)[0]:
                answer = process.stdout.readline()
        finally:
            if not answer:
                self._kill()  # the next script gets another one, even if the time of this test is up
        return int(answer or -1)

    def _started(self) -> subprocess.Popen[str]:
        if self._process is not None and self._process.poll() is not None:
            self._kill()
        if self._process is None:
            with (self._folder / "spark.log").open("ab") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "tests.spark_consumers.spark_process"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                )
        return self._process


def serve() -> None:
    """Run each script that comes on stdin, and answer with its exit code."""
    from spark_consumers.session import close_session, open_session

    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    session = open_session("tests", delta=True)
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

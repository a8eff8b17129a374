"""What Spark's executors need to run our Python: the code, and the packages that it imports."""

import importlib
import time
import zipfile
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from threading import Thread

from pyspark.sql import SparkSession

import relay
import spark_consumers
from relay.errors import Unavailable
from spark_consumers.causes import cause

_TIMEOUT = 120.0  # seconds until an executor has run a first task
_POLL = 0.1  # seconds
_GROUP = "relay-check"


def our_code(folder: Path) -> Path:
    """Write the Python code of the relay and its consumers to an archive in ``folder``, for ``addPyFile``."""
    path = folder / "relay-code.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in (relay, spark_consumers):
            root = Path(package.__path__[0])
            for file in sorted(root.rglob("*.py")):
                archive.write(file, file.relative_to(root.parent))
    return path


def check(session: SparkSession, modules: Sequence[str], is_stopping: Callable[[], bool]) -> None:
    """Import ``modules`` on an executor before a batch needs them, unless ``is_stopping``. Raises ``Unavailable``."""
    problems: list[str] = []
    thread = Thread(target=_run, args=(session, modules, problems), daemon=True)
    thread.start()
    deadline = time.monotonic() + _TIMEOUT
    while thread.is_alive() and not is_stopping() and time.monotonic() < deadline:
        thread.join(_POLL)
    where = f"the executors of {session.sparkContext.master}"
    if thread.is_alive():
        session.sparkContext.cancelJobGroup(_GROUP)
        if not is_stopping():
            raise Unavailable(
                f"{where} have not run a task for {_TIMEOUT:g} s: is the cluster full, do its machines reach this one "
                "at spark.driver.host, and do they have what spark.executor.memory asks for?"
            )
    elif problems:
        raise Unavailable(
            f"{where} cannot run the consumers: {problems[0]}: install change-relay there, with its extras and the "
            "same Python, or send an environment along (deploy/docs/how_to/consumers.md, Run on a cluster)"
        )


def _run(session: SparkSession, modules: Sequence[str], problems: list[str]) -> None:
    session.sparkContext.setJobGroup(_GROUP, "what the executors have")
    try:
        problems += session.sparkContext.parallelize([0], 1).mapPartitions(partial(_missing, modules)).collect()
    except Exception as error:
        problems.append(cause(error))


def _missing(modules: Sequence[str], _: Iterable[int]) -> list[str]:
    """Return why a module cannot be imported, if one cannot. Runs on an executor."""
    try:
        for name in modules:
            importlib.import_module(name)
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]
    return []

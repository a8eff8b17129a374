"""Short texts for Spark's errors, which run over pages."""

import re
from collections.abc import Iterator
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]

_LONGEST = 500  # characters
_OF_PYTHON = re.compile(r"[\w.]*(Error|Exception|MissingExtra): ")


# Iceberg's errors have no SQLSTATE. All others are tried again: a conflict with another writer is a
# ValidationException, too, a lost connection a RESTException, and an expired token concerns every table.
_REFUSED = frozenset(
    f"org.apache.iceberg.exceptions.{name}Exception"
    for name in ("Forbidden", "BadRequest", "UnprocessableEntity", "NoSuchIcebergTable", "NoSuchIcebergView")
)
_STATE = re.compile(r"SQLSTATE: (\w{5})")
_OF_A_QUERY = re.compile(r"\[STREAM_FAILED\] Query \[[^]]*\] terminated with exception: (.*?)( SQLSTATE: \w+)?")


def with_full_disk(said: str, checkpoint: str) -> str:
    """Return the text of an error. If a disk is full, which the error does not show, add which disks it may be."""
    hint = f": make room for the checkpoint {checkpoint}, for the tables, or for Spark's temporary files"
    return f"{said}{hint}" if "No space left on device" in said else said


def sql_state(error: BaseException) -> str:
    """Return the SQLSTATE of the first error, "" if unknown. Errors that it caused have their own."""
    deepest = ""
    try:
        states = _STATE.findall(str(error))
        for java in _in_java(error):  # the text of Delta's errors has none
            deepest = (java.getSqlState() if "getSqlState" in dir(java) else None) or deepest
    except Exception:  # as below
        return ""
    return str(deepest if deepest and deepest not in states else [deepest, *states][-1])


def is_refused(error: BaseException) -> bool:
    """Whether an Iceberg catalog refuses a request for one table, and will refuse it the next time."""
    try:
        return any(java.getClass().getName() in _REFUSED for java in _in_java(error))
    except Exception:  # as below
        return False


def _in_java(error: BaseException) -> Iterator[Any]:
    """Yield the error in the JVM, and those that caused it."""
    java: Any = getattr(error, "java_exception", getattr(error, "_origin", None))
    while java is not None:
        yield java
        java = java.getCause()


def cause(error: BaseException) -> str:
    """Return one line for an error. Spark's has the cause at the end, or at the end of Python's on an executor."""
    try:
        lines = str(error).strip().splitlines() or [type(error).__name__]
    except Exception:  # PySpark asks the JVM for the text, and the JVM may have ended
        return type(error).__name__
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    if "Traceback (most recent call last):" in str(error):
        causes += [line for line in lines if _OF_PYTHON.match(line)][:1]
    if causes:
        return causes[-1][:_LONGEST]
    if len(lines) > 1 and isinstance(error, Py4JError):
        return lines[1].lstrip(": ")[:_LONGEST]
    of_a_query = _OF_A_QUERY.fullmatch(lines[0])
    return (of_a_query[1] if of_a_query else lines[0])[:_LONGEST]

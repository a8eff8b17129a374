"""Of what Java prints nothing is lost but the line about incubator modules, which Spark causes."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest

from relay.jvm.java import find_java
from relay.observe.logs import JsonFormatter
from spark_consumers.java_stderr import java_stderr
from tests.waiting import wait_until


@pytest.fixture
def log_in_json() -> Iterator[None]:
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    logging.getLogger().addHandler(handler)
    yield
    logging.getLogger().removeHandler(handler)


def test_all_but_the_line_about_incubator_modules_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    assert printed_of("WARNING: Using incubator modules: a\nWARNING: b\n\nlast", capfd) == "WARNING: b\n\nlast"


def test_a_password_is_not_printed(capfd: pytest.CaptureFixture[str]) -> None:
    text = 'redis://u:secret@h, required username="u" password="a b\\" secret"; last'
    assert printed_of(text, capfd) == 'redis://***@h, required username="u" password=***; last'


@pytest.mark.usefixtures("log_in_json")
def test_in_a_log_of_json_each_line_is_an_object(capfd: pytest.CaptureFixture[str]) -> None:
    text = "spark: WARN Executor: redis://u:secret@h is slow\n\n\tat a.B\nspark: FATAL Executor: last"
    entries = [json.loads(line) for line in printed_of(text, capfd).splitlines()]
    assert all(entry.pop("time") for entry in entries)
    assert entries == [
        {"level": "WARNING", "logger": "spark.Executor", "message": "redis://***@h is slow"},
        {"level": "WARNING", "logger": "java", "message": "\tat a.B"},
        {"level": "CRITICAL", "logger": "spark.Executor", "message": "last"},
    ]


def printed_of(text: str, capfd: pytest.CaptureFixture[str]) -> str:
    """Return what is printed of a text, which ends with ``last``, that a process writes."""
    with java_stderr() as stderr:
        process = subprocess.Popen([sys.executable, "-c", f"import sys; sys.stderr.write({text!r})"], stderr=stderr)
    assert process.wait(600) == 0
    printed: list[str] = []

    def all_printed() -> bool:
        printed.append(capfd.readouterr().err)
        return "last" in "".join(printed)

    wait_until(all_printed)
    return "".join(printed)


def test_java_names_incubator_modules_as_it_did() -> None:
    """Else the line is printed again."""
    command = [str(find_java()), "--add-modules=jdk.incubator.vector", "-version"]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True).stderr
    assert printed.startswith("WARNING: Using incubator modules: jdk.incubator.vector")

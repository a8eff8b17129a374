"""Of what Java prints nothing is lost but the line about incubator modules, which Spark causes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from relay.jvm.java import find_java
from spark_consumers.java_stderr import java_stderr
from tests.waiting import wait_until


def test_all_but_the_line_about_incubator_modules_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    program = "import sys; sys.stderr.write('WARNING: Using incubator modules: a\\nWARNING: b\\n\\nlast'); sys.exit(3)"
    with java_stderr() as stderr:
        process = subprocess.Popen([sys.executable, "-c", program], stderr=stderr)
    assert process.wait(60) == 3
    printed: list[str] = []

    def all_printed() -> bool:
        printed.append(capfd.readouterr().err)
        return "".join(printed).endswith("last")

    wait_until(all_printed)
    assert "".join(printed) == "WARNING: b\n\nlast"


def test_java_names_incubator_modules_as_it_did() -> None:
    """Else the line is printed again."""
    command = [str(find_java()), "--add-modules=jdk.incubator.vector", "-version"]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stderr
    assert printed.startswith("WARNING: Using incubator modules: jdk.incubator.vector")

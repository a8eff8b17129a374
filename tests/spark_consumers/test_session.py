"""What a Spark of our own needs before it is started."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from relay.errors import Unavailable
from relay.jvm.java import find_java
from spark_consumers import open_session, session


def test_a_folder_in_which_spark_could_not_write_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    access = os.access
    # Root may write everywhere but on a read-only file system.
    monkeypatch.setattr(os, "access", lambda path, mode, **more: Path(path) != tmp_path and access(path, mode, **more))

    def start(*_: Any) -> None:
        pytest.fail("Spark is started")

    monkeypatch.setattr("spark_consumers.session.launch_gateway", start)
    with pytest.raises(Unavailable, match=f"`artifacts` where it is started, and {tmp_path} cannot be written to"):
        open_session("test", delta=False)


def test_java_has_as_much_room_for_the_code_that_spark_compiles_as_by_its_defaults() -> None:
    """I10: with fewer compilers it has a fifth, and once that is full, the consumers end."""

    def reserved(*options: str) -> int:
        command = [str(find_java()), *options, "-XX:+PrintFlagsFinal", "-version"]
        flags = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True).stdout
        found = re.search(r"ReservedCodeCacheSize += (\d+)", flags)
        assert found is not None
        return int(found[1])

    assert reserved(*session._JAVA_OPTIONS) >= reserved()


SECRETS = """
import pathlib
from relay.config import SparkConfig
from spark_consumers.session import _started, close_session, open_session

KEY, OF_KAFKA = "spark.hadoop.fs.s3a.secret.key", ["kafka.ssl.keystore.key", "kafka.sasl.jaas.config", "my.pin"]
conf = {KEY: "hunter2", "spark.redaction.regex": "pin$", "spark.app.id": "shown"}
session = open_session("secrets", delta=False, spark=SparkConfig(conf=conf))
command = pathlib.Path(f"/proc/{_started[session].gateway.proc.pid}/cmdline").read_bytes()
assert b"spark.app.id=shown" in command
assert b"hunter2" not in command
assert session.sparkContext._jsc.hadoopConfiguration().get("fs.s3a.secret.key") == "hunter2"
options = session._jvm.PythonUtils.toScalaMap({name: "hunter2" for name in OF_KAFKA})
assert "hunter2" not in session._jsparkSession.sessionState().conf().redactOptions(options).toString()
close_session(session)
"""


@pytest.mark.services
def test_no_secret_is_in_the_command_that_starts_java_and_none_of_kafka_in_a_plan() -> None:
    """All users of the machine can read the command, and a PEM key is in a setting that Spark takes for no secret."""
    ran = subprocess.run([sys.executable, "-c", SECRETS], capture_output=True, text=True, timeout=600, check=False)
    assert ran.returncode == 0, ran.stderr

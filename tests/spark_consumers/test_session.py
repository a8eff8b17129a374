"""What a Spark of our own needs before it is started."""

from __future__ import annotations

import os
import re
import subprocess
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

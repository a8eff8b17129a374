"""What a Spark of our own needs before it is started."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from relay.errors import Unavailable
from spark_consumers import open_session


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

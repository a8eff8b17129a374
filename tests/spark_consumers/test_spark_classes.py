"""The archive of Spark's classes saves time, and nothing depends on it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from relay.errors import Unavailable
from tests.spark_consumers import spark_classes


def test_spark_starts_without_an_archive_if_none_can_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))  # which has no Java
    monkeypatch.delenv("SPARK_SUBMIT_OPTS", raising=False)
    with pytest.raises(Unavailable, match="cannot make an archive of Spark's classes"):
        spark_classes.make()
    assert not spark_classes.exists()
    spark_classes.use()
    assert "SPARK_SUBMIT_OPTS" not in os.environ

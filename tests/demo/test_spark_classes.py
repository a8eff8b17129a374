"""The archive of Spark's classes saves time, and nothing depends on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from relay.demo import spark_classes


def test_spark_starts_without_an_archive_if_none_can_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))  # which has no Java
    monkeypatch.delenv("SPARK_SUBMIT_OPTS", raising=False)
    said: list[str] = []
    spark_classes.prepare(said.append)
    (reason,) = said
    assert reason.startswith("Spark starts without an archive of its classes")
    assert "cannot make an archive" in reason
    assert not spark_classes.exists()

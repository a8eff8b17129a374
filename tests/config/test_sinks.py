"""The keys ``log`` and ``copy``."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from relay.config import load
from tests.config.configs import GOOD, change, refused


def test_the_copy_remembers_deleted_rows_for_30_days_by_default(file: Path) -> None:
    file.write_text(dedent(GOOD))
    assert load(file).copy_.tombstone_retention == 30 * 86400  # type: ignore[union-attr]
    file.write_text(change("copy: {", "copy: {tombstone_retention: 7d, "))
    assert load(file).copy_.tombstone_retention == 7 * 86400  # type: ignore[union-attr]


def test_the_upkeep_of_delta_is_refused_for_a_copy_in_postgresql(file: Path) -> None:
    file.write_text(change("copy: {", "copy: {keep_versions: 2d, "))
    assert load(file).copy_.keep_versions == 2 * 86400  # type: ignore[union-attr]
    elsewhere = change("copy: {", "copy: {keep_versions: 2d, ").replace("delta:///", "postgresql://host/")
    [problem] = refused(file, elsewhere)
    assert "`copy.keep_versions`: is for a copy in Delta; PostgreSQL vacuums by itself: remove it" in problem


@pytest.mark.parametrize(
    ("log", "copy"),
    [
        ("file:///var/lib/relay", "delta:///var/lib/relay/copy"),
        ("/var/lib/relay/copy/log", "delta:///var/lib/relay/copy"),
        ("file:///var/lib/relay/", "delta:///var/lib/other/../relay"),
        ("s3a://bucket/relay", "delta+s3a://bucket/relay/copy"),
    ],
)
def test_the_copy_and_the_log_are_not_inside_of_one_another(file: Path, log: str, copy: str) -> None:
    """I1: Delta deletes the files in the folder of a table that are not the table's."""
    [problem] = refused(file, placed(log, copy))
    assert "`copy.url`: neither it nor `log.path` may be inside the other" in problem


@pytest.mark.parametrize(
    ("log", "copy"),
    [
        ("file:///var/lib/relay/log", "delta:///var/lib/relay/log-copy"),
        ("s3a://bucket/relay", "delta+s3a://other/relay/copy"),
        ("/copy", "postgresql://host/copy"),
    ],
)
def test_the_copy_and_the_log_may_be_beside_one_another(file: Path, log: str, copy: str) -> None:
    file.write_text(placed(log, copy))
    assert load(file).copy_.url == copy  # type: ignore[union-attr]


def placed(log: str, copy: str) -> str:
    return change("file:///var/lib/relay/log", log).replace("delta:///var/lib/relay/copy", copy)

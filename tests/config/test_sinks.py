"""The keys ``log`` and ``copy``."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

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

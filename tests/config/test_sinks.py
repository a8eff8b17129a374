"""The keys ``log`` and ``copy``."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from relay.config import CopyConfig, load
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
    said = "applies to a copy in Delta or Iceberg; PostgreSQL vacuums by itself: remove it"
    assert f"`copy.keep_versions`: {said}" in problem


def test_a_copy_in_iceberg_keeps_its_versions_for_an_hour_and_json_as_text(file: Path) -> None:
    file.write_text(change("delta:///var/lib/relay/copy", "iceberg://lake"))
    assert load(file).copy_.keep_versions == 3600  # type: ignore[union-attr]
    assert load(file).copy_.location is None  # type: ignore[union-attr]
    file.write_text(
        change("copy: {", "copy: {keep_versions: 2d, ").replace("delta:///var/lib/relay/copy", "iceberg://l")
    )
    assert load(file).copy_.keep_versions == 2 * 86400  # type: ignore[union-attr]
    variant = change("copy: {", "copy: {items: variant, ").replace("delta:///var/lib/relay/copy", "iceberg://l")
    [problem] = refused(file, variant)
    assert "`copy.items`: a copy in Iceberg stores JSON as text: remove it" in problem


def test_the_default_for_the_versions_of_iceberg_does_not_count_as_set_in_the_file(file: Path) -> None:
    """A replay from Iceberg into Delta takes over what is set, and deleted files of Delta after an hour."""
    file.write_text(change("delta:///var/lib/relay/copy", "iceberg://lake"))
    copy = load(file).copy_
    assert isinstance(copy, CopyConfig)
    assert "keep_versions" not in copy.model_dump(exclude_unset=True)
    assert copy.model_dump(mode="json")["keep_versions"] == "1h"


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

"""Reads of a shard in tests: pages that must be readable, and why others are not."""

from __future__ import annotations

from collections.abc import Iterable

from relay.source import Page, ReadResult, ShardReader, Unreadable


def read_page(reader: ShardReader) -> Page:
    """Read a page. AssertionError if the shard cannot be read now."""
    result = reader.read()
    assert isinstance(result, Page), result
    return result


def pages_of(results: Iterable[ReadResult]) -> list[Page]:
    return [result for result in results if isinstance(result, Page)]


def reason(result: ReadResult) -> str:
    """Why nothing could be read; empty for a page."""
    return result.reason if isinstance(result, Unreadable) else ""

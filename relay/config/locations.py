"""Locations of tables and checkpoints, which are folders of this machine or URIs of other stores."""

from __future__ import annotations

import os
import re
from urllib.parse import unquote, urlsplit

WITHOUT_COLON = r"[A-Za-z][A-Za-z0-9+.-]*//"
"""A regular expression of how a location begins that lacks the colon after its scheme."""


def are_nested(one: str, other: str) -> bool:
    """Whether one of two locations is inside the other, or is the same."""
    first, second = (f"{_plain(each).rstrip('/')}/" for each in (one, other))
    return first.startswith(second) or second.startswith(first)


def _plain(location: str) -> str:
    """Return a location in the same form whichever way it is written."""
    bare = location.removeprefix("delta+")
    parts = urlsplit(bare)
    if parts.scheme in ("", "file", "delta") and not parts.netloc:
        return os.path.abspath(unquote(parts.path))
    return bare


def misread(location: str) -> str | None:
    """Return why a location would be taken for another one, and what to write, or None if it is clear."""
    if re.match(WITHOUT_COLON, location):
        scheme, _, rest = location.partition("//")
        return (
            f"there is no colon after {scheme!r}: write {scheme}://{rest}, or {scheme}/{rest} for a folder of that name"
        )
    parts = urlsplit(location)
    if parts.scheme in ("file", "delta") and parts.netloc:
        return f"{parts.netloc!r} stands for a host: write {parts.scheme}:///{parts.netloc}{parts.path}"
    if parts.scheme in ("file", "delta") and not parts.path:
        return f"names no folder: write {parts.scheme}:/// and the folder in full"
    return None

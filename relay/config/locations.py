"""Locations of tables and checkpoints, which are folders of this machine or URIs of other stores, and names in them."""

import os
import re
from hashlib import sha256
from urllib.parse import unquote

WITHOUT_COLON = r"[A-Za-z][A-Za-z0-9+.-]*//"
"""A regular expression of how a location begins that lacks the colon after its scheme."""

_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?://([^/]*))?(.*)", re.DOTALL)

# And the underscore of what looks like an escape.
_ILLEGAL = re.compile(r"[^A-Za-z0-9._-]|_(?=x[0-9A-F]{4,6}_)")


def legal(name: str, excess: int = 0) -> str:
    """Return a table's name as a part of a topic or a path: other characters are escaped as in names of Avro.

    No two names become one. ``excess``: by how many characters that is too long; the end becomes the first 16 digits of
    the name's SHA-256 then.
    """
    found = _ILLEGAL.sub(lambda each: f"_x{ord(each[0]):04X}_", name)
    if not excess:
        return found
    digest = sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{found[: max(0, len(found) - excess - len(digest) - 1)]}_{digest}"


def path_of(location: str) -> str | None:
    """Return the folder of this machine that is meant, or None for one of another store.

    A path is meant as it is written. In a URL of ``file`` or ``delta`` only percent signs have a meaning.
    """
    if (found := _URI.fullmatch(location)) is None:
        return os.path.abspath(location)  # I1
    scheme, host, path = found.groups()
    return None if scheme.lower() not in ("file", "delta") or host else os.path.abspath(unquote(path))


def are_nested(one: str, other: str) -> bool:
    """Whether one of two locations is inside the other, or is the same."""
    first, second = (f"{_plain(each).rstrip('/')}/" for each in (one, other))
    return first.startswith(second) or second.startswith(first)


def _plain(location: str) -> str:
    """Return a location in the same form whichever way it is written."""
    bare = location.removeprefix("delta+")
    return path_of(bare) or bare


def misread(location: str) -> str | None:
    """Return why a location would be taken for another one, and what to write, or None if it is clear."""
    if re.match(WITHOUT_COLON, location):
        scheme, _, rest = location.partition("//")
        return (
            f"there is no colon after {scheme!r}: write {scheme}://{rest}, or {scheme}/{rest} for a folder of that name"
        )
    scheme, host, path = found.groups() if (found := _URI.fullmatch(location)) else ("", "", location)
    if scheme.lower() in ("file", "delta") and host:
        return f"{host!r} stands for a host: write {scheme}:///{host}{path}"
    if scheme.lower() in ("file", "delta") and not path.startswith("/"):
        if "://" in path:
            return f"is not a folder of this machine: write {path}, or delta+{path} for a copy"
        return f"names no folder: write {scheme}:/// and the folder in full"
    return None

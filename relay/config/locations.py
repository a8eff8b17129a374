"""Locations of tables and checkpoints, as local folders or URIs of other stores, and names within them."""

import os
import re
from hashlib import sha256
from urllib.parse import unquote

WITHOUT_COLON = r"[A-Za-z][A-Za-z0-9+.-]*//"
"""A regular expression for the beginning of a location whose scheme lacks its colon."""

_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?://([^/]*))?(.*)", re.DOTALL)

# Also the underscore of anything that looks like an escape.
_ILLEGAL = re.compile(r"[^A-Za-z0-9._-]|_(?=x[0-9A-F]{4,6}_)")


def legal(name: str, excess: int = 0) -> str:
    """Return a table's name for use in a topic or a path. Other characters are escaped as in Avro names.

    No two names become one. ``excess``: by how many characters the name is too long; its end is then replaced by the
    first 16 digits of its SHA-256.
    """
    found = _ILLEGAL.sub(lambda each: f"_x{ord(each[0]):04X}_", name)
    if not excess:
        return found
    digest = sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{found[: max(0, len(found) - excess - len(digest) - 1)]}_{digest}"


def path_of(location: str) -> str | None:
    """Return the local folder that ``location`` names, or None if it is in another store.

    A path is used as written. In a URL with ``file`` or ``delta``, only percent signs have a special meaning.
    """
    if (found := _URI.fullmatch(location)) is None:
        return os.path.abspath(location)  # I1
    scheme, host, path = found.groups()
    return None if scheme.lower() not in ("file", "delta") or host else os.path.abspath(unquote(path))


def are_nested(one: str, other: str) -> bool:
    """Whether one of two locations is inside the other, or both are the same."""
    first, second = (f"{_plain(each).rstrip('/')}/" for each in (one, other))
    return first.startswith(second) or second.startswith(first)


def _plain(location: str) -> str:
    bare = location.removeprefix("delta+")
    return path_of(bare) or bare


def misread(location: str) -> str | None:
    """Return why a location would be mistaken for another, and what to write, or None if it is clear."""
    if re.match(WITHOUT_COLON, location):
        scheme, _, rest = location.partition("//")
        return f"there is no colon after {scheme!r}: write {scheme}://{rest}, or a folder in full"
    scheme, host, path = found.groups() if (found := _URI.fullmatch(location)) else ("", "", location)
    if scheme.lower() not in ("file", "delta"):
        return None
    inside = f"{host or ''}{path}"
    if (nested := _URI.fullmatch(inside)) and nested[2] is not None:
        return f"is not a local folder: write {inside}, or delta+{inside} for a copy"
    if host:
        return f"{host!r} stands for a host: write {scheme}:///{host}{path}"
    if not path.startswith("/"):
        return f"names no folder: write {scheme}:/// and the full path of the folder"
    return None

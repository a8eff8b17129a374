"""Archives of classes: Java maps one into memory instead of loading, checking and linking each class at its start.

It changes nothing else, and Java goes without an archive that is missing or does not match.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from relay.jvm.jars import cache_folder


def archive_of(name: str, used: Iterable[Path]) -> Path:
    """Return the file for what is ``used``, a Java and jars: Java does not use an archive of others, or other paths."""
    state = "\n".join(f"{file} {file.stat().st_size} {file.stat().st_mtime_ns}" for file in used)
    return cache_folder() / "classes" / f"{name}-{hashlib.sha256(state.encode()).hexdigest()[:16]}.jsa"


def using(archive: Path) -> list[str]:
    """Return the options that make Java use an archive."""
    # Java warns on stdout where it cannot map the archive. There, scripts print what others read.
    return [f"-XX:SharedArchiveFile={archive}", "-Xlog:disable", "-Xlog:all=warning:stderr"]


def making(archive: Path) -> list[str]:
    """Return the options that make Java write an archive of the classes it has used, when it ends."""
    return [f"-XX:ArchiveClassesAtExit={archive}"]

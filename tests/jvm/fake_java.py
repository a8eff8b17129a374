"""A fake ``java``: it prints a version, and as Ivy it "downloads" what a shell snippet writes."""

from __future__ import annotations

from pathlib import Path

_SCRIPT = """\
#!/bin/sh
if [ "$1" = -version ]; then
    echo '{version_line}' >&2
    exit 0
fi
echo run >> "$(dirname "$0")/runs"
runs=$(wc -l < "$(dirname "$0")/runs")
while [ $# -gt 0 ]; do
    [ "$1" = -retrieve ] && files=$(dirname "$2")
    shift
done
{download}
"""

DOWNLOAD = 'echo jar > "$files/DynamoDBLocal-2.6.1.jar"; echo so > "$files/libsqlite4java.so"'


def write_java(home: Path, version_line: str, download: str = DOWNLOAD) -> Path:
    """Write a ``bin/java`` into ``home`` and return it."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(_SCRIPT.format(version_line=version_line, download=download))
    java.chmod(0o755)
    return java


def runs(java: Path) -> int:
    """Return how often it was run for anything but its version."""
    log = java.with_name("runs")
    return len(log.read_text().splitlines()) if log.exists() else 0

"""The jars that Spark needs to read Kafka and Avro, and to write Delta."""

from __future__ import annotations

from pathlib import Path

from relay.errors import ConfigError
from relay.jvm.jars import CENTRAL, SETS, jars

_INSTALLED = "installed"


def connectors(source: str | None, *, delta: bool) -> list[Path]:
    """Return the jars, from ``source`` as ``spark.connectors`` of the config names it. Empty: Spark has them itself.

    Raises ``ConfigError`` if a folder lacks one, ``Unavailable`` if they cannot be fetched.
    """
    if source == _INSTALLED:
        return []
    if source is None or source.startswith(("http://", "https://")):
        return jars("spark", source or CENTRAL)
    folder = Path(source)
    found = sorted(folder.glob("*.jar"))
    for artifact in SETS["spark"].artifacts:
        needed = delta or "delta" not in artifact.name
        if needed and not any(jar.name.startswith(f"{artifact.name}-{artifact.version}") for jar in found):
            raise ConfigError(
                f"spark.connectors: the folder {folder.absolute()} has no {artifact.name}-{artifact.version}.jar: copy "
                f"all files of {SETS['spark'].folder} there from a machine on which `relay consume` has run"
            )
    return found

"""Delta tables by path: created on first use, merged into, and locked where Delta itself does not exclude others."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from pyspark.sql import Row, SparkSession

from spark_consumers.locks import Lock


def local_folder(location: str) -> Path | None:
    """Return the folder that ``location`` means, None if it is in some other store."""
    parts = urlsplit(location)
    return Path(unquote(parts.path)) if parts.scheme in ("", "file", "delta") and not parts.netloc else None


def spark_path(location: str) -> str:
    """Return ``location`` in the words of Spark."""
    folder = local_folder(location)
    return folder.absolute().as_uri() if folder is not None else location.removeprefix("delta+")


def lock(location: str) -> Lock | None:
    """Return the lock of what is at ``location``. Local folders need it: Delta takes two writers for one there."""
    folder = local_folder(location)
    if folder is None:
        return None
    folder = folder.absolute()
    return Lock(folder.with_name(f"{folder.name}.lock"), str(folder))


def quoted(name: str) -> str:
    """Return any text as an identifier of Spark's SQL."""
    escaped = name.replace("`", "``")
    return f"`{escaped}`"


def literal(text: str) -> str:
    """Return any text as a string of Spark's SQL."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def table(path: str) -> str:
    """Return the table at ``path`` as SQL names it."""
    return f"delta.{quoted(path)}"


def merged(session: SparkSession, statement: str) -> int:
    """Run a MERGE and return how many rows it changed."""
    row: Row = session.sql(statement).collect()[0]
    return int(row["num_affected_rows"])

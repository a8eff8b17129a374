"""Compares the tokens that a table of the copy in Delta has stored, in SQL."""

from __future__ import annotations

from spark_consumers.plain_tokens import PLAIN_END
from spark_consumers.sinks import delta
from spark_consumers.sinks.target import IS_BEHIND

_BEGIN, _NUMBER = r'^\{"timestamp":[1-9][0-9]*,', r"^[1-9][0-9]*\z"
"""What is before the stem of a plain token, and its number, as regular expressions of Java."""


def is_older() -> str:
    """Return SQL that says whether a stored row ``t`` is older than all changes of the item ``s``.

    The token decides, or, where a snapshot has read the row and it has none, that the topic has the changes behind it.
    """
    return f"(({is_stored('<', 's.first')}) OR t._relay_token IS NULL AND NOT {IS_BEHIND})"


def is_stored(operator: str, number: str) -> str:
    """Return SQL that compares the number of the stored token with another, if it has the stem of ``s``.

    Takes tokens apart as ``PLAIN_TOKEN`` does. Since a token with the stem of a plain one is known up to its numbers,
    this needs no search, which would take most of the time of a MERGE. It counts in bytes, since Spark goes through a
    text to find its n-th character; and what is before the stem has one byte for each.
    """
    token = "t._relay_token"
    before = f"instr({token}, ',')"
    size = f"(octet_length({token}) - {before} - octet_length(s.stem) - {len(PLAIN_END)})"
    stem = f"substr(CAST({token} AS BINARY), {before} + 1, octet_length(s.stem))"
    stored = f"CAST(substr(CAST({token} AS BINARY), {before} + octet_length(s.stem) + 1, {size}) AS STRING)"
    digits = "CASE WHEN endswith(s.stem, '-') THEN 18 ELSE 100 END"  # of a GTID, or of DynamoDB
    length = f"octet_length({number})"
    return " AND ".join(
        [
            f"{size} BETWEEN 1 AND {digits}",
            f"endswith({token}, {delta.literal(PLAIN_END)})",
            f"{stem} = CAST(s.stem AS BINARY)",
            f"{token} RLIKE {delta.literal(_BEGIN)}",
            f"{stored} RLIKE {delta.literal(_NUMBER)}",
            f"({size} {operator} {length} OR ({size} = {length} AND {stored} {operator} {number}))",
        ]
    )

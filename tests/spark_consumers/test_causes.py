"""How an error of Spark's is reported."""

from __future__ import annotations

import pytest

from spark_consumers.causes import cause, with_full_disk

QUERY = "[STREAM_FAILED] Query [id = f9bc7db2-ac79, runId = c8e04738-df0a] terminated with exception: "


@pytest.mark.parametrize("end", ["", " SQLSTATE: XXKST", " SQLSTATE: XXKST\n=== Streaming Query ===\nIdentifier: x"])
def test_the_ids_of_a_query_are_left_out(end: str) -> None:
    assert cause(Exception(f"{QUERY}java.io.IOException: [x] gone{end}")) == "java.io.IOException: [x] gone"


def test_other_errors_stay_as_they_are() -> None:
    assert cause(Exception("a [STREAM_FAILED] b SQLSTATE: XXKST")) == "a [STREAM_FAILED] b SQLSTATE: XXKST"
    assert cause(Exception()) == "Exception"


def test_a_full_disk_is_said_with_the_folders_that_may_be_on_it() -> None:
    said = cause(Exception(f"{QUERY}java.io.IOException: No space left on device SQLSTATE: XXKST"))
    assert with_full_disk(said, "/cp/log") == (
        "java.io.IOException: No space left on device: make room for the checkpoint /cp/log, for the tables, or for "
        "Spark's temporary files"
    )
    assert with_full_disk("a", "/cp/log") == "a"

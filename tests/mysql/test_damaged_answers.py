"""Answers of a server that are damaged: a lost connection, which is made again, and nothing that ends the worker."""

from __future__ import annotations

from contextlib import closing

import pytest

from relay.mysql.connection import connect
from relay.mysql.errors import Interrupted, translated
from tests.mysql.scripted import Scripted, running

ERRORS = [b"\xff", b"\xff\x15", b"\xff\x15\x04", b"\xff\x15\x04#\xfe\xfe\xfe"]


@pytest.mark.parametrize("answer", ERRORS)
@pytest.mark.parametrize("ask", ["execute", "named_rows", "raw_rows"])
def test_a_damaged_answer_is_a_lost_connection(ask: str, answer: bytes) -> None:
    scripted = Scripted(answers={"SELECT 1": answer})
    with (
        running(scripted) as served,
        closing(connect("127.0.0.1", served.port, "relay", "secret")) as server,
        pytest.raises(Interrupted),
    ):
        list(getattr(server, ask)("SELECT 1"))


def test_what_is_said_of_a_damaged_answer_has_nothing_of_what_is_in_it() -> None:
    """It may be a row with protected columns."""
    fault = UnicodeDecodeError("utf-8", b"4711-0815\xff", 9, 10, "invalid start byte")
    said = str(translated(fault, "h:1"))
    assert "'utf-8' codec can't decode byte 0xff in position 9" in said
    assert "4711" not in said


@pytest.mark.parametrize("answer", ERRORS)
def test_a_damaged_error_in_answer_to_the_login_is_a_lost_connection(answer: bytes) -> None:
    with running(Scripted(challenges=[answer])) as served, pytest.raises(Interrupted):
        connect("127.0.0.1", served.port, "relay", "secret")


@pytest.mark.parametrize("answer", ERRORS)
def test_a_damaged_error_at_the_end_of_rows_is_a_lost_connection(answer: bytes) -> None:
    """I1: none of the rows after it is taken for read."""
    scripted = Scripted(answers={"SELECT 1": answer}, rows_before=[["1"], ["2"]])
    with running(scripted) as served, closing(connect("127.0.0.1", served.port, "relay", "secret")) as server:
        rows = server.raw_rows("SELECT 1")
        assert [next(rows), next(rows)] == [(b"1",), (b"2",)]
        with pytest.raises(Interrupted):
            next(rows)

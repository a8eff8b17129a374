"""A source is looked at as soon as something may have changed, and not otherwise."""

from __future__ import annotations

import math

from relay.records import CommittedRecords
from relay.stream.when_to_look import Look


class Known:
    """What decides about a look, as a test sets it."""

    has_answers = False
    next_answer = math.inf
    now = 100.0

    def __init__(self) -> None:
        self.view = CommittedRecords()
        self.look = Look("orders", self.view, clock=lambda: self.now)

    def commit(self) -> None:
        self.view.versions["orders"] += 1

    def begin(self) -> bool:
        return self.look.begin(has_answers=self.has_answers)

    def end(self) -> None:
        self.look.end(next_answer=self.next_answer)


def test_a_look_is_due_when_something_was_committed_a_call_has_ended_or_time_has_passed() -> None:
    known = Known()
    assert known.begin()
    known.end()
    assert not known.begin()
    known.commit()
    assert known.begin()
    known.end()
    assert not known.begin()
    known.has_answers = True
    assert known.begin()
    known.has_answers = False
    known.now += 5.0
    assert known.begin()
    known.end()
    assert not known.begin()
    known.look.soon()
    assert known.begin()


def test_what_is_committed_during_a_look_makes_another_one_due() -> None:
    """I1: the look may have read what was there before."""
    known = Known()
    assert known.begin()
    known.commit()
    known.end()
    assert known.begin()


def test_a_look_that_an_error_ended_is_repeated() -> None:
    known = Known()
    known.begin()
    known.end()
    known.commit()
    assert known.begin()
    assert known.begin()


def test_a_source_of_which_nothing_can_be_new_is_not_even_asked() -> None:
    known = Known()
    assert known.look.ask_at <= known.now
    known.begin()
    known.end()
    assert known.now < known.look.ask_at <= known.now + 5.0
    known.look.ask_soon()
    assert known.look.ask_at <= known.now
    known.begin()
    known.commit()
    known.end()
    assert known.look.ask_at <= known.now


def test_a_source_that_waits_for_an_answer_is_asked_and_looked_at_often() -> None:
    known = Known()
    known.next_answer = known.now + 0.1
    known.begin()
    known.end()
    assert known.look.ask_at == known.next_answer
    known.now += 0.1
    assert not known.begin()
    known.end()
    assert known.look.ask_at <= known.now
    known.now += 1.0
    assert known.begin()

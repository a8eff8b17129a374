"""A source is looked at as soon as something may have changed, and not otherwise."""

from __future__ import annotations

import math

from relay.stream.look import Look


class Known:
    """What a look asks, as a test sets it."""

    version = 0
    has_answers = False
    next_answer = math.inf
    now = 100.0

    def look(self) -> Look:
        return Look(lambda: self.version, lambda: self.has_answers, lambda: self.next_answer, clock=lambda: self.now)


def test_a_look_is_due_when_something_was_committed_a_call_has_ended_or_time_has_passed() -> None:
    known = Known()
    look = known.look()
    assert look.begin()
    look.end()
    assert not look.begin()
    known.version = 1
    assert look.begin()
    look.end()
    assert not look.begin()
    known.has_answers = True
    assert look.begin()
    known.has_answers = False
    known.now += 5.0
    assert look.begin()
    look.end()
    assert not look.begin()
    look.soon()
    assert look.begin()


def test_what_is_committed_during_a_look_makes_another_one_due() -> None:
    """I1: the look may have read what was there before."""
    known = Known()
    look = known.look()
    assert look.begin()
    known.version = 1
    look.end()
    assert look.begin()


def test_a_look_that_an_error_ended_is_repeated() -> None:
    known = Known()
    look = known.look()
    look.begin()
    look.end()
    known.version = 1
    assert look.begin()
    assert look.begin()


def test_a_source_of_which_nothing_can_be_new_is_not_even_asked() -> None:
    known = Known()
    look = known.look()
    assert look.ask_at <= known.now
    look.begin()
    look.end()
    assert known.now < look.ask_at <= known.now + 5.0
    look.ask_soon()
    assert look.ask_at <= known.now
    look.begin()
    known.version = 1
    look.end()
    assert look.ask_at <= known.now


def test_a_source_that_waits_for_an_answer_is_asked_and_looked_at_often() -> None:
    known = Known()
    look = known.look()
    known.next_answer = known.now + 0.1
    look.begin()
    look.end()
    assert look.ask_at == known.next_answer
    known.now += 0.1
    assert not look.begin()
    look.end()
    assert look.ask_at <= known.now
    known.now += 1.0
    assert look.begin()

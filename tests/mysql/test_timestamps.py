"""The map of times never points past the first transaction of a wanted time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from relay.gtid import GtidSet, parse
from relay.mysql.timestamps import TimestampMap


def at(sequence: int) -> GtidSet:
    return parse(f"MariaDB/0-1-{sequence}")


def sequence_of(gtids: GtidSet) -> int:
    return int(str(gtids).rpartition("-")[2])


steps = st.lists(
    st.one_of(st.integers(0, 3), st.integers(-90, 90), st.integers(0, 7200), st.integers(0, 86_400)), max_size=200
)


@given(steps, st.data())
def test_a_position_is_never_after_the_first_transaction_of_the_time(deltas: list[int], data: st.DataObject) -> None:
    """I1: also when clocks are set back."""
    times = [1_700_000_000]
    for delta in deltas:
        times.append(max(1, times[-1] + delta))
    known = TimestampMap(seconds=30, hours=2)
    for number, time in enumerate(times):
        known.note(time, at(number))  # the transaction ``number + 1`` carries ``time``
    wanted = data.draw(st.sampled_from(times) | st.integers(min(times) - 10, max(times) + 10))
    found = known.find(wanted)
    first = next((number for number, time in enumerate(times) if time >= wanted), len(times))
    if found is not None:
        assert sequence_of(found) <= first
    else:
        assert wanted < max(times)


@given(steps)
def test_the_map_is_bounded_and_drops_old_times(deltas: list[int]) -> None:
    """I11."""
    known, time = TimestampMap(seconds=30, hours=2), 1_700_000_000
    newest = 0
    for number, delta in enumerate(deltas):
        time += abs(delta)
        known.note(time, at(number))
        newest = time
    assert len(known) <= 30 + 2 * 60 + 1
    assert known.find(newest - 2 * 3600 - 1) is None


def test_recent_times_are_known_to_the_second_and_older_ones_to_the_minute() -> None:
    known = TimestampMap(seconds=60, hours=72)
    begin = 1_700_000_040  # a whole minute
    for second in range(600):
        known.note(begin + second, at(second))
    assert known.find(begin + 590) == at(590)
    assert known.find(begin + 590.5) == at(590)
    assert known.find(begin + 150) == at(120)
    assert known.find(begin - 1) is None
    assert known.find(begin + 10_000) == at(599)


def test_nothing_older_than_three_days_is_kept() -> None:
    known = TimestampMap()
    for minute in range(0, 5 * 24 * 60, 7):
        known.note(1_700_000_000 + minute * 60, at(minute))
    newest = 1_700_000_000 + (5 * 24 * 60 - 60) * 60
    assert known.find(newest - 4 * 86_400) is None
    assert known.find(newest - 2 * 86_400) is not None

"""I7: the copy's rule ends in the same state whatever is applied again, and folding is applying one by one."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from relay.change import REDRIVEN, UNDECODED, Images, Operation, Snapshot
from relay.token import EventToken
from spark_consumers.fold import ChangeHead, Place, StoredRow, VerdictCounts, fold, group_by_item, store
from tests.spark_consumers.heads import head


def change(
    number: int,
    shard: str = "s/l/a",
    *,
    deletes: bool = False,
    timestamp: int | None = None,
    place: Place | None = None,
) -> ChangeHead:
    operation = Operation.DELETE if deletes else Operation.UPDATE
    token = EventToken(timestamp or 1000 + number, shard, f"DynamoDB/{number}")
    return head(f"e{number}", operation, None if deletes else f"v{number}", Images.NEW, token, place=place)


@st.composite
def histories(draw: st.DrawFn) -> list[ChangeHead]:
    """One item's changes in order, with deletes and splits of its shard, and increasing timestamps."""
    timestamp, shard, found = 1000, 0, []
    for number in range(draw(st.integers(1, 8))):
        timestamp += draw(st.integers(0, 2))
        # A split in the same second leaves the order of two tokens unknown.
        shard += draw(st.integers(0, 1))
        place = Place("topic", 3, 10 * number)
        found.append(change(number, f"s/l/{shard}", deletes=draw(st.booleans()), timestamp=timestamp, place=place))
    return found


def read(number: int, place: Place | None = None) -> ChangeHead:
    """Return a row of a snapshot, read after the change of this number."""
    return head("r", Operation.READ, "read", Images.NEW, None, Snapshot("one", 1001 + number), place=place)


def apply(stored: StoredRow | None, changes: list[ChangeHead]) -> StoredRow | None:
    for one in changes:
        stored = store(stored, one)[0]
    return stored


@given(histories(), st.data())
@settings(deadline=None)
def test_prefixes_applied_again_do_not_change_the_result(history: list[ChangeHead], data: st.DataObject) -> None:
    """Each replay starts at an earlier change and continues from there, as after a restart."""
    clean = apply(None, history)
    state: StoredRow | None = None
    reached = 0
    for _ in range(data.draw(st.integers(0, 4))):
        begin = data.draw(st.integers(0, reached))
        end = data.draw(st.integers(begin, len(history)))
        state = apply(state, history[begin:end])
        reached = end  # the next run starts here or earlier
    begin = data.draw(st.integers(0, reached))
    assert apply(state, history[begin:]) == clean


@given(histories(), st.booleans(), st.data())
@settings(deadline=None)
def test_what_a_driver_that_is_behind_applies_again_does_not_change_the_result(
    history: list[ChangeHead], is_read: bool, data: st.DataObject
) -> None:
    """I7: a second driver may end anywhere, and the order of two tokens may be unknown."""
    if is_read:
        history.append(read(len(history) + 20, Place("topic", 3, 10 * len(history))))
    clean = apply(None, history)
    state = clean
    for _ in range(data.draw(st.integers(1, 3))):
        begin, end = sorted(data.draw(st.tuples(*[st.integers(0, len(history))] * 2)))
        state = apply(state, history[begin:end])
    assert state == clean


@st.composite
def moved_histories(draw: st.DrawFn) -> tuple[list[ChangeHead], list[ChangeHead]]:
    """One item's changes in its former partition, and the later ones in another; one of both has a row of a snapshot.

    As after `relay repartition`, later tokens have later timestamps. The row has whatever is older than its ``as_of``,
    and perhaps more.
    """
    history = draw(histories())
    cut = draw(st.integers(0, len(history)))
    for number in range(cut, len(history)):
        token = history[number].token
        assert token is not None
        later = replace(token, timestamp=token.timestamp + 100)
        history[number] = replace(history[number], token=later, place=Place("topic", 7, 10 * number))
    at = draw(st.integers(0, len(history)) | st.just(len(history)))
    times = [each.token.timestamp for each in history if each.token is not None]
    latest = times[at] if at < len(history) else times[-1] + 1
    partition = draw(st.sampled_from([3, 7])) if at == cut else 3 if at < cut else 7
    as_of = latest - draw(st.integers(0, 3))
    row = replace(read(0, Place("topic", partition, 10 * at - 5)), snapshot=Snapshot("one", as_of))
    topic = [*history[:at], row, *history[at:]]
    former, present = ([each for each in topic if each.place.partition == number] for number in (3, 7))
    return former, present


@given(moved_histories(), st.data())
@settings(deadline=None)
def test_an_item_that_has_moved_ends_the_same_in_whatever_order_its_partitions_are_read(
    histories: tuple[list[ChangeHead], list[ChangeHead]], data: st.DataObject
) -> None:
    """I7: a copy that is behind, or a new one, may read the partition first that has the later changes."""

    def found(state: StoredRow | None) -> StoredRow | None:
        # Whether a row of a snapshot was stored before what has replaced it depends on the order.
        return None if state is None else replace(state, read_as_of=0)

    clean = found(apply(None, [*histories[0], *histories[1]]))
    rest = [iter(each) for each in histories]
    order = data.draw(st.permutations([n for n in (0, 1) for _ in histories[n]]))
    state = apply(None, [next(rest[n]) for n in order])
    assert found(state) == clean
    for partition in data.draw(st.lists(st.sampled_from(histories), max_size=3)):  # a driver that is behind
        begin, end = sorted(data.draw(st.tuples(*[st.integers(0, len(partition))] * 2)))
        state = apply(state, partition[begin:end])
    assert found(state) == clean


def test_a_row_that_was_read_is_compared_by_time_with_changes_of_other_partitions_of_its_topic() -> None:
    """I5, I7: it has what is older than ``as_of``. What has no time, or is of another topic, is stored."""
    stored = apply(None, [replace(read(9), place=Place("topic", 7, 50))])  # as of 1010
    for older in (change(9, place=Place("topic", 3, 99)), change(9, deletes=True, place=Place("topic", 9, 1))):
        assert apply(stored, [older]) == stored
    timeless = EventToken(0, "s/l/a", "DynamoDB/9")
    for newer in (
        change(10, place=Place("topic", 3, 1)),
        change(9, place=Place("other", 3, 1)),
        change(9, place=Place("topic", 7, 51)),
        replace(change(9, place=Place("topic", 3, 1)), token=timeless),
        replace(change(9, place=Place("topic", 3, 1)), token=None),
    ):
        after = apply(stored, [newer])
        assert after is not None
        assert (after.item, after.place) == (newer.new, newer.place)


def test_a_driver_that_is_behind_does_not_undo_the_last_change_of_a_transaction() -> None:
    """I7: two changes of one row in a transaction have one token. A batch may end between them."""
    first, last = (replace(change(1, place=Place("topic", 3, number)), event_id=f"e{number}") for number in (1, 2))
    assert apply(apply(None, [first, last]), [first]) == apply(None, [last])
    again = replace(first, place=Place("topic", 3, 3))  # as after a reset, which goes on with the other
    assert apply(apply(None, [first, last]), [again]) == apply(None, [again])


def test_an_unknown_order_is_decided_by_the_topic_only_within_a_partition() -> None:
    """I5: a topic with more partitions has the item elsewhere."""
    stored = apply(None, [change(1, "s/l/a", timestamp=1000, place=Place("topic", 3, 50))])
    for place in (Place("topic", 2, 40), Place("other", 3, 40), Place("topic", 3, 60)):
        other = change(2, "s/l/b", timestamp=1000, place=place)
        assert apply(stored, [other]) == StoredRow("v2", other.token, "e2", place=place)
    replayed = change(2, "s/l/b", timestamp=1000, place=Place("topic", 3, 40))
    assert apply(stored, [replayed]) == stored
    newer = change(2, "s/l/a", timestamp=1000, place=Place("topic", 3, 40))
    assert apply(stored, [newer]) == StoredRow("v2", newer.token, "e2", place=newer.place)


@given(histories(), st.data())
@settings(deadline=None)
def test_folding_a_batch_equals_applying_its_changes_one_by_one(history: list[ChangeHead], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(history)))
    stored = apply(None, history[:cut])
    batch = history[data.draw(st.integers(0, cut)) :]
    assert fold(stored, batch, VerdictCounts()) == apply(stored, batch)


def test_a_row_without_a_token_takes_any_change() -> None:
    assert apply(StoredRow("dumped", None, ""), [change(1)]) == StoredRow("v1", change(1).token, "e1")


def test_a_strictly_older_change_is_ignored() -> None:
    newer = apply(None, [change(5)])
    assert apply(newer, [change(4)]) == newer


def test_a_late_insert_does_not_restore_a_row_that_was_deleted_after_it() -> None:
    tombstone = apply(None, [change(5, deletes=True)])
    assert tombstone is not None
    assert tombstone.deleted
    assert apply(tombstone, [change(3)]) == tombstone
    assert apply(tombstone, [change(7)]) == StoredRow("v7", change(7).token, "e7")


def test_an_unknown_order_stores_and_is_counted() -> None:
    """I5"""
    counts = VerdictCounts()
    stored = apply(None, [change(1, "s/l/a", timestamp=1000)])
    other = change(2, "s/l/b", timestamp=1000)
    after = fold(stored, [other], counts)
    assert after is not None
    assert (after.item, counts.unknown) == ("v2", 1)


def test_a_snapshot_row_only_replaces_older_rows() -> None:
    def read(as_of: int) -> ChangeHead:
        return head("r", Operation.READ, "read", Images.NEW, None, Snapshot("one", as_of))

    streamed = apply(None, [change(5)])  # its timestamp is 1005
    assert apply(streamed, [read(1005)]) == streamed
    assert apply(streamed, [read(1006)]) == StoredRow("read", None, "r", read_as_of=1006)
    deleted = apply(None, [change(5, deletes=True)])
    assert apply(deleted, [read(1000)]) == deleted


def test_a_change_without_its_image_keeps_the_row_and_marks_it_incomplete() -> None:
    """I8"""
    omitted = head("o", Operation.UPDATE, None, Images.OMITTED, change(6).token)
    after = apply(apply(None, [change(5)]), [omitted])
    assert after == StoredRow("v5", omitted.token, "o", incomplete=True)
    complete = head("o", Operation.UPDATE, "complete", Images.NEW, omitted.token, attributes={REDRIVEN: "true"})
    assert apply(after, [complete]) == StoredRow("complete", omitted.token, "o")


def stub(complete: ChangeHead) -> ChangeHead:
    return replace(complete, new=None, images=Images.OMITTED)


def redriven(complete: ChangeHead) -> ChangeHead:
    return replace(complete, attributes={REDRIVEN: "true"})


@st.composite
def redriven_histories(draw: st.DrawFn) -> tuple[list[ChangeHead], list[ChangeHead]]:
    """One item's changes, and a topic with some as stubs, each redriven at any later time, perhaps twice."""
    history = draw(histories())
    topic = list(history)
    for complete in history:
        if draw(st.booleans()):
            topic[topic.index(complete)] = stub(complete)
            for _ in range(draw(st.integers(1, 2))):
                topic.insert(draw(st.integers(topic.index(stub(complete)) + 1, len(topic))), redriven(complete))
    return history, topic


@given(redriven_histories(), st.data())
@settings(deadline=None)
def test_redriven_changes_complete_the_row_and_undo_nothing(
    histories: tuple[list[ChangeHead], list[ChangeHead]], data: st.DataObject
) -> None:
    """I7: also where the order of two tokens is unknown, and if any suffix of the topic is applied again."""
    history, topic = histories
    state = apply(None, topic)
    assert state == apply(None, history)
    for _ in range(data.draw(st.integers(0, 3))):
        state = apply(state, topic[data.draw(st.integers(0, len(topic))) :])
    assert state == apply(None, history)


def test_a_stub_that_is_read_again_does_not_undo_its_redrive() -> None:
    """I7: the redrive may be of yesterday, and not be read again."""
    completed = apply(None, [change(4), stub(change(5)), redriven(change(5))])
    assert apply(completed, [stub(change(5))]) == completed


def test_a_redriven_change_is_ignored_after_its_tombstone_was_collected() -> None:
    assert apply(None, [redriven(change(5))]) is None


def test_a_redriven_change_does_not_undo_a_later_snapshot_row() -> None:
    later = head("r", Operation.READ, "read", Images.NEW, None, Snapshot("one", 2000))
    state = apply(None, [stub(change(5)), later])
    assert state is not None
    assert state.token is None
    assert apply(state, [redriven(change(5))]) == state


def late(undecoded: ChangeHead) -> ChangeHead:
    return replace(undecoded, attributes={REDRIVEN: UNDECODED}, place=Place("topic", 3, 1000))


@given(histories(), st.booleans(), st.data())
@settings(deadline=None)
def test_changes_that_could_not_be_decoded_in_their_places_undo_nothing(
    history: list[ChangeHead], is_read: bool, data: st.DataObject
) -> None:
    """I7: also where the order of two tokens is unknown, and after a row of a snapshot, which has no token."""
    undecoded = [each for each in history[:-1] if data.draw(st.booleans())]
    if is_read:
        history.append(read(len(history) + 20, Place("topic", 3, 10 * len(history))))
    state = apply(None, [each for each in history if each not in undecoded])
    for each in data.draw(st.permutations(undecoded)):
        assert apply(state, [late(each)]) == state


def test_a_change_that_could_not_be_decoded_in_its_place_goes_over_what_is_older() -> None:
    assert apply(None, [late(change(5))]) == StoredRow("v5", change(5).token, "e5", place=late(change(5)).place)
    for before in (change(4), head("r", Operation.READ, "read", Images.NEW, None, Snapshot("one", 1005))):
        after = apply(None, [before, late(change(5)), change(4), late(change(5))])
        assert after is not None
        assert (after.item, after.token) == ("v5", change(5).token)


def test_of_one_transaction_a_change_that_could_not_be_decoded_does_not_undo_another() -> None:
    """I7: they have one token."""
    stored = apply(None, [replace(change(5), event_id="second")])
    assert apply(stored, [late(replace(change(5), event_id="first"))]) == stored


def test_a_stub_of_a_snapshot_row_is_only_completed_by_its_own_redrive() -> None:
    read = head("r", Operation.READ, "read", Images.NEW, None, Snapshot("one", 2000))
    incomplete = apply(None, [change(5), stub(read)])
    assert incomplete == StoredRow("v5", None, "r", incomplete=True, read_as_of=2000)
    assert apply(incomplete, [redriven(change(5))]) == incomplete
    assert apply(incomplete, [redriven(read)]) == StoredRow("read", None, "r", read_as_of=2000)


def test_the_changes_of_an_item_are_applied_in_the_order_of_the_topic() -> None:
    """I2: Spark returns the rows of a batch in any order."""
    places = [("a", 0, 9), ("b", 1, 2), ("a", 0, 10), ("a", 0, 2), ("b", 1, 1)]
    rows = [head("e", Operation.UPDATE, key=(key,), place=Place("topic", *place)) for key, *place in places]
    offsets = {key: [each.place.offset for each in found] for (key,), found in group_by_item(rows).items()}
    assert offsets == {"a": [2, 9, 10], "b": [1, 2]}

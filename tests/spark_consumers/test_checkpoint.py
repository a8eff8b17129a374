"""Where a consumer's checkpoint is."""

from __future__ import annotations

from pathlib import Path

import pytest

from relay.errors import ConfigError, RelayError
from relay.kafka.created_again import NO_ID
from spark_consumers.checkpoint import ConsumerCheckpoint


@pytest.mark.parametrize("location", ["/c/log", "file:///c/log", "file:/c/log"])
def test_a_checkpoint_of_this_machine_is_known_as_such(location: str) -> None:
    assert ConsumerCheckpoint(location).local == Path("/c/log")


@pytest.mark.parametrize("location", ["s3a://bucket/log", "hdfs://namenode/log", "hdfs:///log"])
def test_a_checkpoint_of_another_file_system_is_not_a_local_folder(location: str) -> None:
    assert ConsumerCheckpoint(location).local is None


def test_a_folder_whose_first_part_would_be_taken_for_a_host_is_refused() -> None:
    """I1: Hadoop would leave that part out, and so use another folder."""
    with pytest.raises(ConfigError, match="'var' stands for a host: write file:///var/lib/relay"):
        ConsumerCheckpoint("file://var/lib/relay")


def test_a_checkpoint_that_lacks_the_colon_of_its_store_is_refused() -> None:
    """I1: on a cluster, each driver would have one of its own."""
    with pytest.raises(ConfigError, match="there is no colon after 's3a': write s3a://bucket/log, or a folder in full"):
        ConsumerCheckpoint("s3a//bucket/log")


def test_a_checkpoint_is_refused_once_a_topic_was_created_again(tmp_path: Path) -> None:
    """I1: its records before the offset were never read."""
    checkpoint = ConsumerCheckpoint(str(tmp_path))
    checkpoint.begin({})
    checkpoint.note_topics({"orders": "a"})
    checkpoint.note_topics({"orders": "a", "lines": "b"})
    with pytest.raises(ConfigError, match="topic lines was created again"):
        ConsumerCheckpoint(str(tmp_path)).note_topics({"orders": "a", "lines": "c"})
    checkpoint.begin({})  # as after a replay, which reads the topic that is there now
    checkpoint.note_topics({"orders": "a", "lines": "c"})


@pytest.mark.parametrize("first", [{}, {"orders": NO_ID}])
def test_a_checkpoint_of_a_topic_that_had_no_id_goes_on_and_keeps_its_id(tmp_path: Path, first: dict[str, str]) -> None:
    """Its brokers have begun to give ids."""
    checkpoint = ConsumerCheckpoint(str(tmp_path))
    checkpoint.begin({})
    checkpoint.note_topics(first)
    checkpoint.note_topics({"orders": "a"})
    with pytest.raises(ConfigError, match="topic orders was created again"):
        checkpoint.note_topics({"orders": "b"})


def test_a_checkpoint_that_begins_anew_has_no_batch_of_before_and_leaves_the_earlier_one(tmp_path: Path) -> None:
    """I1, I10: Spark does not go on behind its own checkpoint, and numbers its batches from 0 again."""
    checkpoint = ConsumerCheckpoint(str(tmp_path))
    checkpoint.begin({"orders": {"0": 0}})
    assert checkpoint.is_new
    (tmp_path / "spark/commits").mkdir(parents=True)
    (tmp_path / "spark/commits/0").write_text("v1\n{}")
    (tmp_path / "spark/offsets").mkdir()
    (tmp_path / "spark/offsets/0").write_text('v1\n{}\n{"orders": {"0": 5}}')
    assert (checkpoint.is_new, checkpoint.resume()) == (False, {"orders": {"0": 5}})
    checkpoint.begin_anew({"orders": {"0": 8}})
    assert (checkpoint.is_new, checkpoint.resume()) == (True, {"orders": {"0": 8}})
    assert (tmp_path / "spark/commits/0").exists()
    offsets = tmp_path / checkpoint.spark.rpartition("/")[2] / "offsets"
    offsets.mkdir(parents=True)
    (offsets / "0").write_text('v1\n{}\n{"orders": {"0": 9}}')
    assert checkpoint.end_offsets(0) == {"orders": {"0": 9}}


def test_a_topic_that_was_deleted_is_refused_unless_the_consumer_makes_up_for_it(tmp_path: Path) -> None:
    """I12: a dropped table must not end the invalidation of all others."""
    checkpoint = ConsumerCheckpoint(str(tmp_path))
    checkpoint.begin({"orders": {"0": 5}, "lines": {"0": 7}, "codes": {"0": 0}})
    assert checkpoint.topics(["orders"], ["orders", "codes"], makes_up=True) == ["orders", "codes"]
    with pytest.raises(ConfigError, match="topic lines"):
        checkpoint.topics(["orders"], ["orders", "codes"])


@pytest.mark.parametrize("name", ["offsets/3", "offsets/4", "commits/3"])
@pytest.mark.parametrize("text", ["", "v1\n{}", "v1\n{}\nnot JSON"])
def test_a_file_of_spark_that_a_crash_left_empty_is_named_with_the_way_out(
    tmp_path: Path, text: str, name: str
) -> None:
    """I1, I12: a new checkpoint begins where the last batch was applied. Spark goes on with batch 4."""
    for folder, right in (("commits", "v1\n{}"), ("offsets", 'v1\n{}\n{"orders": {"0": 5}}')):
        (tmp_path / "spark" / folder).mkdir(parents=True)
        (tmp_path / "spark" / folder / "3").write_text(right)
    assert ConsumerCheckpoint(str(tmp_path)).resume() == {"orders": {"0": 5}}
    (tmp_path / "spark" / name).write_text(text if name != "commits/3" else "")
    with pytest.raises(RelayError, match=rf"spark/{name} as a file .*--checkpoint, and add --from committed"):
        ConsumerCheckpoint(str(tmp_path)).resume()

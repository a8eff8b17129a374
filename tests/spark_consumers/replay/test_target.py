"""A swap that is cut off before any rename, sync or new folder, and what it holds locked meanwhile."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from relay.config import Config
from spark_consumers.checkpoint import SWAP, ConsumerCheckpoint
from spark_consumers.replay.target import ReplayTarget, Swap

pytestmark = pytest.mark.services

CALLS = ("rename", "replace", "fsync", "mkdir")


class CutOff(BaseException):
    """The process ended here."""


class Shop:
    """A log at ``present``, another one that a replay has made at ``rebuilt``, and the checkpoint of the consumer."""

    def __init__(self, folder: Path, servers: str, name: str) -> None:
        self.present, self.rebuilt, self.checkpoint = (folder / each for each in ("present", "rebuilt", "checkpoint"))
        for place in (self.present, self.rebuilt, self.checkpoint / "spark-5f"):
            place.mkdir(parents=True)
            (place / "content").write_text(place.name)
        (self.checkpoint / "start.json").write_text("{}")
        (self.checkpoint / "query.txt").write_text("spark-5f")
        self.config = Config.model_validate(
            {
                "name": name,
                "kafka": {"bootstrap_servers": servers},
                "sources": [{"name": "orders", "type": "dynamodb", "table": "all", "region": "us-east-1"}],
                "log": {"path": f"file://{self.present}"},
            }
        )
        self.end = {f"{name}.all": {"0": 7}}
        self.ids = {f"{name}.all": "an id"}
        self.forgotten = 0

    def swap(self) -> Swap:
        return Swap(ReplayTarget("log", self.config, f"file://{self.rebuilt}"), str(self.checkpoint))

    def finish(self) -> None:
        swap = self.swap()
        if not swap.is_pending:
            swap.begin(self.end, self.ids)
            swap = self.swap()
        swap.finish(self._forget)

    def _forget(self) -> None:
        self.forgotten += 1

    def is_locked(self) -> bool:
        """Whether no consumer can use the checkpoint, the log or the other one."""
        locks = (
            self.checkpoint / "lock",
            *(place.with_name(f"{place.name}.lock") for place in (self.present, self.rebuilt)),
        )
        return all(map(_is_held, locks))

    def is_as_before(self) -> bool:
        start = (self.checkpoint / "start.json").read_text()
        return (self.present / "content").read_text() == "present" and start == "{}"

    def check(self) -> None:
        """The log is the rebuilt one, the one before it is kept, and the consumer continues where the replay ended."""
        assert (self.present / "content").read_text() == "rebuilt"
        assert not self.rebuilt.exists()
        (kept,) = self.present.parent.glob("present.before-*")
        assert (kept / "content").read_text() == "present"
        (earlier,) = self.checkpoint.glob("before-*")
        assert {path.name for path in earlier.iterdir()} == {"spark-5f", "start.json", "query.txt", SWAP}
        assert (earlier / "spark-5f" / "content").read_text() == "spark-5f"
        assert (earlier / "start.json").read_text() == "{}"
        checkpoint = ConsumerCheckpoint(str(self.checkpoint))
        assert checkpoint.end_offsets(-1) == self.end
        assert checkpoint.is_new
        assert json.loads((self.checkpoint / "topics.json").read_text()) == self.ids
        assert not (self.checkpoint / SWAP).exists()
        assert self.forgotten


def _is_held(lock: Path) -> bool:
    with lock.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def before_each_call(patch: pytest.MonkeyPatch, before: Callable[[str, tuple[Any, ...]], None]) -> None:
    def patched(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def hooked(*arguments: Any, **named: Any) -> Any:
            before(name, arguments)
            return call(*arguments, **named)

        return hooked

    for name in CALLS:
        patch.setattr(os, name, patched(name, getattr(os, name)))


def test_a_swap_that_is_cut_off_anywhere_is_done_by_the_next_one(tmp_path: Path, kafka: Any, unique: str) -> None:
    """I1, I7: until then it is pending, or nothing has changed."""
    cuts = 0
    while True:
        shop, calls, is_cut = Shop(tmp_path / str(cuts), kafka.bootstrap_servers, unique), 0, False

        def end_at(name: str, arguments: tuple[Any, ...], at: int = cuts) -> None:
            nonlocal calls, is_cut
            calls += 1
            is_cut = calls > at
            if is_cut:
                raise CutOff

        with pytest.MonkeyPatch.context() as patch, contextlib.suppress(CutOff):
            before_each_call(patch, end_at)
            shop.finish()
        is_done = any(shop.checkpoint.glob(f"before-*/{SWAP}"))
        if not is_done:
            assert shop.swap().is_pending or shop.is_as_before()
            shop.finish()
        shop.check()
        if not is_cut:
            break
        cuts += 1
    assert cuts > 15


def test_nothing_is_renamed_while_a_consumer_can_run(tmp_path: Path, kafka: Any, unique: str) -> None:
    """I7: it would write into the log that is put aside, and go on from its own checkpoint."""
    shop, renamed = Shop(tmp_path, kafka.bootstrap_servers, unique), []

    def check(name: str, arguments: tuple[Any, ...]) -> None:
        if name in ("rename", "replace"):
            renamed.append(Path(arguments[0]).name)
            assert shop.is_locked(), renamed

    with pytest.MonkeyPatch.context() as patch:
        before_each_call(patch, check)
        shop.finish()
    assert {"present", "rebuilt", "spark-5f", SWAP} <= {*renamed}
    shop.check()
    assert not _is_held(shop.checkpoint / "lock")

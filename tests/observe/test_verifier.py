"""What `relay verify --forever` reports of itself."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from relay.observe import verifier
from relay.observe.verifier import Accusation, VerifierObserver


def test_the_accusations_of_an_earlier_process_end_with_it(tmp_path: Path) -> None:
    file = tmp_path / "verify-copy.json"
    earlier = VerifierObserver("shop", ["copy"], file)
    earlier.accuse(Accusation("copy", "extra", "orders", {"id": "1"}, 600.0, 0.0, "no change of it passed"))
    assert [each["key"] for each in orjson.loads(file.read_bytes())] == [{"id": "1"}]
    later = VerifierObserver("shop", ["copy"], file)
    assert len(orjson.loads(file.read_bytes())) == 1  # it may still fail to start, beside the other one
    later.write()
    assert orjson.loads(file.read_bytes()) == []


def test_of_any_number_of_reasons_why_samples_are_unknown_some_are_counted_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """I11: errors of a loader may name keys."""
    monkeypatch.setattr(verifier, "_MOST_REASONS", 2)
    observer = VerifierObserver("shop", ["cache"])
    for reason in ("", "redis://me:secret@h refuses", "b", "c", "b", "d"):
        observer.settle("cache", "unknown", None, reason)
    (sink,) = observer.report()["sinks"]
    assert sink["samples"] == {"unknown": 6}
    assert list(sink["unknown"].values()) == [1, 2, 2]
    assert list(sink["unknown"])[1:] == ["b", "other reasons"]
    assert "secret" not in str(sink)
    assert observer.new_reasons("cache") == list(sink["unknown"])
    assert observer.new_reasons("cache") == []

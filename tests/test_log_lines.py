"""The lines of consumers, read while they are written."""

from __future__ import annotations

from pathlib import Path

from tests.log_lines import log_lines


def test_a_line_that_is_not_yet_written_to_its_end_is_left_out(tmp_path: Path) -> None:
    log = tmp_path / "log"
    lines = '{"event": "started"}\nWARNING: of Java\n{"event": "batch"}\n'
    for end in range(len(lines) + 1):
        log.write_text(lines[:end])
        found = [line["event"] for line in log_lines(log)]
        assert found == ["started", "batch"][: lines[:end].count("}\n")]

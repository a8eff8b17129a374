"""The figures of the page on performance are the recorded results, which the page of benchmarks shows in full."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from deploy.docs.from_code import BENCHMARKS, number
from deploy.docs.site import ROOT, documents

PAGE = ROOT / "deploy" / "docs" / "explanation" / "performance.md"
RECORDED: dict[str, Any] = json.loads(BENCHMARKS.read_text(encoding="utf-8"))
RESULTS = {result["name"]: (result, of) for of in RECORDED.values() for result in of["results"]}
FIGURES = {"relay": "figure", "measured against": "yardstick", "ratio": "ratio", "A/A": "aa"}


def rows() -> list[dict[str, str]]:
    """Return the rows of all tables, by the heads of their columns."""
    found = []
    head: list[str] = []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if cells and not head:
            head = cells
        elif cells and not cells[0].startswith("---"):
            found.append(dict(zip(head, cells, strict=True)))
        head = head if cells else []
    return found


@pytest.mark.parametrize("row", rows(), ids=lambda row: row["result"].strip("`"))
def test_a_row_has_the_figures_of_its_result(row: dict[str, str]) -> None:
    result, of = RESULTS[row.pop("result").strip("`")]
    row.pop("of", None)
    if "measured" in row:
        date, machine = row.pop("measured").split(", ")
        assert date == of["date"]
        assert machine in of["machine"]
    for head, key in FIGURES.items():
        if head in row:
            assert number(result[key]) in row.pop(head).split(": ")[-1].split()
    noted = re.findall(r"[\d,.]*\d", result["note"])
    for cell in row.values():
        assert set(re.findall(r"[\d,.]*\d", cell.replace("p50", "").replace("p99", ""))) <= set(noted)


def test_the_page_says_where_a_peer_is_faster() -> None:
    """Times are better if they are less, so only rates are looked at."""
    slower = {
        name
        for name, (result, _) in RESULTS.items()
        if "debezium" in name and result["unit"].endswith("/s") and result["ratio"] < 1
    }
    bold = {row["result"].strip("`") for row in rows() if "**Debezium is faster**" in row.get("measured against", "")}
    assert bold == slower
    assert slower


def test_a_benchmark_that_a_page_cites_is_recorded() -> None:
    """But for two of which no page has a figure: they depend on the reader's tables, and on what else the host does."""
    cited = {
        name for path in documents() for name in re.findall(r"make bench NAME=(\w+)", path.read_text(encoding="utf-8"))
    }
    assert cited
    assert cited - {"copy_growth", "cache_latency"} <= RECORDED.keys()

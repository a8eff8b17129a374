"""The page shows all runs that passed, and is the one that is made from them."""

from typing import Any

from tests.audit.page import PAGE, read_runs, render


def run(seed: int, **changed: Any) -> dict[str, Any]:
    found = {"looked_at": {"committed": 1000, "reads": 10}, "faults": {"broker": 2, "worker": 1}}
    return {"seed": seed, "parts": ["mysql"], "seconds": 1800.0, "date": "2026-11-29", **found, **changed}


def test_runs_of_the_same_parts_are_added_up() -> None:
    page = render([run(3), run(1), run(7, parts=["dynamodb"]), run(5, brokers=3)])
    assert "| mysql | 2 | 1.00 | 2,000 | 20 | 0 | 6 | 1, 3 |" in page
    assert "| dynamodb | 1 | 0.50 | 1,000 | 10 | 0 | 3 | 7 |" in page
    assert "| mysql, three brokers | 1 | 0.50 | 1,000 | 10 | 0 | 3 | 5 |" in page
    assert "| the only Kafka broker is killed | 8 |\n| a worker of the relay is killed | 4 |" in page


def test_the_page_in_the_documentation_is_that_of_the_runs_that_are_kept() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(read_runs())

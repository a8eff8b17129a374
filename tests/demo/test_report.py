"""The result of the demo as JSON."""

from __future__ import annotations

import json

from relay.demo.report import Result


def test_a_result_is_json_with_every_problem_and_without_latencies_of_nothing() -> None:
    result = Result(
        {"  from the cache": 3}, {"a holds": [], "b holds": ["x", "y"]}, {"commit": [1.0, 2.0, 30.06], "no": []}
    )
    assert json.loads(json.dumps(result.to_json(71.26), allow_nan=False)) == {
        "seconds": 71.3,
        "counts": {"from the cache": 3},
        "checks": {"a holds": {"held": True, "problems": []}, "b holds": {"held": False, "problems": ["x", "y"]}},
        "latencies": {"commit": {"p50_ms": 2.0, "p99_ms": 30.1, "changes": 3}},
    }

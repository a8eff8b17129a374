"""A short run of the audit: what three workers did under faults, judged by the checker from histories alone."""

from pathlib import Path

import pytest

from tests.audit.__main__ import failed, play


@pytest.mark.services
@pytest.mark.faults("a soak of its own, to show that its histories can be judged: `tests/soak` plays longer")
@pytest.mark.timeout(600)
def test_a_checker_that_knows_nothing_of_the_relay_finds_nothing_wrong_after_a_soak(tmp_path: Path) -> None:
    run = play(tmp_path, 4, ["dynamodb", "mysql"], 20)
    assert not failed(run), run
    assert run["looked_at"]["topic"] == run["looked_at"]["committed"] > 0
    assert run["looked_at"]["writes"] > 0

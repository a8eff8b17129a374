"""Short runs of the audit: what three workers did under faults, judged by the checker from histories alone."""

from pathlib import Path

import pytest

from tests.audit.__main__ import failed, play
from tests.audit.page import FAULTS
from tests.soak.brokers import LEADERS

pytestmark = [
    pytest.mark.services,
    pytest.mark.faults("soaks of their own, to show that their histories can be judged: `tests/soak` plays longer"),
    pytest.mark.timeout(900),
]


def test_a_checker_that_knows_nothing_of_the_relay_finds_nothing_wrong_after_a_soak(tmp_path: Path) -> None:
    run = play(tmp_path, 4, ["dynamodb", "mysql"], 20)
    assert not failed(run), run
    assert run["looked_at"]["topic"] == run["looked_at"]["committed"] > 0
    assert run["looked_at"]["writes"] > 0


def test_it_finds_nothing_wrong_after_the_leaders_of_internal_topics_were_killed_in_turn(tmp_path: Path) -> None:
    """I1, I2, I3: on three brokers, during commits, and with leaders that move back."""
    played = {*LEADERS, "election"}
    run = play(tmp_path, 6, ["mysql"], 5, FAULTS.keys() - played, brokers=3, rate=200)
    assert not failed(run), run
    assert run["faults"].keys() == played
    assert run["looked_at"]["topic"] == run["looked_at"]["committed"] > 0
    assert run["looked_at"]["writes"] > 0

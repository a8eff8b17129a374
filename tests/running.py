"""Services that run already, started by whoever runs the tests: many short sessions then share one of each."""

from __future__ import annotations

import json
import os
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

RUNNING = "RELAY_TEST_RUNNING"
"""A JSON object: by fixture, the attributes of the service that runs. Set by ``make mutants``."""


def running(fixture: str) -> AbstractContextManager[Any] | None:
    """Return the service that runs for ``fixture``, None if it has to be started."""
    found: dict[str, dict[str, str]] = json.loads(os.environ.get(RUNNING, "{}"))
    return nullcontext(SimpleNamespace(**found[fixture])) if fixture in found else None

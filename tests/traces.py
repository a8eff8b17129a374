"""What a relay leaves in its process, which is of no use to the tests that share theirs with it."""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def no_traces_left() -> Iterator[None]:
    """Undo at the end what a relay has set in this process, if one ran, and end its clients of Kafka.

    They are in cycles, and would go on asking the broker until the next full collection of garbage. A relay may not
    take what the tests have frozen into that collection, or it takes 0.3 s.
    """
    log = logging.getLogger("relay")
    level, interval, thresholds = log.level, sys.getswitchinterval(), gc.get_threshold()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gc, "freeze", lambda: None)
        patch.setattr(gc, "unfreeze", lambda: None)
        try:
            yield
        finally:
            log.setLevel(level)
            if sys.getswitchinterval() != interval:
                sys.setswitchinterval(interval)
                gc.set_threshold(*thresholds)
                gc.collect()

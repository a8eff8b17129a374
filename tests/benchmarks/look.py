"""Measures one look of a worker's main loop at its group, checkpoints and sources, beside publishing pages.

A figure is milliseconds of CPU time of the worker's thread for one look, with 500 sources of one shard or one source of
5,000 shards, all open and idle. The worker looks up to a hundred times a second. The yardstick is a worker with a
single shard. The slowest of a hundred looks is in the note: what is done once a second shows there.
"""

from __future__ import annotations

import os
import secrets
import tempfile
import threading
import time
from contextlib import closing
from statistics import mean, quantiles

from relay.engine.worker import Worker
from relay.observe.observer import Observer
from relay.services.kafka import KafkaBroker
from tests.benchmarks.harness import Benchmark
from tests.engine.maintained import NoRows
from tests.scripted_source import ScriptedSource, config_of, open_schemas_of, worker_of

SOURCES = 500
SHARDS = 5000
SECONDS = 20.0
_PATIENCE = 180.0


def run() -> list[Benchmark]:
    with KafkaBroker() as broker, tempfile.TemporaryDirectory() as folder:
        os.environ["RELAY_STATE"] = f"{folder}/state"
        one, again = [_look(broker.bootstrap_servers, 1, 1)[0] for _ in range(2)]
        results = []
        for sources, shards in ((SOURCES, 1), (1, SHARDS)):
            ours, slow, seen = _look(broker.bootstrap_servers, sources, shards)
            results.append(
                Benchmark(
                    name=f"look_{'sources' if sources > 1 else 'shards'}",
                    figure=ours,
                    yardstick=one,
                    unit="ms",
                    ratio=ours / one,
                    expected=sources * shards,
                    seen=seen,
                    aa=again / one,
                    note=f"{sources} sources of {shards} idle shards, CPU of a look; one in a hundred takes "
                    f"{slow:.2f} ms; yardstick a worker with one shard",
                )
            )
    return results


def _look(servers: str, sources: int, shards: int) -> tuple[float, float, int]:
    """Return the mean and the 99th percentile of a look in ms, and how many shards are open."""
    made = [ScriptedSource(f"src{number}", shards) for number in range(sources)]
    for source in made:
        source.snapshots = NoRows()
    config = config_of(f"bench-{secrets.token_hex(4)}", servers, made)
    config = config.model_copy(update={"topics": "{name}.all"})
    with closing(open_schemas_of(config)) as schemas:
        worker = worker_of(config, made, schemas, observer=Observer(config.name, keeps_status=True))
        taken = _timed(worker)
        thread = threading.Thread(target=worker.run, daemon=True)
        thread.start()
        begun = time.monotonic()
        while (seen := _reading(worker)) < sources * shards and time.monotonic() - begun < _PATIENCE:
            time.sleep(0.5)
        time.sleep(5.0)
        taken.clear()
        time.sleep(SECONDS)
        found = list(taken)
        worker.stop()
        thread.join(60)
    return mean(found), quantiles(found, n=100)[-1], seen


def _reading(worker: Worker) -> int:
    """Return how many shards are open and have a checkpoint with a position."""
    status = worker._observer._status
    if status is None:
        return 0
    return sum(view.checkpoints[shard].position is not None for view in status.sources for shard in view.open)


def _timed(worker: Worker) -> list[float]:
    """Return a list that the CPU time of each look is added to, in ms."""
    taken: list[float] = []
    begin_turn, serve = worker._observer.begin_turn, worker._serve
    observed = 0.0

    def timed_begin(*arguments: object, **options: object) -> None:
        nonlocal observed
        before = time.thread_time()
        begin_turn(*arguments, **options)  # type: ignore[arg-type]
        observed += time.thread_time() - before

    def timed_serve() -> None:
        nonlocal observed
        before = time.thread_time()
        serve()
        taken.append((time.thread_time() - before + observed) * 1000)
        observed = 0.0

    worker._observer.begin_turn, worker._serve = timed_begin, timed_serve  # type: ignore[method-assign]
    return taken

"""Plays mutants: the tests that each names must pass without it, and one of them must fail with it."""

from __future__ import annotations

import json
import queue
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from relay.services.dynamodb import DynamoDBLocal
from relay.services.kafka import KafkaBroker
from relay.services.redis import RedisServer
from tests.mutants.catalogue import ROOT, Mutant
from tests.mutants.copies import Copy, RunResult
from tests.running import RUNNING

_FIRST_RUN = 900.0  # seconds for all tests together, without a mutant
_PATIENCE = 180.0  # seconds that a run may take beside its tests, which wait for at least 60 s for what never comes
_TIMES = 5  # as long as without the mutant, after which tests hang


class Fate(StrEnum):
    """What became of a mutant. All but KILLED fail the run. BROKEN: the tests could not be run with it."""

    KILLED = "killed"
    SURVIVED = "SURVIVED"
    HUNG = "HUNG"
    BROKEN = "BROKEN"


@dataclass(frozen=True)
class Verdict:
    """``by``: the test that failed, or why none did."""

    mutant: Mutant
    fate: Fate
    by: str
    seconds: float


class BaselineFailed(Exception):
    """Tests fail, or cannot be run, without any mutant."""


def play(
    mutants: Sequence[Mutant],
    tell: Callable[[Verdict], object],
    *,
    jobs: int = 2,
    source: Path = ROOT,
    patience: float = _PATIENCE,
) -> list[Verdict]:
    """Play ``mutants`` of the checkout ``source``, ``jobs`` at once; call ``tell`` with each verdict as it comes.

    ``patience``: seconds that a run of tests may take beside its tests. Raises
    ``CatalogueError`` if the text of one is not in its file exactly once, and ``BaselineFailed``.
    """
    for mutant in mutants:
        mutant.applied_to((source / mutant.file).read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory(prefix="relay-mutants-") as folder, ExitStack() as stack:
        copies = [Copy(source, Path(folder) / f"{number}" / "copy") for number in range(jobs)]
        tests = Tests(copies[0], mutants)
        environment = stack.enter_context(_services(tests.services))
        tests.run_without_mutants(copies, environment)
        free: queue.SimpleQueue[Copy] = queue.SimpleQueue()
        for copy in copies:
            free.put(copy)

        def played(mutant: Mutant) -> Verdict:
            copy = free.get()
            try:
                verdict = _play(mutant, copy, tests, patience, environment)
            finally:
                free.put(copy)
            tell(verdict)
            return verdict

        with ThreadPoolExecutor(jobs) as pool:
            # Those that need a service come last, together.
            return list(pool.map(played, sorted(mutants, key=tests.needs_services)))


class Tests:
    """The tests that mutants name. ``services``: those that they share."""

    __test__ = False

    def __init__(self, copy: Copy, mutants: Sequence[Mutant]) -> None:
        self.named = list(dict.fromkeys(test for mutant in mutants for test in mutant.tests))
        collected = copy.run(self.named, "--collect-only", timeout=_FIRST_RUN)
        self._using = collected.services
        if not collected.ended or collected.broken or "not found:" in collected.output:
            raise BaselineFailed(f"the tests cannot be collected:\n{collected.output[-3000:]}")
        self.services = {service for used in self._using.values() for service in used}
        self._seconds: dict[str, float] = {}

    def needs_services(self, mutant: Mutant) -> bool:
        return any(_is_of(node, test) for test in mutant.tests for node in self._using)

    def run_without_mutants(self, copies: Sequence[Copy], environment: Mapping[str, str]) -> None:
        """Run all of them, at once in all copies. Raises ``BaselineFailed`` unless each passes."""
        parts = [self.named[number :: len(copies)] for number in range(len(copies))]
        with ThreadPoolExecutor(len(copies)) as pool:
            done = list(pool.map(_run, copies, parts, [environment] * len(copies)))
        for result, part in zip(done, parts, strict=True):
            self._seconds |= result.seconds
            missing = [test for test in part if not any(_is_of(node, test) for node in result.passed)]
            if not result.ended or result.failed or result.broken or missing:
                which = ", ".join(dict.fromkeys([*result.failed, *result.broken, *missing])) or "a run did not end"
                raise BaselineFailed(f"without a mutant, these tests do not pass: {which}\n{result.output[-3000:]}")

    def seconds_of(self, mutant: Mutant) -> float:
        """Return what the tests of ``mutant`` took without it."""
        return sum(took for node, took in self._seconds.items() if any(_is_of(node, test) for test in mutant.tests))


def _run(copy: Copy, tests: Sequence[str], environment: Mapping[str, str]) -> RunResult:
    return copy.run(tests, timeout=_FIRST_RUN, environment=environment) if tests else RunResult(True, "")


def _play(mutant: Mutant, copy: Copy, tests: Tests, patience: float, environment: Mapping[str, str]) -> Verdict:
    begun = time.monotonic()
    with copy.mutated(mutant):
        limit = (patience / 4 if mutant.hangs else patience) + _TIMES * tests.seconds_of(mutant)
        result = copy.run(mutant.tests, "-x", timeout=limit, environment=environment)
    took = time.monotonic() - begun
    if not result.ended:
        return Verdict(mutant, Fate.KILLED if mutant.hangs else Fate.HUNG, f"stopped after {took:.0f} s", took)
    if result.failed:
        return Verdict(mutant, Fate.KILLED, result.failed[0], took)
    if result.broken or not result.passed:
        return Verdict(mutant, Fate.BROKEN, (result.broken or [result.output[-500:]])[0], took)
    return Verdict(mutant, Fate.SURVIVED, "", took)


def _is_of(node: str, test: str) -> bool:
    """Whether ``node`` is the test ``test`` with any parameters."""
    return node == test or node.startswith(f"{test}[")


@contextmanager
def _services(wanted: set[str]) -> Iterator[dict[str, str]]:
    """Start the services that tests share; yield the variables by which the tests find them."""
    with ExitStack() as stack:
        found: dict[str, dict[str, str]] = {}
        if "kafka" in wanted:
            found["kafka"] = {"bootstrap_servers": stack.enter_context(KafkaBroker()).bootstrap_servers}
        if "redis_server" in wanted:
            found["redis_server"] = {"url": stack.enter_context(RedisServer()).url}
        if "dynamodb" in wanted:
            found["dynamodb"] = {"endpoint_url": stack.enter_context(DynamoDBLocal()).endpoint_url}
        yield {RUNNING: json.dumps(found)} if found else {}

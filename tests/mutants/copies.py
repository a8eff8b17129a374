"""Copies of the checkout, in which mutants are played: the checkout itself is never changed."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.mutants.catalogue import Mutant


@dataclass
class RunResult:
    """What came of a run of tests. ``ended``: before its timeout. ``failed``: in the test itself.

    ``broken``: in a fixture or in an import, which proves nothing. ``services``: by test, those it shares.
    """

    ended: bool
    output: str
    passed: Sequence[str] = ()
    failed: Sequence[str] = ()
    broken: Sequence[str] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    services: Mapping[str, Sequence[str]] = field(default_factory=dict)


class Copy:
    """A copy of the checkout ``source`` in ``folder``, with the files that git knows and those that it would add."""

    def __init__(self, source: Path, folder: Path) -> None:
        self.folder = folder.resolve()
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=source,
            capture_output=True,
            check=True,
        ).stdout
        for name in listed.decode().split("\0"):
            if name and (source / name).is_file():
                target = self.folder / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source / name, target)

    @contextmanager
    def mutated(self, mutant: Mutant) -> Iterator[None]:
        """Change the code. Raises ``CatalogueError`` if the mutant's text is not in it exactly once."""
        path = self.folder / mutant.file
        source = path.read_text(encoding="utf-8")
        changed = mutant.applied_to(source)
        try:
            self._write(path, changed)
            yield
        finally:
            self._write(path, source)

    def _write(self, path: Path, source: str) -> None:
        path.write_text(source, encoding="utf-8")
        # Two writes in one second, of texts of one length, look the same to Python.
        Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)

    def run(
        self, tests: Sequence[str], *options: str, timeout: float, environment: Mapping[str, str] | None = None
    ) -> RunResult:
        """Run ``tests`` on the code of this copy; after ``timeout`` seconds, kill them."""
        report, log = self.folder / "report.json", self.folder / "report.log"
        report.unlink(missing_ok=True)
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.mutants.inside", str(report), *options, *tests],
                cwd=self.folder,
                # Before the packages that are installed, of which the checkout is one.
                env={**os.environ, **(environment or {}), "PYTHONPATH": str(self.folder)},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                process.wait(timeout)
                ended = True
            except subprocess.TimeoutExpired:
                ended = False
            finally:
                with suppress(ProcessLookupError):  # also what the tests left behind
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        said = log.read_text(encoding="utf-8", errors="replace")
        found: dict[str, Any] = json.loads(report.read_text(encoding="utf-8")) if report.exists() else {}
        found.pop("code", None)
        return RunResult(ended, said, **found)

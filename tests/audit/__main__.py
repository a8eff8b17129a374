"""``make audit``: play soaks from seeds, let the checker judge their histories, and write the page of all runs.

Exit code 4 if a run fails: it is played again without one kind of fault after the other, and the fewest kinds with
which it still failed are told. Histories of runs that failed are kept.
"""

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.audit.page import RUNS, write_page
from tests.audit.record import (
    CopyReader,
    History,
    record_applied,
    record_committed,
    record_gaps,
    record_log,
    record_reads,
    record_topic,
)
from tests.soak.audited_lines import AuditedLines
from tests.soak.soak import PARTS, Soak

_CHECKER = Path(__file__).with_name("checker.py")


def play(
    folder: Path,
    seed: int,
    parts: Collection[str],
    seconds: float,
    spared: Collection[str] = (),
    *,
    brokers: int = 1,
    rate: float | None = None,
) -> dict[str, Any]:
    """Play one run and return what the checker found, with what was done to it."""
    histories = folder / "histories"
    network = seed % 2 == 1  # a million changes take longer through a proxy, so each other run goes without
    soak = Soak(folder, seed, parts, rate=rate, network=network, spared=spared, brokers=brokers)
    with (folder / "soak.log").open("w") as log:
        soak.say = lambda line: print(line, file=log, flush=True)
        totals = soak.play(seconds, beside=lambda soak: _recorded(soak, histories))
    answer = subprocess.run(
        [sys.executable, "-I", "-S", str(_CHECKER), str(histories)], capture_output=True, check=False
    )
    if answer.returncode not in (0, 4):
        raise RuntimeError(f"the checker cannot read {histories}: {answer.stderr.decode()}")
    found = json.loads(answer.stdout)
    run = {
        "seed": seed,
        "parts": list(parts),
        "brokers": brokers,
        "seconds": totals.seconds,
        "network": network,
        **found,
    }
    # What the soak's own comparison says is shown beside it, and fails the run too.
    return {**run, "faults": dict(totals.kills), "own_comparison": totals.problems}


@contextmanager
def _recorded(soak: Soak, histories: Path) -> Iterator[None]:
    reader = None
    if soak.consumers is not None:
        reader = CopyReader(histories, soak.path.parent / "copy", soak.parts)
        reader.start()
    yield
    brokers = soak.broker.bootstrap_servers
    tables = {part.source()["name"]: part.table for part in soak.parts}
    for part in soak.parts:
        record_committed(histories, part)
        record_topic(histories, brokers, "soak", part, "soak")
        if isinstance(part, AuditedLines):
            with History(histories, "writes") as history:
                for each in part.transactions():
                    result = "ok" if each.wrote else "uncertain"
                    versions = {"first": each.first, "last": each.last}
                    history.add(who=each.who, table=part.table, **versions, wrote=each.wrote, result=result)
    record_gaps(histories, brokers, "soak", tables)
    if soak.consumers is not None and reader is not None:
        reader.end()
        record_log(histories, str(soak.path.parent / "log"))
        record_applied(histories, soak.consumers.log("cache"), {f"soak.{table}": table for table in tables.values()})
        for part, application in zip(soak.parts, soak.consumers.applications, strict=True):
            record_reads(histories, part, application.reads)


def failed(run: dict[str, Any]) -> bool:
    return bool(run["wrong"] or run["own_comparison"])


def fewest_faults(
    seed: int,
    parts: Collection[str],
    seconds: float,
    names: Collection[str],
    brokers: int = 1,
    rate: float | None = None,
) -> list[str]:
    """Return kinds of faults with which a run still fails, all of which are needed."""
    spared: list[str] = []
    for name in sorted(names):
        with tempfile.TemporaryDirectory(prefix="relay-audit-") as folder:
            if failed(play(Path(folder), seed, parts, seconds, [*spared, name], brokers=brokers, rate=rate)):
                spared.append(name)
    return sorted(set(names) - set(spared))


def main() -> int:
    """Read SEEDS, as in ``1-3,7``, SECONDS of each run, PARTS, BROKERS and RATE from ``RELAY_AUDIT_...``."""
    rate = float(os.environ.get("RELAY_AUDIT_RATE") or 0) or None
    brokers = int(os.environ.get("RELAY_AUDIT_BROKERS") or 1)
    seconds = float(os.environ.get("RELAY_AUDIT_SECONDS") or 120)
    parts = (os.environ.get("RELAY_AUDIT_PARTS") or ",".join(PARTS)).split(",")
    ranges = (part.partition("-") for part in (os.environ.get("RELAY_AUDIT_SEEDS") or "1-3").split(","))
    seeds = [seed for first, _, last in ranges for seed in range(int(first), int(last or first) + 1)]
    os.environ.setdefault("AWS_ACCESS_KEY_ID", "test")
    os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "test")
    # The processes end with the run, also if that is stopped.
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))
    code = 0
    for seed in seeds:
        folder = Path(tempfile.mkdtemp(prefix="relay-audit-"))
        os.environ |= {"RELAY_STATE": str(folder / "state"), "SPARK_LOCAL_DIRS": str(folder / "spark")}
        print(f"seed {seed}, {','.join(parts)}, {seconds:g} s, {brokers} brokers: in {folder}", flush=True)
        run = play(folder, seed, parts, seconds, brokers=brokers, rate=rate)
        run |= {"date": time.strftime("%Y-%m-%d"), "python": platform.python_version()}
        print(f"AUDIT {json.dumps(run)}", flush=True)
        if failed(run):
            code = 4
            fewest = fewest_faults(seed, parts, seconds, run["faults"], brokers, rate)
            print(f"seed {seed} fails with {fewest} alone", flush=True)
            continue  # its folder stays, for whoever looks for the cause
        with RUNS.open("a", encoding="utf-8") as runs:
            runs.write(json.dumps(run) + "\n")
        shutil.rmtree(folder, ignore_errors=True)
    write_page()
    return code


if __name__ == "__main__":
    sys.exit(main())

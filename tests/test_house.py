"""Rules that no tool checks: one meaning for each class name, a small root, helpers apart from tests, working links."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

NAMED_TWICE: dict[str, str] = {}
"""Class names that stand for two things, each with the reason why."""

ROOT_MODULES = 12

WALL_CLOCK = {
    "relay/cache/invalidator.py": "processes share the times in the entries of a cache",
    "relay/cache/memcached_store.py": "memcached takes times since the epoch",
    "relay/cache/token_cache.py": "processes share the times in the entries of a cache",
    "relay/commands/dead_letters.py": "a person says since when, such as -1h",
    "relay/demo/": "a program of its own, on the machine of its databases",
    "relay/dynamodb/lean_calls.py": "a signature has the time that botocore's have",
    "relay/stream/gap_decisions.py": "says when a record was written",
    "relay/engine/publishing.py": "a lag that is shown, and `relayed_at`",
    "relay/engine/status.py": "the age of what is by a source's clock, for those who look at it here",
    "relay/observe/history.py": "how long ago an earlier process has left something here",
    "relay/stream/watermark_records.py": "says when a record was written",
    "relay/kafka/checkpoints.py": "passed on to freshness.py",
    "relay/kafka/freshness.py": "while a machine sleeps, the monotonic clock may stand: the later one counts",
    "relay/kafka/group_offsets.py": "a person says since when, such as -1h",
    "relay/kafka/topic_writer.py": "`relayed_at`",
    "relay/kafka/unread.py": "whether a record of Kafka has waited long, which may be older than the process",
    "relay/mysql/probe.py": "tells a person since when a server does not answer",
    "relay/observe/consumers.py": "tells a person since when a table is set aside",
    "relay/observe/observer.py": "times and lags that are shown",
    "relay/operations/dead_letters.py": "the age of a record of Kafka, which is older than the process",
    "relay/operations/gaps.py": "says when a record was written",
    "relay/operations/mirrored.py": "a person's time may be in the future",
    "relay/operations/reset.py": "says when a record was written",
    "relay/operations/snapshot.py": "says when a record was written",
    "relay/operations/status.py": "a lag that is shown",
    "relay/operations/samples.py": "the age of a watermark, which is older than the process",
    "relay/operations/verify_cache.py": "processes share the times in the entries of a cache",
    "relay/operations/verify_forever.py": "the age of a watermark, which is older than the process",
    "relay/operations/verify_tables.py": "the age of a stored token, which is older than the process, and of a lag",
    "relay/process/service_clock.py": "the time until a database has said what it is",
    "spark_consumers/sinks/log_table.py": "when a table was tidied up, which outlives the process",
    "spark_consumers/cache_batches.py": "the age of a change, for a warning",
    "spark_consumers/gaps.py": "says when a table missed changes, to be compared with the `as_of` of snapshots",
    "spark_consumers/python_engine.py": "says when a batch was applied",
    "spark_consumers/replay/bounds.py": "a person says since when, such as -1h",
    "spark_consumers/runner.py": "says when a batch was applied",
    "spark_consumers/running.py": "the time of a line of the log",
    "spark_consumers/sinks/lake_table.py": "when a table was tidied up, and versions that outlive the process",
    "spark_consumers/sinks/tombstones.py": "the age of a tombstone, which is older than the process",
    "spark_consumers/sinks/upkeep.py": "when a table was tidied up, which outlives the process",
    "spark_consumers/table_consumer.py": "says when a gap was found, if no later record does",
}
"""The modules, or folders, that ask this machine what time it is, each with the reason why.

Waits count by the monotonic clock. What dates changes, and how far they are read, is the clock of their database:
``relay.process.service_clock``.
"""

# Not in .venv, which has more files than all else.
DOCUMENTS = sorted(
    path
    for top in ROOT.iterdir()
    if not top.name.startswith(".")
    for path in (top.rglob("*.md") if top.is_dir() else [top])
    if path.suffix == ".md" and not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
)


def test_no_class_name_stands_for_two_things() -> None:
    # Generated classes have their names in stubs only.
    files = [
        path
        for package in ("relay", "spark_consumers")
        for kind in ("py", "pyi")
        for path in (ROOT / package).rglob(f"*.{kind}")
    ]
    texts = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in sorted(files)}
    # Some of these are in docstrings; to parse all files takes several times as long.
    words = {path: re.findall(r"^\s*class (\w+)", text, re.MULTILINE) for path, text in texts.items()}
    often = {name for name, times in Counter(chain.from_iterable(words.values())).items() if times > 1}
    homes = defaultdict(list)
    for path in (path for path, names in words.items() if not often.isdisjoint(names)):
        for node in ast.walk(ast.parse(texts[path])):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(path)
    twice = {name: paths for name, paths in homes.items() if len(paths) > 1}
    assert twice.keys() == NAMED_TWICE.keys(), twice


def test_the_root_of_relay_stays_small() -> None:
    modules = [path.stem for path in (ROOT / "relay").glob("*.py")]
    assert len(modules) <= ROOT_MODULES, sorted(modules)


def test_only_a_few_modules_ask_this_machine_what_time_it_is() -> None:
    """I1: somebody may set its clock at any time."""
    asking = {
        path.relative_to(ROOT).as_posix()
        for package in ("relay", "spark_consumers")
        for path in (ROOT / package).rglob("*.py")
        if re.search(
            r"\btime\.time(_ns)?\b|from time import .*\btime\b|datetime\.(now|utcnow)\b", path.read_text("utf-8")
        )
    }
    listed = {path: next((name for name in WALL_CLOCK if path.startswith(name)), None) for path in asking}
    assert [path for path, name in listed.items() if name is None] == []
    assert WALL_CLOCK.keys() - set(listed.values()) == set()


def test_no_module_imports_from_a_test_module() -> None:
    """Helpers that two test modules share have a module of their own."""
    found = [
        f"{path.relative_to(ROOT)}: {line}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.match(
            r"\s*(from tests[\w.]*\.test_\w+ import|from tests[\w.]* import test_|import tests[\w.]*\.test_)", line
        )
    ]
    assert found == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_between_documents_lead_to_a_file_and_a_heading(document: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", document.read_text(encoding="utf-8")):
        name, _, anchor = target.partition("#")
        path = document.parent / name if name else document
        assert path.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in [re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings], target

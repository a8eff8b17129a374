"""Puts the site together: the Markdown of all folders as it is, and pages that are made from code.

The pages have the paths that their files have in the repository, so links work in both. A README.md becomes the page of
its folder. A link to a file that is not a page becomes a download of it, or leads to the page that is made from it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from deploy.docs import from_code

ROOT = Path(__file__).parents[2]
HERE = "deploy/docs"

CHAPTERS: dict[str, tuple[str, ...]] = {
    "Tutorial": (f"{HERE}/tutorial",),
    "How to relay tables": (
        f"{HERE}/how_to/install",
        f"{HERE}/how_to/dynamodb",
        f"{HERE}/how_to/sql",
        f"{HERE}/how_to/tables",
        f"{HERE}/how_to/columns",
        f"{HERE}/how_to/kafka",
        f"{HERE}/how_to/debezium",
        f"{HERE}/how_to/config",
    ),
    "How to use the topics": (
        f"{HERE}/how_to/read",
        f"{HERE}/how_to/consumers",
        f"{HERE}/how_to/cache",
        f"{HERE}/how_to/copy",
        f"{HERE}/how_to/log",
        f"{HERE}/how_to/verify",
        f"{HERE}/how_to/replay",
        f"{HERE}/how_to/python",
    ),
    "How to operate": (
        f"{HERE}/how_to/run",
        "deploy/index",
        f"{HERE}/how_to/commands",
        f"{HERE}/how_to/size",
        f"{HERE}/how_to/gaps",
        f"{HERE}/how_to/upgrade",
        f"{HERE}/how_to/back_up",
        f"{HERE}/how_to/secure",
        "runbook",
    ),
    "Reference": (
        "config",
        "commands",
        f"{HERE}/reference/exit_codes",
        "relay/observe/index",
        "schemas/index",
        "avro",
        "relay/kafka/index",
        f"{HERE}/reference/tables",
        f"{HERE}/reference/debezium",
        f"{HERE}/reference/cache_keys",
        f"{HERE}/reference/spark_versions",
    ),
    "Explanation": (
        f"{HERE}/explanation/concepts",
        f"{HERE}/explanation/guarantees",
        f"{HERE}/explanation/exactly_once",
        f"{HERE}/explanation/tokens",
        f"{HERE}/explanation/gaps",
        f"{HERE}/explanation/snapshots",
        f"{HERE}/explanation/watermarks",
        f"{HERE}/explanation/consumers",
        f"{HERE}/explanation/cache",
        f"{HERE}/explanation/change_log",
        f"{HERE}/explanation/copy",
        f"{HERE}/explanation/lost_state",
        f"{HERE}/audit",
        f"{HERE}/explanation/performance",
        "benchmarks",
        f"{HERE}/explanation/comparison",
    ),
    "Each part in detail": (
        "relay/dynamodb/index",
        "relay/dynamodb/models/index",
        "relay/vitess/index",
        "relay/mysql/index",
        "relay/aws/index",
        "relay/cache/index",
        "relay/keyspace/index",
        "relay/demo/index",
    ),
    "Project": (
        f"{HERE}/promises",
        "SECURITY",
        "CHANGELOG",
        "CONTRIBUTING",
        "relay/index",
        "relay/config/index",
        "relay/mysql_dialect/index",
        "spark_consumers/index",
        "spark_consumers/sinks/index",
        "relay/native/index",
        "relay/services/index",
        "tests/index",
        "tests/audit/index",
        "tests/mutants/index",
        f"{HERE}/index",
    ),
}
"""The chapters of the site beside the first page, which is README.md, and their pages. Sphinx refuses one left out."""

TITLES = {
    "relay/index": "Architecture of the relay",
    "relay/dynamodb/index": "DynamoDB",
    "relay/vitess/index": "Vitess",
    "relay/mysql/index": "MySQL and MariaDB",
    "relay/config/index": "Modules of the config",
    "relay/mysql_dialect/index": "Modules of MySQL's dialect",
    "relay/aws/index": "AWS: roles, RDS, MSK",
    "spark_consumers/index": "Architecture of the consumers",
    "relay/keyspace/index": "Queries over shards, with tokens",
    "relay/kafka/index": "Topics, and readers of your own",
    "relay/dynamodb/models/index": "Models of DynamoDB tables",
    "deploy/index": "Deploy",
    "relay/observe/index": "Metrics, health and status page",
    "relay/native/index": "Compiled core",
}
"""What the contents call a page whose own title is the name of its folder."""

MADE_FROM = {
    "relay/config/config.py": "config",
    "relay/cli.py": "commands",
    "schemas/change.avsc": "avro",
    "deploy/prometheus/alerts.yaml": "runbook",
    "deploy/docs/benchmarks.json": "benchmarks",
}
"""The page that is made from a file: a link to the file becomes a link to the page."""

_LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")


def build(folder: Path) -> int:
    """Write the site into ``folder``. Return Sphinx's exit code: a link that leads nowhere is an error."""
    with tempfile.TemporaryDirectory() as temporary:
        stage(Path(temporary))
        # Pages of an earlier build that are no longer made would stay.
        shutil.rmtree(folder, ignore_errors=True)
        options = ["-W", "--keep-going", "-q", "-c", str(Path(__file__).parent), "-d", f"{temporary}/.doctrees"]
        return subprocess.run([sys.executable, "-m", "sphinx", *options, temporary, str(folder)]).returncode


def stage(folder: Path) -> None:
    """Write the pages as Sphinx reads them, and the files that they link to, into ``folder``."""
    for path in documents():
        page = path.relative_to(ROOT)
        text = path.read_text(encoding="utf-8")
        _provide_targets(text, path.parent, folder)
        if page == Path("README.md"):
            text += _contents()
        text = _LINK.sub(partial(_to_page, page.parent), text)
        _write(folder / page.parent / page.name.replace("README", "index"), text)
    for name, text in from_code.pages().items():
        _provide_targets(text, ROOT, folder)
        _write(folder / f"{name}.md", text)


def documents() -> Iterator[Path]:
    """Yield the Markdown files of the repository: those that git has, or would add."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    for name in subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines():
        if not name.startswith("."):
            yield ROOT / name


def _to_page(here: Path, link: re.Match[str]) -> str:
    page = MADE_FROM.get(os.path.normpath(here / link[1]))
    target = f"{os.path.relpath(page, here)}.md" if page else re.sub(r"README[.]md$", "index.md", link[1])
    return f"]({target}{link[2] or ''})"


def _provide_targets(text: str, here: Path, folder: Path) -> None:
    """Copy the files that ``text`` links to from the folder ``here`` and that are not pages."""
    for name, _ in _LINK.findall(text):
        target = (here / name).resolve()
        if target.is_file() and target.suffix != ".md":
            copy = folder / target.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(target, copy)


def _contents() -> str:
    return "".join(
        "\n".join(("", "```{toctree}", ":hidden:", f":caption: {chapter}", "", *map(_entry, pages), "```", ""))
        for chapter, pages in CHAPTERS.items()
    )


def _entry(page: str) -> str:
    return f"{TITLES[page]} <{page}>" if page in TITLES else page


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")

"""The metrics as ``relay/observe/README.md`` has them, with their units and what an operator should do."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import relay.observe

README = Path(relay.observe.__file__).with_name("README.md")


class Documented(NamedTuple):
    """A row of the tables of metrics."""

    name: str
    kind: str
    labels: str
    unit: str
    help: str
    act: str


def documented() -> list[Documented]:
    lines = (line for line in README.read_text().splitlines() if line.startswith("| `relay_"))
    rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    return [Documented(name.strip("`"), *cells) for name, *cells in rows]

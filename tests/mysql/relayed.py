"""A relay of one database, by its commands."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from relay.avro.registry import open_schemas
from relay.cli import app
from relay.config import load
from relay.services.mariadb import PASSWORD, USER
from tests.topic_changes import read_changes


class Relayed:
    """A relay of one database."""

    def __init__(self, folder: Path, database: str, bootstrap_servers: str, shards: str) -> None:
        self.path = folder / "relay.yaml"
        self._place = database, bootstrap_servers
        self.write(shards)

    def write(self, shards: str) -> None:
        database, bootstrap_servers = self._place
        self.path.write_text(
            f"""name: {database}
kafka: {{bootstrap_servers: "{bootstrap_servers}", partitions: 2}}
sources:
  - {{name: shop, type: mysql, database: {database}, user: {USER}, password: {PASSWORD}, shards: {shards}}}
"""
        )

    def command(self, *arguments: str, code: int = 0) -> Result:
        result = CliRunner().invoke(app, [*arguments])
        assert result.exit_code == code, (result.output, result.exception)
        return result

    def run(self, code: int = 0) -> Result:
        return self.command("run", str(self.path), "--until-caught-up", code=code)

    def changes(self, table: str) -> list[dict[str, Any]]:
        config = load(self.path)
        with closing(open_schemas(config)) as schemas:
            found = read_changes(config.kafka.client(), config.topic(table), schemas)
        return [change for _, _, change in sorted(found, key=lambda change: change[:2])]

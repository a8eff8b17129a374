"""Writers, an audited table, and the relays over it: what the tests of both kinds of SQL sources have in common."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import yaml

from relay.avro.registry import open_schemas
from relay.change import MARK
from relay.config import load
from relay.errors import Unavailable
from tests.command_line import run_until_caught_up
from tests.faults.audited import TABLE, Connect, Writer
from tests.faults.copied import copied, seen
from tests.faults.harness import Relay, relay_command
from tests.topic_changes import read_changes


class World:
    """Three writers, begun by ``start_writers``, and the relays that were started, one after the other.

    ``place``: the database that a customer is in now. ``source``: the entry of the config. ``writer``: the class of the
    writers.
    """

    def __init__(
        self,
        folder: Path,
        servers: str,
        name: str,
        seed: int,
        *,
        connect: Connect,
        place: Callable[[int], str],
        source: Mapping[str, Any],
        writer: type[Writer] = Writer,
    ) -> None:
        self.folder = folder
        self.seed = seed
        self.connect = connect
        self.writers = [writer(connect, place, range(n, 60, 3), seed * 10 + n) for n in range(3)]
        self.path = folder / "relay.yaml"
        kafka = {"bootstrap_servers": servers, "producer": {"transaction.timeout.ms": 2000}}
        entry = {**source, "tables": [TABLE]}
        self.path.write_text(yaml.safe_dump({"name": name, "kafka": kafka, "sources": [entry]}))
        self.relays: list[Relay] = []

    def start(self, *arguments: str) -> Relay:
        relay = Relay(relay_command("run", str(self.path), *arguments), self.folder / f"relay-{len(self.relays)}.log")
        self.relays.append(relay)
        return relay

    def going(self, relay: Relay) -> Relay:
        """Return ``relay``, or one in its place if it was started while there was nothing to connect to."""
        if relay.is_running:
            return relay
        assert relay.wait(0) == Unavailable.exit_code, relay.log()
        return self.start()

    def start_writers(self) -> None:
        for writer in self.writers:
            writer.start()

    def stop_writers(self) -> None:
        """Raises what made one of them fail."""
        for writer in self.writers:
            writer.stop()

    def catch_up(self) -> None:
        run_until_caught_up(self.path)

    def finish(self, relay: Relay) -> None:
        """Stop the writers, end ``relay`` once it reads what it took over, and let another one read the rest."""
        self.stop_writers()
        relay = self.going(relay)
        relay.wait_for("took over")
        assert relay.terminate() == 0, relay.log()
        self.catch_up()

    def paused(self) -> ExitStack:
        """Hold all writers between two transactions, for as long as what is returned is entered."""
        with ExitStack() as stack:
            for writer in self.writers:
                stack.enter_context(writer.gate)
            return stack.pop_all()

    def changes(self) -> list[tuple[int, int, dict[str, Any]]]:
        """Return partition, offset and value of every change on the topic."""
        config = load(self.path)
        with closing(open_schemas(config)) as schemas:
            return read_changes(config.kafka.client(), config.topic(TABLE), schemas)

    def copy(self) -> dict[tuple[int, int], tuple[int, str]]:
        """Return what the copy has, by the changes on the topic."""
        found = []
        for partition, _, value in sorted(self.changes(), key=lambda change: change[:2]):
            key, new = value["key"], value["new"]
            item = (key["customer"], key["line"]) if key else None
            found.append(seen(partition, value, item=item, new=(new["version"], new["note"]) if new else None))
        return copied(found)

    def reads(self) -> list[dict[str, Any]]:
        return [value for _, _, value in self.changes() if value["operation"] == "READ" and value["key"]]

    def marks(self) -> Counter[str]:
        return Counter(
            value["attributes"][MARK]
            for _, _, value in self.changes()
            if value["operation"] == "READ" and not value["key"]
        )

    def close(self) -> None:
        for writer in self.writers:
            writer.end()
        for relay in self.relays:
            relay.kill()

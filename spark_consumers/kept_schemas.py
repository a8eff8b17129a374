"""Schemas of a registry that a consumer has used, stored in a file for times when the registry does not answer."""

import json
from collections.abc import Mapping, Set
from typing import Any

from relay.config import Config
from relay.config.hidden import redacted
from spark_consumers.locations import HadoopFolder, LocalFolder

_FILE = "schemas.json"


class KeptSchemas:
    """Stores schemas from the registry of ``config`` in ``folder``. Without a registry, stores nothing."""

    def __init__(self, folder: LocalFolder | HadoopFolder, config: Config) -> None:
        self._folder = folder
        registry = config.schema_registry
        self._registry = "" if registry is None else redacted(registry.url)
        # What the file is known to have, so that a batch without new schemas does not read it.
        self._stored: Set[bytes] = frozenset()

    def read(self) -> dict[bytes, dict[str, Any]]:
        """Return the schemas stored from this registry: in another, their ids mean different schemas."""
        found = json.loads(self._folder.read(_FILE) or "{}")
        schemas = found["schemas"] if found.get("registry") == self._registry else {}  # I8
        return {bytes.fromhex(header): schema for header, schema in schemas.items()}

    def note(self, known: Mapping[bytes, Mapping[str, Any]]) -> None:
        """Store schemas in addition to the earlier ones. Raises ``OSError``."""
        if not self._registry or known.keys() <= self._stored:
            return
        earlier = self.read()
        if not known.keys() <= earlier.keys():
            schemas = {header.hex(): schema for header, schema in {**earlier, **known}.items()}
            self._folder.write(_FILE, json.dumps({"registry": self._registry, "schemas": schemas}))
        self._stored = earlier.keys() | known.keys()

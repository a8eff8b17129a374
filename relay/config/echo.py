"""An equivalent config file: with defaults, and with secrets hidden."""

from pathlib import Path
from typing import Any

import yaml

from relay.config.config import Config
from relay.config.hidden import HIDDEN, as_written, holds_secret, redacted
from relay.config.value_types import StartAtToken
from relay.config.yaml_file import Document, Location


def echo(config: Config, document: Document) -> dict[str, Any]:
    """Return the data of an equivalent file, in which each DynamoDB table is a source. ``document``: the config's."""
    found = config.model_dump(mode="json", by_alias=True, exclude_none=True)
    folder = Path(document.name).parent.absolute()
    found["sources"] = [{"name": source["name"], "type": source["type"], **source} for source in found["sources"]]
    for number, source in enumerate(config.sources):
        if isinstance(source.start, StartAtToken):
            found["sources"][number]["start"] = {"token": str(folder / Path(source.start.path).expanduser())}
    return {key: _shown(each, (key,), config, document) for key, each in found.items()}


def to_yaml(data: dict[str, Any]) -> str:
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=120)


def _shown(value: Any, location: Location, config: Config, document: Document) -> Any:
    if isinstance(value, dict):
        return {key: _shown(each, (*location, key), config, document) for key, each in value.items()}
    if isinstance(value, list):
        return [_shown(each, (*location, number), config, document) for number, each in enumerate(value)]
    place = location
    if location[0] == "sources" and isinstance(location[1], int):
        place = ("sources", config.entry_of(location[1]), *location[2:])
    if holds_secret(place):
        return HIDDEN
    if place in document.variables:
        text = as_written(document.variables[place])
        held = document.value(place)
        # If an entry has several tables, the name of each source begins with the entry's name.
        return text + value.removeprefix(held) if place[-1] == "name" else text
    return redacted(value)

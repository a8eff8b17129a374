"""Each example is a config that loads, and together they show every source and every sink."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from relay.config import Config, load
from tests.deploy import DEPLOY

EXAMPLES = sorted((DEPLOY / "examples").glob("*.yaml"))


def loaded(path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """Return the config of a file whose secrets are all ``secret``."""
    for name in re.findall(r"\$\{(\w+)\}", path.read_text()):
        monkeypatch.setenv(name, "secret")
    return load(path)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_loads(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert loaded(path, monkeypatch).name == "shop"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_holds_no_secret(path: Path) -> None:
    for line in path.read_text().splitlines():
        for value in re.findall(r"password:\s*(\S+?)[\s,}]*$|://\w+:([^@\s]+)@", line):
            assert "".join(value).strip('"').startswith("${"), line


def test_the_examples_show_every_source_and_every_sink(monkeypatch: pytest.MonkeyPatch) -> None:
    configs = [loaded(path, monkeypatch) for path in EXAMPLES]
    assert {source.type for config in configs for source in config.sources} == {"dynamodb", "mysql", "vitess"}
    schemes = {
        section.url.partition(":")[0] for config in configs for section in (config.cache, config.copy_) if section
    }
    assert schemes >= {"redis", "redis+sentinel", "memcached", "delta", "postgresql"}
    assert {config.log.path.partition(":")[0] for config in configs if config.log} == {"file", "s3a"}

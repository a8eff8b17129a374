"""The key ``http``: an address alone, or a mapping that also says who may look."""

from __future__ import annotations

from pathlib import Path

import pytest

from relay.config import HttpConfig, load, redacted
from tests.config.configs import change, read, refused

ADDRESS = 'http: "127.0.0.1:9400"'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "relay.yaml"


def test_an_address_alone_is_a_port_for_everybody(file: Path) -> None:
    config = read(file, change(ADDRESS, ADDRESS))
    assert config.http == HttpConfig(address="127.0.0.1:9400")
    assert config.file == str(file)


def test_a_mapping_has_credentials_that_are_not_shown(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGE_PASSWORD", "hunter2")
    secured = 'http: {address: "0.0.0.0:1", user: ops, password: "${PAGE_PASSWORD}", bearer: hunter2, peers: ["b:1"]}'
    http = read(file, change(ADDRESS, secured)).http
    assert http is not None
    assert (http.user, http.password, http.bearer, http.peers) == ("ops", "hunter2", "hunter2", ["b:1"])
    assert "hunter2" not in f"{http!r} {redacted(http.model_dump())}"
    assert load(file, ["http.user=you"]).http == http.model_copy(update={"user": "you"})


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ("http: 9400", "`http`"),
        ("http: localhost", "`http`: 'localhost' is not an address to listen on"),
        ("http: {user: a, password: b}", "`http.address` is missing"),
        ('http: {address: "h:1", user: a}', "`user` and `password` belong together"),
        ('http: {address: "h:1", password: a}', "`user` and `password` belong together"),
        ('http: {address: "h:1", user: "a:b", password: c}', "`http.user`: cannot contain a colon"),
        ('http: {address: "h:1", bearer: ""}', "`http.bearer`"),
        ('http: {address: "h:1", key: a.pem}', "set `certificate`"),
        ('http: {address: "h:1", peers: [b]}', "`http.peers[0]`: 'b' is not an address to connect to"),
        ('http: {address: "h:1", passwort: c}', "did you mean `password`?"),
    ],
)
def test_a_wrong_mapping_is_refused(file: Path, written: str, problem: str) -> None:
    [line] = refused(file, change(ADDRESS, written))
    assert problem in line

"""Which Java is used, and the error if there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from relay.errors import Unavailable
from relay.jvm.java import find_java
from relay.services.dynamodb import DynamoDBLocal
from tests.jvm.fake_java import write_java

NEW = 'openjdk version "21.0.2" 2024-01-16'
OLD = 'java version "1.8.0_292"'


@pytest.fixture(autouse=True)
def no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")


def test_without_java_the_message_says_what_to_install() -> None:
    expected = r"Java 17 or newer is needed: install it, such as openjdk-17-jre-headless.*no java on the PATH"
    with pytest.raises(Unavailable, match=expected):
        find_java()


def test_without_java_a_server_does_not_start_and_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("RELAY_CACHE", str(tmp_path / "cache"))
    with pytest.raises(Unavailable, match="Java 17 or newer is needed"):
        DynamoDBLocal().start()
    assert list(tmp_path.glob("relay-*")) == []


@pytest.mark.parametrize(
    ("line", "found"), [(OLD, "8"), ('openjdk version "11.0.2" 2019-01-15', "11"), ('openjdk version "16" 2021', "16")]
)
def test_a_java_that_is_too_old_is_named_with_its_release(
    line: str, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = write_java(tmp_path, line)
    monkeypatch.setenv("PATH", f"{java.parent}:/usr/bin:/bin")
    with pytest.raises(Unavailable, match=rf"{java} is Java {found}\)"):
        find_java()


@pytest.mark.parametrize("line", [NEW, 'openjdk version "17" 2021-09-14', 'java version "25-ea" 2025-09-16'])
def test_a_java_that_is_new_enough_is_used(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = write_java(tmp_path, line)
    monkeypatch.setenv("PATH", f"{java.parent}:/usr/bin:/bin")
    assert find_java() == java


def test_java_home_comes_before_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = write_java(tmp_path / "home", NEW)
    path = write_java(tmp_path / "path", NEW)
    monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert find_java() == home


@pytest.mark.parametrize("home", ["old", "missing"])
def test_an_unusable_java_home_is_ignored(home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_java(tmp_path / "old", OLD)
    path = write_java(tmp_path / "path", NEW)
    monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / home))
    assert find_java() == path


def test_a_java_that_does_not_print_its_version_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = write_java(tmp_path, "hello")
    monkeypatch.setenv("PATH", f"{java.parent}:/usr/bin:/bin")
    with pytest.raises(Unavailable, match="does not print its version"):
        find_java()

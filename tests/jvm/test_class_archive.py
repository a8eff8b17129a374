"""Java uses an archive of classes only where it fits, and starts in any case."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from relay.jvm.java import find_java
from tests.jvm.class_archive import archive_of, using


@pytest.mark.parametrize("content", [None, b"", b"no archive" * 1000])
def test_java_starts_without_an_archive_that_is_missing_or_damaged_and_prints_nothing_of_it(
    tmp_path: Path, content: bytes | None
) -> None:
    archive = tmp_path / "classes.jsa"
    if content is not None:
        archive.write_bytes(content)
    java = str(find_java())
    commands = [java, "--version"], [java, *using(archive), "--version"]
    plain, said = (
        subprocess.run(each, capture_output=True, text=True, timeout=600, check=True).stdout.splitlines()
        for each in commands
    )
    assert said[0] == plain[0]
    assert len(said) == len(plain)


def test_other_jars_and_jars_elsewhere_have_another_archive(tmp_path: Path) -> None:
    jar = tmp_path / "some.jar"
    jar.write_bytes(b"1")
    first = archive_of("some", [jar])
    assert archive_of("some", [jar]) == first
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert archive_of("some", [Path(shutil.copy2(jar, elsewhere))]) != first
    jar.write_bytes(b"22")
    assert archive_of("some", [jar]) != first

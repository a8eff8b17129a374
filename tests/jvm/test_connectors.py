"""Which versions of Spark the consumers run on, and with what."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path

import pyspark
import pytest

from relay.errors import Unavailable
from relay.jvm.connectors import CONNECTORS, connectors_of, iceberg_of, installed_spark
from relay.jvm.jars import SETS

PYPROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())


def test_the_extra_installs_the_versions_that_the_table_has() -> None:
    (spec,) = PYPROJECT["project"]["optional-dependencies"]["spark"]
    minors = [tuple(map(int, version.split("."))) for version in CONNECTORS]
    assert minors == [(4, number) for number in range(len(minors))]
    assert spec == f"pyspark>=4.0.0,<4.{len(minors)}"


def test_the_version_is_found_without_an_import_of_pyspark() -> None:
    assert installed_spark() == pyspark.__version__


def test_each_version_has_artifacts_and_folders_of_its_own() -> None:
    sets = [each for found in CONNECTORS.values() for each in (found.spark, found.iceberg) if each]
    assert len({each.folder for each in (*sets, *SETS.values())}) == len(sets) + len(SETS)
    for version, found in CONNECTORS.items():
        assert connectors_of(f"{version}.7-amzn-0") is found
        of_spark = [each for each in found.spark.artifacts if each.group == "org.apache.spark"]
        assert all(each.version.startswith(f"{version}.") for each in of_spark)
        assert all(f"-{version}_" in each.name for each in (found.iceberg.artifacts if found.iceberg else ()))


def test_the_documentation_names_the_connectors_of_each_version() -> None:
    page = (Path(__file__).parents[2] / "deploy/docs/reference/spark_versions.md").read_text()
    for version, found in CONNECTORS.items():
        (line,) = (line for line in page.splitlines() if line.startswith(f"| {version} |"))
        wanted = [*found.spark.artifacts, *(found.iceberg.artifacts if found.iceberg else ())]
        assert re.findall(r"`([\w.-]+:[\w.-]+:[\w.-]+)`", line) == list(map(str, wanted))


@pytest.mark.parametrize("version", ["3.5.6", "4.10.0", "4.3.0", "5.0.0"])
def test_a_version_that_was_not_tried_is_refused_with_those_that_were(version: str) -> None:
    """I8: what a Spark that nobody has tried would write is unknown."""
    with pytest.raises(Unavailable, match=rf"^Spark {version} is not supported: .* use Spark 4.0, 4.1, 4.2 \(pip"):
        connectors_of(version)


def test_where_only_iceberg_lacks_a_release_only_iceberg_is_refused() -> None:
    assert connectors_of("4.2.1").spark.version == "4.2.0"
    with pytest.raises(
        Unavailable, match=r"^Iceberg has no release for Spark 4.2, .* 'pyspark==4.1\.\*', or keep it in"
    ):
        iceberg_of("4.2.1")


def test_a_pyspark_of_unknown_version_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "version.py").write_text("")
    spec = importlib.util.spec_from_file_location("pyspark", tmp_path / "__init__.py")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    with pytest.raises(Unavailable, match="needs pyspark"):
        installed_spark()

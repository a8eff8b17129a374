"""The built wheel, installed with plain pip into empty environments: the core alone, and with the documents' extras.

``make package`` builds it into ``dist`` first.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

import pytest
import yaml

from relay.process.managed import free_port
from tests.package.public_names import BY_MODULE, CORE, NEEDS_SPARK, PUBLIC, ROOT

pytestmark = pytest.mark.package

EXTRAS = "dynamodb,mysql,vitess,redis,registry,zstd"
"""What the configs of the documents need, without Spark: its package is 434 MB."""


class Installed:
    """An environment with the wheel in it, and nothing of this checkout."""

    def __init__(self, folder: Path, wheel: Path, extras: str) -> None:
        self.folder = folder
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        wanted = f"{wheel}[{extras}]" if extras else str(wheel)
        command = [str(folder / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", wanted]
        subprocess.run(command, check=True, cwd=folder)

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment, without AWS credentials or anything else of ours."""
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "LEGACY_PASSWORD": "secret",
            "AWS_EC2_METADATA_DISABLED": "true",
            "TERM": "dumb",
        }
        program, *arguments = command
        return subprocess.run(
            [self.folder / "bin" / program, *arguments],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            cwd=self.folder,
            env=environment,
        )

    def imports(self, names: Mapping[str, list[str]]) -> None:
        lines = [f"from {module} import {', '.join(names[module])}" for module in names]
        ran = self.run("python", "-W", "error", "-c", "\n".join(lines))
        assert ran.returncode == 0, ran.stderr


@pytest.fixture(scope="session")
def wheel() -> Path:
    found = list((ROOT / "dist").glob("change_relay-*.whl"))
    if len(found) != 1:
        pytest.fail(f"dist has {len(found)} wheels: run `make package`, which builds one")
    return found[0]


@pytest.fixture(scope="session")
def core(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(tmp_path_factory.mktemp("core"), wheel, "")


@pytest.fixture(scope="session")
def full(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(tmp_path_factory.mktemp("full"), wheel, EXTRAS)


def documented_configs() -> list[str]:
    """Return the configs of README.md and the page on SQL; one that has only sources gets the rest from the first."""
    documents = ("README.md", "deploy/docs/how_to/sql.md")
    text = "".join((ROOT / document).read_text(encoding="utf-8") for document in documents)
    blocks = re.findall(r"^```yaml\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    configs = [block for block in blocks if re.search(r"^sources:", block, re.MULTILINE)]
    first = yaml.safe_load(configs[0])
    return [configs[0]] + [
        yaml.safe_dump({"name": first["name"], "kafka": first["kafka"]}) + config for config in configs[1:]
    ]


def test_the_documents_have_a_config_for_each_kind_of_source() -> None:
    kinds = {source["type"] for config in documented_configs() for source in yaml.safe_load(config)["sources"]}
    assert kinds == {"dynamodb", "vitess", "mysql"}


def test_the_wheel_has_the_schemas_the_type_marks_and_a_description_that_an_index_can_show(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        about = Parser().parsestr(archive.read(metadata).decode())
    assert {"relay/py.typed", "spark_consumers/py.typed", "relay/_schemas/change.avsc"} <= set(names)
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"relay", "spark_consumers", "change_relay"}
    assert about["Name"] == "change-relay"
    links = re.findall(r"\]\(([^)]*)\)", str(about.get_payload()))
    assert [link for link in links if not link.startswith("https://")] == []


def test_help_and_version_need_no_extra(core: Installed) -> None:
    for command in (("relay", "--help"), ("python", "-m", "relay", "--help"), ("relay", "--version")):
        ran = core.run(*command)
        assert ran.returncode == 0, ran.stderr
        assert "relay" in ran.stdout


def without_spark(public: Mapping[str, list[str]]) -> dict[str, list[str]]:
    return {**public, "spark_consumers": [name for name in public["spark_consumers"] if name not in NEEDS_SPARK]}


def test_the_core_imports_alone(core: Installed) -> None:
    public = without_spark({**PUBLIC, **BY_MODULE})
    core.imports({module: names for module, names in public.items() if module in CORE})
    core.imports({"relay.cache": [name for name in PUBLIC["relay.cache"] if name != "RedisStore"]})


def test_every_public_name_imports_with_the_extras(full: Installed) -> None:
    full.imports(without_spark({**PUBLIC, **BY_MODULE}))


@pytest.mark.parametrize("name", NEEDS_SPARK)
def test_a_name_that_needs_spark_says_so_without_it(full: Installed, name: str) -> None:
    ran = full.run("python", "-c", f"from spark_consumers import {name}")
    assert ran.returncode == 1
    assert f"spark_consumers.{name} needs pyspark: pip install 'change-relay[spark]'" in ran.stderr


@pytest.mark.parametrize("command", ["run", "check"])
def test_the_core_names_the_extras_that_the_documented_configs_need(core: Installed, command: str) -> None:
    (core.folder / "relay.yaml").write_text(documented_configs()[0])
    ran = core.run("relay", command, "relay.yaml")
    assert ran.returncode == 3, ran.stderr
    assert "the source \"orders\" needs botocore: pip install 'change-relay[dynamodb]'" in ran.stdout + ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("number", [0, 1])
def test_the_documented_configs_are_valid_and_check_says_what_it_cannot_reach(full: Installed, number: int) -> None:
    # Where nothing answers, instead of the hosts of the documents, which some network may know.
    config = re.sub(
        r"(broker-\d|cache|vtgate|db\d(-replica)?):\d+",
        lambda _: f"127.0.0.1:{free_port()}",
        documented_configs()[number],
    )
    (full.folder / "relay.yaml").write_text(config)
    ran = full.run("relay", "check", "relay.yaml")
    said = ran.stdout + ran.stderr
    assert ran.returncode == 3, said
    assert set(re.findall(r"change-relay\[(\w+)\]", said)) <= {"spark"}, said
    assert "Traceback" not in said
    if number == 0:
        assert "✗ kafka 127.0.0.1:" in said
        assert "✗ source orders" in said
        assert "✗ cache redis://127.0.0.1:" in said
        assert "✓ log" in said

"""The images are built, and run as a plain user on a read-only file system, without a network."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from tests import needs
from tests.deploy import DEPLOY
from tests.deploy.images import Images, obstacle

pytestmark = [pytest.mark.images, pytest.mark.timeout(7200)]

EXAMPLE = "/tmp/example.yaml"
SECRETS = {"REDIS_PASSWORD": "secret", "LEGACY_PASSWORD": "secret", "AWS_EC2_METADATA_DISABLED": "true"}

SPARK = """
from spark_consumers.session import open_session
session = open_session("image", delta=True)
print("rows", session.range(1000).repartition(2).count())
session.range(5).write.format("delta").save("/tmp/table")
print("delta", session.read.format("delta").load("/tmp/table").count())
try:
    reading = session.read.format("kafka").option("kafka.bootstrap.servers", "localhost:1").option("subscribe", "t")
    reading.option("kafka.default.api.timeout.ms", "500").load().count()
except Exception as error:
    print("kafka", "Failed to find data source" not in str(error))
"""


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Images]:
    if problem := obstacle():
        needs.lacking("IMAGES", problem)
    folder = tmp_path_factory.mktemp("images")
    built = Images(folder)
    try:
        yield built
    finally:
        built.close()
        shutil.rmtree(folder)


def checked(images: Images, target: str, example: str) -> str:
    """Return what `relay check` says of an example in an image, which has to be that it is right."""
    environment = {**SECRETS, "EXAMPLE": (DEPLOY / "examples" / f"{example}.yaml").read_text()}
    command = f'printf %s "$EXAMPLE" > {EXAMPLE} && relay check --offline {EXAMPLE}'
    return images.run(target, "sh", "-c", command, environment=environment)


def test_the_image_of_the_relay_runs(images: Images) -> None:
    config = images.build("relay")
    assert config["User"] == "10001:10001"
    assert config["Healthcheck"]["Test"] == ["CMD", "python", "/opt/healthy.py", "9400"]
    assert config["Labels"]["io.change-relay.sbom"] == "/usr/share/sbom/relay.cdx.json"
    assert images.run("relay", "relay", "--version").startswith("relay ")
    assert images.run("relay", "id", "-u") == "10001\n"
    assert "_core" in images.run("relay", "python", "-c", "import relay.native._core as core; print(core.__name__)")
    assert "orjson" in images.run("relay", "cat", "/usr/share/sbom/relay.cdx.json")
    said = images.run(
        "relay", "sh", "-c", "touch /opt/relay/new || touch /etc/new || touch /tmp/new /var/lib/relay/new"
    )
    assert said.count("Read-only file system") == 2
    assert checked(images, "relay", "mariadb").count("✓") >= 3


def test_the_image_of_the_consumers_has_all_that_spark_needs(images: Images) -> None:
    config = images.build("consumers")
    assert config["User"] == "10001:10001"
    assert config["Healthcheck"]["Test"] == ["CMD", "python", "/opt/healthy.py", "9410"]
    assert "relay consume" in images.run("consumers", "relay", "consume", "--help")
    assert "✓ pyspark" in checked(images, "consumers", "cache-redis")
    said = images.run("consumers", "python", "-c", SPARK)
    assert "rows 1000\n" in said
    assert "delta 5\n" in said
    assert "kafka True\n" in said

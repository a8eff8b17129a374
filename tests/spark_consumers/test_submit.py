"""The consumers under spark-submit, with the files of deploy/spark."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark
import pytest
import yaml
from typer.testing import CliRunner

from relay.cli import app
from relay.jvm.connectors import connectors_of
from relay.jvm.jars import fetched
from relay.jvm.java import find_java
from spark_consumers.session import DELTA_CATALOG, DELTA_EXTENSION
from tests.deploy import DEPLOY
from tests.log_lines import rows_applied
from tests.spark_consumers.topic import Topic, change

SETTINGS = dict(
    line.split(" ", 1)
    for line in (DEPLOY / "spark" / "relay.conf").read_text().splitlines()
    if line[:1] not in ("#", "")
)

CONNECTORS = connectors_of(pyspark.__version__).spark


def test_the_settings_are_those_that_the_consumers_start_their_own_spark_with() -> None:
    assert {
        "spark.jars.packages": ",".join(map(str, CONNECTORS.artifacts)),
        "spark.sql.extensions": DELTA_EXTENSION,
        "spark.sql.catalog.spark_catalog": DELTA_CATALOG,
        "spark.scheduler.mode": "FAIR",
    } == SETTINGS


def test_the_application_for_kubernetes_has_the_same_settings_and_a_command_that_exists() -> None:
    found = yaml.safe_load((DEPLOY / "spark" / "application.yaml").read_text())["spec"]
    # The jars are in the image.
    assert {**found["sparkConf"], "spark.jars.packages": SETTINGS["spark.jars.packages"]} == SETTINGS
    assert found["sparkVersion"] == pyspark.__version__
    answer = CliRunner().invoke(app, ["consume", *found["arguments"]])
    assert (answer.exit_code, "/etc/relay/relay.yaml" in answer.stderr) == (2, True)


@pytest.mark.services
def test_consumers_run_under_spark_submit(tmp_path: Path, unique: str, kafka: Any, redis_server: Any) -> None:
    topic = Topic(tmp_path, unique, kafka.bootstrap_servers, redis_server.url)
    topic.publish([change("ada", 1), change("bob", 1)])
    settings = tmp_path / "relay.conf"
    # Here the connectors are those that are there already, not fetched again.
    given = {**SETTINGS, "spark.jars": ",".join(map(str, fetched(CONNECTORS))), "spark.ui.enabled": "false"}
    del given["spark.jars.packages"]
    given["spark.driver.extraJavaOptions"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    settings.write_text("".join(f"{key} {value}\n" for key, value in given.items()))
    program = str(Path(pyspark.__path__[0]) / "bin" / "spark-submit")
    submit = [program, "--master", "local[1]", "--properties-file", str(settings)]
    arguments = ["cache", "log", str(topic.path), "--checkpoint", str(tmp_path / "all"), "--until-caught-up"]
    java = {"JAVA_HOME": str(find_java().resolve().parent.parent)}
    environment = {**os.environ, **java, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    with topic.log.open("w") as log:
        command = [*submit, str(DEPLOY / "spark" / "consume.py"), *arguments]
        answer = subprocess.run(command, env=environment, stdout=log, stderr=log, timeout=600, check=False)
    assert answer.returncode == 0, topic.log.read_text()[-3000:]
    assert rows_applied(topic.log) == {"cache": 2, "log": 2}

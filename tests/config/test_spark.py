"""The settings of Spark: the command line before the file, and the errors about options."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from relay.errors import ConfigError
from tests.config.configs import GOOD, read


def test_the_command_line_wins_over_the_settings_of_spark_in_the_file(file: Path) -> None:
    spark = read(file, GOOD).spark.overridden("local[2]", ["spark.cores.max=1", "spark.eventLog.dir=file:/a=b"])
    assert (spark.master, spark.shared_folders) == ("local[2]", True)
    assert spark.conf == {"spark.executor.memory": "2g", "spark.cores.max": "1", "spark.eventLog.dir": "file:/a=b"}


def test_a_master_that_nobody_chose_stays_so(file: Path) -> None:
    """Else it would contradict that of spark-submit."""
    config = read(file, GOOD.replace('master: "spark://spark:7077", ', ""))
    assert "master" not in config.spark.overridden(None, ["spark.cores.max=1"]).model_fields_set
    assert "master" in config.spark.overridden("local[*]", []).model_fields_set


@pytest.mark.parametrize(
    ("master", "conf", "said"),
    [
        ("spark:7077", [], "--master 'spark:7077' is not a Spark master"),
        (None, ["spark.cores.max"], "--conf spark.cores.max: must be key=value"),
        (None, ["cores.max=4"], "--conf cores.max is not a Spark setting"),
        (None, ["spark.master=yarn"], "--conf spark.master cannot be set to 'yarn': use `spark.master`, or --master"),
    ],
)
def test_a_bad_option_for_spark_is_named(file: Path, master: str | None, conf: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        read(file, GOOD).spark.overridden(master, conf)

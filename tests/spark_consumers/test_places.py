"""The target of a copy, by the scheme of its URL."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("delta:///tmp", "DeltaTarget"),
        ("delta+s3a://bucket/copy", "DeltaTarget"),
        ("postgres://ann@h/d", "PostgresTarget"),
        ("postgresql://ann@h/d", "PostgresTarget"),
        ("iceberg://lake/new", "IcebergTarget"),
    ],
)
def test_the_scheme_chooses_a_target_that_needs_no_spark_to_be_checked(url: str, name: str) -> None:
    code = (
        "import sys\nsys.modules['pyspark'] = None\n"
        "from relay.config import Config\nfrom spark_consumers.sinks.places import copy_target\n"
        "source = {'name': 's', 'type': 'dynamodb', 'table': 'orders'}\n"
        "given = {'name': 'shop', 'kafka': {'bootstrap_servers': 'h:1'}, 'sources': [source]}\n"
        f"given['copy'] = {{'url': {url!r}}}\n"
        "catalog = {'spark.sql.catalog.lake': 'org.apache.iceberg.spark.SparkCatalog'}\n"
        "given['spark'] = {'conf': catalog}\n"
        "config = Config.model_validate(given)\n"
        "target = copy_target(config, config.copy_)\n"
        "print(type(target).__name__, target.check(offline=True))\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split()[0] == name

"""What tests of the consumers share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.spark_consumers.spark_process import SparkProcess


@pytest.fixture(scope="session")
def spark_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkProcess]:
    """A Spark for tests that need none of their own."""
    process = SparkProcess(tmp_path_factory.mktemp("spark"))
    yield process
    process.close()

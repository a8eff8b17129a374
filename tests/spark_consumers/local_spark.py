"""A Spark of this process, as the consumers start it."""

from __future__ import annotations

from contextlib import AbstractContextManager

from pyspark.sql import SparkSession

from relay.config.spark import SparkConfig
from spark_consumers.session import delta_session


def spark() -> AbstractContextManager[SparkSession]:
    return delta_session(SparkConfig())

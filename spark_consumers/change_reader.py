"""Reads values as changes on the JVM, by the Java class beside this module.

Spark's ``from_avro`` has one schema for a whole column. A query with 200 of them took 40 s of CPU to be planned, and
370 µs for each record. The class takes the same for one schema as for many.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import Column, SparkSession
from pyspark.sql.types import StructType

from spark_consumers.java_classes import new_instance


def read_as_changes(
    value: Column,
    into: StructType,
    schemas: Mapping[bytes, str],
    *,
    given_up: Sequence[bytes],
    registry: bool,
    session: SparkSession,
) -> Column:
    """Return a struct of status, layout and the columns of a change for each ``value``.

    ``into``: its type. ``schemas``: as JSON, by header; the layout is the place among them. ``given_up`` and
    ``registry``: as for `Decoder`.
    """
    context = session.sparkContext
    jvm: Any = context._jvm
    reader = new_instance(context, "ChangeReader", registry)
    for number, (header, schema) in enumerate(schemas.items()):
        reader.add(header, schema, number)
    for header in given_up:
        reader.giveUp(header)
    function = reader.into(jvm.org.apache.spark.sql.types.DataType.fromJson(into.json()))
    return Column(function.apply(jvm.PythonUtils.toSeq([value._jc])))

"""Spark's connectors: which releases fit the PySpark that is installed. Only versions that the tests play are here."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from relay.errors import Unavailable
from relay.extras import missing
from relay.jvm.jars import Artifact, JarSet, pyspark_files

# Spark already has these, and two versions of a class must not meet.
_LEFT_OUT = (
    "at.yawk.lz4",
    "com.fasterxml.jackson.core",
    "com.google.code.findbugs",
    "io.unitycatalog",  # only for tables of a Unity Catalog
    "org.antlr",
    "org.apache.hadoop",
    "org.apache.logging.log4j",
    "org.apache.parquet",
    "org.lz4",
    "org.roaringbitmap",
    "org.scala-lang",
    "org.scala-lang.modules",
    "org.slf4j",
    "org.tukaani",
    "org.xerial.snappy",
)


@dataclass(frozen=True)
class Connectors:
    """``spark``: the jars for Kafka, Avro and Delta. ``iceberg``: None where Iceberg has no release for this Spark."""

    spark: JarSet
    iceberg: JarSet | None


def _connectors(spark: str, delta: tuple[str, str], iceberg: tuple[str, str] | None) -> Connectors:
    artifacts = (
        Artifact("org.apache.spark", "spark-sql-kafka-0-10_2.13", spark),
        Artifact("org.apache.spark", "spark-avro_2.13", spark),
        Artifact("io.delta", *delta),
    )
    of_iceberg = JarSet("iceberg", iceberg[1], (Artifact("org.apache.iceberg", *iceberg),)) if iceberg else None
    return Connectors(JarSet("spark", spark, artifacts, _LEFT_OUT), of_iceberg)


def minor(version: str) -> str:
    """Return what the patch releases of a version have in common: 4.1 of 4.1.3."""
    return ".".join(version.split(".")[:2])


# The names of the folders in the cache have the versions of Spark and Iceberg: change one with any change of a line.
CONNECTORS: Mapping[str, Connectors] = {
    "4.0": _connectors("4.0.0", ("delta-spark_2.13", "4.0.0"), ("iceberg-spark-runtime-4.0_2.13", "1.10.1")),
    "4.1": _connectors("4.1.1", ("delta-spark_4.1_2.13", "4.4.0"), ("iceberg-spark-runtime-4.1_2.13", "1.11.0")),
    "4.2": _connectors("4.2.0", ("delta-spark_4.2_2.13", "4.4.0"), None),
}


def installed_spark() -> str:
    """Return the version of PySpark without importing it. Raises ``Unavailable``."""
    for source in pyspark_files("version.py"):
        if found := re.search(r"__version__.*?[\"'](.+?)[\"']", source.read_text(encoding="utf-8")):
            return found[1]
    raise missing("spark", "`relay consume`", "pyspark")


def installed_connectors() -> Connectors:
    return connectors_of(installed_spark())


def connectors_of(version: str) -> Connectors:
    """Return what fits a version of Spark. Raises ``Unavailable`` for one that is not tested."""
    if (found := CONNECTORS.get(minor(version))) is None:  # I8
        raise Unavailable(
            f"Spark {version} is not supported: the consumers are not tested with it, and no connectors for Kafka, "
            f"Avro and Delta are known to work with it: use Spark {', '.join(CONNECTORS)} (pip install "
            "'change-relay[spark]'), also on the cluster"
        )
    return found


def iceberg_of(version: str) -> JarSet:
    """Return Iceberg's jar. Raises ``Unavailable`` if there is none for this version, on which all else works."""
    if (found := connectors_of(version).iceberg) is None:
        newest = max(name for name, each in CONNECTORS.items() if each.iceberg)
        raise Unavailable(
            f"Iceberg has no release for Spark {minor(version)}, so nothing can be kept in Iceberg: "
            f"pip install 'pyspark=={newest}.*', or keep it in Delta"
        )
    return found

"""Catalogs of Iceberg for a Spark of the tests: in a database, which has views, and in folders, which have none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from relay.jvm.jars import Artifact, JarSet, fetched

H2 = JarSet("h2", "2.3.232", (Artifact("com.h2database", "h2", "2.3.232"),))


def settings(folder: Path) -> dict[str, Any]:
    """Return the settings of Spark for the catalogs ``lake`` and ``folders``, which are in ``folder``."""
    catalog = "org.apache.iceberg.spark.SparkCatalog"
    return {
        "spark.jars": ",".join(map(str, fetched(H2))),
        "spark.sql.catalog.lake": catalog,
        "spark.sql.catalog.lake.type": "jdbc",
        "spark.sql.catalog.lake.uri": f"jdbc:h2:{folder / 'lake'};DATABASE_TO_UPPER=FALSE",
        "spark.sql.catalog.lake.warehouse": str(folder / "tables"),
        "spark.sql.catalog.lake.jdbc.schema-version": "V1",
        "spark.sql.catalog.folders": catalog,
        "spark.sql.catalog.folders.type": "hadoop",
        "spark.sql.catalog.folders.warehouse": str(folder / "folders"),
    }

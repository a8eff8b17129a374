"""Catalogs of Iceberg for a Spark of the tests.

``lake`` and ``newer``, whose tables have format 3, are in a database, which has views; ``folders`` has none.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from relay.config import Config
from relay.jvm.jars import Artifact, JarSet, fetched

H2 = JarSet("h2", "2.3.232", (Artifact("com.h2database", "h2", "2.3.232"),))

CATALOG = "org.apache.iceberg.spark.SparkCatalog"
FORMATS = {"lake": 2, "newer": 3}


def settings(folder: Path) -> dict[str, Any]:
    """Return the settings of Spark for the catalogs ``lake``, ``newer`` and ``folders``, which are in ``folder``."""
    lake = {
        "": CATALOG,
        ".type": "jdbc",
        ".uri": f"jdbc:h2:{folder / 'lake'};DATABASE_TO_UPPER=FALSE",
        ".warehouse": str(folder / "tables"),
        ".jdbc.schema-version": "V1",
    }
    return {
        "spark.jars": ",".join(map(str, fetched(H2))),
        **{f"spark.sql.catalog.{name}{key}": value for name in FORMATS for key, value in lake.items()},
        "spark.sql.catalog.newer.table-default.format-version": str(FORMATS["newer"]),
        "spark.sql.catalog.folders": CATALOG,
        "spark.sql.catalog.folders.type": "hadoop",
        "spark.sql.catalog.folders.warehouse": str(folder / "folders"),
    }


def of_url(url: str, *tables: str, **conf: str) -> Config:
    sources = [{"name": "shop", "type": "dynamodb", "tables": list(tables or ("orders",))}]
    given = {"name": "shop", "kafka": {"bootstrap_servers": "h:1"}, "sources": sources, "copy": {"url": url}}
    settings = {f"spark.sql.catalog.{name.replace('__', '.')}": value for name, value in conf.items()}
    return Config.model_validate({**given, "spark": {"conf": settings}})

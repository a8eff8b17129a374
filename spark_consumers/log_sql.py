"""SQL over the change log: the history of an item, a table as of a time, and the changes between two watermarks."""

import re

from pyspark.errors import AnalysisException, UnsupportedOperationException
from pyspark.sql import SparkSession

from relay.config import Config
from relay.errors import ConfigError, Unavailable
from spark_consumers.log_script import script
from spark_consumers.session import ICEBERG_EXTENSION, refuse_unsupported
from spark_consumers.sinks.places import log_target

_ABSENT = ("DELTA_TABLE_NOT_FOUND", "DELTA_PATH_DOES_NOT_EXIST", "TABLE_OR_VIEW_NOT_FOUND", "SCHEMA_NOT_FOUND")
_COMMENT = re.compile(r"^\s*--.*\n", re.MULTILINE)


def log_views(spark: SparkSession, config: Config) -> None:
    """Define the view ``relay_log`` and the table functions ``relay_history``, ``relay_between`` and ``relay_as_of``.

    They belong to this session. Former definitions are replaced. Raises ``ConfigError`` without a `log:` section in the
    config, or if the session has Iceberg's extension, with which Spark defines no function that has parameters;
    ``Unavailable`` if nothing was logged yet.
    """
    if config.log is None:
        raise ConfigError("the config has no `log:` section, so there is no log to query: add one")
    refuse_unsupported(spark)
    log = log_target(config, config.log).open()
    log.refuse_unreadable(spark)
    statements = [f"CREATE OR REPLACE TEMPORARY VIEW relay_log AS SELECT * FROM {log.name}"]
    statements += filter(None, map(str.strip, _COMMENT.sub("", script("spark")).split(";")))
    try:
        for statement in statements:
            spark.sql(statement)
    except AnalysisException as error:
        if error.getCondition() in _ABSENT:
            raise Unavailable(f"there is no log at {config.log.path} yet: run `relay consume log` first") from error
        raise
    except UnsupportedOperationException as error:
        raise ConfigError(
            "the Spark session of this process cannot define the functions of the log: use a session that was "
            f"started without {ICEBERG_EXTENSION} in spark.sql.extensions"
        ) from error

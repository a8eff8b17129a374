"""Fetches and builds the services of the tests before they start: ``python -m tests.prepare``.

So no test spends its time on that or waits for another one's download. Does nothing if the caches are full. Reports
what it cannot install; the tests that need it are skipped or fail by themselves.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from relay.errors import RelayError
from relay.jvm.connectors import installed_connectors
from relay.jvm.jars import SETS, fetched, jars
from relay.services.memcached import program
from tests import browser
from tests.mysql import debian_mysql
from tests.mysql.mariadb_10 import MariaDB10
from tests.services.kafka_classes import archive_classes
from tests.spark_consumers import spark_classes
from tests.spark_consumers.iceberg_catalog import H2
from tests.vitess.cluster_build import cluster_obstacle, cluster_programs


def main() -> None:
    wanted: list[Callable[[], object]] = [*(partial(jars, name) for name in SETS), program, spark_classes.make]
    spark = installed_connectors()
    wanted += [partial(fetched, each) for each in (spark.spark, spark.iceberg) if each]
    wanted += [partial(fetched, MariaDB10.jar_set), partial(fetched, H2), browser.program, archive_classes]
    if os.environ.get("RELAY_TEST_MYSQLD") == "debian":
        wanted.append(debian_mysql.mysqld)
    if cluster_obstacle() is None:
        wanted.append(cluster_programs)  # with vtcombo
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(each) for each in wanted]:
            try:
                done.result()
            except RelayError as error:
                print(f"tests.prepare: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()

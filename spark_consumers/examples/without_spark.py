"""Prints each change of a table, with its own Kafka group and without Spark.

python -m spark_consumers.examples.without_spark relay.yaml TABLE
"""

import json
import sys

import relay


def main(config: str, table: str) -> None:
    with relay.changes(config, [table], group="printer", until_caught_up=True) as changes:
        for change in changes:
            print(json.dumps([change.operation, change.key, change.new], default=str), flush=True)
            changes.commit()  # what was printed is not printed again


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])

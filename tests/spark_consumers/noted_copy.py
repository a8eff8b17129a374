"""A copy in a script for Spark that notes gaps, in Delta or in PostgreSQL, beside what is applied."""

from __future__ import annotations

import json
from typing import Any

from tests.spark_consumers.spark_process import SparkProcess

COPY = """
import json, sys
from tests.spark_consumers.local_spark import spark
from relay.services.postgres import execute
from spark_consumers.applied_notes import AppliedNotes
from spark_consumers.copy import TableCopies, is_there
from spark_consumers.gaps import LostChanges
from spark_consumers.sinks.copy_table import GAPS
from spark_consumers.sinks.delta_copy import DeltaTable
from spark_consumers.sinks.postgres import PostgresDatabase
from spark_consumers.sinks.postgres_copy import PostgresTable
from tests.spark_consumers.lake_config import lake_config
from spark_consumers.table_consumer import TableBatch
from tests.spark_consumers import delta_rows
from tests.spark_consumers.batches import FOREVER, change, end_of, in_spark, layout, mark, read

FOUND_AT = 5000
BY_A = layout({"a": "string"}, {"a": "string", "b": "int"})
BY_B = layout({"b": "int"}, {"a": "string", "b": "int"})
LINES = layout({"b": "int"}, {"a": "string", "b": "int"}, "lines")

def gap(id, found_at=FOUND_AT):
    return LostChanges(id, "shop", "trimmed", found_at, "")

def row(number, key, layout):
    return change(number, [key], {"a": key, "b": number}, layout=layout)

class Copy:
    def __init__(self, layouts):
        self.layouts, self.note = layouts, ""
        self.database = PostgresDatabase(sys.argv[1]) if sys.argv[1].startswith("postgresql") else None
        self.start()

    def start(self):
        self.notes = AppliedNotes({"shop": []}, dict, self.change, self.lost)
        self.copies = TableCopies(self.open, FOREVER, notes=self.notes)

    def lost(self, session, source, tables):
        return {name: name for name in tables if not is_there(self.open(source, name), session)}

    def change(self, session, room, rule):
        self.note = rule(self.note)
        return self.note

    def open(self, source, table):
        if self.database is not None:
            return PostgresTable(self.database, source, table)
        return DeltaTable(sys.argv[1], lake_config(86400.0, 604800.0), source, table)

    def play(self, *changes, gaps=()):
        batch, refused = in_spark(session, changes), []
        refuse = lambda place, why: refused.append(place.offset)
        plan = self.copies.plan(TableBatch(batch, self.layouts, {}, end_of(changes), refuse=refuse))
        plan.write(gaps)
        plan.close()
        return refused

    def execute(self, statement):
        if self.database is None:
            session.sql(statement.replace("TABLE ", f"TABLE {self.open('shop', 'orders').name} "))
        else:
            execute(sys.argv[1], statement.replace("TABLE ", "TABLE shop._relay_rows_orders "))

    def rows(self, table, *columns):
        if self.database is None:
            return delta_rows.rows(f"{sys.argv[1]}/shop/{table}/_relay_rows", columns)
        return execute(sys.argv[1], f"SELECT {', '.join(columns)} FROM shop._relay_rows_{table} ORDER BY 1")

    def aside(self):
        return [table for _, table in self.notes.set_aside()]

    def lacking(self):
        return [table for _, table in self.notes.incomplete()]

    def noted(self, table):
        text = self.open("shop", table).properties(in_spark(session, [])).get(GAPS)
        return None if text is None else [each["id"] for each in json.loads(text)]

with spark() as session:
    copy, found = Copy(LAYOUTS), []
    STEPS
    if copy.database is not None:
        copy.database.close()
    json.dump(found, sys.stdout)
"""


def played(spark: SparkProcess, place: str, layouts: str, steps: str) -> Any:
    """Return what ``steps`` append to ``found``, playing batches of a ``copy`` that knows ``layouts``."""
    script = COPY.replace("LAYOUTS", layouts).replace("STEPS", steps.strip().replace("\n", "\n    "))
    return json.loads(spark.run(script, place).splitlines()[-1])

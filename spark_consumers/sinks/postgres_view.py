"""The view of a table of the copy in PostgreSQL: what it has is what the table has at its source."""

from collections.abc import Mapping, Sequence

from psycopg.errors import DependentObjectsStillExist

from spark_consumers.sinks.faults import TableFault
from spark_consumers.sinks.postgres import PREFIX, Connection, execute, grants, identifier, quoted
from spark_consumers.sinks.postgres_values import shown

_FOUND = """
SELECT relkind = 'v' AND EXISTS (SELECT FROM pg_depend JOIN pg_rewrite r ON r.oid = objid
 WHERE ev_class = c.oid AND classid = 'pg_rewrite'::regclass AND refobjid = to_regclass($2)),
 EXISTS (SELECT FROM pg_attribute WHERE attrelid = c.oid AND attname = '_relay_token')
 FROM pg_class c WHERE c.oid = to_regclass($1)"""
"""Whether a view is one on the rows of the copy, and whether it is, or a table, one that has our columns."""


class TableView:
    """The view ``name`` in ``schema``, and the table with its ``rows``."""

    def __init__(self, schema: str, name: str) -> None:
        self._schema, self._name = schema, name
        self.view, self.rows = (
            f"{quoted(schema)}.{quoted(each)}" for each in (name, identifier(f"{PREFIX}rows_{name}"))
        )

    def exists(self, connection: Connection) -> bool:
        """Raises ``TableFault`` if something else has its name."""
        found = execute(connection, _FOUND, [self.view, self.rows]).fetchone()
        if found is None or found[0]:
            return found is not None
        if found[1]:
            why = "is as the copy was before: build it again by `relay replay copy CONFIG --into schema:NEW --swap`"
        else:
            why = "is not one of the copy: rename it, or keep the copy at another `copy.url`"
        raise TableFault(f"the table {self.view} {why}")

    def drop(self, connection: Connection) -> Sequence[str]:
        """Drop it, since it keeps the types of its columns, and return what grants again what is granted on it."""
        granted = [grant for name, grant in grants(connection, self._schema, self._schema) if name == self._name]
        try:
            execute(connection, f"DROP VIEW IF EXISTS {self.view}")
        except DependentObjectsStillExist as error:
            raise TableFault(
                f"the table {self.rows} has a column that is to be widened, and {error.diag.message_detail}: drop what "
                "depends on it, and make it again when the column is wider"
            ) from error
        return granted

    def show(self, connection: Connection, columns: Mapping[str, str], granted: Sequence[str]) -> None:
        """Create it, or add columns to it. ``columns``: the kinds of those of the key, "" for others."""
        listed = ", ".join(f"{shown(name, kind)} AS {quoted(name)}" for name, kind in columns.items())
        execute(
            connection,
            f"CREATE OR REPLACE VIEW {self.view} AS SELECT {listed} FROM {self.rows} WHERE NOT _relay_deleted",
        )
        for grant in granted:
            execute(connection, grant)

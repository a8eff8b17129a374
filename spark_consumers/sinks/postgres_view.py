"""The view of a table of the copy in PostgreSQL: it has the rows that the table has at its source."""

from collections.abc import Mapping, Sequence

from psycopg.errors import DependentObjectsStillExist, FeatureNotSupported

from spark_consumers.sinks.faults import TableFault
from spark_consumers.sinks.postgres import PREFIX, Connection, execute, grants, identifier, quoted
from spark_consumers.sinks.postgres_values import shown

_FOUND = """
SELECT relkind = 'v' AND EXISTS (SELECT FROM pg_depend JOIN pg_rewrite r ON r.oid = objid
 WHERE ev_class = c.oid AND classid = 'pg_rewrite'::regclass AND refobjid = to_regclass($2)),
 reloptions IS NOT DISTINCT FROM '{security_barrier=false}'
 FROM pg_class c WHERE c.oid = to_regclass($1)"""
"""Whether a view is one on the rows of the copy, and whether it is ours.

Ours has an option that changes nothing, and that CREATE OR REPLACE VIEW removes. A comment would outlive that.
"""

_REVOKED = """
SELECT DISTINCT format('REVOKE ALL ON %s FROM %s', $1::text, coalesce(quote_ident(rolname), 'PUBLIC'))
 FROM pg_class, aclexplode(relacl) LEFT JOIN pg_roles r ON r.oid = grantee
 WHERE pg_class.oid = to_regclass($1::text) AND grantee <> relowner"""
"""What revokes all that default privileges have granted on a view."""


class TableView:
    """The view ``name`` in ``schema``, and the table with its ``rows``."""

    def __init__(self, schema: str, name: str) -> None:
        self._schema, self._name = schema, name
        self.view, self.rows = (
            f"{quoted(schema)}.{quoted(each)}" for each in (name, identifier(f"{PREFIX}rows_{name}"))
        )

    def is_ours(self, connection: Connection) -> bool | None:
        """Whether we created the view; None if there is none. Raises ``TableFault`` if something else has its name."""
        found = execute(connection, _FOUND, [self.view, self.rows]).fetchone()
        if found is None or found[0]:
            return None if found is None else bool(found[1])
        raise TableFault(
            f"the table {self.view} does not belong to the copy: rename it, or keep the copy at another `copy.url`"
        )

    def grants(self, connection: Connection) -> Sequence[str]:
        """Return what grants again what is granted on it."""
        return [grant for name, grant in grants(connection, self._schema, self._schema) if name == self._name]

    def widen(self, connection: Connection, statements: Sequence[str]) -> None:
        """Execute statements that no view on the columns may be in the way of."""
        try:
            for statement in statements:
                execute(connection, statement)
        except (DependentObjectsStillExist, FeatureNotSupported) as error:
            raise TableFault(
                f"a column of {self.rows} must be widened, but {error.diag.message_detail}: drop what depends on it, "
                "and create it again afterwards"
            ) from error

    def show(self, connection: Connection, columns: Mapping[str, str], granted: Sequence[str] | None) -> None:
        """Create it, or add ``columns``: their kinds in the key, or "". ``granted``: on the view that was dropped."""
        listed = ", ".join(f"{shown(name, kind)} AS {quoted(name)}" for name, kind in columns.items())
        execute(
            connection,
            f"CREATE OR REPLACE VIEW {self.view} WITH (security_barrier = false) AS SELECT {listed} FROM {self.rows}"
            " WHERE NOT _relay_deleted",
        )
        if granted is not None:
            revoked = [statement for (statement,) in execute(connection, _REVOKED, [self.view]).fetchall()]
            for statement in (*revoked, *granted):
                execute(connection, statement)

"""What a target says is the fault of a row, of a table, or of neither, by its SQLSTATE."""

from __future__ import annotations

import json

import pytest
from psycopg import InterfaceError, OperationalError, errors
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from relay.errors import RelayError, Unavailable
from spark_consumers.causes import sql_state
from spark_consumers.sinks import delta
from spark_consumers.sinks.faults import RowFault, TableFault
from spark_consumers.sinks.postgres import PostgresDatabase
from tests.spark_consumers.spark_process import SparkProcess

OF_NONE = [
    "08006",
    "25006",
    "25P03",
    "28000",
    "3D000",
    "40001",
    "40P01",
    "42501",
    "53100",
    "55006",
    "55P03",
    "57014",
    "57P01",
]
OF_NONE += ["58030", "72000", "XX000"]
OF_ROWS = ["21000", "22003", "22P05", "23502", "23514", "38000", "39000", "44000", "54000", "P0001"]
OF_TABLES = ["0A000", "2BP01", "3F000", "42P01", "42804", "54011", "55000"]


def in_postgres(error: Exception, *, writes_rows: bool) -> type[BaseException]:
    with pytest.raises(RelayError) as raised, PostgresDatabase("postgresql://h/db")._errors(writes_rows=writes_rows):
        raise error
    return raised.type


@pytest.mark.parametrize("state", [*OF_NONE, *OF_ROWS, *OF_TABLES])
def test_postgresql_says_whose_fault_it_is(state: str) -> None:
    """I1, I12: a lock or a server that ends is the fault of neither, whatever the statement."""
    wanted = {**dict.fromkeys(OF_NONE, Unavailable), **dict.fromkeys(OF_ROWS, RowFault)}.get(state, TableFault)
    assert in_postgres(errors.lookup(state)("said"), writes_rows=True) is wanted
    # Nobody can tell by which row a change of the table fails.
    other = Unavailable if state in OF_NONE else TableFault
    assert in_postgres(errors.lookup(state)("said"), writes_rows=False) is other


@pytest.mark.parametrize("error", [OperationalError, InterfaceError])
def test_a_lost_connection_is_the_fault_of_no_row(error: type[Exception]) -> None:
    assert in_postgres(error("server closed the connection"), writes_rows=True) is Unavailable


def test_who_makes_the_same_schema_at_the_same_time_makes_no_fault() -> None:
    """I12: the next attempt finds it there."""
    assert in_postgres(errors.UniqueViolation("pg_namespace_nspname_index"), writes_rows=False) is Unavailable
    assert in_postgres(errors.UniqueViolation("of a user"), writes_rows=True) is RowFault


WRITING = "[TASK_WRITE_FAILED] Task failed while writing rows. SQLSTATE: 58030\nCaused by: "


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ("java.io.IOException: No space left on device", None),
        (f"{WRITING}java.io.IOException: No space left on device", None),
        ("[KAFKA_DATA_LOSS] Some data may have been lost. SQLSTATE: 22000", None),
        ("[DELTA_CONCURRENT_APPEND] Files were added. SQLSTATE: 2D521", None),
        ("[FAILED_READ_FILE.NO_HINT] Error while reading file. SQLSTATE: KD001", None),
        ("[INTERNAL_ERROR] SQLSTATE: XX000", None),
        ("[CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND] An executor was lost. SQLSTATE: 56000", None),
        ("[OPERATION_CANCELED] SQLSTATE: HY008", None),
        ("[DELTA_CANNOT_CREATE_LOG_PATH] SQLSTATE: 42KD5", None),
        (f"{WRITING}[KRYO_BUFFER_OVERFLOW] SQLSTATE: 54006", TableFault),
        ("[USER_RAISED_EXCEPTION] t: a batch that was read again lacks row images SQLSTATE: P0001", None),
        (f"{WRITING}[USER_RAISED_EXCEPTION] a value of type int is expected, not x SQLSTATE: P0001", RowFault),
        (f"{WRITING}[CAST_INVALID_INPUT] The value 'SQLSTATE: 42000' cannot be cast. SQLSTATE: 22018", RowFault),
        ("[DELTA_VIOLATE_CONSTRAINT_WITH_VALUES] CHECK constraint c violated. SQLSTATE: 23001", RowFault),
        ("[DELTA_UNSUPPORTED_FEATURES_FOR_WRITE] Unsupported. SQLSTATE: 56038", TableFault),
        ("[UNRESOLVED_COLUMN.WITHOUT_SUGGESTION] SQLSTATE: 42703", TableFault),
    ],
)
@pytest.mark.parametrize("error", [PySparkException, Py4JError])
def test_spark_says_whose_fault_it_is(error: type[Exception], said: str, wanted: type[Exception] | None) -> None:
    """I1, I12: what failed first decides, and records that are gone from Kafka are not a row's fault."""
    for writes_rows, expected in ((True, wanted), (False, wanted and TableFault)):
        with pytest.raises((error, RelayError)) as raised, delta.faults(writes_rows=writes_rows):
            raise error(said)
        assert raised.type is (expected or error)


CATALOG = """
import json, re, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from spark_consumers.sinks import delta, iceberg_copy
from spark_consumers.sinks.faults import TableFault
from tests.spark_consumers.local_spark import spark

class Answers(BaseHTTPRequestHandler):
    def do_GET(self):
        code, content = 200, {"defaults": {}, "overrides": {}}
        if asked := re.search(r"/t([0-9]+)", self.path):
            code = int(asked[1])
            content = {"error": {"message": "no", "type": "E", "code": code}}
        self.send_response(code)
        self.end_headers()
        self.wfile.write(json.dumps(content).encode())
    do_POST = do_HEAD = do_GET
    def log_message(self, *_):
        pass

server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
threading.Thread(target=server.serve_forever, daemon=True).start()
found = {}
with spark() as session:
    settings = {"": "org.apache.iceberg.spark.SparkCatalog", ".type": "rest", ".rest.client.max-retries": "1"}
    settings[".uri"] = f"http://127.0.0.1:{server.server_port}"
    for name, value in settings.items():
        session.conf.set(f"spark.sql.catalog.refusing{name}", value)
    for code in (400, 401, 403, 500, 503):
        for ask in (iceberg_copy.schema_of, iceberg_copy.properties_of):
            try:
                with delta.faults():
                    ask(session, f"refusing.shop.t{code}")
            except (TableFault, PySparkException, Py4JError) as error:
                found.setdefault(code, []).append(isinstance(error, TableFault))
server.shutdown()
print(json.dumps(found))
"""


@pytest.mark.services
def test_what_a_catalog_of_iceberg_refuses_for_one_table_sets_that_table_aside(spark_process: SparkProcess) -> None:
    """I12: it held up the whole copy. A token that has expired, and a catalog that is away, concern every table."""
    found = json.loads(spark_process.run(CATALOG).splitlines()[-1])
    both, none = [True] * 2, [False] * 2
    assert found == {"400": both, "401": none, "403": both, "500": none, "503": none}


def test_an_error_whose_jvm_has_ended_has_no_state() -> None:
    class Gone(Exception):
        def __str__(self) -> str:
            raise Py4JError("no JVM")

    assert sql_state(Gone()) == ""

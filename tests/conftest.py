"""What every test may ask for: the services, credentials for them, and names nobody else uses.

The services run as containers where a Docker engine answers, else as embedded processes;
``RELAY_TEST_SERVICES=docker|embedded`` says which. They last for the session: a test uses names of its own
(``unique``), and one that breaks a service starts one of its own.
"""

from __future__ import annotations

import functools
import gc
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
import typer
import typer.testing

from relay.dynamodb import head
from relay.services.dynamodb import DynamoDBLocal
from relay.services.kafka import KafkaBroker
from relay.services.mariadb import MariaDB
from relay.services.memcached import MemcachedServer
from relay.services.postgres import PostgresServer
from relay.services.redis import RedisServer
from relay.services.registry import SchemaRegistry
from relay.services.server import EmbeddedServer
from relay.services.vitess import Vitess
from tests import containers, needs, parallel, selection
from tests.browser import SCREENSHOTS
from tests.dynamodb.endpoint import ScriptedStream
from tests.in_memory import folder_in_memory
from tests.kafka.proxy import ProxiedBroker, passing
from tests.longest_first import WORKER, LongestFirst
from tests.mysql import mariadb_10
from tests.mysql.server import MySQL
from tests.progress import Progress
from tests.running import running
from tests.services import kafka_classes
from tests.spark_consumers import spark_classes
from tests.traces import no_traces_left
from tests.waiting import cpu_seconds

if TYPE_CHECKING:
    from tests.aws_server import AwsServer, Keys
    from tests.faults.harness import Scene

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that runs the tests in the background ignores it, and so would every process they start and interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Images of Python often say that it keeps no compiled modules. The tests start hundreds of processes, and each of them
# would compile a thousand modules again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A sixth of the CPU that the collection of tests takes, and hardly anything of what it makes is garbage.
gc.disable()

# typer's runner makes all of the command line anew for each call, which takes longer than most commands.
vars(typer.testing)["_get_command"] = functools.cache(typer.main.get_command)

spark_classes.use()
KafkaBroker.java_options = kafka_classes.java_options  # type: ignore[assignment,method-assign]

if os.environ.get("RELAY_TEST_MARIADB") == "10.11":
    mariadb_10.use()

# Several JVMs may start at once.
EmbeddedServer.start_timeout = 300.0

# A controller notes every half second that it is there, which is a quarter of the CPU that an idle broker takes.
QUIET = {"metadata.max.idle.interval.ms": "0"}

# Relays that catch up in this process: what tests draw has fewer empty pages in a row than are the head of a shard.
head.QUIET_SECONDS = 0.1

# No test fails because the host is slow.
hypothesis.settings.register_profile("relay", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.register_profile("quick", hypothesis.settings.get_profile("relay"), max_examples=10)
hypothesis.settings.load_profile("relay")


def pytest_configure(config: pytest.Config) -> None:
    if not config.pluginmanager.has_plugin("cacheprovider"):
        return
    longest_first = LongestFirst(config.cache)
    config.pluginmanager.register(longest_first)

    def say(text: str) -> None:
        if (reporter := config.pluginmanager.get_plugin("terminalreporter")) is not None:
            reporter.ensure_newline()
            reporter.write_line(text)

    if WORKER not in os.environ:
        config.pluginmanager.register(Progress(longest_first.expected, say), "progress")


@pytest.hookimpl(optionalhook=True)  # which only xdist has
def pytest_xdist_auto_num_workers() -> int:
    return parallel.of_this_machine()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no file of which all tests are left out: in ``make quick``, each process would import a hundred."""
    expression = config.getoption("markexpr")
    if not collection_path.match("test_*.py") or _is_named(collection_path, config):
        return None
    return selection.is_left_out(expression, collection_path.read_text(encoding="utf-8")) or None


def _is_named(path: Path, config: pytest.Config) -> bool:
    """Whether somebody asks for the tests of this file: pytest would not find a file that is left out."""
    return any(Path(argument.partition("::")[0]).absolute() == path for argument in config.args)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Note for CI whether all tests were run, and some failed: those are worth repeating."""
    progress = session.config.pluginmanager.get_plugin("progress")
    if progress is not None:
        is_complete = exitstatus == pytest.ExitCode.TESTS_FAILED and progress.is_complete
        session.config.cache.set("relay/only-tests-failed", is_complete)


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """Escape halves of surrogate pairs: a worker of xdist that cannot send a report ends the whole run."""
    return escaped((yield))


def escaped(value: Any) -> Any:
    match value:
        case str():
            return value.encode(errors="backslashreplace").decode()
        case dict():
            return {escaped(key): escaped(item) for key, item in value.items()}
        case list() | tuple():
            return type(value)(map(escaped, value))
    return value


def pytest_itemcollected(item: pytest.Item) -> None:
    if problem := selection.problem(item.iter_markers()):
        raise pytest.UsageError(f"{item.nodeid} {problem}")


def pytest_collection_finish() -> None:
    """Leave what the imports made out of every later collection of garbage."""
    gc.enable()
    gc.collect()
    gc.freeze()
    # Not after every 700 objects: Hypothesis makes many that live as long as an example.
    gc.set_threshold(10_000, 20, 20)


def pytest_runtest_setup() -> None:
    if selection.is_too_late(os.environ.get("RELAY_TEST_UNTIL"), time.time()):
        pytest.skip("the time of this run is over (RELAY_TEST_UNTIL)")


@pytest.fixture(scope="module", autouse=True)
def garbage_collected() -> Iterator[None]:
    """Collects what a file left in cycles: a client of Kafka there goes on connecting to a broker that has ended.

    What is still in use, such as the reports of all tests before, is left out of later collections.
    """
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def no_traces_of_relays() -> Iterator[None]:
    """Undoes what a relay has set that ran in this process."""
    with no_traces_left():
        yield


@pytest.fixture(scope="session")
def screenshots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the pictures that a browser takes."""
    folder = Path(os.environ.get(SCREENSHOTS) or tmp_path_factory.mktemp("screenshots"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def in_docker() -> bool:
    """Whether the services of this session run as containers."""
    wanted = os.environ.get("RELAY_TEST_SERVICES")
    if wanted not in (None, "", "docker", "embedded"):
        raise pytest.UsageError(f"RELAY_TEST_SERVICES is {wanted!r}: docker or embedded")
    return wanted == "docker" if wanted else _docker_answers()


def _docker_answers() -> bool:
    docker = shutil.which("docker")
    if docker is None:
        return False
    try:
        return subprocess.run([docker, "info"], capture_output=True, timeout=5, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False


@pytest.fixture(scope="session")
def kafka(in_docker: bool) -> Iterator[KafkaBroker | containers.Kafka]:
    """A broker: ``.bootstrap_servers``."""
    with (
        folder_in_memory() as folder,
        running("kafka") or (containers.Kafka() if in_docker else KafkaBroker(folder, options=QUIET)) as broker,
    ):
        yield broker


@pytest.fixture(scope="session")
def lasting_dynamodb(in_docker: bool) -> Iterator[DynamoDBLocal | containers.DynamoDB]:
    with running("dynamodb") or (containers.DynamoDB() if in_docker else DynamoDBLocal()) as database:
        yield database


@pytest.fixture(scope="module")
def dynamodb(lasting_dynamodb: DynamoDBLocal | containers.DynamoDB) -> DynamoDBLocal | containers.DynamoDB:
    """A DynamoDB with Streams: ``.endpoint_url``. It has the same tables for a test file.

    Each read of a stream takes it 0.3 ms of CPU for a thousand records that any stream ever had, those of deleted
    tables included, so it is started anew for the file after one that used it much.
    """
    if isinstance(lasting_dynamodb, DynamoDBLocal) and cpu_seconds(lasting_dynamodb.process.pid) > 10:
        lasting_dynamodb.restart()
    return lasting_dynamodb


@pytest.fixture(scope="session")
def redis_server(in_docker: bool) -> Iterator[RedisServer | containers.Redis]:
    """A Redis: ``.url``."""
    with running("redis_server") or (containers.Redis() if in_docker else RedisServer()) as server:
        yield server


@pytest.fixture(scope="session")
def memcached_server(in_docker: bool) -> Iterator[MemcachedServer | containers.Memcached]:
    """A memcached that takes items of 8 MB: ``.url``."""
    with containers.Memcached() if in_docker else MemcachedServer(options={"max-item-size": "8m"}) as server:
        yield server


@pytest.fixture(scope="session")
def postgres(in_docker: bool) -> Iterator[PostgresServer | containers.Postgres]:
    """A PostgreSQL: ``.url`` of its superuser, ``.execute``. Make a schema or a database of your own."""
    with containers.Postgres() if in_docker else PostgresServer() as server:
        yield server


@pytest.fixture
def database_url(postgres: PostgresServer | containers.Postgres, unique: str) -> str:
    """The URL of a database of this test's own in PostgreSQL."""
    postgres.execute(f"CREATE DATABASE {unique}")
    return f"{postgres.url.rpartition('/')[0]}/{unique}"


@pytest.fixture(scope="session")
def schema_registry(in_docker: bool) -> Iterator[SchemaRegistry | containers.Registry]:
    """A schema registry with Confluent's API: ``.url``."""
    with containers.Registry() if in_docker else SchemaRegistry() as registry:
        yield registry


@pytest.fixture(scope="session")
def mariadb(in_docker: bool) -> Iterator[MariaDB | containers.MariaDB]:
    """A MariaDB primary: ``.host``, ``.port``, ``.connect``, ``.execute``, ``.gtid``. Make a database of your own."""
    with containers.MariaDB() if in_docker else MariaDB() as server:
        yield server


@pytest.fixture(scope="session")
def mysql(in_docker: bool) -> Iterator[MySQL | containers.MySQL]:
    """A MySQL with what ``mariadb`` has. Skips where there is neither a Docker engine nor ``RELAY_TEST_MYSQLD``."""
    with containers.MySQL() if in_docker and not needs.has_mysqld() else MySQL() as server:
        yield server


@pytest.fixture(scope="session")
def vitess(in_docker: bool) -> Iterator[Vitess | containers.Vitess]:
    """A Vitess, keyspace ``commerce`` in four shards: ``.vtgate``, ``.connect``, ``.execute``; embedded, ``.journal``.

    Tables: ``ALTER VSCHEMA`` and ``CREATE TABLE`` through it, under names of your own. Skips where there is no Go.
    """
    if not in_docker:
        needs.vitess()
    with containers.Vitess() if in_docker else Vitess() as cluster:
        yield cluster


@pytest.fixture(scope="session", autouse=True)
def aws_credentials() -> Iterator[None]:
    """Credentials of no account, so that no test can reach a real one."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "AWS_ROLE_ARN"):
            patch.delenv(name, raising=False)
        patch.setenv("AWS_ACCESS_KEY_ID", "relay")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "relay")
        patch.setenv("AWS_CONFIG_FILE", os.devnull)
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        yield


@pytest.fixture(scope="session")
def aws() -> Iterator[AwsServer]:
    """A stand-in for AWS that checks who may do what."""
    from tests import aws_server

    with aws_server.running() as server:
        yield server


@pytest.fixture
def aws_user(aws: AwsServer, unique: str, monkeypatch: pytest.MonkeyPatch) -> Keys:
    """The user of the environment, who may assume roles and nothing else."""
    keys = aws.user(unique, "sts:AssumeRole")
    for name, value in keys.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", aws.url)
    return keys


@pytest.fixture(scope="session", autouse=True)
def state_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A place of the session's own for what commands remember, so that no test writes to the home folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RELAY_STATE", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="module")
def proxied_broker() -> Iterator[ProxiedBroker]:
    with folder_in_memory() as folder, ProxiedBroker(folder=folder) as broker:
        yield broker


@pytest.fixture
def broker(proxied_broker: ProxiedBroker) -> Iterator[ProxiedBroker]:
    """A broker of the test module's own, whose proxy loses what the test says: ``.proxy``, ``.bootstrap_servers``."""
    yield proxied_broker
    proxied_broker.proxy.rule = passing


@pytest.fixture
def scene(
    tmp_path: Path, kafka: KafkaBroker | containers.Kafka, dynamodb: DynamoDBLocal | containers.DynamoDB, unique: str
) -> Iterator[Scene]:
    """A table of DynamoDB, its config, and relays that can be killed."""
    from tests.faults.harness import Scene

    scene = Scene(tmp_path, unique, kafka.bootstrap_servers, dynamodb.endpoint_url)
    yield scene
    scene.close()


@pytest.fixture
def stream() -> Iterator[ScriptedStream]:
    """A scripted DynamoDB stream, empty."""
    with ScriptedStream() as scripted:
        yield scripted


@pytest.fixture
def unique() -> str:
    """A short name for this test alone, legal for topics, tables, groups and in Avro."""
    return f"t{uuid.uuid4().hex[:10]}"

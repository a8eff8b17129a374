"""Commands on a machine that is short of something: a reader, a disk, a stream, an encoding, a folder."""

from __future__ import annotations

import json
import os
import pwd
import signal
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest
import yaml

from relay.kafka.producers import Identity
from relay.process.managed import free_port
from tests.command_line import relay

COMMAND = [sys.executable, "-m", "relay"]
FORMATS = ["text", "json"]

pytestmark = pytest.mark.processes


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "relay.yaml"
    orders = {"name": "orders", "type": "dynamodb", "table": "orders", "region": "eu-west-1"}
    path.write_text(yaml.safe_dump({"name": "shop", "kafka": {"bootstrap_servers": "b:1"}, "sources": [orders]}))
    return path


@pytest.mark.parametrize("log_format", FORMATS)
@pytest.mark.parametrize("command", ["check FILE --offline", "check --schema", "token compare null null"])
def test_a_command_is_done_when_its_reader_has_gone(command: str, log_format: str, file: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    words = [str(file) if word == "FILE" else word for word in command.split()]
    ran = subprocess.run(
        [*COMMAND, *words, "--log-format", log_format], stdout=writer, stderr=subprocess.PIPE, check=False
    )
    os.close(writer)
    assert (ran.returncode, ran.stderr) == (0, b"")


@pytest.mark.parametrize("log_format", FORMATS)
def test_a_service_whose_reader_has_gone_fails_so_that_it_is_started_again(log_format: str, file: Path) -> None:
    with file.open("a") as opened:
        opened.write('cache: {url: "redis://127.0.0.1:1/0", namespace: n, keys: {orders: ["{id}"]}}\n')
    reader, writer = os.pipe()
    os.close(reader)
    words = ["consume", "cache", str(file), "--engine", "python", "--http", f"127.0.0.1:{free_port()}"]
    ran = subprocess.run([*COMMAND, *words, "--log-format", log_format], stdout=writer, stderr=writer, check=False)
    os.close(writer)
    assert ran.returncode == 1


INTERRUPTED = """
import os, signal, sys

class Interrupting:
    def find_spec(self, name, path, target=None):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
from relay.__main__ import main
main()
"""


def test_ctrl_c_while_the_command_is_still_imported_ends_it_without_a_traceback() -> None:
    ran = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (-signal.SIGINT, "")  # 130 in a shell


@pytest.mark.parametrize("command", ["--help", "check --help"])
def test_help_is_done_when_its_reader_has_gone(command: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    ran = subprocess.run([*COMMAND, *command.split()], stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (ran.returncode, ran.stderr) == (0, b"")


@pytest.mark.parametrize("log_format", FORMATS)
@pytest.mark.parametrize("command", ["check FILE --offline", "check --schema", "token compare null null"])
def test_a_full_disk_is_an_error_of_one_line(command: str, log_format: str, file: Path) -> None:
    words = [str(file) if word == "FILE" else word for word in command.split()]
    with open("/dev/full", "w") as full:
        ran = subprocess.run(
            [*COMMAND, *words, "--log-format", log_format], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    said = ran.stderr if log_format == "text" else json.loads(ran.stderr)["message"]
    assert said.strip().removeprefix("relay: error: ") == "cannot write: No space left on device"
    assert ran.returncode == 1


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_command_may_be_started_without_standard_streams(closed: str) -> None:
    ran = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *COMMAND, "token", "compare", "null", "null"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "" if " >&-" in f" {closed}" else "unknown\n", "")


def test_without_stdin_nobody_is_asked(tmp_path: Path) -> None:
    ran = subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", *COMMAND, "init", str(tmp_path / "relay.yaml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr.count("\n")) == (2, 1), ran.stderr
    assert ran.stderr.startswith("relay: error: give --type")


def test_what_stdout_cannot_encode_is_printed_with_backslashes(file: Path) -> None:
    ascii_only = os.environ | {"PYTHONIOENCODING": "ascii"}
    ran = subprocess.run(
        [*COMMAND, "check", str(file), "--offline"], capture_output=True, text=True, env=ascii_only, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith(f"\\u2713 config {file}: valid")


def test_a_file_name_may_be_no_text(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/\xff.yaml"
    options = ("--type", "dynamodb", "--table", "orders", "--region", "eu-west-1", "--kafka", "b:1")
    ran = subprocess.run([*COMMAND, "init", path, *options], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith(f"wrote {tmp_path}/\\udcff.yaml\n")
    ran = subprocess.run([*COMMAND, "check", path, "--offline"], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize("log_format", FORMATS)
def test_a_home_folder_that_cannot_be_used_is_named_with_the_way_out(log_format: str, file: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("RELAY_STATE", "RELAY_CACHE")}
    ran = subprocess.run(
        [*COMMAND, "services", "down", "--log-format", log_format],
        capture_output=True,
        text=True,
        env=environment | {"HOME": str(file)},
        check=False,
    )
    said = ran.stderr if log_format == "text" else json.loads(ran.stderr)["message"]
    assert ran.returncode == 3
    assert said.strip().removeprefix("relay: error: ") == (
        f"cannot use {file}/.local/state/relay: Not a directory; RELAY_STATE can name another folder"
    )


def test_a_home_folder_that_does_not_exist_is_named_with_the_way_out() -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("RELAY_STATE", "RELAY_CACHE")}
    ran = subprocess.run(
        [*COMMAND, "services", "down"],
        capture_output=True,
        text=True,
        env=environment | {"HOME": "/proc/nobody"},
        check=False,
    )
    assert ran.returncode == 3
    assert ran.stderr == (
        "relay: error: cannot use /proc/nobody: No such file or directory; "
        "RELAY_STATE and RELAY_CACHE can name another folder\n"
    )


def test_a_user_without_a_home_folder_is_told_to_name_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that runs as a number without an account."""
    monkeypatch.delenv("HOME")
    monkeypatch.delenv("RELAY_STATE", raising=False)

    def no_account(number: int) -> NoReturn:
        raise KeyError(number)

    monkeypatch.setattr(pwd, "getpwuid", no_account)
    ran = relay("services", "status")
    assert (ran.exit_code, ran.stderr) == (
        3,
        "relay: error: this user has no home folder: name a folder to use in RELAY_STATE\n",
    )
    identity = Identity("shop")  # a worker goes on without it
    assert identity.transactional_id.startswith("shop-")
    identity.release()


def test_a_consumer_names_the_file_that_a_full_disk_does_not_take(file: Path, tmp_path: Path) -> None:
    with file.open("a") as opened:
        opened.write(f'log: {{path: "file://{tmp_path}/log"}}\n')
    checkpoint = tmp_path / "checkpoint"
    ran = subprocess.run(
        ["sh", "-c", 'ulimit -f 0; exec "$@"', "sh", *COMMAND, "consume", "log", file, "--checkpoint", checkpoint],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (1, f"relay: error: cannot write {checkpoint}/lock: File too large\n")


@pytest.mark.services
def test_services_name_the_file_that_a_full_disk_does_not_take(tmp_path: Path) -> None:
    state = tmp_path / "state"
    ran = subprocess.run(
        ["sh", "-c", 'ulimit -f 0; exec "$@"', "sh", *COMMAND, "services", "up", "redis"],
        capture_output=True,
        text=True,
        env=os.environ | {"RELAY_STATE": str(state)},
        check=False,
    )
    file = state / "services" / "redis" / "service.json.part"
    assert (ran.returncode, ran.stderr) == (1, f"relay: error: cannot write {file}: File too large\n")


@pytest.mark.parametrize("command", ["--help", "run --help"])
def test_help_for_a_full_disk_fails_in_one_line_too(command: str) -> None:
    with open("/dev/full", "w") as full:
        ran = subprocess.run([*COMMAND, *command.split()], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (1, "relay: error: cannot write: No space left on device\n")


def test_no_part_of_a_config_is_left_where_a_disk_is_full(tmp_path: Path) -> None:
    path = tmp_path / "relay.yaml"
    options = ("--type", "dynamodb", "--table", "orders", "--region", "eu-west-1", "--kafka", "b:1")
    ran = subprocess.run(
        ["sh", "-c", 'ulimit -f 0; exec "$@"', "sh", *COMMAND, "init", str(path), *options],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (2, f"relay: error: {path}: cannot be written: File too large\n")
    assert not path.exists()


def test_a_config_is_replaced_as_a_whole_or_kept_where_a_disk_is_full(file: Path) -> None:
    before = file.read_text()
    file.chmod(0o640)
    link = file.with_name("link.yaml")
    link.symlink_to(file)
    options = ("--type", "dynamodb", "--table", "orders", "--region", "eu-west-1", "--kafka", "b:1", "--force")
    for limit, code in (("0", 2), ("unlimited", 0)):
        ran = subprocess.run(
            ["sh", "-c", f'ulimit -f {limit}; exec "$@"', "sh", *COMMAND, "init", str(link), *options],
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == code, ran.stderr
        assert (file.read_text() == before) == (code == 2)
    assert (link.is_symlink(), file.stat().st_mode & 0o777) == (True, 0o640)
    assert sorted(file.parent.iterdir()) == [link, file]


def test_a_core_that_is_required_and_missing_is_an_error_of_one_line() -> None:
    """Whatever command needs it."""
    command = """
import relay.cli as cli
from relay import native

@cli.app.command("needs-core")
def needs_core() -> None:
    import sys
    sys.modules["relay.native._core"] = None
    native.core()

cli.app(["needs-core"])
"""
    ended = subprocess.run(
        [sys.executable, "-c", command], env={**os.environ, "RELAY_NATIVE": "required"}, capture_output=True, text=True
    )
    assert ended.returncode == 2
    assert ended.stderr.startswith("relay: error: RELAY_NATIVE=required is set, and this installation lacks")
    assert "Traceback" not in ended.stderr

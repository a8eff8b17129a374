"""Every code block of every document is run, or read by the program that it is for."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
import typer
import yaml

from deploy.docs.site import documents
from relay.cli import app
from tests.snippets import ROOT, Block, blocks, play, programs

RUN_BY = {
    "README.md": "tests/test_readme.py",
    "deploy/docs/tutorial.md": "tests/test_readme.py",
    "deploy/docs/how_to/cache.md": "tests/test_readme.py",
    "deploy/docs/how_to/copy.md": "tests/spark_consumers/test_postgres_views.py",
    "deploy/docs/how_to/log.md": "tests/spark_consumers/test_log_views.py",
    "deploy/docs/how_to/read.md": "tests/spark_consumers/test_frames.py",
    "relay/dynamodb/README.md": "tests/dynamodb/test_stream.py",
    "relay/dynamodb/models/README.md": "tests/dynamodb/models/test_readme.py",
    "relay/keyspace/README.md": "tests/keyspace/test_queries.py",
    "relay/mysql/README.md": "tests/test_readme.py",
}
"""The test that runs the Python and the SQL of a document, on the services that they need."""

RUN_HERE = ("relay/aws/README.md", "relay/vitess/README.md")
"""The documents whose programs need no service."""

OTHER_PROGRAMS = {
    *("aws", "cp", "docker", "export", "helm", "install", "kafka-configs", "kafka-console-consumer.sh", "kubectl"),
    "kafka-delete-records",
    *("python", "python3", "spark-submit", "systemctl", "useradd", "venv-pack"),
}
"""The programs of others in the blocks of shell commands: only the files of this repository are looked up."""

MADE = re.compile(r"deploy/(?:docs|helm/relay|spark|image|systemd|kafka)/?[\w./@*-]*|tests/[\w./-]+")


def of(language: str) -> list[Block]:
    return blocks(language=language)


def lines(block: Block) -> Iterator[list[str]]:
    """Yield the words of each command."""
    for line in block.text.replace("\\\n", " ").splitlines():
        for command in line.split("&&"):
            words = shlex.split(command, comments=True)
            if words:
                yield words[: words.index(">")] if ">" in words else words


def parse(words: list[str]) -> None:
    """Parse the arguments of ``relay`` as the command line does, without running anything."""
    command: Any = typer.main.get_command(app)  # typer has a click of its own
    context = command.make_context("relay", list(words))
    while hasattr(command, "resolve_command"):
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        context = command.make_context(name, rest, parent=context)


def test_a_block_has_a_language_that_a_test_reads() -> None:
    languages = {"python", "yaml", "json", "toml", "sql", "sh", "text"}
    assert [str(block) for block in blocks() if block.language not in languages] == []


def test_no_block_is_written_by_indenting_it() -> None:
    """It would have no language. Lines that go on a list are indented, too."""
    found = []
    for path in documents():
        text = re.sub(r"^( *)```.*?^\1```$", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
        for before, after in re.findall(r"^(\S[^\n]*)\n\n(    \S[^\n]*)", text, re.MULTILINE):
            if not re.match(r"[-*] |\d+\. ", before):
                found.append((path.name, after))
    assert found == []


@pytest.mark.parametrize("block", [*of("python"), *of("sql")], ids=str)
def test_a_program_is_run(block: Block) -> None:
    if block.document not in RUN_HERE:
        assert block.document in (ROOT / RUN_BY[block.document]).read_text(encoding="utf-8")


@pytest.mark.parametrize("document", sorted({block.document for block in of("python")}))
def test_the_programs_of_a_document_have_no_undefined_name(document: str) -> None:
    """Read from the first to the last."""
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821,E9", "--quiet", "-"]
    found = subprocess.run(command, input="\n".join(programs(document)), text=True, capture_output=True)
    assert found.stdout == ""
    assert found.returncode == 0, found.stderr


@pytest.mark.parametrize("document", RUN_HERE)
def test_a_program_that_needs_no_service_runs(document: str) -> None:
    for program in programs(document):
        play(program, {})


@pytest.mark.parametrize("block", of("json"), ids=str)
def test_json_is_json(block: Block) -> None:
    json.loads(block.text)


@pytest.mark.parametrize("block", of("toml"), ids=str)
def test_toml_is_toml(block: Block) -> None:
    tomllib.loads(block.text)


@pytest.mark.parametrize("block", of("sh"), ids=str)
def test_commands_are_ones_that_there_are(block: Block) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for program, *words in lines(block):
        name = program.rpartition("/")[2]
        if name == "relay":
            parse(words)
        elif name == "make":
            assert words[0] in targets
        elif name == "pip":
            (wanted,) = re.findall(r"\[(.*)\]", words[1])
            assert set(wanted.split(",")) <= extras.keys()
        else:
            assert name in OTHER_PROGRAMS
            for word in words:
                if (file := MADE.fullmatch(word)) and "*" not in file[0]:
                    assert (ROOT / file[0]).exists(), word


@pytest.mark.parametrize("words", ["run relay.yaml --worker 3", "gaps accept relay.yaml ID repair", "consumes cache c"])
def test_a_command_that_there_is_not_is_noticed(words: str) -> None:
    with pytest.raises(Exception, match=r"No such|not one of"):
        parse(words.split())


def test_commands_in_the_runbook_are_ones_that_there_are() -> None:
    groups = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yaml").read_text(encoding="utf-8"))["groups"]
    acts = [rule["annotations"]["runbook"] for group in groups for rule in group["rules"]]
    commands = {command for act in acts for command in re.findall(r"`relay ([a-z-]+ [^`]+)`", act)}
    assert len(commands) > 5
    for command in commands:
        parse(command.split())

"""The programs in ``spark_consumers/examples`` that use none of our code, as other programs start them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark

import spark_consumers
from relay.jvm.jars import jars
from relay.jvm.java import find_java
from tests import needs

EXAMPLES = Path(spark_consumers.__file__).parent / "examples"


def in_python() -> list[str]:
    return [sys.executable, str(EXAMPLES / "own_client.py")]


def in_java() -> list[str]:
    """The file as it stands, with the libraries that are here anyway."""
    libraries = [*jars("kafka"), *(Path(pyspark.__file__).parent / "jars").glob("*.jar")]
    path = os.pathsep.join(map(str, libraries))
    return [str(find_java()), "-cp", path, str(EXAMPLES / "java" / "OwnClient.java")]


def in_javascript() -> list[str]:
    return ["node", str(needs.javascript(EXAMPLES / "javascript") / "read.js")]


PROGRAMS = {"python": in_python, "java": in_java, "javascript": in_javascript}


def own_client(
    program: str, servers: str, topic: str, schemas: str, count: int, registry: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a program until it has printed ``count`` changes. It has a group of its own, with a registry another one."""
    group = f"{topic}.{program}{'.registry' if registry else ''}"
    command = [*PROGRAMS[program](), servers, topic, schemas, group, registry, str(count)]
    return subprocess.run(command, capture_output=True, check=False, timeout=600, text=True)


def printed(ran: subprocess.CompletedProcess[str]) -> list[Any]:
    """Return operation, key and new row of each change that was printed, with the numbers as text."""
    assert ran.returncode == 0, ran.stderr
    return [json.loads(line, parse_int=str, parse_float=str) for line in ran.stdout.splitlines()]

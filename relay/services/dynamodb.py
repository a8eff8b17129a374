"""An embedded DynamoDB Local, in memory.

May be changed here: its heap. Its streams have one open shard that never splits, expires or trims.
"""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from typing import ClassVar

from relay.jvm.jars import jars
from relay.process.managed import HOST, accepts
from relay.services.server import EmbeddedServer, java_command


class DynamoDBLocal(EmbeddedServer):
    """DynamoDB with Streams; forgets all when it ends.

    Any credentials and region will do, and see the same tables. It listens on all interfaces: it has no option
    against that.
    """

    name: ClassVar[str] = "dynamodb"

    @property
    def endpoint_url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def address(self) -> str:
        return self.endpoint_url

    def _command(self) -> list[str]:
        files = jars("dynamodb")
        classpath = os.pathsep.join(str(path) for path in files if path.suffix == ".jar")
        return java_command(
            "512m",
            f"-Djava.library.path={files[0].parent}",
            "-cp",
            classpath,
            "com.amazonaws.services.dynamodbv2.local.main.ServerRunner",
            *("-inMemory", "-sharedDb", "-disableTelemetry", "-port", str(self.port)),
        )

    def _ready(self) -> bool:
        return accepts(self.port) and serves(self.endpoint_url)


def serves(url: str) -> bool:
    """Tell whether a DynamoDB Local answers at this address."""
    try:
        with urllib.request.urlopen(url, timeout=5.0):
            return True
    except urllib.error.HTTPError as error:
        # It refuses what is not a signed call: the answer is all that is wanted.
        error.close()
        return True
    except OSError:
        return False

"""An embedded DynamoDB Local, in memory. Its streams have one open shard that never splits, expires or trims."""

import os

from relay.jvm.jars import jars
from relay.process.managed import HOST, accepts
from relay.services.server import EmbeddedServer, http_status, java_command


class DynamoDBLocal(EmbeddedServer):
    """DynamoDB with Streams. Its data is lost when it ends.

    Any credentials and region work, and see the same tables. It listens on all interfaces, which no option changes.
    """

    name = "dynamodb"

    @property
    def endpoint_url(self) -> str:
        return f"http://{HOST}:{self.port}"

    address = endpoint_url

    @property
    def login(self) -> str:
        return f"AWS_ACCESS_KEY_ID=local AWS_SECRET_ACCESS_KEY=local aws dynamodb --endpoint-url {self.address} ..."

    def _command(self) -> list[str]:
        files = jars("dynamodb")
        classpath = os.pathsep.join(str(path) for path in files if path.suffix == ".jar")
        return java_command(
            f"-Djava.library.path={files[0].parent}",
            "-cp",
            classpath,
            "com.amazonaws.services.dynamodbv2.local.main.ServerRunner",
            *("-inMemory", "-sharedDb", "-disableTelemetry", "-port", str(self.port)),
        )

    def _ready(self) -> bool:
        return accepts(self.port) and serves(self.endpoint_url)


def serves(url: str) -> bool:
    return http_status(url) is not None  # it refuses an unsigned call

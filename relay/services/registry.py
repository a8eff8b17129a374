"""An embedded schema registry: Apicurio, in memory, with Confluent's API."""

from relay.jvm.jars import jars
from relay.process.managed import HOST, accepts
from relay.services.server import EmbeddedServer, http_status, java_command


class SchemaRegistry(EmbeddedServer):
    """Apicurio Registry 2.6 on the loopback address. Its data is lost when it ends."""

    name = "registry"

    @property
    def address(self) -> str:
        """The base URL of Confluent's API."""
        return f"http://{HOST}:{self.port}/apis/ccompat/v7"

    def _command(self) -> list[str]:
        (runner,) = (path for path in jars("registry") if path.name.endswith("-runner.jar"))
        return java_command("-jar", str(runner))

    def _environment(self) -> dict[str, str]:
        return {"QUARKUS_HTTP_HOST": HOST, "QUARKUS_HTTP_PORT": str(self.port)}

    def _ready(self) -> bool:
        return accepts(self.port) and serves(self.url)


def serves(url: str) -> bool:
    """Return whether a registry answers at this base URL of Confluent's API."""
    return http_status(f"{url}/subjects") == 200  # while it starts, it answers 404 and 503

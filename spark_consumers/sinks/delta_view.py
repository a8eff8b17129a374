"""The table under a table's own name in a copy in Delta: it has the rows that the table has at its source.

The rows, with tombstones and our columns, are in a table inside its folder. The log of the one under the name lists the
same files but the tombstones', and no column of ours.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID, uuid5

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from spark_consumers.locations import below
from spark_consumers.sinks.delta_values import HIDDEN
from spark_consumers.spark_internals import delta_log, forget_delta_logs, jvm_of

ROWS = "_relay_rows"
"""The folder of the table with the rows. Delta takes no file of such a folder for one that nothing needs."""

Action = dict[str, Any]
"""An action of Delta's log, as JSON has it."""

_CHECKPOINT_EVERY = 50  # versions
_ENCODED = 20  # characters in the name of a file with deletion vectors
_OUR_TABLES = UUID("6f0c8a5e-5c1e-4f0b-9d7a-0e6f7a2b8c11")


class DeltaView:
    def __init__(self, path: str) -> None:
        self._path = path
        # The last version, and the version of the rows that it shows, by what they are called there; to be read if
        # there is none. And its schema and settings.
        self._shown: dict[str, tuple[int, int]] = {}
        self._kinds: Action = {}

    def follow(self, session: SparkSession) -> None:
        """Show what the rows are now, in one version. It may be done again at any time, and beside other drivers."""
        while not self._follow(_Log(session, below(self._path, ROWS)), _Log(session, self._path)):
            # Others were faster, or have removed the log, of which Delta remembers what was there.
            self._shown, self._kinds = {}, {}
            forget_delta_logs(session)

    def _follow(self, rows: "_Log", view: "_Log") -> bool:
        state = rows.snapshot()
        version, name = state.version(), f"relay {state.metadata().id()}"
        at, known = self._shown.get(name) or _shown(view, name)
        if known > version:  # another driver was faster meanwhile, or the rows are older: a backup
            state = rows.snapshot()
            version = state.version()
        infos = [] if known == version else [each for each in rows.read(version) if "commitInfo" in each]
        # I7: what others have written here, or a table of rows that was created again, is replaced as a whole.
        found = rows.between(known + 1, version) if 0 <= known <= version else None
        if found is None:
            now = infos[0]["commitInfo"]["timestamp"] if infos else 0
            changes = replaced(shown_of(_whole(state)), _whole(view.snapshot()) if at >= 0 else (), now)
        else:
            changes = shown_of(found)
        kinds: Action = {kind: each for each in changes for kind in ("protocol", "metaData") if kind in each}
        changes = [each for each in changes if self._kinds.get(next(iter(each))) != each]
        if changes:
            at += 1
            if not view.write(at, [*infos, *changes, {"txn": {"appId": name, "version": version}}]):
                return False
            if (at + 1) % _CHECKPOINT_EVERY == 0:
                view.checkpoint()
        self._shown, self._kinds = {name: (at, version)}, {**self._kinds, **kinds}
        return True


def _shown(view: "_Log", name: str) -> tuple[int, int]:
    """Return the last version of a table, and the version of the rows ``name`` that it shows; -1 if there is none."""
    at = int(view.snapshot().version())
    last = view.read(at) if at >= 0 else []
    return at, max((each["txn"]["version"] for each in last if each.get("txn", {}).get("appId") == name), default=-1)


def shown_of(actions: Iterable[Action]) -> list[Action]:
    """Return the actions on the table under the name that consecutive ``actions`` on the rows stand for."""
    kinds: dict[str, Action] = {}
    files: dict[tuple[str, str], Action] = {}
    for action in actions:
        ((kind, given),) = action.items()
        if kind == "protocol":
            kinds[kind] = action
        elif kind == "metaData":
            kinds[kind] = {kind: _metadata(given)}
        elif kind in ("add", "remove") and "true" not in (given.get("partitionValues") or {}).values():
            file = {kind: _file(given)}
            before = files.pop(_identity(file), None)
            # A file that comes and goes between the two was never shown, and one that comes back still is.
            if before is None or kind in before:
                files[_identity(file)] = file
    return [*kinds.values(), *files.values()]


def replaced(wanted: Sequence[Action], present: Iterable[Action], now: int) -> list[Action]:
    """Return what turns a table of ``present`` into one of ``wanted`` alone. ``now``: removal time, milliseconds."""
    before = {_identity(each): each["add"] for each in present if "add" in each}
    kept = before.keys() & {_identity(each) for each in wanted if "add" in each}
    found = [each for each in wanted if "add" not in each]
    new = (each["add"] for each in wanted if "add" in each and _identity(each) not in kept)
    found += [{"add": {**file, "dataChange": True}} for file in new]
    for identity, file in before.items():
        if identity not in kept:
            gone = {name: value for name, value in file.items() if name not in ("stats", "modificationTime")}
            gone |= {"dataChange": True, "extendedFileMetadata": True}
            found.append({"remove": {**gone, "deletionTimestamp": now}})
    return found


def _whole(state: Any) -> list[Action]:
    return [json.loads(each.json()) for each in (state.protocol(), state.metadata(), *state.allFiles().collect())]


def _identity(action: Action) -> tuple[str, str]:
    """Return what Delta tells files apart by."""
    (file,) = action.values()
    return file["path"], json.dumps(file.get("deletionVector"), sort_keys=True)


def _file(given: Mapping[str, Any]) -> Action:
    vector, path = given.get("deletionVector"), given["path"]
    if vector and vector["storageType"] == "u":  # the folder that a file is in, and its name, encoded
        name = vector["pathOrInlineDv"]
        vector = {**vector, "pathOrInlineDv": f"{ROWS}{'/' if len(name) > _ENCODED else ''}{name}"}
    moved = path if ":" in path or path.startswith("/") else f"{ROWS}/{path}"
    return {**given, "path": moved, "partitionValues": {}, **({"deletionVector": vector} if vector else {})}


def _metadata(given: Mapping[str, Any]) -> Action:
    schema = json.loads(given["schemaString"])
    schema["fields"] = [each for each in schema["fields"] if each["name"] not in HIDDEN]
    settings = {name: value for name, value in given["configuration"].items() if name.startswith("delta.")}
    ours = {"id": str(uuid5(_OUR_TABLES, given["id"])), "schemaString": json.dumps(schema), "partitionColumns": []}
    return {**given, **ours, "configuration": settings}


class _Log:
    def __init__(self, session: SparkSession, path: str) -> None:
        self._java = jvm_of(session.sparkContext)
        self._log = delta_log(session, path)
        self._conf = self._log.newDeltaHadoopConf()

    def snapshot(self) -> Any:
        nothing = self._java.scala.Option.empty()
        return self._log.update(False, nothing, nothing)

    def read(self, version: int) -> list[Action]:
        lines = self._log.store().read(self._path(version), self._conf).mkString("\n")
        return [json.loads(line) for line in lines.split("\n") if line]  # a text may have line breaks of Unicode

    def between(self, first: int, last: int) -> list[Action] | None:
        """Return the actions of some versions; None if the log no longer has all of them."""
        try:
            return [action for version in range(first, last + 1) for action in self.read(version)]
        except Py4JJavaError as error:
            if _is(error, "FileNotFoundException"):
                return None
            raise

    def write(self, version: int, actions: Iterable[Action]) -> bool:
        """Write a version; return False if there is one of this number, or none before it."""
        path = self._path(version)
        files = path.getFileSystem(self._conf)
        if version == 0:
            files.mkdirs(path.getParent())
        elif not files.exists(self._path(version - 1)):
            return False
        lines = self._java.java.util.ArrayList()
        lines.add("\n".join(json.dumps(action) for action in actions))
        listed = self._java.scala.jdk.javaapi.CollectionConverters.asScala(lines.iterator())
        try:
            self._log.store().write(path, listed, False, self._conf)
        except Py4JJavaError as error:
            if _is(error, "FileAlreadyExistsException"):
                return False
            raise
        return True

    def checkpoint(self) -> None:
        """Let readers begin at the last version, and remove versions that are older than the table keeps them."""
        self.snapshot()
        self._log.checkpoint()

    def _path(self, version: int) -> Any:
        return self._java.org.apache.hadoop.fs.Path(self._log.logPath(), f"{version:020}.json")


def _is(error: Py4JJavaError, name: str) -> bool:
    return str(error.java_exception.getClass().getSimpleName()) == name

"""Reads values as changes on the JVM, by the Java class beside this module.

Spark's ``from_avro`` has one schema for a whole column. A query with 200 of them took 40 s of CPU to be planned, and
370 µs for each record. The class takes the same for one schema as for many.
"""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

from pyspark import SparkContext
from pyspark.sql import Column, SparkSession
from pyspark.sql.types import StructType

_SOURCE = Path(__file__).with_name("ChangeReader.java")
_NAME = "relay.ChangeReader"

# By the context whose executors have it: the class in the driver, and the folder of its jar.
_classes: WeakKeyDictionary[SparkContext, tuple[Any, tempfile.TemporaryDirectory[str]]] = WeakKeyDictionary()
_lock = Lock()


def read_as_changes(
    value: Column,
    into: StructType,
    schemas: Mapping[bytes, str],
    *,
    given_up: Sequence[bytes],
    registry: bool,
    session: SparkSession,
) -> Column:
    """Return a struct of status, layout and the columns of a change for each ``value``.

    ``into``: its type. ``schemas``: as JSON, by header; the layout is the place among them. ``given_up`` and
    ``registry``: as for `Decoder`.
    """
    context = session.sparkContext
    jvm: Any = context._jvm
    reader = _class(context).getConstructors()[0].newInstance(_array(context, jvm.Object, [registry]))
    for number, (header, schema) in enumerate(schemas.items()):
        reader.add(header, schema, number)
    for header in given_up:
        reader.giveUp(header)
    function = reader.into(jvm.org.apache.spark.sql.types.DataType.fromJson(into.json()))
    return Column(function.apply(jvm.PythonUtils.toSeq([value._jc])))


def _class(context: SparkContext) -> Any:
    with _lock:
        if context not in _classes:
            folder = tempfile.TemporaryDirectory(prefix="relay-java-")
            jar = Path(folder.name) / "change-reader.jar"
            jvm: Any = context._jvm
            loader = jvm.Thread.currentThread().getContextClassLoader()
            _compile(jvm, loader, jar)
            context._jsc.addJar(str(jar))
            urls = _array(context, jvm.java.net.URL, [jvm.java.io.File(str(jar)).toURI().toURL()])
            _classes[context] = jvm.java.net.URLClassLoader(urls, loader).loadClass(_NAME), folder
        return _classes[context][0]


def _compile(jvm: Any, loader: Any, jar: Path) -> None:
    """Write the class to ``jar``, with the compiler that Spark has for its own code."""
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(loader)
    compiler.cook(_SOURCE.read_text(encoding="utf-8"))
    with zipfile.ZipFile(jar, "w") as archive:
        for name, code in compiler.getBytecodes().items():
            archive.writestr(f"{name.replace('.', '/')}.class", bytes(code))


def _array(context: SparkContext, of: Any, items: Sequence[Any]) -> Any:
    array = context._gateway.new_array(of, len(items))  # type: ignore[union-attr]
    for place, item in enumerate(items):
        array[place] = item
    return array

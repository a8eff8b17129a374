"""Java of our own in Spark's JVM: compiled when it is first used, and given to the executors."""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

from pyspark import SparkContext

# By the context whose executors have them, and by name: the class in the driver, and the folder of its jar.
_classes: WeakKeyDictionary[SparkContext, dict[str, tuple[Any, tempfile.TemporaryDirectory[str]]]] = WeakKeyDictionary()
_lock = Lock()


def java_class(context: SparkContext, name: str) -> Any:
    """Return the class ``relay.<name>``, whose source is beside this module."""
    with _lock:
        known = _classes.setdefault(context, {})
        if name not in known:
            folder = tempfile.TemporaryDirectory(prefix="relay-java-")
            jar = Path(folder.name) / f"{name}.jar"
            jvm: Any = context._jvm
            loader = jvm.Thread.currentThread().getContextClassLoader()
            _compile(jvm, loader, name, jar)
            context._jsc.addJar(str(jar))
            urls = java_array(context, jvm.java.net.URL, [jvm.java.io.File(str(jar)).toURI().toURL()])
            known[name] = jvm.java.net.URLClassLoader(urls, loader).loadClass(f"relay.{name}"), folder
        return known[name][0]


def java_array(context: SparkContext, of: Any, items: Sequence[Any]) -> Any:
    array = context._gateway.new_array(of, len(items))  # type: ignore[union-attr]
    for place, item in enumerate(items):
        array[place] = item
    return array


def _compile(jvm: Any, loader: Any, name: str, jar: Path) -> None:
    """Write the class to ``jar``, with the compiler that Spark has for its own code."""
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(loader)
    compiler.cook(Path(__file__).with_name(f"{name}.java").read_text(encoding="utf-8"))
    with zipfile.ZipFile(jar, "w") as archive:
        for class_name, code in compiler.getBytecodes().items():
            archive.writestr(f"{class_name.replace('.', '/')}.class", bytes(code))

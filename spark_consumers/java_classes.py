"""Our own Java in Spark's JVM, which Spark's compiler compiles on first use, and which is sent to the executors."""

import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

from pyspark import SparkContext

from spark_consumers.spark_internals import add_jar, gateway_of, jvm_of

# By the context whose executors have them, and by name: the class in the driver, and the folder of its jar. Each class
# knows the ones before it.
_classes: WeakKeyDictionary[SparkContext, dict[str, tuple[Any, tempfile.TemporaryDirectory[str]]]] = WeakKeyDictionary()
_lock = Lock()


def new_instance(context: SparkContext, name: str, *arguments: Any, using: Sequence[str] = ()) -> Any:
    """Return an object of the class in ``name``.java, by its one constructor. ``using``: other files that it needs."""
    jvm = jvm_of(context)
    for each in using:
        _class(context, each)
    return _class(context, name).getConstructors()[0].newInstance(_array(context, jvm.Object, arguments))


def _class(context: SparkContext, name: str) -> Any:
    with _lock:
        known = _classes.setdefault(context, {})
        if name not in known:
            folder = tempfile.TemporaryDirectory(prefix="relay-java-")
            jar = Path(folder.name) / f"{name}.jar"
            jvm = jvm_of(context)
            loader = jvm.Thread.currentThread().getContextClassLoader()
            for latest, _ in known.values():
                loader = latest.getClassLoader()
            _compile(jvm, loader, Path(__file__).with_name(f"{name}.java"), jar)
            add_jar(context, str(jar))
            urls = _array(context, jvm.java.net.URL, [jvm.java.io.File(str(jar)).toURI().toURL()])
            known[name] = jvm.java.net.URLClassLoader(urls, loader).loadClass(f"relay.{name}"), folder
        return known[name][0]


def _compile(jvm: Any, loader: Any, source: Path, jar: Path) -> None:
    """Write the class to ``jar``, with the compiler that Spark has for its own code."""
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(loader)
    compiler.cook(source.read_text(encoding="utf-8"))
    with zipfile.ZipFile(jar, "w") as archive:
        for name, code in compiler.getBytecodes().items():
            archive.writestr(f"{name.replace('.', '/')}.class", bytes(code))


def _array(context: SparkContext, of: Any, items: Sequence[Any]) -> Any:
    array = gateway_of(context).new_array(of, len(items))
    for place, item in enumerate(items):
        array[place] = item
    return array

"""Finds a Java that can run the embedded services and Spark."""

import os
import re
import shutil
import subprocess
from functools import lru_cache
from pathlib import Path

from relay.errors import Unavailable

OLDEST = 17
"""The oldest release that works."""

_HINT = f"Java {OLDEST} or newer is needed: install it, such as openjdk-{OLDEST}-jre-headless, or set JAVA_HOME"


def find_java() -> Path:
    """Return the ``java`` in ``$JAVA_HOME`` or on the PATH. Raises ``Unavailable`` if neither is recent enough."""
    home, on_path = os.environ.get("JAVA_HOME"), shutil.which("java")
    candidates = [Path(home, "bin", "java")] if home else []
    candidates += [Path(on_path)] if on_path else []
    seen = []
    for candidate in candidates:
        if not os.access(candidate, os.X_OK):
            seen.append(f"{candidate} does not exist")
            continue
        release = _release(candidate)
        if release is not None and release >= OLDEST:
            return candidate
        seen.append(f"{candidate} is Java {release}" if release else f"{candidate} does not print its version")
    raise Unavailable(f"{_HINT} ({'; '.join(seen)})" if seen else f"{_HINT} (no java on the PATH)")


@lru_cache
def _release(java: Path) -> int | None:
    """Return the feature release, 8 for ``1.8.0_292``, or None if it is unknown."""
    try:
        answer = subprocess.run([str(java), "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return int(found[1]) if found else None

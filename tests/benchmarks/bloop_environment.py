"""An environment with Bloop, a yardstick that cannot share ours."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

BLOOP = ("bloop==3.1.1", "confluent-kafka==2.16.1", "fastavro==1.13.1", "orjson>=3.13,<4")


def bloop_python() -> str:
    """Return the Python of an environment with Bloop, made once."""
    cache = Path(os.environ.get("RELAY_CACHE") or Path.home() / ".cache" / "relay")
    folder = cache / "bench-bloop-3.1.1"
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *BLOOP], check=True)
        (folder / "complete").touch()
    return str(python)

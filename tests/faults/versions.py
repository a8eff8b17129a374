"""An earlier version of the relay and of its consumers, to run beside this one."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from pathlib import Path

from tests import needs

CHECKOUT = Path(__file__).parents[2]
PREVIOUS = "0a2b2059e427c2e48314957620d385c168bd3586"
"""The commit of the version before this one; a release moves it on."""


class Version:
    """A version's code in ``folder``. It runs on the locked environment of this checkout."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def relay(self, *arguments: str) -> list[str]:
        """Return the command that runs its command line."""
        return self.python("-m", "relay.cli", *arguments)

    def python(self, *arguments: str) -> list[str]:
        """Return the command that runs Python with its code."""
        # Its own folder, since Python looks for modules in the current one first.
        return ["env", "-C", str(self.folder), f"PYTHONPATH={self.folder}", sys.executable, *arguments]


THIS_VERSION = Version(CHECKOUT)


def previous_version(folder: Path) -> Version:
    """Return the code of ``PREVIOUS``, written to ``folder``; the history of the checkout has to hold it."""
    git = ["git", "-C", str(CHECKOUT), "archive", PREVIOUS, "relay", "schemas", "spark_consumers"]
    archive = subprocess.run(git, capture_output=True, check=False)
    if archive.returncode != 0:
        reason = archive.stderr.decode().strip()
        needs.lacking("HISTORY", f"git does not give the code of the previous version, {PREVIOUS[:12]}: {reason}")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as code:
        code.extractall(folder, filter="data")
    return Version(folder)

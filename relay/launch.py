"""Run as a script: become the given command, and die when the process that asked for it does.

``launch.py PARENT_PID COMMAND...``. Not a ``preexec_fn``, which may deadlock in a process with threads.
Nothing of ours may be imported here: it runs without site-packages to start fast.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The parent may have died before the request was made.
    if os.getppid() != parent:
        sys.exit(1)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()

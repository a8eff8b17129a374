"""Run as a script: become the given command, as another user, and die when the process that asked for it does.

``die_with_parent.py PARENT_PID[:UID:GID] COMMAND...``; with 0 for the parent it outlives all. Not a ``preexec_fn``,
which may deadlock in a process with threads. Imports nothing of this project: it runs without site-packages to start
fast.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    (parent, *account), command = map(int, sys.argv[1].split(":")), sys.argv[2:]
    # First: a change of user makes the kernel forget the request below.
    if account:
        uid, gid = account
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    if parent and sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The parent may have died before the request was made.
    if parent and os.getppid() != parent:
        sys.exit(1)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()

"""A script that runs a command, optionally as another user, and has the kernel kill it when its parent dies.

``die_with_parent.py PARENT_PID[:UID:GID] COMMAND...``; with 0 for the parent the command outlives it. A
``preexec_fn`` could deadlock in a process with threads. It imports nothing from this project, to start fast.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    (parent, *account), command = map(int, sys.argv[1].split(":")), sys.argv[2:]
    # Before prctl: the kernel drops that request when the user changes.
    if account:
        uid, gid = account
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    if parent and sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The parent may have died before the call of prctl.
    if parent and os.getppid() != parent:
        sys.exit(1)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()

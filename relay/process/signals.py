"""The meaning of SIGTERM, SIGINT and SIGHUP for commands that must stop cleanly or reload their config."""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False  # each import here is made before any signal is handled

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any, Self


def hold(*, reloads: bool) -> None:
    """Handle signals before anything else is imported, and tell systemd that they are handled.

    SIGTERM ends the process with 0 and SIGINT with 130, since nothing has begun. If the command ``reloads`` its config,
    SIGHUP waits in the kernel for `Signals`.
    """
    if reloads:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    signal.signal(signal.SIGTERM, _end)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as for a background job of a script
        signal.signal(signal.SIGINT, _end)
    # Removed from the environment, because processes that this one starts must not use it.
    if address := os.environ.pop("NOTIFY_SOCKET", None):
        from contextlib import suppress
        from socket import AF_UNIX, SOCK_DGRAM, socket

        with suppress(OSError), socket(AF_UNIX, SOCK_DGRAM) as systemd:
            systemd.sendto(b"READY=1", f"\0{address[1:]}" if address[0] == "@" else address)


def _end(signum: int, frame: FrameType | None) -> None:
    os._exit(130 if signum == signal.SIGINT else 0)  # the code being imported could catch an exception


class Signals:
    """Calls ``stop`` on SIGTERM and SIGINT, or ends the process while it is not set; SIGHUP calls ``reload``.

    Both run between two instructions of the main thread: they must be quick and take no locks.
    """

    def __init__(self, reload: Callable[[], None]) -> None:
        self.stop: Callable[[int], None] | None = None
        self.reload = reload
        # The signal that has asked to stop.
        self.stopping: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            self._before[signum] = signal.signal(signum, self._handle)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})  # a waiting signal now calls `reload`
        return self

    def __exit__(self, *error: object) -> None:
        for signum, before in self._before.items():
            signal.signal(signum, before)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if signum == signal.SIGHUP:
            self.reload()
            return
        self.stopping = signum
        if self.stop is not None:
            self.stop(signum)
        elif signum == signal.SIGINT:
            raise KeyboardInterrupt
        else:
            raise SystemExit(0)  # nothing has started yet, so this is a clean stop

"""The ``relay`` command: the console script, and ``python -m relay``."""

import signal
import sys


def main() -> None:
    """Run the command line. Ctrl-C prints no traceback, even while modules are being imported."""
    found = signal.getsignal(signal.SIGINT)
    command = next((word for word in sys.argv[1:] if not word.startswith("-")), None)
    ends_cleanly = command in ("run", "consume") or (command == "verify" and "--forever" in sys.argv)
    if ends_cleanly:
        from relay.process.signals import hold

        hold(reloads=command == "run")
    elif found is signal.default_int_handler:  # otherwise SIGINT is ignored, as it is for a background job of a script
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from relay import cli

    if not ends_cleanly:
        signal.signal(signal.SIGINT, found)
    cli.main()


if __name__ == "__main__":
    main()

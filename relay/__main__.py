"""The ``relay`` command: the console script, and ``python -m relay``."""

import signal


def main() -> None:
    """Run the command line. Ctrl-C ends it without a traceback also while its modules are imported."""
    found = signal.getsignal(signal.SIGINT)
    if found is signal.default_int_handler:  # else it is ignored, as in the background of a script
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from relay import cli

    signal.signal(signal.SIGINT, found)
    cli.main()


if __name__ == "__main__":
    main()

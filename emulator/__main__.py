"""Start the `fedstrata` command. While its modules are loaded, Ctrl-C ends it without a traceback."""

import signal


def main() -> None:
    """Run the `fedstrata` command."""
    handler = signal.signal(signal.SIGINT, signal.SIG_DFL)
    from emulator.commands.main import main as run_command

    signal.signal(signal.SIGINT, handler)
    run_command()


if __name__ == "__main__":
    main()

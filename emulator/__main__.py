"""`python -m emulator` is the `fedstrata` command."""

from emulator.cli import main

main()

"""`python -m emulator` is the `fedstrata` command."""

from emulator.commands.main import main

main()

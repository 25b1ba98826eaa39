"""Let `python -m emulator` run the `fedstrata` command."""

from emulator.commands.main import main

main()

"""Define the command `retime`, which calculates how long a finished run would take on other links and boards."""

from pathlib import Path
from typing import Annotated

import typer


def retime(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a finished run with a virtual clock.")],
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Change links, boards or radios, e.g. links.device-lps.preset=nb-iot."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write the record with the new timeline to this new folder.")
    ] = None,
) -> None:
    """Calculate how long a finished run would take on other links and boards, without training again. Own code that
    the record names is imported.
    """
    from emulator.console.console_tables import make_console
    from emulator.estimates.retime import retime as retimed
    from emulator.estimates.retime import write_retimed
    from emulator.results.output import check_unused
    from emulator.results.report import write_report
    from emulator.results.result_lines import print_timing

    if out is not None:
        check_unused(out)
    found = retimed(folder, changes or ())
    print_timing(found.summary, make_console())
    if out is not None:
        write_retimed(found, out)
        write_report(out)
        print(out)

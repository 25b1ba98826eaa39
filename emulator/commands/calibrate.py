"""Define the command `calibrate`, which fits the virtual clock to the record of a run on the real clock."""

from pathlib import Path
from typing import Annotated

import typer


def calibrate(
    folder: Annotated[Path, typer.Argument(metavar="RECORD", help="The folder of a finished run with clock: real.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the whole experiment with the values to this new file.")
    ] = None,
) -> None:
    """Fit links and computing to the times of a run on the real clock, for predictions on the virtual clock. Own
    code that the record names is imported.
    """
    from emulator.estimates.calibrate import calibrate as calibrated
    from emulator.estimates.calibrate import write_calibrated

    found = calibrated(folder)
    if out is not None:
        write_calibrated(found, out)
    print(found.text(is_whole=False).rstrip() if out is None else "\n".join((*found.said, str(out))))

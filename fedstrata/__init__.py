"""Hierarchical federated learning in three tiers: the library that the services and the emulator share.

In Python, `fedstrata.run` runs an experiment, and `fedstrata.load` opens the record of a finished run. Both return a
`fedstrata.Record`. `fedstrata.sweep` does many runs, and returns a `fedstrata.SweepRecord`.
"""

import os
import sys

# `python -m gps` puts the current folder first: without this, a typing.py there would be executed.
if (
    sys.argv[:1] == ["-m"]
    and not sys.flags.safe_path
    and {"gps", "lps", "device", "fleet", "emulator"} & set(sys.modules)
):
    del sys.path[0]

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from emulator.interface import Matrix, Record, SweepRecord, Table, load, run, sweep

__all__ = ["Matrix", "Record", "SweepRecord", "Table", "load", "run", "sweep"]

# gRPC reads this variable when it is loaded. Without it, gRPC writes its own lines among the events on standard error.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def __getattr__(name: str) -> object:
    """Return `run`, `load`, `sweep` or a record class of the Python interface. The interface is imported from the
    emulator at its first use (docs/decisions/python-interface.md).
    """
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from emulator import interface

    return getattr(interface, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])

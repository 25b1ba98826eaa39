"""docs/reference/errors.md: errors with their gRPC status and exit code."""

import inspect

from fedstrata import errors
from scripts.reference.markdown import cell, code, table

TOP = """<!-- Written by `make reference` from fedstrata/errors.py. -->
# Errors and exit codes

A command that fails prints one line and ends with an exit code. A service ends with the same codes.
Any other fault ends with code 1, and the line names a file with the traceback.
A process that a signal stops ends with 128 plus the signal's number: 143 for SIGTERM.
"""


def page() -> str:
    """Return the page: exit codes, then errors by exit code."""
    kinds = [
        kind
        for _, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, errors.FedstrataError) and kind is not errors.FedstrataError
    ]
    kinds.sort(key=lambda kind: (kind.exit_code, kind.__name__))
    codes = [[str(code_), cell(text)] for code_, text in errors.EXIT_CODES.items()]
    rows = [[code(kind.__name__), str(kind.exit_code), kind.status, cell(_about(kind))] for kind in kinds]
    return (
        TOP
        + "\n## Exit codes\n"
        + table(["code", "means"], codes)
        + "\n## Errors\n\nPython raises these errors; a service answers with the gRPC status.\n"
        + table(["error", "exit code", "status", "means"], rows)
    )


def _about(kind: type) -> str:
    return (inspect.getdoc(kind) or "").partition("\n\n")[0]

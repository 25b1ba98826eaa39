"""docs/reference/command-line.md: commands with their options, and the options of the services."""

import argparse
from collections.abc import Iterator
from enum import Enum
from typing import Any, Literal, get_args, get_origin

import typer

from device.__main__ import options_of_process as device_options
from emulator.commands.main import app
from fleet.__main__ import options_of_process as fleet_options
from fleet.board.__main__ import options_of_process as board_options
from gps.__main__ import options_of_process as gps_options
from lps.__main__ import options_of_process as lps_options
from scripts.reference.markdown import cell, code, table

TOP = """<!-- Written by `make reference` from the commands and the services. -->
# Options

[The command line](../cli.md) says what each command does, with examples.
"""
KINDS = {int: "number", float: "number", str: "text"}
SERVICES = """
## Services

An option with a name in the column `environment` can also come from this environment variable.
"""


def page() -> str:
    """Return the page."""
    group = typer.main.get_command(app)
    text = TOP + "".join(_of_command(("fedstrata", *path), command) for path, command in commands(group))
    services = {"gps": gps_options(), "lps": lps_options(), "device": device_options()}
    services |= {"fleet": fleet_options(), "fleet.board": board_options()}
    return text + SERVICES + "".join(_of_service(name, parser) for name, parser in services.items())


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Return each command that is shown, with its path."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        elif not command.hidden:
            yield (*path, name), command


def _of_command(path: tuple[str, ...], command: Any) -> str:
    rows = [
        [
            code(" / ".join([*each.opts, *each.secondary_opts])),
            code(value_of(each)),
            _default(each),
            cell(each.help or ""),
        ]
        for each in command.params
        if not getattr(each, "hidden", False) and "--help" not in each.opts
    ]
    about = cell((command.help or "").partition("\n\n")[0])
    return f"\n## {' '.join(path)}\n\n{about}\n" + (table(["option", "value", "default", ""], rows) if rows else "")


def value_of(option: Any) -> str:
    """Return the value that an option takes: its choices, or the name of what it takes; empty for a flag."""
    if getattr(option, "is_flag", False):
        return ""
    kind = option.type_descriptor.annotation
    if get_origin(kind) is Literal:
        return "|".join(get_args(kind))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "|".join(each.value for each in kind)
    return option.metavar or str(KINDS.get(kind, getattr(kind, "__name__", "value"))).upper()


def _default(option: Any) -> str:
    shown = getattr(option, "show_default", None)
    if option.required:
        return "required"
    if isinstance(shown, str):
        return cell(shown)
    default = option.default
    return "" if default is None or callable(default) or default in ((), [], False) else code(str(default))


def _of_service(name: str, parser: argparse.ArgumentParser) -> str:
    rows = []
    for action in parser._actions:  # argparse has no public list of options
        if action.dest == "help":
            continue
        text, _, variable = (action.help or "").partition(" (environment: ")
        default = "required" if action.required else code(str(action.default or ""))
        rows.append([code(action.option_strings[0]), code(variable.rstrip(")")), default, cell(text)])
    about = cell(parser.description or "")
    return f"\n### python -m {name}\n\n{about}\n" + table(["option", "environment", "default", ""], rows)

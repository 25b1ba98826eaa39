"""Own code by reference: `module:function` for a data set, a model, a feature map or a method."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from fedstrata.errors import PluginError


def load_plugin(reference: str, purpose: str) -> Callable[..., Any]:
    """The function that `module:function` names; the current directory is importable, as for `python -m`.

    Args:
        reference: for instance `own_data:load`, or `package.module:function`.
        purpose: what the function is for, as the message of an error says it: "data set", "feature map".

    Raises:
        PluginError: the module cannot be imported, or has no such function.
    """
    module_name, separator, function_name = reference.partition(":")
    if not (separator and module_name and function_name.isidentifier()):
        raise PluginError(f"{purpose} {reference!r}: own code is named as module:function")
    module = _import(module_name, f"{purpose} {reference}")
    function = getattr(module, function_name, None)
    if not callable(function):
        fault = "has no" if function is None else f"holds a {type(function).__name__}, not a function, as"
        raise PluginError(f"{purpose} {reference}: module {module_name} {fault} {function_name}")
    return function  # type: ignore[no-any-return]  # callable() narrows Any to a callable of Any


def describe(error: BaseException) -> str:
    """One line that says what foreign code raised."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def _import(name: str, place: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise PluginError(
                f"{place}: there is no module {error.name} in {here} or among the installed packages"
            ) from None
        raise PluginError(f"{place}: importing {name} failed with {describe(error)}") from error
    except (Exception, SystemExit) as error:
        raise PluginError(f"{place}: importing {name} failed with {describe(error)}") from error

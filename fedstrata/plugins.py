"""Own code by reference: `module:function` for a data set, a model, a feature map or a method."""

import importlib
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from fedstrata.errors import FedstrataError, PluginError


def load_plugin(reference: str, purpose: str) -> Callable[..., Any]:
    """Return the function that `module:function` names; the current directory is importable, as for `python -m`.

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
        module_name += f" ({module.__file__})" if getattr(module, "__file__", None) else ""
        fault = "has no" if function is None else f"holds a {type(function).__name__}, not a function, as"
        raise PluginError(f"{purpose} {reference}: module {module_name} {fault} {function_name}")
    return function  # type: ignore[no-any-return]  # callable() narrows Any to a callable of Any


def describe(error: BaseException) -> str:
    """Return one line that says what foreign code raised."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def failed(method: Any, doing: str, error: Exception) -> PluginError:
    """Return an error for what a method's code raised, with the line of its file."""
    file = getattr(sys.modules.get(type(method).__module__), "__file__", None)
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    place = f" ({file}, line {lines[-1]})" if lines else ""
    return PluginError(f"method {method.options.name} failed to {doing}, with {describe(error)}{place}")


@contextmanager
def own_code_of(method: Any, doing: str) -> Iterator[None]:
    """Raises PluginError where a method that is own code fails; what comes with Fedstrata fails as it does."""
    try:
        yield
    except FedstrataError:
        raise
    except Exception as error:
        if ":" not in method.options.name:
            raise
        raise failed(method, doing, error) from error


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

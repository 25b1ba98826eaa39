"""Load users' own code by its name: `module:function` for a data set, a model or a feature map, `module:Class` for a
method or a task.
"""

import importlib
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from fedstrata.errors import FedstrataError, PluginError


def load_plugin(reference: str, purpose: str) -> Callable[..., Any]:
    """Return the function or class that `module:function` names. As with `python -m`, the module may be in the current
    directory.

    Args:
        reference: for instance `own_data:load`, or `package.module:function`.
        purpose: what the function is for, in error messages, such as "data set" or "feature map".

    Raises:
        PluginError: the module cannot be imported, or has no such function.
    """
    module_name, separator, function_name = reference.partition(":")
    if not (separator and module_name and function_name.isidentifier()):
        raise PluginError(f"{purpose} {reference!r}: name own code as module:function")
    module = _import(module_name, f"{purpose} {reference}")
    function = getattr(module, function_name, None)
    if not callable(function):
        module_name += f" ({module.__file__})" if getattr(module, "__file__", None) else ""
        fault = "it does not exist" if function is None else f"it is a {type(function).__name__}, not a function"
        raise PluginError(f"{purpose} {reference}: cannot use {function_name} of module {module_name}: {fault}")
    return function  # type: ignore[no-any-return]  # callable() narrows Any to a callable of Any


def look_also_in(folders: Iterable[Path]) -> None:
    """Look for the user's own code in these folders too, not only in the current directory."""
    sys.path.extend(place for folder in folders if (place := str(folder.resolve())) not in sys.path)


def describe(error: BaseException) -> str:
    """Return one line about an error that the user's own code raised."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def failed(method: Any, doing: str, error: Exception) -> PluginError:
    """Return the error for a failure in the user's own FL method. `doing` says what the method failed to do. The
    message names the line in the method's file.
    """
    file = getattr(sys.modules.get(type(method).__module__), "__file__", None)
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    place = f" ({file}, line {lines[-1]})" if lines else ""
    return PluginError(f"method {method.options.name} failed to {doing}: {describe(error)}{place}")


@contextmanager
def own_code_of(method: Any, doing: str) -> Iterator[None]:
    """Run a block that calls an FL method. If the method is the user's own code (`module:Class`) and fails, raise
    PluginError. Errors of Fedstrata's methods stay as they are.
    """
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
        raise PluginError(
            f"{place}: importing {name} failed with {describe(error)}; install the missing package for this service, "
            "or build its image with EXTRAS (docs/how-to/build-images.md)"
        ) from error
    except (Exception, SystemExit) as error:
        raise PluginError(f"{place}: importing {name} failed with {describe(error)}") from error

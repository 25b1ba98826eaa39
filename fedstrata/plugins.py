"""Load users' own code by its name: `module:function` for a data set, a model or a feature map, `module:Class` for a
method or a task.
"""

import importlib
import inspect
import os
import sys
import threading
import time
import traceback
from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from fedstrata.errors import FedstrataError, PluginError
from fedstrata.own_files import own_files

Kind = TypeVar("Kind")
_turn = threading.Lock()  # invalidate_caches can raise KeyError if two threads call it at the same time
ENDS = (KeyboardInterrupt, CancelledError, GeneratorExit)  # they end the caller, and are no faults of own code
LIBRARIES = ("torch.", "fedstrata.")  # not the user's own code
_imported: dict[Path, bytes] = {}  # files of own code, as they were when they were imported here
_folders: list[str] = []  # current folders that were added to sys.path
_began = time.time()
PART_OF_RUN = "FEDSTRATA_PART_OF_RUN"  # environment variable of the processes of a run: their tier
_imports = threading.local()  # its attribute `name` is the own module that this thread imports


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
    if module_name == "__main__":
        raise PluginError(
            f"{purpose} {reference}: the processes of a run cannot import __main__; move {function_name} into a file, "
            f"such as own.py, and name it own:{function_name}"
        )
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


def forget_changed() -> None:
    """Forget the modules of the user's own code that this process has imported, if any of their files, or the current
    folder, has changed. At its next use, a forgotten module is imported again. A notebook needs this, because the
    processes of a run always import the present files.
    """
    elsewhere = [folder for folder in _folders if folder != str(Path.cwd())]
    has_changed = any(not path.is_file() or path.read_bytes() != text for path, text in _imported.items())
    gone = [path for path in _imported if has_changed or any(path.is_relative_to(folder) for folder in elsewhere)]
    sys.path[:] = [place for place in sys.path if place not in elsewhere]
    _folders[:] = [folder for folder in _folders if folder not in elsewhere]
    _forget(gone)
    for path in gone:
        del _imported[path]


def _forget(paths: Iterable[Path]) -> None:
    files = {str(path) for path in paths}
    for name, module in list(sys.modules.items()):
        if getattr(module, "__file__", None) in files:
            del sys.modules[name]


def check_may_start(call: str) -> None:
    """Raise PluginError if the user's own code must not call `call`, a function that starts a run. There are two such
    cases: Fedstrata imports this code now, or this process is a process of a run. Otherwise each process of a run would
    start another run, without end.
    """
    module, tier = getattr(_imports, "name", ""), os.environ.get(PART_OF_RUN)
    if module or tier:
        where = f"while Fedstrata imports {module}" if module else f"by own code in the {tier} of a run"
        raise PluginError(f'{call} is called {where}; call it below `if __name__ == "__main__":`')


class _Folder:
    """Run a block of own code, which may change the current folder, and then return to the folder before the block.
    Relative paths in an experiment file and in options refer to this folder.

    The current folder belongs to all threads. If several threads run own code at the same time, only the last that ends
    returns to the folder.
    """

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._inside = 0
        self._here = ""

    def __enter__(self) -> None:
        with self._turn:
            if not self._inside:
                self._here = _current_folder()
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._turn:
            self._inside -= 1
            if not self._inside and self._here and _current_folder() != self._here:
                with suppress(OSError):  # the folder was deleted
                    os.chdir(self._here)


_same_folder = _Folder()


def _current_folder() -> str:
    try:
        return os.getcwd()  # noqa: PTH109  # Path.cwd takes longer
    except FileNotFoundError:
        return ""


def describe(error: BaseException, own: Any = None) -> str:
    """Return one line about an error that the user's own code raised. `own` is the function, class or object that
    failed. If it is given, also name the last executed line of its file.
    """
    module = getattr(own, "__module__", None) or ""
    file = None if module.startswith(LIBRARIES) else getattr(sys.modules.get(module), "__file__", None)
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    place = f" ({file}, line {lines[-1]})" if lines else ""
    return " ".join(f"{type(error).__name__}: {error}".split()) + place


@contextmanager
def or_failed(said: str, own: Any = None) -> Iterator[None]:
    """Execute a block that calls the user's function, class or object `own`. If the block raises an error that is not a
    FedstrataError, raise PluginError instead. Its message is `said`, such as "method fedavg failed with", and then the
    error with the line in the user's file.

    If the block changes the current folder, the change ends with the block.
    """
    try:
        with _same_folder:
            yield
    except (FedstrataError, *ENDS):
        raise
    except BaseException as error:
        raise PluginError(f"{said} {describe(error, own)}") from error


def guarded(what: str, own: type[Kind], base: type[Kind]) -> type[Kind]:
    """Return a subclass of the user's class `own`. It guards each method and property of `own` that overrides one of
    `base`: an error there becomes a PluginError, as in `or_failed`.
    """
    return type(own.__name__, (own,), {"__module__": own.__module__, **dict(_guards(what, own, base))})


def _guards(what: str, own: type, base: type) -> Iterator[tuple[str, Any]]:
    for name, declared in vars(base).items():
        function = inspect.getattr_static(own, name)
        if name.startswith("_") or function is declared:
            continue
        if isinstance(function, property) and function.fget:
            yield name, property(_guard(what, function.fget, is_awaited=False), function.fset, function.fdel)
        elif inspect.isfunction(function):
            yield name, _guard(what, function, is_awaited=inspect.iscoroutinefunction(declared))


def _guard(what: str, function: Callable[..., Any], *, is_awaited: bool) -> Callable[..., Any]:
    @wraps(function)
    def run(own: Any, *given: Any, **named: Any) -> Any:
        with or_failed(f"{what} failed in {function.__name__}:", own):
            result = function(own, *given, **named)
        if inspect.isawaitable(result):
            return awaited(own, result)
        if is_awaited:
            raise PluginError(f"{what}: {function.__name__} must be async; write async def {function.__name__}")
        return result

    async def awaited(own: Any, result: Awaitable[Any]) -> Any:
        with or_failed(f"{what} failed in {function.__name__}:", own):
            return await result

    return run


@contextmanager
def _importing(name: str) -> Iterator[None]:
    outer, _imports.name = getattr(_imports, "name", ""), name
    try:
        yield
    finally:
        _imports.name = outer


def _import(name: str, place: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        _folders.append(here)
        sys.path.append(here)  # last: a file there must not hide a module of Python, of a package or of Fedstrata
    with _turn:
        importlib.invalidate_caches()
        try:
            files = own_files(name).values()
        except PluginError as error:  # another module hides an own file
            raise PluginError(f"{place}: {error}") from None
        unknown = [path for path in files if path not in _imported]
        _forget(path for path in unknown if path.stat().st_mtime > _began)  # the user may have imported an earlier text
        _imported.update((path, path.read_bytes()) for path in unknown)
    try:
        with _same_folder, _importing(name):
            return importlib.import_module(name)
    except FedstrataError as error:
        raise PluginError(f"{place}: importing {name} failed: {error}") from error
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            advice = "; leave out .py" if name.endswith(".py") else ""
            raise PluginError(
                f"{place}: there is no module {error.name} in {here} or among the installed packages{advice}"
            ) from None
        raise PluginError(
            f"{place}: importing {name} failed with {describe(error)}; install the missing package for this service, "
            "or build its image with EXTRAS (docs/how-to/build-images.md)"
        ) from error
    except ENDS:
        raise
    except BaseException as error:
        raise PluginError(f"{place}: importing {name} failed with {describe(error)}") from error

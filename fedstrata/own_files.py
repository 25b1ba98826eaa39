"""Find the files of the user's own code: a module, and the modules that it imports from its own folder.

The files are found from the text of `import` statements, and nothing is executed. So imports inside functions are
found, too.
"""

import ast
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from fedstrata.errors import PluginError

PROJECT = ("fedstrata", "gps", "lps", "device", "fleet", "emulator")
STANDARD = Path(sysconfig.get_path("stdlib")).resolve()


def own_files(name: str) -> dict[str, Path]:
    """Return the file of a module, and the files of all modules that it imports from its own folder. The keys are paths
    relative to this folder, such as `net.py` or `parts/layers.py`. A module of Python, of Fedstrata or of an installed
    package has no such files.

    Raises:
        PluginError: a module of Python, of Fedstrata, of a package or of another folder has the same name as one of
            these files.
    """
    top = name.partition(".")[0]
    here, whole = (_file_in(Path.cwd(), module) for module in (top, name))
    if here is None and whole is not None:
        here = Path.cwd() / top / "__init__.py"  # which does not exist; a package elsewhere hides such a folder
    found = _found(top, here)
    _check_visible(top, here, found)
    if found is None or _is_installed(top, found):
        return {}
    folder = found.parents[1] if found.name == "__init__.py" else found.parent
    return dict(sorted(_Imports(folder, top).files_from(name).items()))


@dataclass(frozen=True)
class _Imports:
    """Follow the imports of the modules in a folder. `top` is the module, or the package, where the search began."""

    folder: Path
    top: str

    def files_from(self, name: str) -> dict[str, Path]:
        """Return the files of a module and of all modules that it imports, by their paths relative to the folder."""
        files: dict[str, Path] = {}
        waiting = [name]
        while waiting:
            parts = waiting.pop().split(".")
            for module in (".".join(parts[:length]) for length in range(1, len(parts) + 1)):  # a package runs first
                file = _file_in(self.folder, module)
                if file is not None and (key := file.relative_to(self.folder).as_posix()) not in files:
                    files[key] = file
                    waiting += self._imported_by(module, file)
        return files

    def _imported_by(self, module: str, file: Path) -> Iterator[str]:
        package = module if file.name == "__init__.py" else module.rpartition(".")[0]
        for name in _imported(file, package):
            top = name.partition(".")[0]
            if top != self.top:
                own = _file_in(self.folder, top)
                found = _found(top, own)
                _check_visible(top, own, found, f", which {file.name} imports,")
                if found is not None and _is_installed(top, found):
                    continue  # for instance Fedstrata, if own code lies beside its packages
            yield name


def parsed(file: Path) -> ast.Module:
    """Return the syntax tree of a module's file. If the file is no valid module, the tree is empty. The error of a
    later import then has a better message.
    """
    try:
        return ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return ast.Module(body=[], type_ignores=[])


def _imported(file: Path, package: str) -> Iterator[str]:
    """Yield the absolute names of all that a file imports. A name belongs to a module, or to a function of a module."""
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = [*filter(None, above), *filter(None, [node.module])]
            yield from (".".join([*base, each.name]) for each in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            given = node.args[0] if node.args else None
            if isinstance(given, ast.Constant) and isinstance(given.value, str):
                yield f"{package}{given.value}" if given.value.startswith(".") else given.value


def _file_in(folder: Path, module: str) -> Path | None:
    """Return the file of a module in a folder. For a package it is `__init__.py`. Return None if there is no file."""
    path = folder.joinpath(*module.split("."))
    return next((each for each in (path / "__init__.py", path.with_name(f"{path.name}.py")) if each.is_file()), None)


def _found(top: str, own: Path | None) -> Path | None:
    """Return the file that Python finds for a module without dots. If Python finds nothing, return `own`, because the
    folder of `own` may not be on sys.path yet. If Python finds only folders without `__init__.py`, also return `own`.
    If `own` is then None, return the path that the first folder's `__init__.py` would have.
    """
    try:
        spec = find_spec(top)
    except (ImportError, ValueError, AttributeError):  # a module that is loaded without a file, such as __main__
        return own
    if spec is not None and spec.origin:  # of a module that is built into the interpreter, a path that does not exist
        return Path(spec.origin)
    folders = list((spec.submodule_search_locations if spec else None) or ())
    return Path(folders[0], "__init__.py") if folders and own is None else own


def _is_installed(top: str, found: Path) -> bool:
    """Return whether a module belongs to Python, to Fedstrata or to an installed package."""
    if top in PROJECT or top in sys.stdlib_module_names or STANDARD in found.resolve().parents:
        return True
    folder = found.parents[1] if found.name == "__init__.py" else found.parent
    return folder.name in {"site-packages", "dist-packages"} or any(folder.glob("*.dist-info"))


def _check_visible(top: str, own: Path | None, found: Path | None, said: str = "") -> None:
    """Check that the file `found`, which Python finds for the module `top`, is the file `own`. `said` follows the name
    of `own` in the error.
    """
    if own is None or own == found or (found is not None and found.exists() and own.exists() and found.samefile(own)):
        return
    own = own.parent if own.name == "__init__.py" else own
    there = "Fedstrata" if top in PROJECT else "Python" if top in sys.stdlib_module_names else str(found)
    raise PluginError(f"{own}{said} is hidden by the module {top} of {there}; rename {own.name}")

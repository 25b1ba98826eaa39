"""Find the files that the user's own code reads, such as `np.load("train.npz")`.

The names are found in the text of calls that read, and nothing is executed. A name that the code computes is not found.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

from fedstrata.own_files import parsed

READERS = frozenset(
    [
        "open",
        "load",
        "load_file",
        "loadtxt",
        "loadmat",
        "genfromtxt",
        "fromfile",
        "memmap",
        "open_memmap",
        "imread",
        "read_bytes",
        "read_text",
        "read_csv",
        "read_table",
        "read_parquet",
        "read_json",
        "read_excel",
        "read_feather",
        "read_hdf",
        "read_pickle",
    ]
)


def read_files(module: Path) -> dict[str, Path]:
    """Return the files that a module's calls read by name, if they exist in the current folder or, otherwise, in the
    module's folder. The keys are the names in the module's text.
    """
    tree = parsed(module)
    constants = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    found = {}
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and _reads(call):
            for name in _texts([call.func, *call.args, *(word.value for word in call.keywords)], constants):
                places = (folder / name for folder in (Path.cwd(), module.parent))
                if (path := next(filter(_is_file, places), None)) is not None:
                    found[name] = path
    return found


def _reads(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    modes = [each.value for each in (*call.args[1:2], *(word.value for word in call.keywords if word.arg == "mode"))
             if isinstance(each, ast.Constant)]  # fmt: skip
    return name in READERS and not (name == "open" and any(set(str(mode)) & set("wax+") for mode in modes))


def _texts(nodes: list[ast.expr], constants: dict[str, ast.expr]) -> Iterator[str]:
    """Yield each text in these expressions, also in the module's constants that they name."""
    for node in (inner for each in nodes for inner in ast.walk(each)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.Name) and node.id in constants:
            yield from _texts([constants[node.id]], {})


def _is_file(path: Path) -> bool:
    try:
        return path.is_file() and path.suffix != ".py"
    except (OSError, ValueError):  # the text is no name of a file
        return False

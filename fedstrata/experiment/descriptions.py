"""Read the descriptions of the experiment file's keys from the source code. The description of a key is the string
below the field in its class.

pydantic can read these strings when it constructs a class. But then every process takes a fifth longer to start. So
this module reads the strings, and only when a program needs them.
"""

import ast
import inspect
import sys
from collections.abc import Mapping
from functools import cache


def descriptions(kind: type) -> Mapping[str, str]:
    """Return the description of each field of a class, by the field's name. Fields of base classes are included."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        found |= _of_module(base.__module__).get(base.__qualname__, {})
    return found


@cache
def _of_module(name: str) -> Mapping[str, Mapping[str, str]]:
    """Return the descriptions of all fields in a module, by the class, then by the field's name. If the source code is
    missing, return an empty mapping.
    """
    try:
        tree = ast.parse(inspect.getsource(sys.modules[name]))
    except (KeyError, OSError, TypeError):
        return {}
    return _of_classes(tree, "")


def _of_classes(node: ast.AST, prefix: str) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for item in ast.iter_child_nodes(node):
        if isinstance(item, ast.ClassDef):
            name = prefix + item.name
            found |= {name: _of_fields(item), **_of_classes(item, f"{name}.")}
    return found


def _of_fields(node: ast.ClassDef) -> dict[str, str]:
    found = {}
    for field, below in zip(node.body, node.body[1:], strict=False):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = " ".join(text.split())
    return found

"""Classes and functions stay small. A data class may have as many fields as it needs."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
PACKAGES = ("fedstrata", "gps", "lps", "device", "fleet", "emulator")
GENERATED = ROOT / "fedstrata" / "v1"

MOST_LINES = 200
MOST_METHODS = 20
MOST_PARAMETERS = 8
Function = ast.FunctionDef | ast.AsyncFunctionDef


def over_budget(source: str, path: str) -> Iterator[str]:
    """Yield each class and function that is too large, with its place and its size."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            methods = sum(isinstance(each, Function) for each in node.body)
            if lines > MOST_LINES or methods > MOST_METHODS:
                yield f"{path}:{node.lineno}: class {node.name} has {lines} lines and {methods} methods"
        if isinstance(node, Function):
            given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            count = sum(each.arg not in {"self", "cls"} for each in given)
            if count > MOST_PARAMETERS:
                yield f"{path}:{node.lineno}: {node.name} has {count} parameters"


def test_a_class_of_21_methods_or_201_lines_and_a_function_of_9_parameters_are_over_budget() -> None:
    methods = "".join(f"    def m{number}(self): ...\n" for number in range(20))
    assert list(over_budget(f"class Part:\n{methods}", "a.py")) == []
    assert list(over_budget(f"class Part:\n{methods}    async def more(self): ...\n", "a.py")) == [
        "a.py:1: class Part has 22 lines and 21 methods"
    ]
    assert list(over_budget("class Part:\n" + "    x: int\n" * 200, "a.py")) == [
        "a.py:1: class Part has 201 lines and 0 methods"
    ]
    assert list(over_budget("def go(self, a, b, c, d, *, e, f, g, h): ...", "a.py")) == []
    assert list(over_budget("def go(a, b, c, d, *, e, f, g, h, i): ...", "a.py")) == ["a.py:1: go has 9 parameters"]


def test_nothing_is_over_budget() -> None:
    paths = [path for name in PACKAGES for path in (ROOT / name).rglob("*.py") if GENERATED not in path.parents]
    found = [fault for path in paths for fault in over_budget(path.read_text(encoding="utf-8"), str(path))]
    assert found == []

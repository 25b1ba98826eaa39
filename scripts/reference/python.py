"""docs/reference/python.md: the Python interface, from its docstrings."""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence

from emulator.interface import Record, SweepRecord, load, run, sweep
from emulator.results.columns import Matrix, Table
from fedstrata import methods, partitions, rules
from fedstrata.attacks import Attack
from fedstrata.datasets import Dataset, Examples
from fedstrata.experiment.descriptions import descriptions
from fedstrata.experiment.partition import PartitionSettings
from fedstrata.models import Layer, Model, Normalisation, from_module
from fedstrata.tasks import Metric, Sum, Task
from scripts.reference.markdown import cell, code, table

TOP = """<!-- Written by `make reference` from the docstrings of fedstrata/ and emulator/interface.py. -->
# The Python interface

[From Python](../python.md) has examples of `fedstrata`, and [own code](../own-code.md) of the other modules. `Flat` is
a float32 array of shape (size,) with all tensors of a model. `Arrays` are small arrays by name. GPS and LPS are the
global and local parameter servers.
"""
# By module: its purpose, and its names.
MODULES: Mapping[str, tuple[str, Sequence[object]]] = {
    "fedstrata": ("Runs and their records.", [run, load, sweep, Record, SweepRecord, Table, Matrix]),
    "fedstrata.methods": (
        "The contract of a method with the three tiers. `Method` names the calls. The other classes are their\n"
        "arguments and results.",
        [
            methods.Method, methods.MethodSettings, methods.Facts, methods.Reach, methods.Channel, methods.all_layers,
            methods.shared_and_rest, methods.Moment, methods.Question, methods.Candidate, methods.Answers, methods.Plan,
            methods.Work, methods.Steps, methods.ForwardPass, methods.Trained, methods.Outcome, methods.Measurement,
            methods.Pull,
        ],
    ),
    "fedstrata.rules": (
        "Rules of own code. `Flat` here has a row per child.",
        [rules.Rule, rules.AllUpdates, rules.ByProducts, rules.Updates, rules.Total],
    ),
    "fedstrata.attacks": ("Attacks of own code.", [Attack]),
    "fedstrata.datasets": ("Data sets of own code.", [Dataset, Examples]),
    "fedstrata.partitions": (
        "Partitions of own code. Their fields are keys of the experiment file.",
        [partitions.Partition, PartitionSettings, partitions.Assignment, partitions.kinds_of, partitions.tests_like],
    ),
    "fedstrata.tasks": ("Tasks of own code.", [Task, Metric, Sum]),
    "fedstrata.models": ("Models of own code.", [Model, Layer, Normalisation, from_module]),
}  # fmt: skip
SECTION = re.compile(r"\n(Args|Raises):\n((?:    .*(?:\n|$))+)")


def page() -> str:
    """Return the page: modules, then classes and functions."""
    text = TOP
    for name, (about, members) in MODULES.items():
        text += f"\n## {name}\n\n{about}\n" + "".join(entry(member) for member in members)
    return text


def entry(member: object) -> str:
    """Return the section of a class or a function."""
    node = _node(member)
    text = f"\n### {node.name}\n\n"
    if not isinstance(node, ast.ClassDef):
        line = textwrap.fill(f"def {signature(node)}", 100, subsequent_indent="    ", break_long_words=False)
        text += f"```python\n{line}\n```\n\n"
    text += prose(inspect.getdoc(member) or "")
    if not isinstance(node, ast.ClassDef):
        return text
    said = descriptions(member) if isinstance(member, type) else {}
    fields = [[code(f"{name}: {kind}"), cell(said[name])] for name, kind in _fields(node) if said.get(name)]
    calls = [[code(shown), cell(about)] for shown, about in _calls(node)]
    text += table(["field", "meaning"], fields) if fields else ""
    return text + (table(["call or property", "does"], calls) if calls else "")


def _node(member: object) -> ast.ClassDef | ast.FunctionDef:
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(member))).body  # type: ignore[arg-type]
    assert isinstance(node, ast.ClassDef | ast.FunctionDef)  # noqa: S101
    return node


def signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Return a function's name, arguments and result."""
    arguments = re.sub(r"^(?:self|cls)(?:, |$)", "", _shown(node.args))
    arguments = re.sub(r"(?<=[\w\])])=(?=[\w(])", " = ", arguments)
    return f"{node.name}({arguments})" + (f" -> {_shown(node.returns)}" if node.returns else "")


def _shown(node: ast.AST) -> str:
    """Return the source of a type or of arguments, with names of types out of their quotes."""
    return re.sub(
        r"'([\w.\[\], |()]+)'",
        lambda name: name[1] if name[1][0].isupper() or "." in name[1] else name[0],
        ast.unparse(node),
    )


def _fields(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            yield item.target.id, _shown(item.annotation)


def _calls(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Return each public method and property with its docstring."""
    for item in node.body:
        if not isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) or item.name.startswith("_"):
            continue
        decorators = {ast.unparse(each) for each in item.decorator_list}
        about = ast.get_docstring(item)
        assert about, f"{node.name}.{item.name} has no docstring"  # noqa: S101
        if decorators & {"property", "cached_property"}:
            yield f"{item.name}: {_shown(item.returns)}" if item.returns else item.name, about
        else:
            yield ("await " if isinstance(item, ast.AsyncFunctionDef) else "") + signature(item), about


def prose(text: str) -> str:
    """Return a docstring as Markdown, with arguments and errors as lists."""
    return SECTION.sub(lambda part: f"\n{part[1]}:\n\n{_list(part[2])}", text.strip() + "\n")


def _list(lines: str) -> str:
    items = re.split(r"\n(?! )", textwrap.dedent(lines).strip())
    return "".join(re.sub(r"^(\w+): ", r"- `\1`: ", " ".join(item.split())) + "\n" for item in items)

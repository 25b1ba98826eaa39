"""Docstrings are whole, short sentences."""

import ast
import doctest
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.wording import BANNED

ROOT = Path(__file__).parents[3]
PACKAGES = ("fedstrata", "gps", "lps", "device", "fleet", "emulator", "benchmarks", "scripts", "docs")
GENERATED = ROOT / "fedstrata" / "v1"

MOST_WORDS = 35
MEAN_WORDS = 18
NOUN_CLAUSE = re.compile(
    r"(As|By|For|From|How|In|Of|So|That|Those|Until|What|When|Whence|Where|Whether|Which|Who|Whom|Whose|Why)\b"
)
SECTION = re.compile(r"^(?:Args|Raises|Returns|Yields):\n((?: {4,}.*(?:\n|$))+)", re.MULTILINE)
ITEM = re.compile(r"\n\s*\n|^\s*(?:[-*•]|\d+\.) ", re.MULTILINE)
CODE = re.compile(r"``[^`]*``|`[^`]*`")
END = re.compile(r"(?<=[.!?;])[)\"']*\s+(?=[^a-z])|(?<=[;:])\s+")
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class Docstring(NamedTuple):
    """A docstring and its place."""

    path: str
    line: int
    text: str
    is_of_module: bool


def docstrings(source: str, path: str) -> Iterator[Docstring]:
    """Yield the docstrings of a module, of its classes and of its functions."""
    nodes: list[ast.AST] = [ast.parse(source)]
    while nodes:
        node = nodes.pop(0)
        if isinstance(node, Documented) and (text := ast.get_docstring(node)):
            yield Docstring(path, node.body[0].lineno, text, isinstance(node, ast.Module))
        nodes += [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr)]


def sentences(text: str) -> list[str]:
    """Return the sentences of a docstring, without headings and with one word for a piece of code."""
    text = SECTION.sub(lambda section: "\n".join(line.strip() for line in section[1].splitlines()), text)
    text = re.sub(r"^(?: {4,}|>>> ).*$", "", text, flags=re.MULTILINE)
    parts = [" ".join(part.split()) for part in ITEM.split(CODE.sub("Code", text))]
    return [sentence for part in parts for sentence in END.split(part) if re.search(r"\w", sentence)]


def first_sentence(text: str) -> str:
    """Return the first sentence of a docstring, or its first paragraph if nothing ends it."""
    paragraph = " ".join(re.split(r"\n\s*\n", text, maxsplit=1)[0].split())
    return re.split(r"(?<=[.!?])\s", paragraph, maxsplit=1)[0]


def faults(docstring: Docstring) -> Iterator[str]:
    """Yield what is wrong with a docstring: the file, the line, the rule and the sentence."""
    place = f"{docstring.path}:{docstring.line}"
    for sentence in sentences(docstring.text):
        if len(sentence.split()) > MOST_WORDS:
            yield f"{place}: {len(sentence.split())} words, at most {MOST_WORDS}: {sentence}"
    first = first_sentence(CODE.sub("Code", docstring.text))
    if NOUN_CLAUSE.match(first) and not docstring.is_of_module:
        yield f"{place}: begins with a noun clause, not with a verb or a noun: {first}"
    for form in BANNED.findall(" ".join(CODE.sub("Code", docstring.text).split())):
        yield f"{place}: needs a second reading: {form}"
    if not first.endswith("."):
        yield f"{place}: no full stop: {first}"


def of_the_project() -> list[Docstring]:
    """Return every docstring of the packages, but for generated modules."""
    return [
        docstring
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        if GENERATED not in path.parents
        for docstring in docstrings(path.read_text(encoding="utf-8"), str(path.relative_to(ROOT)))
    ]


@pytest.fixture(scope="module")
def written() -> list[Docstring]:
    return of_the_project()


def example(text: str) -> Docstring:
    return Docstring("gps/example.py", 3, text, is_of_module=False)


def test_docstrings_of_modules_classes_and_functions_are_found() -> None:
    source = '"""A."""\n\nclass Part:\n    """B."""\n\n    async def go(self):\n        """C."""\n'
    assert [(found.line, found.text) for found in docstrings(source, "gps/example.py")] == [
        (1, "A."),
        (4, "B."),
        (7, "C."),
    ]


def test_sentences_are_taken_without_headings_and_code() -> None:
    text = (
        "Return it. `at` is a place: `a + b` of\nit.\n\n    x = 1\n\n"
        "Raises:\n    PayloadError: it is (e.g. far)\n        away.\n"
    )
    assert sentences(text) == [
        "Return it.",
        "Code is a place:",
        "Code of it.",
        "PayloadError:",
        "it is (e.g. far) away.",
    ]


def test_a_long_sentence_a_noun_clause_and_a_lacking_full_stop_are_faults() -> None:
    assert list(faults(example("Return whether it is there. Whether not, too."))) == []
    assert list(faults(example("Whether it is there."))) == [
        "gps/example.py:3: begins with a noun clause, not with a verb or a noun: Whether it is there."
    ]
    assert list(faults(example("Return a child whose update is there."))) == [
        "gps/example.py:3: needs a second reading: whose"
    ]
    assert list(faults(example("Return it"))) == ["gps/example.py:3: no full stop: Return it"]
    assert list(faults(example("Return it. And" + 35 * " so" + "."))) == [
        "gps/example.py:3: 36 words, at most 35: And" + 35 * " so" + "."
    ]


def test_every_docstring_is_of_whole_short_sentences(written: list[Docstring]) -> None:
    assert [fault for docstring in written for fault in faults(docstring)] == []


def test_examples_in_docstrings_give_the_results_that_they_show(written: list[Docstring]) -> None:
    paths = sorted({docstring.path for docstring in written if ">>> " in docstring.text})
    found = [doctest.testmod(import_module(path.removesuffix(".py").replace("/", "."))) for path in paths]
    assert all(each.attempted for each in found)
    assert sum(each.failed for each in found) == 0


def test_sentences_of_docstrings_are_short_in_the_mean(written: list[Docstring]) -> None:
    lengths = [len(sentence.split()) for docstring in written for sentence in sentences(docstring.text)]
    assert sum(lengths) / len(lengths) <= MEAN_WORDS

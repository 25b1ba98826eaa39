"""Commands in documents, and in what benchmarks say of themselves, are taken as they stand, their files included."""

import argparse
import ast
import re
import runpy
import shlex
import sys
import warnings
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer

from emulator.commands.main import app
from emulator.sweeps.file import load_sweep
from fedstrata.errors import ExperimentError
from fedstrata.experiment_file import parse_experiment

ROOT = Path(__file__).parents[3]
# Those of docs/tutorial are followed word for word by tests/services/commands/test_pages.py, wrong ones among them.
DOCUMENTS = [ROOT / "README.md", *sorted({*(ROOT / "docs").rglob("*.md")} - {*(ROOT / "docs" / "tutorial").iterdir()})]
PROGRAMS = [*sorted((ROOT / "benchmarks").glob("*.py")), ROOT / "benchmarks" / "suite" / "__main__.py"]
FILE = re.compile(r"(?:benchmarks|experiments|helm|protos|scripts|tests)/\S+")
OPTIONAL = re.compile(r"\[([A-Z-][^\]]*)\]")
OPERATORS = {"|", ">", ">>", "&&", "||", ";", "&"}
Command = list[str]


def text_of(path: Path) -> str:
    """A document; of a program its docstring."""
    text = path.read_text(encoding="utf-8")
    return text if path.suffix == ".md" else ast.get_docstring(ast.parse(text)) or ""


def lines_of(text: str) -> Iterator[str]:
    """Code blocks, which are fenced or indented, line by line, and code spans."""
    fenced = r"^```\w*\n(.*?)^```"
    for block in [
        *re.findall(fenced, text, re.MULTILINE | re.DOTALL),
        *re.findall(r"(?:^    .*\n?)+", text, re.MULTILINE),
    ]:
        yield from block.replace("\\\n", " ").splitlines()
    for span in re.findall(r"`([^`]+)`", re.sub(fenced, "", text, flags=re.MULTILINE | re.DOTALL)):
        yield " ".join(span.split())


def commands_of(path: Path) -> Iterator[Command]:
    """The words of commands, without what the shell does with them."""
    for line in lines_of(text_of(path)):
        try:
            words = shlex.split(OPTIONAL.sub(r"\1", line), comments=True)
        except ValueError:
            continue  # it is no command
        command: Command = []
        for word in [*words, ";"]:
            if word in OPERATORS:
                yield command
                command = []
            elif word not in {"…", "..."}:
                command.append(word)


def given(command: Command, module: str, executable: str | None = None) -> Command | None:
    """What stands behind `python -m MODULE` or an executable, itself included, in a command that is one of it."""
    if "-m" in command and re.fullmatch(module, command[command.index("-m") + 1]):
        return command[command.index("-m") + 1 :]
    return command if command and Path(command[0]).name == executable else None


FOUND = [(str(path.relative_to(ROOT)), command) for path in (*DOCUMENTS, *PROGRAMS) for command in commands_of(path)]
BENCHMARKS = [
    (where, said[0].removeprefix("benchmarks."), said[1:])
    for where, command in FOUND
    if (said := given(command, r"benchmarks\.[a-z]\w*"))
]
FEDSTRATA = [
    (where, said[1:])
    for where, command in FOUND
    if (said := given(command, "emulator", "fedstrata")) and re.fullmatch(r"(--)?[a-z-]+", " ".join(said[1:2]))
]
COMMANDS: Any = typer.main.get_command(app)


def shown(value: Any) -> str:
    return " ".join(value) if isinstance(value, list) else str(value)


class ParsedError(Exception):
    """A benchmark has read its options."""


def test_commands_are_found() -> None:
    assert len({name for _, name, _ in BENCHMARKS}) > 10
    assert len(FEDSTRATA) > 50


@pytest.mark.parametrize(("where", "name", "words"), BENCHMARKS, ids=shown)
def test_a_benchmark_takes_the_options_that_are_documented(
    where: str, name: str, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    parse_args = argparse.ArgumentParser.parse_args

    def parsed(self: argparse.ArgumentParser, *given: Any) -> argparse.Namespace:
        parse_args(self, *given)
        raise ParsedError

    assert (ROOT / "benchmarks" / f"{name}.py").exists() or (ROOT / "benchmarks" / name / "__main__.py").exists()
    if not words:
        return  # named, and not as a whole command
    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parsed)
    monkeypatch.setattr(sys, "argv", ["", *words])
    with warnings.catch_warnings(), pytest.raises(ParsedError):
        warnings.simplefilter("ignore", RuntimeWarning)  # another benchmark may have imported it
        runpy.run_module(f"benchmarks.{name}", run_name="__main__", alter_sys=True)


def test_the_command_line_takes_the_options_that_are_documented() -> None:
    for where, words in FEDSTRATA:
        command, left = COMMANDS, [*words]
        context = command.context_class(command)
        while left and hasattr(command, "commands") and not left[0].startswith("-"):
            assert left[0] in command.commands, f"{where}: {shown(words)}"
            command = command.commands[left.pop(0)]
            context = command.context_class(command, parent=context)
        try:
            command.make_parser(context).parse_args(left)
        except Exception as error:
            raise AssertionError(f"{where}: {shown(words)}") from error


def test_files_of_commands_are_there() -> None:
    named = {(where, word) for where, command in FOUND for word in command[1:] if FILE.fullmatch(word)}
    assert len(named) > 20
    assert [each for each in named if not (ROOT / each[1]).exists()] == []


def test_the_settings_of_commands_go_with_their_files() -> None:
    read = 0
    for where, words in FEDSTRATA:
        file = ROOT / "experiments" / "digits.yaml" if words[1:2] == ["digits"] else ROOT / shown(words[1:2])
        if words[0] not in {"run", "check", "up"} or file.suffix != ".yaml" or not file.exists():
            continue
        changes = [value for option, value in pairwise(words) if option == "--set"]
        try:
            parse_experiment(file.read_text(encoding="utf-8"), overrides=changes)
        except ExperimentError as error:
            raise AssertionError(f"{where}: {shown(words)}") from error
        read += 1
    assert read > 5


@pytest.mark.parametrize("file", sorted((ROOT / "benchmarks").glob("*.yaml")), ids=lambda file: file.name)
def test_the_experiments_of_benchmarks_are_valid(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    if "\ncells:" in text:
        load_sweep(file)
    else:
        parse_experiment(text)

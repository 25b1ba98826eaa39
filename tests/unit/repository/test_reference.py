"""The generated reference is what the code declares now."""

from pathlib import Path

import pytest
import typer

from emulator.commands.main import app
from scripts.reference import log_events
from scripts.reference.__main__ import ROOT, files
from scripts.reference.command_line import commands, value_of
from scripts.reference.keys import Key, keys


@pytest.fixture(scope="module")
def generated() -> dict[Path, str]:
    return files()


def test_generated_files_are_up_to_date(generated: dict[Path, str]) -> None:
    assert [path for path, text in generated.items() if path.read_text(encoding="utf-8") != text] == [], (
        "make reference"
    )


def test_no_generated_page_is_left_over(generated: dict[Path, str]) -> None:
    folder = ROOT / "docs" / "reference"
    assert {path for path in generated if path.is_relative_to(folder)} == set(folder.rglob("*.md"))


def test_each_logged_event_has_one_meaning() -> None:
    assert {call.event for call in log_events.calls()} == log_events.MEANINGS.keys()


def test_keys_are_found_through_references_unions_and_lists() -> None:
    definitions = {"Part": {"properties": {"size": {"type": "integer", "minimum": 1, "description": "How large."}}}}
    schema = {
        "properties": {
            "parts": {"type": "array", "items": {"$ref": "#/$defs/Part"}},
            "own": {"anyOf": [{"$ref": "#/$defs/Part"}, {"type": "null"}], "default": None},
            "share": {"type": "number", "exclusiveMinimum": 0, "default": 0.5},
        },
        "required": ["parts"],
    }
    size = {"kind": "integer ≥ 1", "default": "`null`", "description": "How large."}
    assert list(keys(schema, definitions)) == [
        Key(name="parts.N.size", **size),
        Key(name="own.size", **size),
        Key(name="share", kind="number > 0", default="`0.5`", description=""),
    ]


def test_an_option_with_choices_shows_them() -> None:
    options = {
        path: {each.name: value_of(each) for each in it.params} for path, it in commands(typer.main.get_command(app))
    }
    assert options["export",]["to"] == "tensorboard|mlflow|safetensors|onnx"
    assert options["schema",]["of"] == "experiment|status"
    assert options["export",]["folder"] == "DIR"

"""`fedstrata schema` knows what experiment files may say: what it refuses is refused, what it takes is taken."""

import json
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from emulator.commands.main import execute
from fedstrata.experiment.keys_of_files import LAST_NAMES
from fedstrata.experiment_file import experiment_schema
from fedstrata.methods.registry import NAMES, method_class

EXPERIMENTS = Path(__file__).parents[3] / "experiments"
PARTITION = {"kind": "iid", "devices": 4, "examples_per_device": 100}


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    with redirect_stdout(StringIO()) as printed:
        assert execute(["schema"]) == 0
    schema = json.loads(printed.getvalue())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def with_method(section: Any) -> dict[str, Any]:
    return {"name": "small", "partition": PARTITION, "method": section}


def test_it_takes_every_example(validator: jsonschema.Draft202012Validator) -> None:
    for path in sorted(EXPERIMENTS.glob("*.yaml")):
        validator.validate(yaml.safe_load(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", NAMES)
def test_it_takes_every_method_with_each_of_its_options(validator: jsonschema.Draft202012Validator, name: str) -> None:
    validator.validate(with_method(name))
    options = method_class(name).Options.model_validate({"name": name}).model_dump(mode="json", by_alias=True)
    validator.validate(with_method(options))
    assert not validator.is_valid(with_method({**options, "colour": "red"}))


@pytest.mark.parametrize("section", [{"clusters": 2}, "own:Method", {"name": "own:Method", "colour": "red"}])
def test_it_takes_the_default_by_its_options_alone_and_own_code(
    validator: jsonschema.Draft202012Validator, section: Any
) -> None:
    validator.validate(with_method(section))


@pytest.mark.parametrize("section", ["kmeans", {"name": "kmeans"}, {"name": "fedprox", "mu": "much"}, 3])
def test_it_refuses_what_is_no_method(validator: jsonschema.Draft202012Validator, section: Any) -> None:
    assert not validator.is_valid(with_method(section))


def test_each_key_whose_value_is_a_path_is_in_the_table_of_files() -> None:
    definitions = experiment_schema()["$defs"]
    keys = [pair for each in definitions.values() for pair in each.get("properties", {}).items()]
    assert {name for name, said in keys if {"format": "path", "type": "string"} in said.get("anyOf", [said])} == {
        "folder",  # of data
        *LAST_NAMES,
    }


def without_description(node: Any, place: str = "") -> list[str]:
    """The properties of a JSON Schema that have no description, or one that is not one sentence."""
    found = []
    if isinstance(node, dict):
        for name, inner in node.get("properties", {}).items():
            said = inner.get("description", "")
            if not said.endswith(".") or len(said.split()) > 25:
                found.append(f"{place}.{name}: {said}")
    for key, inner in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        found += without_description(inner, f"{place}.{key}")
    return found


def test_every_key_has_a_description_of_one_short_sentence(validator: jsonschema.Draft202012Validator) -> None:
    definitions: Any = validator.schema
    assert without_description(definitions) == []

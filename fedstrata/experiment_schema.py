"""The JSON Schema of the experiment file, with each method's own options."""

from typing import Any

from fedstrata.experiment import Experiment
from fedstrata.methods.registry import DEFAULT, NAMES, method_class
from fedstrata.settings import PLUGIN


def experiment_schema() -> dict[str, Any]:
    """For editors: what `Experiment` checks by itself, and in `method` what the method of that name takes."""
    schema = Experiment.model_json_schema(by_alias=True)
    definitions = schema["$defs"]
    of_methods = [_options(name, definitions) for name in NAMES]
    short = {"enum": list(NAMES), "description": "A method with its defaults."}
    own_short = {"type": "string", "pattern": PLUGIN.pattern, "description": "Own code, as module:Class."}
    own = {"type": "object", "properties": {"name": own_short}, "required": ["name"]}
    definitions["MethodSettings"] = {"anyOf": [short, own_short, *of_methods, own]}
    return schema


def _options(name: str, definitions: dict[str, Any]) -> dict[str, Any]:
    """What a section may say with this name; the default's may say no name."""
    found = method_class(name).Options.model_json_schema(by_alias=True)
    definitions.update(found.pop("$defs", {}))
    found["title"] = name
    found["properties"]["name"] = {"const": name}
    found["required"] = [key for key in found.get("required", ()) if (key, name) != ("name", DEFAULT)]
    return found

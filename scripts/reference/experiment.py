"""docs/reference/experiment.md: every key of the experiment file."""

import inspect

from fedstrata.experiment_file import experiment_schema
from fedstrata.models.building import BUILT_IN
from scripts.reference.keys import Key, key_table, keys
from scripts.reference.markdown import cell, code, table

TOP = """<!-- Written by `make reference` from the models in fedstrata/experiment/. -->
# Keys of the experiment file

[The experiment file](../experiment.md) explains the sections, with examples. `fedstrata schema` prints these
descriptions as a JSON Schema, which an editor can show while you type.

A rate is a number with `bit/s`, `kbit/s`, `Mbit/s` or `Gbit/s`. A duration has `ns`, `us`, `ms`, `s`, `min` or `h`.
Power has `uW`, `mW`, `W` or `kW`. Energy per Mbit has `uJ/Mbit`, `mJ/Mbit` or `J/Mbit`. N stands for a number in a
list, and NAME for a name of your own.

A section with several forms, such as `training.optimiser`, has a row per key and form. A row that equals a row of an
earlier form is not repeated: `adamw` also has the `betas` of `adam`.
"""
METHOD = """
[Each method](methods/one_shot.md) has further options, which are on its page.
"""


def _models() -> str:
    """Return the table of models, by their docstrings."""
    rows = [[code(name), cell((inspect.getdoc(make) or "").partition("\n\n")[0])] for name, make in BUILT_IN.items()]
    return table(["model", "layers"], rows)


AFTER = {"method": METHOD, "model": _models()}


def page() -> str:
    """Return the page: the keys with a single value, then a section for each key that has further keys."""
    schema = experiment_schema()
    definitions = schema["$defs"]
    single: list[Key] = []
    text = ""
    for name, field in schema["properties"].items():
        if name == "method":
            found = [Key(name="method.name", kind="string", default="`one_shot`", description=cell(NAME))]
        else:
            only = {"properties": {name: field}, "required": schema["required"]}
            found = list(keys(only, definitions))
        if [key.name for key in found] == [name]:
            single += found
        else:
            text += f"\n## {name}\n\n{field.get('description', '')}\n{key_table(found)}"
            text += AFTER.get(name, "")
    return TOP + "\n## Single values\n" + key_table(single) + text


NAME = "Name of a built-in method, or own code as `module:Class`; `method: NAME` alone is allowed."

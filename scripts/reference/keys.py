"""Keys of a JSON Schema as rows of a table: key, type with its range, default, description."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from scripts.reference.markdown import cell, code, table

Schema = Mapping[str, Any]
HEAD = ("key", "type", "default", "")
LIMITS = {"minimum": "≥ {}", "exclusiveMinimum": "> {}", "maximum": "≤ {}", "exclusiveMaximum": "< {}"}
UNITS = {"bit/s": "rate", "ns|us|ms": "duration", "uW": "power", "J/Mbit": "energy per Mbit"}


@dataclass(frozen=True, kw_only=True)
class Key:
    """Hold a key that has a value."""

    name: str
    kind: str
    default: str
    description: str


def keys(schema: Schema, definitions: Mapping[str, Schema], prefix: str = "") -> Iterator[Key]:
    """Return every key of an object that holds a value; N stands for a number in a list, NAME for a name."""
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        yield from _keys_of(field, definitions, prefix + name, is_required=name in required)


def _keys_of(field: Schema, definitions: Mapping[str, Schema], name: str, *, is_required: bool) -> Iterator[Key]:
    branches = [branch for branch in _branches(field, definitions) if branch.get("type") != "null"]
    inner: list[Key] = []
    for branch in branches:
        items, values = branch.get("items"), branch.get("additionalProperties")
        if "properties" in branch:
            inner += keys(branch, definitions, f"{name}.")
        elif isinstance(items, Mapping):
            inner += _of_many(items, definitions, f"{name}.N.")
        elif isinstance(values, Mapping):
            inner += _of_many(values, definitions, f"{name}.NAME.")
    if inner and not any("enum" in branch for branch in branches):
        yield from dict.fromkeys(inner)
        return
    is_required = is_required or all(
        "const" in branch for branch in branches
    )  # a constant key that selects one of several forms
    default = "required" if is_required else code(_default(field.get("default")))
    kind = " or ".join(dict.fromkeys(_kind(branch, definitions) for branch in branches))
    yield Key(name=name, kind=kind, default=default, description=cell(field.get("description", "")))


def _of_many(item: Schema, definitions: Mapping[str, Schema], prefix: str) -> Iterator[Key]:
    for branch in _branches(item, definitions):
        yield from keys(branch, definitions, prefix)


def _branches(field: Schema, definitions: Mapping[str, Schema]) -> list[Schema]:
    """Return the schemas that a value may follow, without references."""
    if "$ref" in field:
        return _branches(definitions[field["$ref"].rpartition("/")[2]], definitions)
    for union in ("anyOf", "oneOf", "allOf"):
        if union in field:
            return [found for branch in field[union] for found in _branches(branch, definitions)]
    return [field]


def _kind(schema: Schema, definitions: Mapping[str, Schema]) -> str:
    if "const" in schema or "enum" in schema:
        return " or ".join(code(_default(value)) for value in schema.get("enum", [schema.get("const")]))
    if "prefixItems" in schema:
        return f"pair of {_kinds(schema['prefixItems'][0], definitions)}"
    if schema.get("type") == "array":
        return f"list of {_kinds(schema.get('items', {}), definitions)}"
    if schema.get("type") == "object":
        values = schema.get("additionalProperties")
        return f"mapping of names to {_kinds(values, definitions) if isinstance(values, Mapping) else 'values'}"
    for part, unit in UNITS.items():
        if part in schema.get("pattern", ""):
            return unit
    limits = [said.format(schema[limit]) for limit, said in LIMITS.items() if limit in schema]
    return " ".join([str(schema.get("type", "values")), ", ".join(cell(limit) for limit in limits)]).strip()


def _kinds(schema: Schema, definitions: Mapping[str, Schema]) -> str:
    return " or ".join(dict.fromkeys(_kind(branch, definitions) for branch in _branches(schema, definitions)))


def _default(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True)
    return text.removesuffix("...\n").strip()


def key_table(rows: Sequence[Key]) -> str:
    """Return the table of keys."""
    return table(HEAD, [(code(row.name), row.kind, row.default, row.description) for row in rows])

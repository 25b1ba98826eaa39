"""Turn a validation error of pydantic into one line. The line has the key, the value, the allowed values, and the
nearest valid name.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import takewhile
from typing import Any, NamedTuple

from pydantic import ValidationError

# Names that other programs use, with the last part of the key that means the same here.
ELSEWHERE = {
    "bs": "batch_size", "clients": "devices", "dataset": "data", "lr": "learning_rate",
    "epochs": "local_epochs", "nodes": "devices", "num_clients": "devices", "num_rounds": "global_rounds",
    "rounds": "global_rounds", "workers": "devices",
}  # fmt: skip
Schema = Mapping[str, Any]
NONE: Schema = {"properties": {}}
PLAIN = {  # words of pydantic's messages, and the plainer words that replace them
    ", unable to parse string as an integer": "", ", unable to parse string as a number": "",
    ", unable to interpret input": "", "greater than or equal to ": "at least ", "less than or equal to ": "at most ",
    "greater than ": "above ", "less than ": "below ", "a valid integer": "an integer", "a valid number": "a number",
    "a valid boolean": "true or false", "a valid string": "text",
    "a valid tuple": "a list, such as [1, 2]", "a valid list": "a list, such as [1, 2]",
}  # fmt: skip
OF_MAPPINGS = "model_type", "dict_type", "model_attributes_type"  # pydantic's faults of values that are no mappings
# The part of a location that names a branch of a union.
BRANCH = re.compile(r"^(literal\[.*\]|constrained-\w+|int|float|str|bool|tuple\[.*|dict\[.*|\[key\])$")


def one_line(error: ValidationError, unknown: Callable[[str], str], section: str = "", schema: Schema = NONE) -> str:
    """Return the first fault of a validation error as `key: fault`, with the value and the allowed values.

    The argument `unknown` is a function that returns the message for an unknown key. `section` is the key of the
    checked section, or "" for a whole file.
    """
    faults = [(_key_of(untagged(fault["loc"], schema)[0], section), fault) for fault in error.errors()]
    key, first = faults[0]
    if first["type"] == "extra_forbidden":
        return f"{key}: {unknown(key)}"
    of_branches = dict.fromkeys(_said(fault, schema) for other, fault in faults if other == key)
    said = " or ".join(of_branches).replace(" or : must be ", " or ").replace(" or : ", " or ")
    value = "null" if first["input"] is None else f"{first['input']!r:.80}"
    shown = f", not {value}" if said.startswith(": must be ") else f" (got {value})"
    if first["type"] in {"missing", "value_error", "union_tag_invalid"}:
        shown = ""
    if isinstance(first["input"], bool | None) and first["type"] in OF_MAPPINGS:
        shown += f"; {_instead(first['loc'], schema)}"
    rest = len({other for other, _ in faults} - {key})
    return f"{key}{said}{shown}".removeprefix(": ") + (f"; and {rest} more" if rest else "")


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the hint `did you mean …? ` with the nearest known name. If no known name is near, return an empty text.
    Hyphens and capitals make no difference.
    """
    plain = {plain_name(each): each for each in known}
    near = get_close_matches(plain_name(name), plain, n=1)
    return f"did you mean {plain[near[0]]}? " if near else ""


def plain_name(name: str) -> str:
    """Return a name without hyphens, underscores and spaces, in small letters."""
    return re.sub("[-_ ]", "", name).lower()


def _said(fault: Mapping[str, Any], schema: Schema) -> str:
    """Return the part of the message that follows the key: pydantic's message in plainer words."""
    match fault["type"]:
        case "missing":
            return ": is missing, and has no default"
        case "union_tag_not_found" | "union_tag_invalid":
            return f".{str(fault['ctx']['discriminator']).strip(chr(39))}: {_said_of_form(fault, schema)}"
        case mapping if mapping in OF_MAPPINGS:
            keys = [*_section_at(fault["loc"], schema).get("properties", ())]
            example = "name" if "name" in keys or not keys else keys[0]
            return f": must be a mapping of keys to values, such as {{{example}: ...}}"
        case "string_pattern_mismatch":
            return _said_of_pattern(fault["loc"])
    return ": " + in_plain_words(str(fault["msg"]).replace("Tuple should", "List should"))  # YAML has lists


def _said_of_pattern(place: tuple[int | str, ...]) -> str:
    """Return the message for a text with other characters than its key allows."""
    if place == ("name",):
        return ": takes small letters, digits and, between them, hyphens, at most 40 in all"
    if "names" in place:
        return ": takes small letters, digits and, between them, dots and hyphens, at most 63 in all"
    return {
        "name": ": takes small letters, digits, - and _, a letter first, at most 40 in all",
        "process": ": must be gps, an LPS such as lps-0, or the id of a device",
        "to": ": must be an LPS such as lps-0",
    }.get(str(place[-1]), ": must be a SHA-256, of 64 digits and letters from a to f")


def _said_of_form(fault: Mapping[str, Any], schema: Schema) -> str:
    """Return the message for a file that names no form, or an unknown form, of a key with several forms. An example of
    such a key is `partition` with its kinds.
    """
    context, place = fault["ctx"], fault["loc"]
    if fault["type"] == "union_tag_not_found":
        tags = [*schema["properties"].get(str(place[0]), {}).get("discriminator", {}).get("mapping", ())]
        return f"is missing, and has no default{'; choose ' if tags else ''}{', '.join(tags)}"
    tags = re.findall("'(.*?)'", context["expected_tags"])
    section = next(part for part in reversed(place) if isinstance(part, str))
    what, tag = section.rpartition("_")[2].removesuffix("s"), str(context["tag"])
    return f"no {what} is called {tag!r:.80}; {nearest(tag, tags)}choose {_listed(tags, 'or')}"


def _listed(names: Sequence[str], word: str) -> str:
    *first, last = names
    return f"{', '.join(first)} {word} {last}" if first else last


def in_plain_words(message: str) -> str:
    """Return pydantic's message about a value, in plain words."""
    before, found, said = message.replace("Value error, ", "").partition("Input should be ")
    if not found:
        return before
    for theirs, ours in PLAIN.items():
        said = said.replace(theirs, ours)
    return f"{before}must be {said}"


class Chosen(NamedTuple):
    """Hold a key that can have several forms, such as `partition`. `tag` is the key inside it that names the form, such
    as `kind`, and `form` is the form in the file.
    """

    key: str
    tag: str
    form: str
    schema: Schema


def untagged(place: tuple[int | str, ...], schema: Schema) -> tuple[tuple[int | str, ...], Chosen | None]:
    """Return pydantic's location of a fault, without the names of chosen forms. Also return the innermost chosen form,
    or None if the file chose no form there.
    """
    kept: list[int | str] = []
    chosen, node = None, schema
    for part in place:
        node = _resolved(node, schema)
        discriminator = node.get("discriminator", {})
        forms, tag = discriminator.get("mapping", {}), discriminator.get("propertyName", "")
        if part in forms:
            node = _resolved({"$ref": forms[part]}, schema)
            chosen = Chosen(".".join(map(str, kept)), tag, str(part), node)
            continue
        kept.append(part)
        node = node.get("items", NONE) if isinstance(part, int) else node.get("properties", {}).get(part, NONE)
    return tuple(kept), chosen


def _resolved(node: Schema, schema: Schema) -> Schema:
    return schema["$defs"][node["$ref"].rpartition("/")[2]] if "$ref" in node else node


def _instead(place: tuple[int | str, ...], schema: Schema) -> str:
    """Return what to write in place of null, true or false for a section. The hint depends on which keys have
    defaults.
    """
    node = _section_at(place, schema)
    is_required = place[-1] in _section_at(place[:-1], schema).get("required", ())
    have_defaults = node.get("properties") and not node.get("required")
    return f"{'' if is_required else 'remove it or '}give {'{} for its defaults' if have_defaults else 'its keys'}"


def _section_at(place: tuple[int | str, ...], schema: Schema) -> Schema:
    """Return the part of the schema about the section at a location, or a schema without keys."""
    node = schema
    for part in place:
        node = node.get("properties", NONE).get(part, NONE)
        (node,) = [each for each in node.get("anyOf", ()) if "$ref" in each] or [node]
        node = _resolved(node, schema)
    return node


def _key_of(place: tuple[int | str, ...], section: str) -> str:
    """Translate the location in an error of pydantic to a key of the experiment file. The location also has the names
    of union branches, which are left out.
    """
    parts = [str(part) for part in place]
    kept = (part for number, part in enumerate(parts) if number == 0 or not _is_branch(part, parts[0]))
    return ".".join([*filter(None, [section]), *kept])


def _is_branch(part: str, top: str) -> bool:
    return BRANCH.match(part) is not None or (top == "faults" and part in {"kill", "pause", "cut"})


def unknown_key(key: str, schema: Schema, chosen: Chosen | None = None) -> str:
    """Return the message for a key that is unknown, or that the chosen form does not have. The message names similar
    keys.

    With a chosen form, only keys of this form are named. If none of them is similar, the message lists the keys of the
    form's section.
    """
    known = list(dict.fromkeys(_keys(schema, schema)))
    if chosen is None:
        return f"unknown key; {_near(key, known)}fedstrata schema prints all keys"
    plain, form = re.sub(r"\.\d+", ".N", key), f"{chosen.tag} {chosen.form}"
    fault = f"not a key of {form}" if plain in known else "unknown key"
    own = list(dict.fromkeys(_keys(chosen.schema, schema, f"{chosen.key}.")))
    section = plain.rpartition(".")[0]
    here = [path.rpartition(".")[2] for path in own if path.rpartition(".")[0] == section]
    has = f"{form if section == chosen.key else section} has the keys {_listed(here, 'and')}; " if here else ""
    return f"{fault}; {_near(key, own) or has}fedstrata schema prints all keys"


def _near(key: str, known: Sequence[str]) -> str:
    """Return a hint with up to three known keys that are near the unknown key. If none is near, return an empty text.

    A near key has the same last part, or a synonym of this part. If there is no such key, a near key is in the same
    section and has a similar last part.
    """
    section, _, _ = key.rpartition(".")
    last = key.rpartition(".")[2]
    name, first = ELSEWHERE.get(last, last), section.partition(".")[0]
    here = [path for path in known if (path.partition(".")[0] == first if section else "." not in path)]
    near = _called(name, here) or _called(name, known) or _like(name, here) or ([] if section else _like(name, known))
    most = max((_shared(path, key) for path in near), default=0)
    best = [path for path in near if _shared(path, key) == most]
    return f"did you mean {' or '.join(best[:3])}? " if near else ""


def _like(name: str, known: Sequence[str]) -> list[str]:
    """Return the known keys with a last part similar to `name`."""
    names = get_close_matches(name, {path.rpartition(".")[2] for path in known}, n=6)
    return [path for path in known if path.rpartition(".")[2] in names]


def _called(name: str, known: Sequence[str]) -> list[str]:
    return [path for path in known if path.rpartition(".")[2] == name]


def _shared(path: str, key: str) -> int:
    """Return the number of leading parts that the known key `path` and the key `key` have in common. A part N of `path`
    stands for any index of a list, see `_keys`, so it matches any part of `key`.
    """
    pairs = zip(path.split("."), key.split("."), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1] or pair[0] == "N", pairs))


def _keys(node: Schema, schema: Schema, prefix: str = "") -> Iterator[str]:
    """Yield the dotted keys of a node of a JSON Schema. The part N stands for any index of a list, as in
    `faults.N.at`.
    """
    node = _resolved(node, schema)
    for branch in (*node.get("anyOf", ()), *node.get("oneOf", ())):
        yield from _keys(branch, schema, prefix)
    if isinstance(node.get("items"), Mapping):
        yield from _keys(node["items"], schema, f"{prefix}N.")
    for name, inner in node.get("properties", {}).items():
        yield prefix + name
        yield from _keys(inner, schema, f"{prefix}{name}.")

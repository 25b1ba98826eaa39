"""Read YAML from untrusted sources: only plain values, and only a limited number of them."""

import re
from collections.abc import Iterator
from typing import Any

import yaml

MOST_VALUES = 200_000  # most values of a document, with its aliases expanded; an experiment has a few hundred
MOST_CHARACTERS = 4 << 20  # of a text, with its comments; PyYAML reads about 100,000 a second
MOST_DIGITS = 1000  # most characters of an integer
BOOL, TIMESTAMP = "tag:yaml.org,2002:bool", "tag:yaml.org,2002:timestamp"
OTHER_BASE = re.compile(r"[-+]?(0[0-7_]|.*:)")


class EachKeyOnce(yaml.SafeLoader):
    """Load YAML safely, and refuse a key that appears twice in a mapping. PyYAML's own loader would silently keep the
    last value.
    """

    # As in YAML 1.2, a date is text, and so are yes, no, on and off. Otherwise `seed: yes` would be the number 1.
    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [(tag, pattern) for tag, pattern in found if tag != (BOOL if first in "yYnNoO" else TIMESTAMP)]
        for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    _keys = 0  # the keys of all mappings so far, with the merged keys

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Return the mapping as the text has it, before keys are merged. Raises ConstructorError for a key that appears
        twice.
        """
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):  # the constructor refuses such a key
                continue
            if key.value in seen and key.value != "<<":
                raise _refusal(f"the key {key.value!r} is there twice", key)
            seen.add(key.value)
        return node

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Replace the merge keys (`<<`) of a mapping. Raises ConstructorError if all mappings together get too many
        keys.
        """
        super().flatten_mapping(node)
        self._keys += len(node.value)
        if self._keys > MOST_VALUES:
            raise _refusal(f"it has more than {MOST_VALUES} keys with those of merge keys (<<); merge fewer", node)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        """Return the integer.

        Raises:
            ConstructorError: the integer is so long that Python would refuse to print it, or PyYAML would take it for
                a number to the base 8 or 60.
        """
        if len(node.value) > MOST_DIGITS:
            raise _refusal(f"the number {node.value[:9]}… has more than {MOST_DIGITS} characters", node)
        if OTHER_BASE.match(node.value):
            raise _refusal(
                f"{node.value} begins with 0 or has a colon; write a plain number, or quote it as text", node
            )
        return super().construct_yaml_int(node)


EachKeyOnce.add_constructor("tag:yaml.org,2002:int", EachKeyOnce.construct_yaml_int)
# PyYAML takes 1.0e-3 for a number, and 1e-3 for text.
EachKeyOnce.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[-+]?\d+[eE][-+]\d+$"), list("-+0123456789"))


def _refusal(said: str, node: yaml.Node) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, said, node.start_mark)


def read_yaml(text: str) -> Any:
    """Parse a YAML text, and return the document.

    Raises:
        ValueError: the text is not YAML or too long, or its aliases expand to too many values. The message is one
            line.
    """
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"has more than {MOST_CHARACTERS} characters; remove comments, or put data into another file")
    try:
        document = yaml.load(text, EachKeyOnce)  # noqa: S506  # a safe loader
    except Exception as error:  # a wrong tag, such as !!int or !!timestamp, raises errors of many kinds
        said = " ".join(str(error).split()).replace(' in "<unicode string>",', " in")
        hint = "; YAML indents with spaces, not with tabs" if "'\\t'" in said else ""
        raise ValueError(f"is not YAML: {said}{hint}") from None
    for count, _ in enumerate(_values(document)):
        if count == MOST_VALUES:
            raise ValueError(f"has more than {MOST_VALUES} values; write it without aliases of aliases")
    return document


def _values(document: Any) -> Iterator[Any]:
    """Yield all values of a document. An alias yields the values to which it refers. If an alias contains itself, the
    values never end.
    """
    waiting = [iter((document,))]
    while waiting:
        for value in waiting[-1]:
            yield value
            if isinstance(value, dict | list | tuple):  # tuples from !!pairs
                waiting.append(iter(value.values() if isinstance(value, dict) else value))
                break
        else:
            waiting.pop()

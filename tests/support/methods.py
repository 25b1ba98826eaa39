"""Methods with a section of an experiment file, for tests that know the class."""

from collections.abc import Mapping
from typing import Any

from fedstrata.methods import Facts


def method_with(kind: type[Any], section: Mapping[str, Any], facts: Facts) -> Any:
    """Return the method with its checked section."""
    return kind(kind.Options.model_validate(section), facts)

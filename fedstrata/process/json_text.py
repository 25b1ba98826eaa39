"""JSON that every program can read. A number that is not finite becomes null, because JSON has no such numbers."""

import json
import math
from collections.abc import Mapping
from typing import Any


def json_text(value: object, **how: Any) -> str:
    """Return a value as JSON text. Numbers that are not finite become null. `how` is passed to `json.dumps`."""
    try:
        return json.dumps(value, allow_nan=False, **how)
    except ValueError:
        return json.dumps(_finite(value), allow_nan=False, **how)


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list | tuple) else value

"""JSON that every reader takes: a number that is not finite is null, since JSON has none such."""

import json
import math
from collections.abc import Mapping
from typing import Any


def json_text(value: object, **how: Any) -> str:
    """Return a document as JSON; `how` is handed on to `json.dumps`. No number makes it fail."""
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

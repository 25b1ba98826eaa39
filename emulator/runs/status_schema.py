"""The JSON Schema of a status: what `fedstrata status --json` and `fedstrata run --json` print."""

from typing import Any

from fedstrata.experiment.links import LINKS

PHASES = ["enrolment", "relevance", "grouping", "training", "evaluation", "completed", "failed"]


def status_schema() -> dict[str, Any]:
    """Of one line with the event `status`; readers pass over fields that they do not know."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Status of a Fedstrata run",
        **_object({
            "event": {"const": "status"},
            "run_id": _text("the experiment's name and the beginning of its digest"),
            "phase": {"enum": PHASES},
            "reason": _text("of a failed run why; else empty"),
            "global_round": _count("global rounds that are done"),
            "global_rounds": _count("of how many"),
            "seconds": _seconds("on the run's own clock, which stands still once it is over"),
            "virtual_seconds": {
                "type": ["number", "null"],
                "minimum": 0,
                "description": "when the open global round began on the virtual clock; null before the second",
            },
            "energy_joules": {
                "type": ["number", "null"],
                "minimum": 0,
                "description": "what devices have taken in LPS rounds; null where the experiment counts none",
            },
            "epsilon_spent": {
                "type": ["number", "null"],
                "minimum": 0,
                "description": "of the updates so far, the open global round's with them; null where none are noised",
            },
            "lps_wanted": _count("how many LPSs the run needs; 0 while nobody knows"),
            "devices": {"type": "object", "additionalProperties": _count("devices in this state")},
            "clusters": {"type": "array", "items": _cluster()},
            "waits": {"type": "array", "items": _wait(), "description": "whom the run waits for, the longest first"},
            "bytes": _object({link: _object({"up": _count("so far"), "down": _count("so far")}) for link in LINKS}),
        }),
    }  # fmt: skip


def _cluster() -> dict[str, Any]:
    return _object({
        "cluster_id": _text("its name"),
        "devices": _count("in it"),
        "lps_round": _count("LPS rounds that are done"),
        "loss": {"type": ["number", "null"], "minimum": 0, "description": "null while not measured"},
        "accuracy": {"type": ["number", "null"], "minimum": 0, "maximum": 1, "description": "null while not measured"},
    })  # fmt: skip


def _wait() -> dict[str, Any]:
    return _object({
        "name": _text("of a device or an LPS"), "what": _text("what it is waited for"), "seconds": _seconds("so far"),
    })  # fmt: skip


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    """An object that has all of these."""
    return {"type": "object", "properties": properties, "required": list(properties)}


def _text(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


def _count(description: str) -> dict[str, Any]:
    return {"type": "integer", "minimum": 0, "description": description}


def _seconds(description: str) -> dict[str, Any]:
    return {"type": "number", "minimum": 0, "description": description}

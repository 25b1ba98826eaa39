"""Define the JSON Schema of a status. `fedstrata status --json` and `fedstrata run --json` print statuses in this
form.
"""

from typing import Any, get_args

from fedstrata.experiment.faults import Phase
from fedstrata.experiment.links import LINKS


def status_schema() -> dict[str, Any]:
    """Return the JSON Schema of a printed line with the event `status`. Programs that read such lines should ignore
    unknown fields.
    """
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Status of a Fedstrata run",
        **_object({
            "event": {"const": "status", "description": "the kind of this line"},
            "run_id": _text("the experiment's name and the beginning of its digest"),
            "phase": {"enum": [*get_args(Phase), "completed", "failed"], "description": "the phase that the run is in"},
            "reason": _text("the reason for which the run failed; empty if it did not fail"),
            "global_round": _count("the number of finished global rounds"),
            "global_rounds": _count("the number of global rounds in the experiment"),
            "seconds": _seconds("seconds since the run began, by the GPS's clock; they stop at the end of the run"),
            "virtual_seconds": _amount(
                "virtual time at which the open global round began; null before the second round"
            ),
            "epsilon_spent": _amount("ε of all updates, with the open global round; null if updates have no noise"),
            "lps_wanted": _count("the number of LPSs that the run needs; 0 while it is unknown"),
            "devices": {
                "type": "object",
                "additionalProperties": _count("the number of devices in this state"),
                "description": "the number of devices by state: absent, enrolled, answered, assigned or refused",
            },
            "metric": {
                **_object({
                    "name": _text("the key of its values in `clusters`"),
                    "unit": {"enum": ["percent", "plain"], "description": "percent: a share in [0, 1]"},
                    "higher_is_better": {"type": "boolean", "description": "whether a higher value is better"},
                }),
                "description": "the headline metric of the task",
            },
            "clusters": {
                "type": "array",
                "items": _cluster(),
                "description": "the clusters, or the LPSs if clusters span LPSs; empty before devices have their LPS",
            },
            "waits": {
                "type": "array",
                "items": _wait(),
                "description": "the devices and LPSs for which the run waits, the longest wait first",
            },
            "bytes": {
                **_object({link: _bytes() for link in LINKS}),
                "description": "the bytes so far, by link and direction, counted at the parents' ends",
            },
        }),
    }  # fmt: skip


def _cluster() -> dict[str, Any]:
    return _object({
        "cluster_id": _text("the name of the cluster, or of the LPS if clusters span LPSs"),
        "devices": _count("the number of its devices"),
        "lps_round": _count("the number of finished LPS rounds"),
        "measured_round": {
            "type": ["integer", "null"],
            "minimum": 1,
            "description": "the global round, counted from 1, after which the measured model was the cluster's; null "
            "until all its devices have measured a model",
        },
        "loss": _amount("the mean loss of this model on held-out examples; null until it is measured"),
    }) | {
        "additionalProperties": {
            "type": ["number", "null"],
            "description": "the headline metric of the task on held-out examples, by the name that `metric` has, such "
            "as accuracy; null until it is measured",
        },
    }  # fmt: skip


def _wait() -> dict[str, Any]:
    return _object({
        "name": _text("the id of the device or the LPS"),
        "what": _text("the event for which the run waits"),
        "seconds": _seconds("the seconds of the wait so far"),
    })  # fmt: skip


def _bytes() -> dict[str, Any]:
    return _object({"up": _count("the bytes towards the GPS"), "down": _count("the bytes towards the devices")})


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an object in which all of these properties are required."""
    return {"type": "object", "properties": properties, "required": list(properties)}


def _text(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


def _count(description: str) -> dict[str, Any]:
    return {"type": "integer", "minimum": 0, "description": description}


def _amount(description: str) -> dict[str, Any]:
    return {"type": ["number", "null"], "minimum": 0, "description": description}


def _seconds(description: str) -> dict[str, Any]:
    return {"type": "number", "minimum": 0, "description": description}

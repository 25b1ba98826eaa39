"""docs/reference/log-events.md: the events that processes log, with level and fields."""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from scripts.reference.markdown import cell, code, table

ROOT = Path(__file__).parents[2]
TOP = """<!-- Written by `make reference` from the calls of EventLog in the code. -->
# Log events

Each process writes one JSON object per event to standard error: `time`, `level`, `event`, and the fields below.
`fedstrata run` saves them in `DIR/logs/NAME.log`. In pods use `kubectl logs`, with systemd `journalctl`.
The option `--log-level` or the variable `FEDSTRATA_LOG_LEVEL` sets the lowest level. The default is `INFO`.
In the chart, set it by `gps.env`, `lps.env` and `device.env`. GPS and LPS are the global and the local parameter
server.
"""
LOGGED_BY: Mapping[str, str] = {
    "gps": "GPS",
    "lps": "LPS",
    "device": "device",
    "fleet": "fleet, board",
    "fedstrata/rounds/parent": "GPS, LPS",
    "fedstrata/rounds/child": "LPS, device",
    "fedstrata/trust/guard.py": "GPS, LPS",
    "fedstrata/trust/rate_limits.py": "GPS, LPS",
    "fedstrata/trust/mask_proofs.py": "device",
    "fedstrata/rpc/server.py": "GPS, LPS",
    "fedstrata/rpc/client.py": "LPS, device",
    "fedstrata": "all",
}
VARIED: Mapping[str, tuple[str, ...]] = {  # names of events that the code puts together
    "f'{self._kind}_taken'": ("certificate_taken", "revoked_taken"),
    "f'{self._kind}_not_taken'": ("certificate_not_taken", "revoked_not_taken"),
    "'returned' if back else 'adopted'": ("returned", "adopted"),
    "end[0]": ("ended", "failed"),
}
MEANINGS: Mapping[str, str] = {
    "adopted": "An LPS serves the cluster of a silent LPS.",
    "answered": "The device has answered a question of the method.",
    "answered_at_last": "A call succeeded after several tries.",
    "assigned": "The device belongs to a cluster, and knows its LPS.",
    "board": "A board has registered with the fleet.",
    "call_failed": "A call failed because of a fault in the server's code. The traceback follows.",
    "call_refused": "A server refused a call, with the reason.",
    "calls_limited": "A peer makes more calls than its limit, and gets RESOURCE_EXHAUSTED.",
    "certificate_not_taken": "New certificate files are damaged, expired or do not match. The old ones stay in use.",
    "certificate_outdated": "A caller's certificate has expired, or its authority was dropped.",
    "certificate_signs_nothing": "A device's new key cannot sign its mask keys, so the old key signs them.",
    "certificate_taken": "The process uses new certificate files.",
    "child_refused": "A device or LPS is excluded from the run, with the reason.",
    "cluster_dropped": "The LPS no longer serves a cluster.",
    "cluster_left_out": "The run ended without this LPS's report about a cluster.",
    "cluster_lost": "Another LPS serves the cluster now.",
    "cluster_resumed": "A restarted LPS continues a cluster from its newest complete state.",
    "cluster_served": "The LPS begins to serve a cluster.",
    "connection_renewed": "The process opened a new connection with its new certificate.",
    "deadline_reached": "A round ended at its deadline, without the missing children.",
    "device_enrolled": "A device has reported to the GPS.",
    "device_lost_state": "A device enrolled without the state that it had before.",
    "device_missing": "A device missed the deadline of enrolment.",
    "device_placed_late": "A late device or a newcomer has joined a cluster.",
    "device_refused": "A device gave an invalid answer, and is excluded from the run.",
    "device_stopped": "One device of the process has ended. The others continue.",
    "devices_moved": "Devices train at another LPS from now on, as the schedule says.",
    "devices_not_told": "Some devices did not call again, so they do not know that the run is over.",
    "devices_released": "The GPS has scaled devices and LPSs to zero after the run.",
    "devices_train_one_by_one": "The process cannot train its devices together, with the reason.",
    "end_not_written": "A board could not note the end of a run.",
    "ended": "A board's part in a run is over.",
    "enrolled": "The device is known to the GPS.",
    "enrolled_again": "The GPS had forgotten the device, so it enrolled again.",
    "failed": "A board's part in a run has failed, with the reason.",
    "finished": "The device knows that the run is over.",
    "given_back": "A board has stopped its part in a withdrawn run.",
    "global_round_closed": "The GPS has combined the aggregates of a global round.",
    "global_round_done": "The LPS has sent its aggregates and received the next shared layers.",
    "gone_back": "The GPS lost the start of a global round, so the LPS repeats the round.",
    "gps_away": "The pod of the run's Job cannot reach the GPS, and tries again.",
    "grouped": "The GPS has made the clusters.",
    "key_forgotten": "The LPS dropped a device's mask key.",
    "key_not_taken": "The LPS did not accept a device's mask key.",
    "kubernetes_answers_again": "The API of Kubernetes has accepted a call after several tries.",
    "kubernetes_refused": "The API of Kubernetes refused a call. `instead` is the command to run.",
    "lps_away": "The device cannot reach its LPS, and asks the GPS for its LPS.",
    "lps_registered": "An LPS has reported to the GPS, with its address.",
    "lps_round_closed": "The LPS has combined the updates of an LPS round.",
    "lps_scaled": "The GPS has set the number of LPS pods.",
    "model_held_by_no_device": "No device has the cluster's model, so the cluster starts from another model.",
    "model_not_sent": "A device did not send the model that the LPS asked for.",
    "model_sent": "The device has sent its model to an LPS that adopted the cluster.",
    "model_taken_over": "The LPS has taken the cluster's model from a device.",
    "no_answer": "A device gave no answer to a question before the deadline.",
    "no_key": "A device sent no mask key in time.",
    "not_served": "The LPS does not serve the device, so the device asks the GPS.",
    "offered": "The fleet offers a run to boards.",
    "offers_not_read": "A board could not read the fleet's offers, and tries again.",
    "parent_away": "A parent does not answer. The child tries again without end.",
    "parent_has_another_run": "The parent serves another run. The child tries again.",
    "personal_state_damaged": "A file of layers that stay on the device is damaged, so an older file is used, or none.",
    "phase": "The run has entered a phase.",
    "planned_again": "The method has made a new plan, with new clusters or weights.",
    "pod_not_ours": "A pod with a device's name belongs to another release, so it gets no label.",
    "pods_labelled": "Device pods have the label of their LPS.",
    "process_failed": "A fault in the code ended the process. The traceback follows.",
    "refusal_not_saved": "The LPS could not save that it excluded a device.",
    "refusals_not_logged": "A server refuses so many calls that further lines are left out for a time.",
    "registered": "The LPS is known to the GPS.",
    "report_missing": "An LPS sent no final report about its cluster.",
    "reported": "The LPS has sent its final report.",
    "restarted": "A board has started its device process again.",
    "returned": "An LPS that was silent serves its cluster again.",
    "revoked_not_taken": "A new list of revoked names is wrong. The old list stays in use.",
    "revoked_taken": "The process uses a new list of revoked names.",
    "roster_refused": "The device does not mask its update for this list of devices, with the reason.",
    "rounds_missed": "The GPS has continued without this cluster.",
    "rounds_resumed": "A restarted GPS continues at this global round.",
    "run_failed": "The run has ended without a result, with the reason.",
    "run_stopped": "The process ends because the run cannot continue.",
    "sent_again": "The device sends its update again, because the LPS asked for it.",
    "serving": "The process is ready.",
    "spans_lost": "The collector of traces does not answer.",
    "spans_off": "Traces are switched off, with the reason.",
    "started": "A board has started its part in a run.",
    "state_lost": "The device's state is missing or damaged, so it begins without.",
    "state_passed_over": "A state file is damaged, so an older file is used.",
    "stopped": "The process has ended, with its bytes.",
    "taken_over": "The LPS continues an adopted cluster from this round.",
    "trying_again": "A board could not start its part in a run, and tries again.",
    "update_late": "The update missed its round. The device continues with the newest model.",
    "waits_for": "The run waits for these devices and LPSs, each with seconds.",
    "withdrawn": "An operator withdrew a run from the fleet.",
}


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call in the code that logs an event."""

    event: str
    level: str
    logged_by: str
    fields: tuple[str, ...]


def page() -> str:
    """Return the page, with one row per event."""
    found = list(calls())
    rows = []
    for event in sorted({call.event for call in found}):
        same = [call for call in found if call.event == event]
        rows.append([
            code(event),
            ", ".join(sorted({call.level for call in same})),
            ", ".join(sorted({call.logged_by for call in same})),
            ", ".join(code(field) for field in dict.fromkeys(name for call in same for name in call.fields)),
            cell(MEANINGS[event]),
        ])  # fmt: skip
    return TOP + table(["event", "level", "logged by", "fields", "meaning"], rows)


def calls() -> Iterator[Call]:
    """Yield each call in the services and their library that logs an event of level INFO or above."""
    for path in sorted(
        path for room in ("gps", "lps", "device", "fleet", "fedstrata") for path in ROOT.glob(f"{room}/**/*.py")
    ):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and node.args and (level := _level(node.func)):
                yield from _calls(node, level, str(path.relative_to(ROOT)))


def _level(function: ast.expr) -> str:
    """Return the level at which a call logs, or "" if it does not log."""
    name = ast.unparse(function)
    if name == "tell":  # the log's `warning`, or `debug` for calls that are refused often
        return "warning"
    of, _, method = name.rpartition(".")
    levels = {"info": "info", "warning": "warning", "error": "error", "exception": "error"}
    return levels.get(method, "") if of.endswith("log") else ""


def _calls(node: ast.Call, level: str, where: str) -> Iterator[Call]:
    first = ast.unparse(node.args[0])
    for event in VARIED.get(first, (first.strip("'"),)):
        place = max((prefix for prefix in LOGGED_BY if where.startswith(prefix)), key=len)
        fields = tuple(keyword.arg for keyword in node.keywords if keyword.arg)
        yield Call(event=event, level=level, logged_by=LOGGED_BY[place], fields=fields)

"""The plans of a run, which form the clusters. Each plan is written to the journal."""

import json
from collections import defaultdict
from itertools import pairwise
from typing import Any

import numpy as np

from fedstrata.errors import PayloadError, PluginError
from fedstrata.methods import Method, Moment, Plan, Question
from fedstrata.rpc.answer_messages import TOLD, answer_to_proto, arrays_of
from fedstrata.v1 import answers_pb2
from gps.journal.answers import BEFORE
from gps.journal.journal import Journal

NO_PLAN = Plan(clusters=(), rule="")  # applies until the method has made its first plan


class Plans:
    """Hold the plans made so far. Each plan applies until the next plan is made.

    The GPS makes the first plan before training. A method that asks devices in training makes another plan in each
    global round. Then an open global round has two plans:

    - The plan at its start: devices receive models by this plan.
    - The plan at its end: the updates of devices are averaged by this plan, and the next global round starts with it.

    For example, plan A is made before training, B in global round 0, and C in global round 1. Then global round 0 has
    A at its start and B at its end, global round 1 has B and C, and global round 2 has C and C.
    """

    def __init__(self, method: Method, journal: Journal) -> None:
        self._method = method
        self._journal = journal
        self._made = {made_in: _plan(*row) for made_in, row in journal.plans.made().items()}
        self._moved: dict[int, int] = {}  # a cache: number of moved devices by the plan's global round

    @property
    def is_made(self) -> bool:
        """Return whether there is a plan."""
        return bool(self._made)

    @property
    def first(self) -> Plan | None:
        """The plan made before training, or None before this plan is made."""
        return self._made.get(BEFORE)

    @property
    def newest(self) -> Plan:
        """The newest plan. Before the first plan is made, this is `NO_PLAN`."""
        return self._made[max(self._made)] if self._made else NO_PLAN

    def at_start(self, global_round: int) -> Plan:
        """Return the plan at the start of a global round. If there is no such plan, return `NO_PLAN`."""
        made_in = max((made_in for made_in in self._made if made_in < global_round), default=None)
        return NO_PLAN if made_in is None else self._made[made_in]

    def at_end(self, global_round: int) -> Plan:
        """Return the plan at the end of a global round. Until the plan of this global round is made, this is the plan
        at the start.
        """
        return self.at_start(global_round + 1)

    def is_planned(self, global_round: int) -> bool:
        """Return whether the plan of a global round has been made from the devices' answers."""
        return self.planned_rounds > global_round

    @property
    def planned_rounds(self) -> int:
        """The number of global rounds up to and including the round in which the newest plan was made. Before the first
        plan in training, the number is 0.
        """
        return max(self._made, default=BEFORE) + 1

    def history(self) -> list[tuple[int, int, int]]:
        """Return, for each plan made in training, its global round, its number of clusters, and how many devices
        changed their cluster.
        """
        for earlier, made_in in pairwise(sorted(self._made)):
            if made_in not in self._moved:
                self._moved[made_in] = _moved(self._made[earlier], self._made[made_in])
        return [(made_in, len(self._made[made_in].clusters), moved) for made_in, moved in sorted(self._moved.items())]

    def add(self, global_round: int, plan: Plan) -> None:
        """Write a plan to the journal. `global_round` is the global round in which the plan was made, or `BEFORE` for a
        plan from before training.

        Raises:
            PluginError: the plan cannot be written, or has arrays for devices that the method has not declared.
        """
        written = _json(plan)
        self.told(plan)
        affinity = plan.affinity.astype("<f8").tobytes() if plan.affinity is not None else b""
        self._journal.plans.make(global_round, written, affinity)
        self._made[global_round] = _plan(written, affinity)  # decoded, so that a restarted GPS has the same plan

    def forget_after(self, global_round: int) -> None:
        """Delete the answers, plans and moves of all global rounds after `global_round`, because the GPS continues from
        that global round again.
        """
        self._journal.plans.forget_after(global_round)
        for made_in in [made_in for made_in in self._made if made_in > global_round]:
            del self._made[made_in]
            self._moved.pop(made_in, None)

    def told(self, plan: Plan) -> answers_pb2.Answer | None:
        """Return the arrays that a plan has for all devices, as a message. Without such arrays, return None. Raises
        PluginError for arrays that the method has not declared.
        """
        if not plan.told:
            return None
        question = Question(name=TOLD, moment=Moment.BEFORE, arrays=self._method.tells())
        answer = answer_to_proto(question, plan.told)
        try:
            arrays_of(question, answer)
        except PayloadError as error:
            raise PluginError(
                f"method {self._method.options.name} tells devices other arrays than it has declared: {error}"
            ) from None
        return answer


def cluster_of(plan: Plan) -> dict[int, int]:
    """Return the number of each device's cluster in a plan, by device index."""
    return {index: number for number, cluster in enumerate(plan.clusters) for index in cluster}


def _moved(before: Plan, after: Plan) -> int:
    """Return how many devices changed their cluster. If a cluster of `after` continues a cluster of `before`, its
    devices have not moved, even if the cluster's number changed.

    If several clusters of `after` continue the same cluster, only one of them counts as this cluster: the one with the
    most of its devices. The devices of the others have moved.
    """
    earlier, stayed = cluster_of(before), defaultdict[int, int](int)
    for number, cluster in enumerate(after.clusters):
        parent = after.parents[number] if after.parents else number
        stayed[parent] = max(stayed[parent], sum(earlier.get(index, parent) == parent for index in cluster))
    return sum(map(len, after.clusters)) - sum(stayed.values())


def _json(plan: Plan) -> str:
    fields: dict[str, Any] = {
        "clusters": [[int(index) for index in cluster] for cluster in plan.clusters],
        "rule": plan.rule,
        "parents": [int(parent) for parent in plan.parents],
        "weights": {
            name: [{int(index): float(share) for index, share in stream.items()} for stream in streams]
            for name, streams in plan.weights.items()
        },
        "offers": [[int(cluster) for cluster in offered] for offered in plan.offers],
        "withdrawn": list(plan.withdrawn),
        "told": {name: [array.dtype.name, array.shape, array.ravel().tolist()] for name, array in plan.told.items()},
        "related": [int(index) for index in plan.related],
        "memory": dict(plan.memory),
    }
    try:
        return json.dumps(fields, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise PluginError(f"a plan needs a memory of JSON values, and finite weights: {error}") from None


def _plan(text: str, affinity: bytes) -> Plan:
    said = json.loads(text)
    side = len(said["related"])
    return Plan(
        clusters=tuple(tuple(cluster) for cluster in said["clusters"]),
        rule=said["rule"],
        parents=tuple(said["parents"]),
        weights={
            name: tuple({int(index): share for index, share in stream.items()} for stream in streams)
            for name, streams in said["weights"].items()
        },
        offers=tuple(tuple(offered) for offered in said["offers"]),
        withdrawn=tuple(said["withdrawn"]),
        told={name: np.array(values, dtype).reshape(shape) for name, (dtype, shape, values) in said["told"].items()},
        affinity=np.frombuffer(affinity, "<f8").reshape(side, side) if affinity else None,
        related=tuple(said["related"]),
        memory=said["memory"],
    )

"""Checks of a method's plan, before the GPS and the LPSs use it."""

import math
from collections.abc import Mapping, Sequence

from fedstrata.errors import PluginError
from fedstrata.methods.base import Method, Plan
from fedstrata.streams.streams import Streams


def check_plan(streams: Streams, plan: Plan, method: Method, before: Plan | None) -> None:
    """Check that a plan does not contradict the streams of the run or the earlier plan (`before`).

    Raises:
        PluginError: the plan cannot be carried out.
    """
    name, parents, known = method.options.name, plan.parents, len(before.clusters) if before is not None else 0
    fits = len(parents) == len(plan.clusters) and all(0 <= parent < known for parent in parents)
    if (parents and not fits) or (before is not None and not parents and len(plan.clusters) > known):
        raise PluginError(
            f"method {name}: the plan has {len(plan.clusters)} clusters and parents {list(parents)}, and the previous "
            f"plan had {known} clusters; set in parents, for each cluster, the previous cluster that it continues"
        )
    rounds, is_same = method.facts.training.lps_rounds_per_global_round, plan.parents in ((), tuple(range(known)))
    if before is not None and rounds > 1 and not (is_same and len(plan.clusters) == known):
        raise PluginError(
            f"method {name}: the plan changes {known} clusters to {len(plan.clusters)}, with parents {list(parents)}, "
            f"but with {rounds} LPS rounds per global round the clusters must stay; set "
            "training.lps_rounds_per_global_round: 1"
        )
    _check_withdrawn(streams, plan, method, before)
    if plan.offers and not method.fetches_all:
        raise PluginError(f"method {name} has offers in its plan; set fetches_all = True in the method")
    if plan.offers and not are_offers(plan.offers, len(plan.clusters)):
        raise PluginError(
            f"method {name}: the plan has offers {[list(offered) for offered in plan.offers]!r:.200} for "
            f"{len(plan.clusters)} clusters; list for each cluster, in ascending order, clusters that exist, with "
            "itself"
        )
    if plan.weights and not method.mixes:
        raise PluginError(f"method {name} has weights in its plan; set mixes = True in the method")
    for channel, shares in plan.weights.items():
        expected = sum(stream.channel == channel for stream in streams.vector(len(plan.clusters)).streams)
        _check_weights(name, channel, shares, expected)


def _check_withdrawn(streams: Streams, plan: Plan, method: Method, before: Plan | None) -> None:
    if plan.withdrawn and not method.withdraws:
        raise PluginError(
            f"method {method.options.name} withdraws tensors in its plan; set withdraws = True in the method"
        )
    back = set(before.withdrawn) - set(plan.withdrawn) if before is not None else set()
    strangers = set(plan.withdrawn) - set(streams.travelling.names)
    if back or strangers:
        raise PluginError(
            f"method {method.options.name} withdraws {', '.join(plan.withdrawn) or 'nothing'}; it can withdraw only "
            f"{', '.join(streams.travelling.names)}, and withdrawn tensors must stay withdrawn"
        )


def _check_weights(name: str, channel: str, streams: Sequence[Mapping[int, float]], expected: int) -> None:
    if len(streams) != expected:
        raise PluginError(
            f"method {name}: the plan has weights for {len(streams)} streams of {channel!r}, which has {expected}"
        )
    if not all(0 <= share < math.inf for shares in streams for share in shares.values()):
        raise PluginError(f"method {name}: a weight of {channel!r} is negative or not finite")


def are_offers(offers: Sequence[Sequence[int]], clusters: int) -> bool:
    """Return whether `offers` is valid. The devices of cluster number c receive the models of the clusters in
    `offers[c]`. There must be one list per cluster, and `is_offered` must accept each list.
    """
    return len(offers) == clusters and all(
        is_offered(number, offered, clusters) for number, offered in enumerate(offers)
    )


def is_offered(cluster: int, offered: Sequence[int], clusters: int) -> bool:
    """Return whether `offered` is valid: the list of clusters from which the devices of `cluster` receive models. All
    these clusters must exist, be in ascending order without repetition, and include `cluster` itself.
    """
    return cluster in offered and list(offered) == sorted(set(offered)) and offered[0] >= 0 and offered[-1] < clusters

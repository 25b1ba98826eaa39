"""The methods by name; `make_method` is the one place that knows them all."""

from fedstrata.experiment import MethodSettings
from fedstrata.methods.base import FED_AVG_SUM, Candidate, Grouping, Method
from fedstrata.methods.one_shot import OneShot
from fedstrata.methods.oracle import Oracle
from fedstrata.methods.random_clusters import RandomClusters

__all__ = ["FED_AVG_SUM", "Candidate", "Grouping", "Method", "make_method"]


def make_method(settings: MethodSettings) -> Method:
    """The method that an experiment names."""
    clusters = None if settings.clusters == "auto" else settings.clusters
    match settings.name:
        case "one_shot":
            return OneShot(clusters=clusters)
        case "random":
            return RandomClusters(clusters=clusters)
        case "oracle":
            return Oracle()

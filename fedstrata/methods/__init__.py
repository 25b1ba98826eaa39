"""The methods by name; `make_method` is the one place that knows them all."""

from fedstrata.errors import FedstrataError, PluginError
from fedstrata.experiment import MethodSettings
from fedstrata.methods.base import FED_AVG_SUM, Candidate, FedAvg, Grouping, Method
from fedstrata.methods.one_shot import OneShot
from fedstrata.methods.oracle import Oracle
from fedstrata.methods.random_clusters import RandomClusters
from fedstrata.plugins import describe, load_plugin

__all__ = ["FED_AVG_SUM", "Candidate", "FedAvg", "Grouping", "Method", "make_method"]
QUESTIONS = ("needs_profiles", "local_loss", "sums", "group", "place")


def make_method(settings: MethodSettings) -> Method:
    """The method that an experiment names; `module:function` names one's own, called with the settings.

    Raises:
        PluginError: own code is missing, fails or gives something else.
    """
    clusters = None if settings.clusters == "auto" else settings.clusters
    match settings.name:
        case "one_shot":
            return OneShot(clusters=clusters)
        case "random":
            return RandomClusters(clusters=clusters)
        case "oracle":
            return Oracle()
    return _make_own(settings)


def _make_own(settings: MethodSettings) -> Method:
    function = load_plugin(settings.name, "method")
    try:
        method: Method = function(settings)
    except FedstrataError:
        raise
    except Exception as error:
        raise PluginError(f"method {settings.name} failed with {describe(error)}") from error
    missing = [question for question in QUESTIONS if not hasattr(method, question)]
    if missing:
        raise PluginError(
            f"method {settings.name} must return a fedstrata.methods.Method; its {type(method).__name__} has no "
            f"{', '.join(missing)}"
        )
    return method

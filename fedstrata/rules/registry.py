"""The rules by name. The module makes the rules of an experiment from its section `aggregation`."""

from collections.abc import Mapping
from typing import Any, Literal

from fedstrata.experiment import Experiment
from fedstrata.experiment.registry import Registry
from fedstrata.experiment.sections import RuleSettings
from fedstrata.rules.attacked import with_attacks
from fedstrata.rules.base import Rule
from fedstrata.rules.mean import MaskedMean, PartialMean

Tier = Literal["lps", "gps"]
TIERS: tuple[Tier, ...] = ("lps", "gps")
DEFAULT = "mean"
# By name `module:Class`. The module is imported when the name is first used.
REGISTRY: Mapping[str, str] = {
    "clipped_mean": "fedstrata.rules.clipped_mean:ClippedMean",
    "geometric_median": "fedstrata.rules.geometric_median:GeometricMedian",
    "mean": "fedstrata.rules.mean:Mean",
    "median": "fedstrata.rules.median:Median",
    "multi_krum": "fedstrata.rules.multi_krum:MultiKrum",
    "trimmed_mean": "fedstrata.rules.trimmed_mean:TrimmedMean",
    "trusted": "fedstrata.rules.trusted:Trusted",
}
RULES = Registry(section="rule", base=Rule, options=RuleSettings, default=DEFAULT, known=REGISTRY)


def aggregation_settings(section: Any) -> Any:
    """Check the tiers' rules in the section `aggregation`. Return the section with their settings. Raises
    ExperimentError for a rule that does not exist, or for wrong options.
    """
    if not isinstance(section, Mapping):
        return section
    return {key: RULES.settings(rule, f"aggregation.{key}") if key in TIERS else rule for key, rule in section.items()}


def make_rule(experiment: Experiment, tier: Tier) -> Rule:
    """Return a tier's rule, as the experiment file names it, with the attacks of the experiment. Raises PluginError if
    the user's own rule or attack cannot be made.
    """
    settings: RuleSettings = getattr(experiment.aggregation, tier)
    return with_attacks(RULES.made(settings.name, lambda kind: kind(settings)), experiment, tier)


def lps_rule(experiment: Experiment) -> Rule:
    """Return the rule by which an LPS combines the updates of its devices."""
    rule = make_rule(experiment, "lps")
    return rule if experiment.secure_aggregation is None else MaskedMean(rule.options)


def gps_rule(experiment: Experiment, *, are_partial: bool) -> Rule:
    """Return the rule by which the GPS combines the updates of LPSs. With `are_partial`, LPSs send exact sums."""
    rule = make_rule(experiment, "gps")
    return PartialMean(rule.options) if are_partial else rule


def sends_sums(experiment: Experiment, *, spans: bool) -> bool:
    """Return whether LPSs send exact sums of updates to the GPS, instead of mean updates. `spans` says whether clusters
    span LPSs.
    """
    training = experiment.training
    is_one_round = training.lps_rounds_per_global_round == 1 and training.rounds.lps.sums_examples
    return spans and is_one_round and all(make_rule(experiment, tier).is_sum for tier in TIERS)

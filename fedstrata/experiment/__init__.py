"""Hold an experiment file as plain data, with one module per section. None of these modules imports a method."""

from fedstrata.experiment.experiment import Experiment
from fedstrata.experiment.links import ComputeSettings, Links, LinkSettings
from fedstrata.experiment.partition import PartitionSettings, PublicSettings
from fedstrata.experiment.sections import (
    DATASETS,
    MODELS,
    Bounds,
    DataSettings,
    Deadlines,
    Encoding,
    LocalOptimiserSettings,
    MethodSettings,
    ModelSettings,
    SgdSettings,
    SyntheticSettings,
    TierDeadline,
    TopologySettings,
    TrainingSettings,
)

__all__ = [
    "DATASETS",
    "MODELS",
    "Bounds",
    "ComputeSettings",
    "DataSettings",
    "Deadlines",
    "Encoding",
    "Experiment",
    "LinkSettings",
    "Links",
    "LocalOptimiserSettings",
    "MethodSettings",
    "ModelSettings",
    "PartitionSettings",
    "PublicSettings",
    "SgdSettings",
    "SyntheticSettings",
    "TierDeadline",
    "TopologySettings",
    "TrainingSettings",
]

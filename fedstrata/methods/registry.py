"""The methods by name. This is the only module that knows all methods. It constructs a method from the section `method`
of an experiment file.
"""

from collections.abc import Mapping
from functools import lru_cache, partial

from fedstrata.experiment import Experiment
from fedstrata.experiment.experiment import has_leavers
from fedstrata.experiment.registry import Registry
from fedstrata.experiment.sections import MethodSettings
from fedstrata.methods.base import Facts, Method
from fedstrata.methods.cohort import cohort_of_file
from fedstrata.tasks import make_task

DEFAULT = "one_shot"
# By name `module:Class`. The module is imported when the name is first used.
REGISTRY: Mapping[str, str] = {
    "one_shot": "fedstrata.methods.one_shot:OneShot",
    "random": "fedstrata.methods.random_clusters:RandomClusters",
    "oracle": "fedstrata.methods.oracle:Oracle",
    "fedavg": "fedstrata.methods.fed_avg:FedAvg",
    "local": "fedstrata.methods.local:Local",
    "fedprox": "fedstrata.methods.fed_prox:FedProx",
    "moon": "fedstrata.methods.moon:Moon",
    "fedrod": "fedstrata.methods.fed_rod:FedRod",
    "fedproto": "fedstrata.methods.fed_proto:FedProto",
    "ditto": "fedstrata.methods.ditto:Ditto",
    "fedper": "fedstrata.methods.fed_per:FedPer",
    "fedrep": "fedstrata.methods.fed_rep:FedRep",
    "fedbabu": "fedstrata.methods.fed_babu:FedBabu",
    "lg_fedavg": "fedstrata.methods.lg_fed_avg:LgFedAvg",
    "fedavg_ft": "fedstrata.methods.fed_avg_ft:FedAvgFt",
    "fedbn": "fedstrata.methods.fed_bn:FedBn",
    "pacfl": "fedstrata.methods.pacfl:Pacfl",
    "fedclust": "fedstrata.methods.fedclust:FedClust",
    "flux": "fedstrata.methods.flux:Flux",
    "label_means": "fedstrata.methods.label_means:LabelMeans",
    "ifca": "fedstrata.methods.ifca:Ifca",
    "cfl": "fedstrata.methods.cfl:Cfl",
    "feddyn": "fedstrata.methods.fed_dyn:FedDyn",
    "scaffold": "fedstrata.methods.scaffold:Scaffold",
    "feddc": "fedstrata.methods.fed_dc:FedDc",
    "fednova": "fedstrata.methods.fed_nova:FedNova",
    "fedavgm": "fedstrata.methods.fed_opt:FedAvgM",
    "fedadagrad": "fedstrata.methods.fed_opt:FedAdagrad",
    "fedyogi": "fedstrata.methods.fed_opt:FedYogi",
    "fedadam": "fedstrata.methods.fed_opt:FedAdam",
    "perfedavg": "fedstrata.methods.per_fed_avg:PerFedAvg",
    "pfedme": "fedstrata.methods.p_fed_me:PFedMe",
    "apfl": "fedstrata.methods.apfl:Apfl",
    "fedala": "fedstrata.methods.fed_ala:FedAla",
    "fedfomo": "fedstrata.methods.fed_fomo:FedFomo",
    "fedtsdp": "fedstrata.methods.fed_tsdp:FedTsdp",
    "user_centric": "fedstrata.methods.user_centric:UserCentric",
    "adaptive": "fedstrata.methods.adaptive:Adaptive",
    "scores": "fedstrata.methods.scores:Scores",
}
NAMES = tuple(REGISTRY)


ELSEWHERE: Mapping[str, str] = {
    "fedopt": "it is fedavg with an optimiser of the server: set method: fedadam, fedyogi, fedadagrad or fedavgm",
    **dict.fromkeys(
        ("hierfavg", "hierfedavg"), "it is fedavg with several LPSs and LPS rounds: set method: fedavg, topology: "
        "{lps: 2} and training.lps_rounds_per_global_round"
    ),
}  # fmt: skip
METHODS = Registry(
    section="method", base=Method, options=MethodSettings, default=DEFAULT, known=REGISTRY, elsewhere=ELSEWHERE
)
method_class, method_settings = METHODS.kind, METHODS.settings


def make_method(experiment: Experiment) -> Method:
    """Return the method of an experiment.

    Raises:
        ExperimentError: the method's options do not fit another section of the experiment.
        PluginError: code of the user fails.
    """
    return method_of(experiment.method, facts_of(experiment))


def uses_default(experiment: Experiment) -> bool:
    """Return whether the experiment file names no method, so that the run uses the default method."""
    return "method" not in experiment.model_fields_set


def method_of(settings: MethodSettings, facts: Facts) -> Method:
    """Return the method with these options. Raises the same errors as `make_method`."""
    return METHODS.made(settings.name, lambda kind: kind(settings, facts))


def facts_of(experiment: Experiment) -> Facts:
    """Return the facts of a run that a method may use before the run."""
    from fedstrata.datasets import dataset_info
    from fedstrata.models import build_model

    info = dataset_info(experiment.data)
    groups, public = experiment.task_of_devices(), experiment.public
    return Facts(
        device_count=experiment.device_count,
        seed=experiment.seed,
        input_shape=info.input_shape,
        num_classes=info.num_classes,
        task=make_task(experiment),
        public_examples=public.examples if public is not None else 0,
        public_labelled=public is not None and public.labelled,
        public_tests=public is not None and public.tests,
        true_groups=len(set(groups)) if groups else None,
        training=experiment.training,
        privacy=experiment.privacy,
        cohort=lru_cache(maxsize=4)(partial(cohort_of_file, experiment)),
        absences=not experiment.training.asks_all(experiment.device_count) or has_leavers(experiment),
        make_model=partial(build_model, experiment.model, info),
    )

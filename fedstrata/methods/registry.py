"""The methods by name. This is the only module that knows all methods. It makes a method from the section `method` of a
file.
"""

from collections.abc import Mapping
from functools import partial
from importlib import import_module
from typing import Any

from pydantic import ValidationError

from fedstrata.errors import ExperimentError, FedstrataError, PluginError
from fedstrata.experiment import Experiment
from fedstrata.experiment.messages import nearest, one_line
from fedstrata.experiment.sections import PLUGIN, MethodSettings
from fedstrata.methods.base import Facts, Method
from fedstrata.plugins import describe, load_plugin
from fedstrata.tasks import make_task

DEFAULT = "one_shot"
# By name the module and the class; a module is loaded when it is asked for.
REGISTRY: Mapping[str, str] = {
    "one_shot": "fedstrata.methods.one_shot:OneShot",
    "random": "fedstrata.methods.random_clusters:RandomClusters",
    "oracle": "fedstrata.methods.oracle:Oracle",
    "fedavg": "fedstrata.methods.fed_avg:FedAvg",
    "local": "fedstrata.methods.local:Local",
    "fedprox": "fedstrata.methods.fed_prox:FedProx",
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
    "fednova": "fedstrata.methods.fed_nova:FedNova",
    "perfedavg": "fedstrata.methods.per_fed_avg:PerFedAvg",
    "pfedme": "fedstrata.methods.p_fed_me:PFedMe",
    "apfl": "fedstrata.methods.apfl:Apfl",
    "fedfomo": "fedstrata.methods.fed_fomo:FedFomo",
    "fedtsdp": "fedstrata.methods.fed_tsdp:FedTsdp",
    "user_centric": "fedstrata.methods.user_centric:UserCentric",
    "adaptive": "fedstrata.methods.adaptive:Adaptive",
    "scores": "fedstrata.methods.scores:Scores",
}
NAMES = tuple(REGISTRY)


def method_class(name: str) -> type[Method]:
    """Return the class of this name, or the user's own class for `module:Class`.

    Raises:
        ExperimentError: no method has that name. PluginError: own code is missing or is something else.
    """
    if name in REGISTRY:
        module, _, found = REGISTRY[name].partition(":")
        known: type[Method] = getattr(import_module(module), found)
        return known
    if not PLUGIN.match(name):
        raise ExperimentError(
            f"method.name: no method is called {name!r:.80}; {nearest(name, NAMES)}choose {', '.join(NAMES)}, "
            "or your own as module:Class"
        )
    own: Any = load_plugin(name, "method")
    if not (isinstance(own, type) and issubclass(own, Method)):
        raise PluginError(f"method {name} must be a subclass of fedstrata.methods.Method, not {own!r:.80}")
    options: Any = own.Options
    if not (isinstance(options, type) and issubclass(options, MethodSettings)):
        raise PluginError(f"method {name}: Options must be a subclass of fedstrata.methods.MethodSettings")
    return own


def method_settings(section: Any) -> MethodSettings:
    """Return the checked section `method` of an experiment file, which is a name or a mapping.

    Raises:
        ExperimentError: the section has a key or value that the method refuses.
    """
    if isinstance(section, MethodSettings):
        return section
    if isinstance(section, str) or section is None:
        section = {"name": section or DEFAULT}
    if not isinstance(section, Mapping):
        raise ExperimentError(f"method: a name, or a mapping with a name and its options, not {section!r:.80}")
    section = {"name": DEFAULT, **section}
    options = method_class(str(section["name"])).Options
    known = ", ".join(sorted(set(options.model_fields) - {"name"})) or "none"
    try:
        return options.model_validate(section)
    except ValidationError as error:
        unknown = f"method {section['name']} has no such option; its options are: {known}"
        raise ExperimentError(one_line(error, lambda _: unknown, "method")) from None


def make_method(experiment: Experiment) -> Method:
    """Return the method of an experiment.

    Raises:
        ExperimentError: the method refuses another section of the experiment. PluginError: own code fails.
    """
    return method_of(experiment.method, facts_of(experiment))


def method_of(settings: MethodSettings, facts: Facts) -> Method:
    """Return the method with its checked section. Raises the errors of `make_method`."""
    kind = method_class(settings.name)
    try:
        return kind(settings, facts)
    except FedstrataError:
        raise
    except Exception as error:
        if settings.name in REGISTRY:
            raise
        raise PluginError(f"method {settings.name} failed with {describe(error)}") from error


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
        make_model=partial(build_model, experiment.model, info),
    )

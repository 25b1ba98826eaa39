"""The model of each device in each global round, if the section `architectures` gives some devices another model."""

from typing import TYPE_CHECKING, NamedTuple

from fedstrata.errors import ExperimentError, PluginError
from fedstrata.experiment import Experiment
from fedstrata.methods.base import Method
from fedstrata.streams.streams import Streams, streams_of
from fedstrata.tensors.processor import CPU, Processor

if TYPE_CHECKING:
    from fedstrata.experiment.sections import ModelSettings
    from fedstrata.models import Model


class Architecture(NamedTuple):
    """Hold a model, and the streams that say over which devices its tensors are averaged."""

    model: "Model"
    streams: Streams


class Architectures:
    """Hold the architectures of a run. Each architecture is built when it is first used."""

    def __init__(self, experiment: Experiment, method: Method, processor: Processor = CPU) -> None:
        """Use the models of an experiment. A device computes them on this processor."""
        self._experiment = experiment
        self.processor = processor
        self._method = method
        self._known: dict[str, Architecture] = {}

    @property
    def main(self) -> Architecture:
        """The architecture of the section `model`, which the servers use. All architectures send the same tensors."""
        return self._built(self._experiment.model)

    @property
    def all(self) -> list[Architecture]:
        """The architecture of the section `model`, then the architectures of the section `architectures`, in the file's
        order.
        """
        return [self.main, *(self._built(entry.model) for entry in self._experiment.architectures)]

    def at(self, device_index: int, global_round: int) -> Architecture:
        """Return a device's architecture in a global round, counted from 0. Equal architectures are the same object."""
        return self._built(self._experiment.model_of(device_index, global_round))

    def _built(self, settings: "ModelSettings") -> Architecture:
        key = settings.model_dump_json()  # a text, because options are not hashable
        if key not in self._known:
            self._known[key] = self._build(settings)
        return self._known[key]

    def _build(self, settings: "ModelSettings") -> Architecture:
        from fedstrata.datasets import dataset_info
        from fedstrata.models import build_model

        built = build_model(settings, dataset_info(self._experiment.data))
        model = built.of_run(self._experiment.seed, self.processor)
        return Architecture(model, streams_of(self._experiment, self._method, model))

    def check(self) -> None:
        """Check that all architectures send the same tensors.

        Raises:
            ExperimentError: an architecture sends other tensors, or cannot be built for the data.
        """
        for number, entry in enumerate(self._experiment.architectures):
            try:
                other = self._built(entry.model)
            except (ExperimentError, PluginError) as error:
                raise type(error)(f"architectures.{number}: {error}") from None
            common, here = (set(each.streams.travelling.tensors) for each in (self.main, other))
            if common != here:
                first = min(common ^ here, key=lambda tensor: tensor.name)
                raise ExperimentError(
                    f"architectures.{number}: with method {self._experiment.method.name} all devices share "
                    f"{_said(self.main, first.name)}, but this model has {_said(other, first.name)}; give both models "
                    "the same shared layers, or choose a method that keeps these layers on devices"
                )


def _said(architecture: Architecture, name: str) -> str:
    """Return a text with a tensor's name and its shape in an architecture."""
    shape = next((each.shape for each in architecture.streams.travelling.tensors if each.name == name), None)
    return f"no {name}" if shape is None else f"{name} of shape {'×'.join(map(str, shape))}"

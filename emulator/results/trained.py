"""Construct the trained model of a cluster or of a device, and compute its outputs."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from emulator.results.read_record import RunRecord
from emulator.results.weights import Weights, read_weights
from fedstrata.datasets import Examples, dataset_info
from fedstrata.datasets.rows import as_array
from fedstrata.errors import DataError
from fedstrata.experiment import Experiment
from fedstrata.experiment.sections import PLUGIN
from fedstrata.experiment_file import parse_experiment
from fedstrata.methods import make_method
from fedstrata.methods.base import uses_own_model
from fedstrata.models import Model, check_inputs
from fedstrata.plugins import forget_changed, or_failed
from fedstrata.store.own_code import check_code
from fedstrata.streams.architectures import Architecture, Architectures
from fedstrata.tensors.processor import read

if TYPE_CHECKING:
    import torch

BATCH_EXAMPLES = 512
KINDS: Mapping[str, type] = {"f": np.float32, "i": np.int64}  # types of inputs; bytes are pixels
MOST_SAID = 4  # names in a message


@dataclass(frozen=True, kw_only=True, eq=False)
class Trained:
    """Hold a trained model with its weights."""

    name: str  # the cluster, or the device that uses the model
    experiment: Experiment
    model: Model
    weights: Weights

    @cached_property
    def tensors(self) -> "dict[str, torch.Tensor]":
        """The weights as torch tensors."""
        return self.model.processor.tensors(self.weights)

    def predict(self, inputs: ArrayLike, more: Mapping[str, ArrayLike]) -> NDArray[np.float32]:
        """Return the model's outputs in eval mode.

        Raises:
            DataError: the inputs have another shape than in the run.
            ExperimentError: a built-in model gets whole numbers that are not pixels (uint8).
        """
        given = {name: _as_in_data(array) for name, array in more.items()}
        examples = Examples(inputs=_as_in_data(inputs), more=given)
        wanted = dataset_info(self.experiment.data).input_shape
        if examples.input_shape != wanted:
            said = ", ".join(map(str, ("n", *wanted)))
            raise DataError(f"inputs have shape {(len(examples), *examples.input_shape)}; give ({said})")
        check_inputs(self.experiment.model, examples)
        return self.outputs(examples)

    def outputs(self, examples: Examples) -> NDArray[np.float32]:
        """Return the model's outputs for examples in eval mode. Raises PluginError if the model fails on them."""
        import torch

        parts, places = [], np.arange(len(examples))
        with or_failed(f"model {self.experiment.model.name} fails with"), torch.no_grad():
            for start in range(0, max(1, len(examples)), BATCH_EXAMPLES):
                batch = examples.take(places[start : start + BATCH_EXAMPLES])
                parts.append(self.model.outputs_for(self.tensors, batch))
            return read(torch.cat(parts))


class TrainedModels:
    """Construct the trained models of a record. The user's own code is found as in a run, also in the current
    directory.
    """

    def __init__(self, record: RunRecord) -> None:
        self._record = record
        forget_changed()
        self._experiment = parse_experiment(record.experiment_yaml, where=str(record.folder / "experiment.yaml"))
        check_code(self._experiment, ["model", "architectures"])
        self._method = make_method(self._experiment)
        self._architectures = Architectures(self._experiment, self._method)
        self._known: dict[str, Trained] = {}

    def of(self, name: str) -> Trained:
        """Return the model of a device or of a cluster. The first request for a name constructs the model. Later
        requests return the same object.
        """
        if name not in self._known:
            is_cluster = name in self._record.summary.clusters
            self._known[name] = self.of_cluster(name) if is_cluster else self.of_device(name)
        return self._known[name]

    def of_cluster(self, name: str) -> Trained:
        """Return the final model of a cluster.

        Raises:
            DataError: the record has no such cluster, has only a part of its model, or has no measurement of its model.
            PluginError: the user's own code is missing.
        """
        clusters = self._record.summary.clusters
        if name not in clusters:
            raise DataError(
                f"{self._record.folder} has no cluster {name!r}; its clusters are {', '.join(clusters) or '(none)'}"
            )
        self._check_measured(name)
        return self._made(name, name, self._architectures.main)

    def of_device(self, name: str) -> Trained:
        """Return the model that a device uses.

        Raises:
            DataError: the record has no such device, or only a part of its model.
            PluginError: the user's own code is missing.
        """
        summary, ids = self._record.summary, self._experiment.device_ids()
        cluster = summary.cluster_of_device.get(name)
        if cluster is None or name not in ids:
            known = f"devices are {ids[0]} to {ids[-1]}, and clusters {', '.join(summary.clusters) or '(none)'}"
            why = "the device is in no cluster; summary.json says why" if name in ids else known
            raise DataError(f"{self._record.folder} has no model of device {name!r}: {why}")
        if uses_own_model(type(self._method)):
            raise DataError(
                f"with method {summary.method}, {name} uses a model of its own, which never left the device; export "
                f"the model of its cluster, {cluster}"
            )
        return self._made(name, cluster, self._architectures.at(ids.index(name), max(0, summary.rounds - 1)))

    def _check_measured(self, cluster: str) -> None:
        """Check that devices have measured the model of a cluster, and not only a model that never left them. Raises
        DataError if they have not.

        Only a method of the user's own is checked. Which model a method of Fedstrata measures is in its documentation.
        """
        measured, method = self._record.summary.of_headline, self._experiment.method.name
        is_own = PLUGIN.match(method) and uses_own_model(type(self._method))
        if is_own and measured.received is None and measured.clusters.get(cluster) is not None:
            raise DataError(
                f"{self._record.folder} has no measurement of the model of {cluster}: devices measured another model, "
                f"which never left them (measure of method {method}). Let measure return the measurement of work.start "
                "as its second value, and run again"
            )

    def _made(self, name: str, cluster: str, architecture: Architecture) -> Trained:
        model, streams = architecture
        shapes = {tensor.name: tensor.shape for tensor in model.layout.tensors}
        self._check_travelled(name, [tensor for tensor in streams.own.names if tensor in shapes])
        found = read_weights(self._record, cluster)
        if self._method.withdraws:
            self._check_travelled(name, [tensor for tensor in shapes if tensor not in found])
        given = {tensor: array.shape for tensor, array in found.items() if tensor not in streams.tables.names}
        if different := [tensor for tensor in {**shapes, **given} if shapes.get(tensor) != given.get(tensor)]:
            here, there = (each.get(different[0], "no tensor") for each in (shapes, given))
            raise DataError(
                f"model {self._experiment.model.name} has {here} as {different[0]}, but the model of {cluster} has "
                f"{there}; use the same code as the run"
            )
        weights = {tensor: found[tensor] for tensor in shapes}
        return Trained(name=name, experiment=self._experiment, model=model, weights=weights)

    def _check_travelled(self, name: str, own: list[str]) -> None:
        if own:
            said = ", ".join(own[:MOST_SAID]) + (" …" if len(own) > MOST_SAID else "")
            raise DataError(
                f"{self._record.folder} has only a part of the model of {name}: {said} never left the devices (method "
                f"{self._experiment.method.name}, model.buffers {self._experiment.model.buffers})"
            )


def _as_in_data(values: ArrayLike) -> NDArray[Any]:
    """Return the values as an array with a dtype that data sets may have."""
    array = as_array("inputs", values)
    return array.astype(KINDS.get(array.dtype.kind, array.dtype), copy=False)

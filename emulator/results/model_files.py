"""Write a trained model to a file for other programs: as safetensors, or as ONNX."""

import io
import warnings
from pathlib import Path
from typing import Literal

import numpy as np

from emulator.results.output import new_file
from emulator.results.trained import Trained
from emulator.shipped.data import dataset_here
from emulator.shipped.extras import needed
from fedstrata.datasets import Examples, dataset_info
from fedstrata.errors import OutputError, PluginError
from fedstrata.experiment import Experiment
from fedstrata.plugins import describe

EXAMPLES, TRACED = 3, 2  # different, so that the comparison detects a fixed batch size
LARGEST_DIFFERENCE = 1e-5  # between outputs; relative to the largest output if this is above 1
MOST_CHARACTERS = 400


def write_model(trained: Trained, kind: Literal["safetensors", "onnx"], path: Path) -> str:
    """Write a model to a new file. Return a line that describes the file.

    Raises:
        OutputError: the file exists, or cannot be written.
        PluginError: the model cannot be expressed in ONNX.
        MissingPackageError: onnx is not installed.
    """
    data, said = _safetensors(trained) if kind == "safetensors" else _onnx(trained)
    try:
        with new_file(path) as file:
            file.write(data)
    except FileExistsError:
        raise OutputError(f"{path} exists; choose another file, or remove it") from None
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}; choose another file") from None
    return f"{path}: the model of {trained.name}, {said}"


def _safetensors(trained: Trained) -> tuple[bytes, str]:
    """Return all tensors of the model's state as safetensors, including frozen tensors. Also return a text about
    them.
    """
    from safetensors.torch import save

    state = trained.model.module(trained.tensors).state_dict()
    about = {"format": "pt", "run_id": trained.experiment.run_id, "model_of": trained.name}
    # Copies, because tensors may share memory.
    return save({name: tensor.clone().contiguous() for name, tensor in state.items()}, about), f"{len(state)} tensors"


def _onnx(trained: Trained) -> tuple[bytes, str]:
    """Return the model as an ONNX graph, and a text about its accuracy. Raises PluginError if the model has no ONNX
    graph, or if the graph's outputs differ from torch's.
    """
    evaluator = needed("onnx.reference").ReferenceEvaluator
    examples, source = _examples(trained.experiment)
    try:
        wanted = trained.outputs(examples)
    except PluginError as error:
        raise PluginError(f"{error} (inputs are {source})") from error
    try:
        data = _traced(trained, examples.take(np.arange(TRACED)))
        (found,) = evaluator(data).run(None, {"inputs": examples.inputs, **examples.more})
        difference = float(np.abs(found - wanted).max())
    except Exception as error:
        said = describe(error)[:MOST_CHARACTERS]
        raise PluginError(f"model {trained.experiment.model.name} cannot be exported to ONNX: {said}") from error
    if not difference <= LARGEST_DIFFERENCE * max(1.0, float(np.abs(wanted).max())):
        raise PluginError(
            f"model {trained.experiment.model.name} cannot be exported to ONNX: outputs differ from torch's by "
            f"{difference:.2g} on {source}; does the module draw random numbers or have branches in eval mode?"
        )
    return data, f"within {difference:.1g} of torch's outputs on {source}"


def _traced(trained: Trained, examples: Examples) -> bytes:
    """Return the ONNX graph of the model, traced with these examples. The graph maps inputs to outputs for any number
    of examples.
    """
    import torch

    processor = trained.model.processor
    more = processor.tensors(examples.more)
    names, file = ["inputs", *more], io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about constants in the graph; the comparison below detects wrong ones
        torch.onnx.export(
            trained.model.module(trained.tensors),
            (processor.tensor(examples.inputs),),
            file,  # type: ignore[arg-type]  # this exporter writes into an open file, too
            kwargs=more,
            input_names=names,
            output_names=["outputs"],
            dynamic_axes={name: {0: "n"} for name in (*names, "outputs")},
            dynamo=False,  # the newer exporter needs more packages, and takes ten times as long
        )
    return file.getvalue()


def _examples(experiment: Experiment) -> tuple[Examples, str]:
    """Return examples on which the outputs of graph and model are compared, and a text about them. They are the first
    examples of the data set. If the data set is not on this machine, they are random.
    """
    dataset = dataset_here(experiment)
    if dataset is not None:
        train = dataset.train
        return train.take(np.arange(EXAMPLES) % len(train)), f"{EXAMPLES} training examples"
    shape = (EXAMPLES, *dataset_info(experiment.data).input_shape)
    drawn = np.random.default_rng(0).standard_normal(shape, np.float32)
    return Examples(inputs=drawn), f"{EXAMPLES} drawn float32 inputs, because the data set is not here"

"""Read the models of a record. Each model is compared with the digest that the run noted in summary.json."""

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from emulator.results.read_record import RunRecord
from fedstrata.errors import DataError
from fedstrata.process.regular_files import check_regular
from fedstrata.tensors import values_digest

Weights = Mapping[str, NDArray[np.float32]]


def read_weights(record: RunRecord, cluster: str) -> dict[str, NDArray[np.float32]]:
    """Return the tensors of a cluster's model that the record contains.

    Raises:
        DataError: the run failed before it had the model. Or the model's file is missing or damaged, has a tensor that
            is not float32, or does not match `model_sha256` in summary.json.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    path = record.folder / "models" / f"{cluster}.safetensors"
    if record.summary.status != "completed" and cluster not in record.summary.model_sha256:
        may_resume = (record.folder / "state").is_dir()
        finish = f"fedstrata run --resume {record.folder}" if may_resume else "its state, and fetch the record again"
        raise DataError(
            f"{record.folder} has no model of {cluster}, because the run did not complete; finish it with {finish}"
        )
    try:
        check_regular(path)
        weights: dict[str, NDArray[np.float32]] = load_file(path)
    except (OSError, SafetensorError, TypeError, AttributeError) as error:  # the last two: of a type that NumPy lacks
        said = getattr(error, "strerror", None) or error
        raise DataError(f"cannot read the model {path}: {said}; copy the record again") from None
    for name, values in weights.items():
        if values.dtype != np.float32:  # a library that adds types to NumPy may be loaded
            raise DataError(f"cannot read the model {path}: {name} is {values.dtype}, not float32")
    found = values_digest((name, str(array.dtype), array.shape, [array.tobytes()]) for name, array in weights.items())
    said = record.summary.model_sha256.get(cluster, "nothing")
    if found != said:
        raise DataError(
            f"{path} has other weights than the model_sha256 of summary.json: its digest begins with {found[:12]}, "
            f"not with {said[:12]}; copy the record again"
        )
    return weights


def wrong_models(record: RunRecord) -> Iterator[str]:
    """Yield a message for each file in `models/` that is not a model of the run, or does not have the weights of the
    run's model. Missing files are not reported.
    """
    for path in sorted((record.folder / "models").glob("*")):
        name = path.name.removesuffix(".safetensors")
        if path.name == name or name not in record.summary.model_sha256:
            yield f"{path} is not in model_sha256 of summary.json; remove the file"
            continue
        try:
            read_weights(record, name)
        except DataError as error:
            yield str(error)


def check_models(record: RunRecord) -> None:
    """Check the models of a record before they are copied. Raises DataError if a model is damaged."""
    for said in wrong_models(record):
        raise DataError(said)

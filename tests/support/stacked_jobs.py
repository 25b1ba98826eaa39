"""Jobs of small dense models whose widths fill no vector register, and what their results are compared by."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from device.stacked.training import Stacked
from device.training import LocalResult, TrainingJob
from fedstrata.datasets import DatasetInfo, Examples
from fedstrata.experiment import ModelSettings, SgdSettings, TrainingSettings
from fedstrata.models import build_model
from fedstrata.tasks import CLASSIFICATION

INFO = DatasetInfo(input_shape=(3, 5), num_classes=7)  # widths that fill no vector register
MODEL = build_model(ModelSettings(hidden=(30, 9)), INFO)
SETTINGS = {
    "one epoch": TrainingSettings(local_epochs=1, batch_size=8),
    "epochs with momentum": TrainingSettings(
        local_epochs=3, batch_size=8, optimiser=SgdSettings(learning_rate=0.1, momentum=0.9)
    ),
    "steps with momentum and weight decay": TrainingSettings(
        local_steps=11, batch_size=8, optimiser=SgdSettings(learning_rate=0.1, momentum=0.5, weight_decay=1e-3)
    ),
    "steps with weight decay alone": TrainingSettings(
        local_steps=11, batch_size=8, optimiser=SgdSettings(learning_rate=0.1, weight_decay=1e-2)
    ),
    "batches larger than most devices": TrainingSettings(local_epochs=2, batch_size=64),
    "single examples": TrainingSettings(local_epochs=1, batch_size=1),
}
RAGGED = (40, 17, 8, 1, 40, 33, 24, 7, 40, 16, 3)


def examples(size: int, device: int, info: DatasetInfo = INFO) -> Examples:
    rng = np.random.default_rng([size, device])
    inputs = rng.standard_normal((size, *info.input_shape), dtype=np.float32)
    return Examples(inputs=inputs, labels=rng.integers(0, info.num_classes, size))


def job(size: int, device: int, training: TrainingSettings, **changes: Any) -> TrainingJob:
    described: dict[str, Any] = {
        "model": MODEL,
        "start": MODEL.initial(device % 3),
        "examples": examples(size, device),
        "training": training,
        "seed": 5,
        "task": CLASSIFICATION,
        "device_index": device,
        "lps_round": 2,
        "global_round": 1,
        "held_out": examples(size % 71 + 1, device),
    }
    return TrainingJob(**(described | changes))


def jobs(training: TrainingSettings, sizes: tuple[int, ...] = RAGGED) -> list[TrainingJob]:
    return [job(size, device, training) for device, size in enumerate(sizes)]


def bits(results: list[LocalResult]) -> list[tuple[bytes, float, object]]:
    return [(result.weights.tobytes(), result.train_loss, result.evaluation) for result in results]


def bits_alone(jobs: Sequence[TrainingJob]) -> list[Any]:
    """The bits of each job that is trained alone."""
    return [bits(Stacked().train([each]))[0] for each in jobs]

"""All trackers by the word that names them."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from emulator.tracking.mlflow_tracker import MlflowTracker
from emulator.tracking.tensorboard_tracker import TensorBoardTracker
from emulator.tracking.tracker import Tracker
from emulator.tracking.tracking import Tracking
from emulator.tracking.wandb_tracker import WandbTracker
from fedstrata.errors import ExperimentError

TRACKERS: Mapping[str, Callable[[str], Tracker]] = {
    "tensorboard": TensorBoardTracker,
    "mlflow": MlflowTracker,
    "wandb": WandbTracker,
}


def trackings(given: Sequence[str | Callable[[], Tracker]]) -> Callable[[], Tracking]:
    """Return a function that makes a `Tracking` for each run of a sweep. `given` has words, as in `make_trackers`, and
    functions that make a tracker. Raises the errors of `make_trackers`.
    """
    make_trackers(each for each in given if isinstance(each, str))

    def tracking() -> Tracking:
        named = iter(make_trackers(each for each in given if isinstance(each, str)))
        return Tracking([next(named) if isinstance(each, str) else each() for each in given])

    return tracking


def make_trackers(words: Iterable[str]) -> list[Tracker]:
    """Return the trackers that words such as `tensorboard` or `mlflow:http://lab:5000` name.

    Raises:
        ExperimentError: no tracker has one of these names, or a tracker is named twice.
        MissingPackageError: the library of a tracker is not installed.
    """
    places = dict[str, str]()
    for word in words:
        name, _, place = word.partition(":")
        if name not in TRACKERS:
            raise ExperimentError(f"--track {word:.80}: give {', '.join(TRACKERS)}, or one with a place: mlflow:URI")
        if name in places:
            raise ExperimentError(f"--track {name} is given twice; leave one out")
        places[name] = place
    return [TRACKERS[name](place) for name, place in places.items()]

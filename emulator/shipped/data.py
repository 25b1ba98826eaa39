"""Find the data sets that are on this machine, and download missing published ones."""

from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path

from fedstrata.datasets import Dataset, load_dataset
from fedstrata.datasets.loading import PUBLISHED
from fedstrata.datasets.published import Published, fetch_all, find_folder
from fedstrata.errors import DataError, PluginError
from fedstrata.experiment import Experiment

SCIKIT_LEARN, DRAWN = "digits", ("fcube", "synthetic")


def dataset_here(experiment: Experiment) -> Dataset | None:
    """Return the data set of an experiment. If the data set is not on this machine, return None without a download. If
    each device has its own data set (partition `local`), return None.
    """
    if experiment.partition.is_local:
        return None
    try:
        return load_dataset(experiment.data.model_copy(update={"download": False}), experiment.seed)
    except (DataError, PluginError):
        return None


def fetch(name: str, folder: Path | None = None) -> str:
    """Download a data set if it is missing. Return a line that names the folder of the data set.

    Raises:
        DataError: no published data set has this name, or its files cannot be downloaded.
    """
    if name == SCIKIT_LEARN:
        return _digits()
    if name in DRAWN:
        return _drawn(name)
    if name not in PUBLISHED:
        known = [SCIKIT_LEARN, *DRAWN, *PUBLISHED]
        near = get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
        raise DataError(f"no published data set is called {name!r}; {hint}")
    published = PUBLISHED[name]()
    place = fetch_all(published, folder)
    return f"{name} is in {place}" + (", with the content that was published" if published.content_sha256 else "")


def listing() -> list[str]:
    """Return one line per published data set. The line says whether the data set is on this machine."""
    return [_digits(), *map(_drawn, DRAWN), *(_line(published()) for published in PUBLISHED.values())]


def _line(published: Published) -> str:
    place = find_folder(published)
    name = published.name
    return f"{name} is in {place}" if place else f"{name} is not on this machine; fetch it with fedstrata data {name}"


def _drawn(name: str) -> str:
    return f"{name} is drawn by Fedstrata, and needs no files"


def _digits() -> str:
    if find_spec("sklearn") is None:
        return "digits comes with scikit-learn, which is not installed here: pip install scikit-learn"
    return "digits comes with scikit-learn, which is installed here"

"""Data sets: their content (`examples`), and how they are found and loaded (`loading`)."""

from fedstrata.datasets.examples import Dataset, DatasetInfo, Examples
from fedstrata.datasets.loading import dataset_info, load_dataset

__all__ = ["Dataset", "DatasetInfo", "Examples", "dataset_info", "load_dataset"]

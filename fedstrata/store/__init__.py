"""State on disk: written aside, flushed, renamed, checksummed."""

from fedstrata.store.files import write_aside
from fedstrata.store.model_file import ModelFile, write_model

__all__ = ["ModelFile", "write_aside", "write_model"]

"""State on disk. A file is written under another name, flushed to disk and then renamed. Files have checksums."""

from fedstrata.store.model_file import AnyModel, ModelFile, ModelInMemory, write_model
from fedstrata.store.whole_files import (
    GLOBAL_ROUNDS_KEPT,
    claim,
    claimed,
    clear_asides,
    read_sealed,
    write_aside,
    write_sealed,
)

__all__ = [
    "GLOBAL_ROUNDS_KEPT",
    "AnyModel",
    "ModelFile",
    "ModelInMemory",
    "claim",
    "claimed",
    "clear_asides",
    "read_sealed",
    "write_aside",
    "write_model",
    "write_sealed",
]

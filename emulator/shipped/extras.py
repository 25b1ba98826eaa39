"""Import optional packages when they are needed. If a package is missing, the error names the command that
installs it.
"""

import importlib
from typing import Any

from fedstrata.errors import MissingPackageError

# The extra of pyproject.toml that installs each module.
EXTRAS = {
    "pandas": "pandas",
    "torch.utils.tensorboard": "tensorboard",
    "tensorboard.summary.writer.event_file_writer": "tensorboard",
    "mlflow": "mlflow",
    "wandb": "wandb",
    "onnx.reference": "onnx",
    "kubernetes.client": "emulator",
    **dict.fromkeys(("obstore", "obstore.exceptions", "obstore.store"), "s3"),
}
PACKAGES = {"s3": "obstore", "emulator": "kubernetes"}  # packages whose names differ from their extras


def needed(module: str) -> Any:
    """Import an optional module, and return it.

    Raises:
        MissingPackageError: the module is not installed. The message names the extra of Fedstrata that installs it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        extra = EXTRAS[module]
        package = PACKAGES.get(extra, extra)
        raise MissingPackageError(
            f"{package} is not installed here ({error}); pip install 'fedstrata[{extra}]', or {package} by itself"
        ) from None

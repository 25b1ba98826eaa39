"""Packages that only some users need: imported when they are needed, or refused with the command that installs them."""

import importlib
from typing import Any

from fedstrata.errors import MissingPackageError

EXTRAS = {"pandas": "pandas", "torch.utils.tensorboard": "tensorboard", "mlflow": "mlflow"}  # module: extra


def needed(module: str) -> Any:
    """Return the module.

    Raises:
        MissingPackageError: it is not installed; the message says which extra of Fedstrata brings it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        extra = EXTRAS[module]
        raise MissingPackageError(
            f"{extra} is not installed here ({error}); pip install 'fedstrata[{extra}]', or {extra} by itself"
        ) from None

"""The arithmetic of a process. When NumPy is loaded, OpenBLAS chooses one of several variants of its code (a kernel).
The choice depends on the processor and on environment variables.

This module imports nothing that computes, so that the environment can be changed before NumPy is loaded.
"""

import os
from functools import cache

# Of OpenBLAS, OpenMP, MKL, PyTorch (ATen and oneDNN, which has three names) and NumPy.
SCRUBBED = ("OPENBLAS_", "GOTO_", "OMP_", "MKL_", "ATEN_", "ONEDNN_", "DNNL_", "MKLDNN_", "NPY_")


def scrub_environment() -> None:
    """Delete environment variables that change arithmetic, so that every shell and pod computes the same bits."""
    for name in [name for name in os.environ if name.startswith(SCRUBBED)]:
        del os.environ[name]


@cache
def openblas_kernel() -> str:
    """Return the kernel of NumPy's OpenBLAS, such as SkylakeX or Haswell; an empty text if it is unknown."""
    try:
        import numpy  # noqa: F401  # it has to be loaded to be asked
        from threadpoolctl import threadpool_info
    except ImportError:
        return ""
    loaded = [found for found in threadpool_info() if found.get("internal_api") == "openblas"]
    numpys = [found for found in loaded if "numpy" in found.get("filepath", "")] or loaded
    return str(numpys[0].get("architecture") or "")[:40] if numpys else ""

"""Which arithmetic a process uses: OpenBLAS's kernel is chosen as NumPy is loaded, by the processor or the environment.

Imports nothing that computes, so that the environment can be put in order before.
"""

import os
from functools import cache

SCRUBBED = ("OPENBLAS_", "OMP_", "MKL_", "GOTO_")


def scrub_environment() -> None:
    """Take away what a shell says about arithmetic, so that bits are the same in a shell and in a pod."""
    for name in [name for name in os.environ if name.startswith(SCRUBBED)]:
        del os.environ[name]


@cache
def openblas_kernel() -> str:
    """Return the kernel of NumPy's OpenBLAS, such as SkylakeX or Haswell; empty where that cannot be told."""
    try:
        import numpy  # noqa: F401  # it has to be loaded to be asked
        from threadpoolctl import threadpool_info
    except ImportError:
        return ""
    loaded = [found for found in threadpool_info() if found.get("internal_api") == "openblas"]
    numpys = [found for found in loaded if "numpy" in found.get("filepath", "")] or loaded
    return str(numpys[0].get("architecture") or "")[:40] if numpys else ""

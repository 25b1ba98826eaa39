"""Which examples hypothesis tries: `make test` the same ones each time, `make test-search` many more, drawn anew.

Neither fails because the machine is slow. And torch computes on one thread.
"""

import gc
import sys
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

settings.register_profile(
    "fixed", max_examples=50, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "search", max_examples=1_000, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("fixed")
# Hypothesis also draws constants of the modules that are imported by then, which differ with the tests that ran before.
providers._get_local_constants = lambda: providers._local_constants


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage while modules are imported, nor look for it among them later: both take seconds."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_finish() -> None:
    """Let torch compute on one thread, as in devices. On several, small models take more processor time, not less."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)

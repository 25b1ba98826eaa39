"""Which examples hypothesis tries: `make test` the same ones each time, `make test-search` many more, drawn anew.

Neither fails because the machine is slow.
"""

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

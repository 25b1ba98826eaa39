"""Options of `make test-combinations`."""

from itertools import islice

import pytest

from tests.support.features import rows


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--draws", type=int, default=20, help="how many rows of the covering array are run")
    parser.addoption("--array-seed", type=int, default=0, help="which covering array")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Draw the first rows of an array: each covers what none before it has covered."""
    if "row" in metafunc.fixturenames:
        seed, draws = metafunc.config.getoption("--array-seed"), metafunc.config.getoption("--draws")
        drawn = list(islice(rows(seed), draws))
        metafunc.parametrize("row", drawn, ids=[f"{seed}-{number}" for number in range(len(drawn))])

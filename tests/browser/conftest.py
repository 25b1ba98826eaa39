"""Windows for tests of the page."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.window import Page


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests of this folder need a browser."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)


@pytest.fixture
def browser() -> Iterator[Callable[..., Page]]:
    """Opens windows of a width."""
    with ExitStack() as stack:
        yield lambda width, **options: stack.enter_context(Page(width, **options))

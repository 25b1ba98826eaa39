"""What tests of rounds share."""

import pytest

from fedstrata.process import waiting


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "FIRST_PAUSE_S", 0.0)

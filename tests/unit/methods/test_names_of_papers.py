"""Names of papers that are settings of another section here."""

import pytest

from fedstrata.errors import ExperimentError
from fedstrata.experiment_file import parse_experiment


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("FedOpt", "set method: fedadam, fedyogi, fedadagrad or fedavgm"),
        ("fed_opt", "set method: fedadam"),
        ("hierfavg", "topology: {lps: 2}"),
    ],
)
def test_a_paper_that_is_a_setting_of_a_server_is_named_with_its_key(name: str, key: str) -> None:
    with pytest.raises(ExperimentError) as caught:
        parse_experiment(f"name: a\nmethod: {name}")
    said = str(caught.value)
    assert f"no method is called {name!r}; it is fedavg with" in said
    assert key in said
    assert "did you mean" not in said
    assert "\n" not in said

"""Names of papers that are settings of another section here."""

import pytest

from fedstrata.errors import ExperimentError
from fedstrata.experiment_file import parse_experiment


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("fedadam", "training.gps_optimiser: {name: adam}"),
        ("FedAdam", "training.gps_optimiser: {name: adam}"),
        ("fed_avg_m", "training.gps_optimiser: {name: momentum}"),
        ("fedavgm", "training.gps_optimiser: {name: momentum}"),
        ("FedOpt", "training.gps_optimiser: {name: adam}, or {name: momentum}"),
        ("fedyogi", "training.gps_optimiser has adam and momentum"),
        ("fed-adagrad", "training.gps_optimiser has adam and momentum"),
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


@pytest.mark.parametrize("optimiser", ["{name: adam}", "{name: momentum}"], ids=["fedadam", "fedavgm"])
def test_the_named_settings_are_valid(optimiser: str) -> None:
    partition = "{kind: iid, devices: 2, examples_per_device: 9}"
    training = f"{{gps_optimiser: {optimiser}}}"
    made = parse_experiment(f"name: a\nmethod: fedavg\npartition: {partition}\ntraining: {training}")
    assert made.training.gps_optimiser.name in optimiser

"""FedClust: distances and clusters beside SciPy's, the threshold by hand, what a device sends, and late devices."""

import numpy as np
import pytest
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import pdist, squareform

from fedstrata.errors import ExperimentError
from fedstrata.experiment import Experiment
from fedstrata.methods import Answers, Candidate, Facts, Moment, Plan
from fedstrata.methods.fedclust import LAST, FedClust, distances_of
from tests.support.device_work import Devices, on_digits
from tests.support.methods import method_with


def experiment(*overrides: str) -> Experiment:
    return on_digits("fedclust", *overrides)


def answers_of(vectors: list[list[float]], devices: int) -> Answers:
    given = {index: {"weights": np.array(vector, np.float32)} for index, vector in enumerate(vectors)}
    return Answers([Candidate(device_index=index) for index in range(devices)], {LAST: given})


def made(count: int, **options: object) -> FedClust:
    method = method_with(FedClust, {"name": "fedclust", **options}, Facts(device_count=count))
    assert isinstance(method, FedClust)
    return method


def planned(vectors: list[list[float]], **options: object) -> Plan:
    return made(len(vectors), **options).plan(Moment.BEFORE, answers_of(vectors, len(vectors)), None)


def test_clusters_are_those_of_scipys_average_linkage_of_euclidean_distances() -> None:
    drawn = np.random.default_rng(0).normal(size=(9, 40)).astype(np.float32)
    np.testing.assert_allclose(distances_of(drawn), squareform(pdist(drawn)), rtol=1e-6)
    for threshold in (7.5, 8.5, 9.0):
        labels = fcluster(linkage(pdist(drawn), "average"), threshold, "distance")
        expected = {tuple(np.flatnonzero(labels == one).tolist()) for one in set(labels)}
        assert set(planned(drawn.tolist(), threshold=threshold).clusters) == expected


def test_the_threshold_is_a_mean_distance_whatever_the_largest_is() -> None:
    points = [[0.0, 0.0], [3.0, 4.0], [30.0, 40.0]]  # distances 5, 45 and 50, so that the last merge is at 47.5
    assert planned(points, threshold=4.9).clusters == ((0,), (1,), (2,))
    assert planned(points, threshold=5.1).clusters == ((0, 1), (2,))
    assert planned(points, threshold=47.6).clusters == ((0, 1, 2),)
    assert planned(points, threshold=5.1).rule == "2 at distance 5.1"


def test_a_number_of_clusters_is_made_or_read_off_the_dendrogram() -> None:
    points = [[0.0], [10.0], [1.0], [11.0], [30.0]]
    assert planned(points, clusters=2).clusters == ((0, 1, 2, 3), (4,))
    assert planned(points).clusters == ((0, 1, 2, 3), (4,))
    assert planned([[2.0], [2.0], [2.0]]).clusters == ((0, 1, 2),)


async def test_a_device_sends_the_last_layer_that_its_training_ends_with() -> None:
    devices = Devices(experiment("method.pretrain_epochs=2"))
    sent = (await devices.method.answer(devices.method.questions()[0], devices.work(1), {}))["weights"]
    trained = await devices.work(1).train(devices.model.initial(3), epochs=2)
    assert sent.tobytes() == trained.weights[-70:].tobytes()  # 10 · 6 weights and 10 biases
    assert (sent != devices.model.initial(3)[-70:]).any()


def test_a_late_device_joins_the_cluster_at_the_smallest_mean_distance() -> None:
    # 7 is nearest to 9, but its mean distances are 5 (to 0 and 4) and 7.5 (to 9 and 20); those of 12 are 10 and 5.5
    plan = Plan.ordered([[0, 1], [2, 3]], "by hand")
    assert made(5).place(Candidate(device_index=4), answers_of([[0], [4], [9], [20], [7]], 4), plan) == 0
    assert made(5).place(Candidate(device_index=4), answers_of([[0], [4], [9], [20], [12]], 4), plan) == 1


def test_a_number_and_a_threshold_are_refused_together() -> None:
    with pytest.raises(ExperimentError, match=r"method\.threshold decides the number of clusters"):
        experiment("method.clusters=2", "method.threshold=1")

"""An experiment whose devices may attack, and attacks as a user writes them, some with faults."""

import numpy as np

from fedstrata.attacks import Attack

BASE = """
name: attacked
partition: {kind: iid, devices: 10, examples_per_device: 20}
method: fedavg
training: {global_rounds: 3, lps_rounds_per_global_round: 1}
"""


class Short(Attack):
    def examples(self, examples, num_classes, rng):
        return examples.part(np.arange(2))

    def update(self, update, rng):
        return update[1:]


class Mislabelled(Attack):
    def examples(self, examples, num_classes, rng):
        return examples.with_labels(examples.labels + 100)


class Endless(Attack):
    def update(self, update, rng):
        return update * np.inf


class Broken(Attack):
    def update(self, update, rng):
        raise ValueError("no lie")


class Nothing(Attack):
    def update(self, update, rng):
        return ["no number"]

    def num_examples(self, examples):
        return "many"

    def probe(self, examples):
        return None


class List(Attack):
    def refuses(self):
        return ["x"]

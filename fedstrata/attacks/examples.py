"""A false number of examples."""

from fedstrata.attacks.base import Attack
from fedstrata.experiment.attacks import AttackSettings, Positive


class FalseNumber(Attack):
    """State a false number of training examples, from enrolment on: the true number times a factor. It is at least 1,
    and at most `bounds.max_examples` or, without this key, the number of the partition's largest device.
    """

    class Options(AttackSettings):
        times: Positive = 10.0
        """Factor of the number."""

    options: Options

    def num_examples(self, examples: int) -> int:
        return round(self.options.times * examples)

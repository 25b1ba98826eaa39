"""Factors that raise or lower the weights of a round's updates, which otherwise are their stated numbers of
examples.
"""


class Weighing:
    """Define factors of the weights of updates. This base class is for rounds in which all updates come from the
    round's own model, so it changes no weight.
    """

    def factor(self, child_id: str) -> int:
        """Return the number by which a child's stated weight is multiplied."""
        return 1

    def divisor(self, stated: int, weighed: int, whole: int) -> int:
        """Return the least number by which the weighted sum of a stream is divided.

        Args:
            stated: sum of the stated weights of all accepted children.
            weighed: the same sum, with each weight multiplied by its factor.
            whole: sum of the stated weights if all children of the parent took part.
        """
        return weighed

    def examples(self, stated: int, divisor: int) -> int:
        """Return the number of examples for which the combined update of a stream stands. `stated` is the sum of the
        stated weights, and `divisor` the number by which the weighted sum is divided.
        """
        return divisor

    def largest(self, whole: int) -> int:
        """Return the largest divisor of a stream. `whole` is the sum of the weights of all children of the parent."""
        return whole


AS_STATED = Weighing()

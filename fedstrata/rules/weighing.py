"""How much a child's update weighs in the mean of a round, beyond the number of examples that the child states."""


class Weighing:
    """Define factors of the weights of updates. This base class is for rounds in which all updates come from the
    round's own model: each weight is as stated.
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

    def largest(self, whole: int) -> int:
        """Return the largest divisor of a stream. `whole` is the sum of the weights of all children of the parent."""
        return whole


AS_STATED = Weighing()

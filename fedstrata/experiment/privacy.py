"""The section `privacy` of an experiment file: noise under which what devices tell is differentially private."""

from typing import Literal, Self

from pydantic import Field, model_validator

from fedstrata.experiment.sections import Settings


class ProfilePrivacy(Settings):
    """Profiles before training, under local differential privacy. The unit is one example, replaced by any other."""

    epsilon: float = Field(gt=0, le=100)
    delta: float = Field(default=1e-5, gt=0, lt=0.5)
    clip: float = Field(gt=0)  # L2 norm of an example's features; longer ones are shortened to it
    min_examples: int = Field(default=100, ge=1)  # a device with fewer is refused


class UpdatePrivacy(Settings):
    """Updates of devices, under differential privacy. The unit is all of a device's examples, replaced by any others.

    One of `epsilon`, of the whole run, and `noise_multiplier` is given.
    """

    clip: float = Field(ge=1e-4, le=1e4)  # L2 norm of an update; longer ones are shortened to it
    epsilon: float | None = Field(default=None, gt=0, le=1000)
    noise_multiplier: float | None = Field(default=None, ge=1e-3, le=1e4)  # deviation of what is covered, over clip
    delta: float = Field(default=1e-5, gt=0, lt=0.5)
    # update: each single one, whoever sees it. sum: the sum of a round's under masks, each device adding its share.
    covers: Literal["update", "sum"] = "update"

    @model_validator(mode="after")
    def _either(self) -> Self:
        if (self.epsilon is None) == (self.noise_multiplier is None):
            raise ValueError("say how much noise there is by epsilon or by noise_multiplier, one of the two")
        return self


class PrivacySettings(Settings):
    """What is noised, and where noise comes from."""

    # research: addressed by seed, device and round, so that a run can be repeated; no protection, since all who have
    # the file can take it off again. protection: from the system's entropy; no run comes out twice.
    noise: Literal["research", "protection"]
    profiles: ProfilePrivacy | None = None
    updates: UpdatePrivacy | None = None

    @model_validator(mode="after")
    def _something(self) -> Self:
        if self.profiles is None and self.updates is None:
            raise ValueError(
                "says of nothing that it is noised; say profiles: {epsilon: …, clip: …}, or updates with the same keys"
            )
        return self

"""The section `privacy` of an experiment file: noise under which what devices tell is differentially private."""

from typing import Literal, Self

from pydantic import Field, model_validator

from fedstrata.settings import Settings


class ProfilePrivacy(Settings):
    """Profiles before training, under local differential privacy. The unit is one example, replaced by any other."""

    epsilon: float = Field(gt=0, le=100)
    delta: float = Field(default=1e-5, gt=0, lt=0.5)
    clip: float = Field(gt=0)  # L2 norm of an example's features; longer ones are shortened to it
    min_examples: int = Field(default=100, ge=1)  # a device with fewer is refused


class PrivacySettings(Settings):
    """What is noised, and where noise comes from."""

    # research: addressed by seed, device and round, so that a run can be repeated; no protection, since all who have
    # the file can take it off again. protection: from the system's entropy; no run comes out twice.
    noise: Literal["research", "protection"]
    profiles: ProfilePrivacy | None = None

    @model_validator(mode="after")
    def _something(self) -> Self:
        if self.profiles is None:
            raise ValueError("says of nothing that it is noised; say profiles: {epsilon: …, clip: …}")
        return self

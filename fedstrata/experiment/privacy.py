"""The section `privacy` of an experiment file: noise that makes the devices' answers or updates differentially
private.
"""

from typing import Literal, Self

from pydantic import Field, model_validator

from fedstrata.experiment.sections import Settings


class ProfilePrivacy(Settings):
    """Noise on profiles before training, for local differential privacy. The unit is one example, replaced by any
    other.
    """

    epsilon: float = Field(gt=0, le=100)
    """ε of all answers of a device before training; neighbouring data sets differ in one example."""
    delta: float = Field(default=1e-5, gt=0, lt=0.5)
    """δ; choose it well below one over the number of a device's examples."""
    clip: float = Field(gt=0)
    """Largest L2 norm of an example's features; a longer vector is scaled down. The noise is proportional to it."""
    min_examples: int = Field(default=100, ge=1)
    """Fewest examples of a device; a device with fewer is refused."""


class UpdatePrivacy(Settings):
    """Noise on updates of devices, for differential privacy. The unit is all examples of a device, replaced by any
    others.

    Either `epsilon`, for the whole run, or `noise_multiplier` is given.
    """

    clip: float = Field(ge=1e-4, le=1e4)
    """Largest L2 norm of an update over all layers; a larger update is scaled down. The noise is proportional to it."""
    epsilon: float | None = Field(default=None, gt=0, le=1000)
    """ε of the whole run; neighbouring data sets differ in all examples of one device. Give this key or
    `noise_multiplier`.
    """
    noise_multiplier: float | None = Field(default=None, ge=1e-3, le=1e4)
    """Standard deviation of the noise as a multiple of `clip`; ε then follows."""
    delta: float = Field(default=1e-5, gt=0, lt=0.5)
    """δ; choose it well below one over the number of devices."""
    covers: Literal["update", "sum"] = "update"
    """`update` protects each single update; `sum` protects only sums under `secure_aggregation`, with less noise
    per device.
    """

    @model_validator(mode="after")
    def _either(self) -> Self:
        if (self.epsilon is None) == (self.noise_multiplier is None):
            raise ValueError("give one of epsilon and noise_multiplier")
        return self


class PrivacySettings(Settings):
    """Set the purpose of the noise, and whether profiles, updates or both receive noise."""

    noise: Literal["research", "protection"]
    """`protection` draws noise from the system's entropy; `research` draws it from the seed, which can be repeated
    and protects nobody.
    """
    profiles: ProfilePrivacy | None = None
    """Noise on the answers before training."""
    updates: UpdatePrivacy | None = None
    """Noise on updates."""

    @model_validator(mode="after")
    def _something(self) -> Self:
        if self.profiles is None and self.updates is None:
            raise ValueError("has nothing to noise; add profiles: {epsilon: …, clip: …}, or updates with the same keys")
        return self

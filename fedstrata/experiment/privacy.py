"""The sections `privacy` and `secure_aggregation` of an experiment file: noise that makes the devices' answers or
updates differentially private, and masks that hide single updates.
"""

from typing import Literal, Self

from pydantic import Field, model_validator

from fedstrata.experiment.sections import Settings

MOST_MASKED = 256  # devices in a round, so that a roster of their signed keys is one message


class SecureAggregation(Settings):
    """Hide the updates of devices under masks. The masks cancel in the sum over a round's devices."""

    min_devices: int = Field(default=5, ge=3, le=MOST_MASKED)
    """Smallest number of devices in a sum; if a round has fewer devices, the run stops."""


class ProfilePrivacy(Settings):
    """Set the noise that a device adds to its answers before training (profiles), for local differential privacy. The
    noise protects each single example: neighbouring data sets differ in one example.
    """

    epsilon: float = Field(gt=0, le=100)
    """ε of all answers of a device before training together; neighbouring data sets differ in one example."""
    delta: float = Field(default=1e-5, gt=0, lt=0.5)
    """δ; choose a value well below 1 / (number of a device's examples)."""
    clip: float = Field(gt=0)
    """Largest L2 norm of an example's features; longer vectors are scaled down to this norm, and the noise is
    proportional to it.
    """
    min_examples: int = Field(default=100, ge=1)
    """Smallest number of examples of a device; a device with fewer examples is refused."""


class UpdatePrivacy(Settings):
    """Set the noise that a device adds to its updates, for differential privacy. The noise protects each device:
    neighbouring data sets differ in all examples of one device.

    The experiment file gives either `epsilon`, for the whole run, or `noise_multiplier`.
    """

    clip: float = Field(ge=1e-4, le=1e4)
    """Largest L2 norm of an update over all layers; longer updates are scaled down to this norm, and the noise is
    proportional to it.
    """
    epsilon: float | None = Field(default=None, gt=0, le=1000)
    """ε of the whole run, in place of `noise_multiplier`; neighbouring data sets differ in all examples of one device.
    """
    noise_multiplier: float | None = Field(default=None, ge=1e-3, le=1e4)
    """Standard deviation of the noise as a multiple of `clip`, in place of `epsilon`; ε follows from it."""
    delta: float = Field(default=1e-5, gt=0, lt=0.5)
    """δ; choose a value well below 1 / (number of devices)."""
    covers: Literal["update", "sum"] = "update"
    """`update` protects each single update; `sum` protects only sums under `secure_aggregation`, with less noise
    per device.
    """

    @model_validator(mode="after")
    def _either(self) -> Self:
        if (self.epsilon is None) == (self.noise_multiplier is None):
            raise ValueError("give exactly one of epsilon and noise_multiplier")
        return self


class PrivacySettings(Settings):
    """Set the source of the noise, and the values to which noise is added: profiles, updates or both."""

    noise: Literal["research", "protection"]
    """`protection` draws noise from the system's entropy; `research` draws noise from the seed, so the run can be
    repeated, but nobody is protected.
    """
    profiles: ProfilePrivacy | None = None
    """Noise on devices' answers before training."""
    updates: UpdatePrivacy | None = None
    """Noise on updates."""

    @model_validator(mode="after")
    def _something(self) -> Self:
        if self.profiles is None and self.updates is None:
            raise ValueError(
                "adds noise to nothing; add profiles: {epsilon: …, clip: …}, or updates with the same keys"
            )
        return self

"""The energy that devices use in a run, in whole femtojoules. Sums of whole numbers do not depend on their order."""

from dataclasses import dataclass

from fedstrata.clock.exchanged import took_ns
from fedstrata.clock.timeline import PARTS
from fedstrata.experiment import Experiment
from fedstrata.experiment.energy import RadioSettings
from fedstrata.v1 import rounds_pb2 as pb

JOULE_FJ = 10**15
FJ_A_PICOJOULE = 10**3


@dataclass(frozen=True, kw_only=True)
class Energy:
    """Hold the energy that a device uses to receive (`down`), to compute, and to send (`up`), in femtojoules."""

    down: int = 0
    compute: int = 0
    up: int = 0

    def __add__(self, other: "Energy") -> "Energy":
        return Energy(down=self.down + other.down, compute=self.compute + other.compute, up=self.up + other.up)

    @property
    def total(self) -> int:
        return self.down + self.compute + self.up

    def joules(self) -> dict[str, float]:
        """Return the energy in joules, by part: receiving, computing and sending."""
        return {part: getattr(self, part) / JOULE_FJ for part in PARTS}


NONE = Energy()


def counts_energy(experiment: Experiment) -> bool:
    """Return whether the record of a run contains the energy of its devices."""
    return experiment.energy is not None and experiment.clock != "none"


class DeviceEnergy:
    """Calculate the energy of each device. The section `energy` has the power of the device's radio and board."""

    def __init__(self, experiment: Experiment) -> None:
        self._settings = experiment.energy
        self._profiles = experiment.compute.profile_of_devices() if experiment.compute is not None else {}
        self._known: dict[int, tuple[RadioSettings | None, int]] = {}  # by device: radio, and power in µW

    def of(self, flow: pb.Flow) -> Energy:
        """Return the energy of a device for its part of a round. While the device is away, it uses no energy."""
        return self._took(
            flow.child,
            down=(flow.down_bytes, flow.down_ns - flow.away_ns),
            up=(flow.up_bytes + flow.answer_bytes - flow.unsent_bytes, flow.up_ns),
            compute_ns=flow.compute_ns,
        )

    def carried(self, each: pb.Carried) -> Energy:
        """Return the energy of a transfer, or of computing, on the real clock. It is calculated from the measured
        duration.
        """
        lasted_ns = took_ns(each)
        went = (each.bytes, lasted_ns)
        if each.direction == "compute":
            return self._took(each.child, compute_ns=lasted_ns)
        return self._took(each.child, down=went) if each.direction == "down" else self._took(each.child, up=went)

    def _took(
        self, index: int, *, down: tuple[int, int] = (0, 0), up: tuple[int, int] = (0, 0), compute_ns: int = 0
    ) -> Energy:
        """Return the energy that a device needs to receive (`down`), to send (`up`) and to compute. `down` and `up` are
        pairs: the number of bytes, and the duration in nanoseconds.
        """
        if self._settings is None:
            return NONE
        if index not in self._known:
            power = self._settings.watts_of(index, self._profiles.get(index))
            self._known[index] = self._settings.radio_of(index), power or 0
        radio, power = self._known[index]
        computing = power * compute_ns  # µW · ns = fJ
        if radio is None:
            return Energy(compute=computing)
        return Energy(
            down=8 * down[0] * radio.down * FJ_A_PICOJOULE + radio.base * down[1],
            compute=computing,
            up=8 * up[0] * radio.up * FJ_A_PICOJOULE + radio.base * up[1],
        )

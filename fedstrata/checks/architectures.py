"""What `architectures` cannot mean, refused before anything is built."""

from collections.abc import Sequence

from fedstrata.experiment.sections import ArchitectureSettings


def check_entries(entries: Sequence[ArchitectureSettings], device_count: int, global_rounds: int) -> None:
    """Refuse devices and rounds that there are not, and two models at once. Raises ValueError."""
    begun: set[tuple[int, int]] = set()
    for entry in entries:
        if max(entry.devices) >= device_count:
            raise ValueError(
                f"architectures: there is no device {max(entry.devices)}; the partition has 0 to {device_count - 1}"
            )
        if entry.from_global_round > global_rounds:
            raise ValueError(
                f"architectures: from_global_round is {entry.from_global_round}, and training.global_rounds "
                f"{global_rounds}"
            )
        starts = {(device, entry.from_global_round) for device in entry.devices}
        if twice := begun & starts:
            device, first = min(twice)
            raise ValueError(f"architectures: device {device} begins with two models in global round {first}")
        begun |= starts

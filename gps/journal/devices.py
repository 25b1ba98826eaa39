"""The journal's table of enrolled devices."""

from dataclasses import dataclass

from gps.journal.journal_file import JournalFile


@dataclass(kw_only=True)
class DeviceRow:
    """Hold the values with which a device enrolled, and later notes about the device."""

    device_index: int
    device_id: str
    num_examples: int
    num_held_out: int  # examples on which it measures models
    pod_name: str
    kernel: str = ""  # the variant of its OpenBLAS, and digits of torch's bits
    is_late: bool = False
    has_lost_state: bool = False


class DeviceTable:
    """Hold the enrolled devices of a run."""

    def __init__(self, file: JournalFile) -> None:
        self._file = file

    def enroll(self, device: DeviceRow) -> None:
        """Add a device. If the device is already in the table, only note its present pod."""
        self._file.write(
            "INSERT INTO devices (device_index, device_id, num_examples, num_held_out, pod_name, is_late, kernel) "
            "VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (device_index) DO UPDATE SET pod_name = excluded.pod_name",
            device.device_index, device.device_id, device.num_examples, device.num_held_out, device.pod_name,
            device.is_late, device.kernel,
        )  # fmt: skip

    def all(self) -> list[DeviceRow]:
        """Return all devices in index order."""
        rows = self._file.rows(
            "SELECT device_index, device_id, num_examples, num_held_out, pod_name, kernel, is_late, has_lost_state "
            "FROM devices ORDER BY device_index"
        )
        return [
            DeviceRow(
                device_index=index, device_id=name, num_examples=examples, num_held_out=held_out, pod_name=pod,
                kernel=kernel, is_late=bool(late), has_lost_state=bool(lost),
            )
            for index, name, examples, held_out, pod, kernel, late, lost in rows
        ]  # fmt: skip

    def note_late(self, index: int) -> None:
        """Note that a device joins after the first plan."""
        self._file.write("UPDATE devices SET is_late = 1 WHERE device_index = ?", index)

    def note_lost_state(self, index: int) -> None:
        """Note that a device has lost its saved state."""
        self._file.write("UPDATE devices SET has_lost_state = 1 WHERE device_index = ?", index)

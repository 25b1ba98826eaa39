"""The size of a device's update, and the work for it, as both follow from the experiment file before the device
trains.
"""

from dataclasses import dataclass

from fedstrata.clock.exchanged import Exchanged
from fedstrata.experiment import Experiment
from fedstrata.methods import Method, trained_examples_of
from fedstrata.methods.base import uses_own_model
from fedstrata.rpc.payload import payload_header
from fedstrata.streams.streams import UPDATE_PART
from fedstrata.tasks import Task
from fedstrata.tensors import PayloadCodec
from fedstrata.tensors.codec import SCALED
from fedstrata.v1 import rounds_pb2 as pb
from fedstrata.v1 import tensors_pb2

DIGEST = b"0" * 64


@dataclass(frozen=True, kw_only=True)
class Sender:
    """Describe a device by the numbers that it states when it enrols."""

    device_id: str
    home_id: str
    examples: int
    held_out: int


class ExpectedUpdates:
    """Calculate devices' updates before the devices train."""

    def __init__(self, experiment: Experiment, method: Method, task: Task) -> None:
        self._experiment, self._method, self._sums = experiment, method, [1.0] * len(task.sums)
        self._payloads: dict[tuple[PayloadCodec, int], tensors_pb2.PayloadHeader] = {}

    def of(self, sender: Sender, number: int, codec: PayloadCodec) -> Exchanged | None:
        """Return the update of a device in LPS round `number`. Return None if the method, the encoding or the
        measurement in the update may make it different.
        """
        examples = trained_examples_of(self._method, sender.examples, number)
        is_open = self._is_measured(number) and (uses_own_model(type(self._method)) or not sender.held_out)
        if examples is None or is_open or codec.encoding in SCALED:
            return None
        return Exchanged(up_bytes=self.bytes_of(sender, number, codec), work=pb.Work(examples=examples))

    def bytes_of(self, sender: Sender, number: int, codec: PayloadCodec) -> int:
        """Return the bytes of the update of a device in LPS round `number`, with the header."""
        measured = pb.Evaluation(
            device_id=sender.device_id, round=number, loss_sum=1.0, sums=self._sums, num_examples=sender.held_out
        )
        header = pb.UpdateHeader(
            run_id=self._experiment.run_id,
            child_id=sender.device_id,
            home_id=sender.home_id,
            round=number,
            payload=self._payload(codec, sender.examples),
            train_loss=1.0,
            evaluations=[measured] if self._is_measured(number) else [],
            base_digest=DIGEST,
        )
        return Exchanged.of_update(header).up_bytes

    def _is_measured(self, number: int) -> bool:
        training = self._experiment.training
        return training.is_measured(number // training.lps_rounds_per_global_round)

    def _payload(self, codec: PayloadCodec, examples: int) -> tensors_pb2.PayloadHeader:
        """Return the header of a payload. Updates with the same number of examples share it."""
        key = (codec, examples)
        if key not in self._payloads:
            self._payloads[key] = payload_header(codec, name=UPDATE_PART, num_examples=examples)
        return self._payloads[key]

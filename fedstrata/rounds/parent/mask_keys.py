"""Secure aggregation at a parent: the keys of its children, and the list of the devices that mask updates for the same
sum (the roster).

The parent passes on only public keys, and cannot remove masks with them. If a child leaves the round or sends another
key, the sum is emptied. The other children then mask their updates again.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from fedstrata.errors import OutdatedError, PayloadError, RunStoppedError
from fedstrata.experiment import LinkSettings
from fedstrata.experiment.privacy import MOST_MASKED
from fedstrata.process.logs import EventLog
from fedstrata.process.quoting import quoted
from fedstrata.rounds.mask_roster import KEY_BYTES, roster_digest
from fedstrata.rounds.parent.children import ChildState, Enough
from fedstrata.rounds.parent.intake import Intake
from fedstrata.rounds.parent.open_round import Around, Stage, Verdict
from fedstrata.rounds.parent.plain_updates import PlainUpdates
from fedstrata.tensors.codec import AnyEncoding
from fedstrata.v1 import rounds_pb2 as pb

log = EventLog("rounds")
CheckKey = Callable[[str, pb.MaskKey], None]
SIGNATURE_BYTES = 64
MOST_CERTIFICATE_BYTES = 3 << 10
MOST_KEYS = 16  # most keys of one child in a round; each new key makes all children mask their updates again


def check_key(child_id: str, key: pb.MaskKey) -> None:
    """Raise PayloadError if the bytes of a key, its signature or its certificate have impossible sizes."""
    is_signed = len(key.signature) == SIGNATURE_BYTES and len(key.certificate) <= MOST_CERTIFICATE_BYTES
    if len(key.public_key) != KEY_BYTES or not (is_signed or not (key.signature or key.certificate)):
        raise PayloadError(
            f"{quoted(child_id)} sends a mask key of {len(key.public_key)} bytes, a signature of {len(key.signature)} "
            f"and a certificate of {len(key.certificate)}; expected {KEY_BYTES}, {SIGNATURE_BYTES} and at most "
            f"{MOST_CERTIFICATE_BYTES} (secure_aggregation); give all processes the same experiment file"
        )


@dataclass(frozen=True)
class EnoughToMask(Enough):
    """Require enough devices to hide each other's updates. If a device leaves, the sum is emptied, because the masks of
    the other devices no longer cancel.
    """

    min_devices: int

    is_void_if_any_leaves = True

    def are_left(self, left: int, quorum: int) -> bool:
        return left >= max(self.min_devices, quorum)

    def check(self, left: int, of: int, refused: str) -> None:
        if left < self.min_devices:
            raise RunStoppedError(
                f"{left} of {of} devices are left in the round, too few to mask their "
                f"updates: secure_aggregation.min_devices is {self.min_devices}{refused}"
            )


class KeyRing:
    """Hold the newest key of each child, as long as the child's certificate for the key is valid."""

    def __init__(self, has_member: Callable[[str], bool], min_devices: int, check: CheckKey) -> None:
        """Set `has_member`, which says whether a device still belongs to the parent, and `min_devices`, the smallest
        number of devices in a sum.

        `check` raises PayloadError for a key that no honest child sends, and OutdatedError for a key without a valid
        certificate.
        """
        self._has_member = has_member
        self._check = check
        self._keys: dict[str, pb.MaskKey] = {}
        self.min_devices = min_devices

    def show(self, child_id: str, key: pb.MaskKey) -> None:
        """Keep a child's key. If the certificate for the key is not valid, log this and do not keep the key. Raises
        PayloadError for an impossible key.
        """
        check_key(child_id, key)
        try:
            self._check(child_id, key)
        except OutdatedError as error:
            log.warning("key_not_taken", child=child_id, reason=str(error))
            return
        if self._has_member(child_id):
            self._keys[child_id] = kept = pb.MaskKey()
            kept.CopyFrom(key)  # a copy, because a part of a message keeps the whole message in memory

    def of(self, child_id: str) -> pb.MaskKey | None:
        """Return a child's key. If the child has no key, or if the certificate for the key is no longer valid, return
        None.
        """
        key = self._keys.get(child_id)
        if key is None:
            return None
        try:
            self._check(child_id, key)
        except OutdatedError as error:
            log.info("key_forgotten", child=child_id, reason=str(error))
            del self._keys[child_id]
            return None
        return key


class Masked(Stage):
    """Let the children of a round hide their updates with masks that cancel in the sum, so that the parent learns only
    the sum.
    """

    def __init__(self, keys: KeyRing, intake: Intake, max_examples: int) -> None:
        """Set `max_examples`, the largest sum of the weights of the round's children."""
        self._keys, self._intake, self._max_examples = keys, intake, max_examples
        self._shown: Counter[str] = Counter()
        self._known: dict[str, bytes] = {}  # keys in the roster, by child
        self._vouched: dict[str, pb.MaskKey] = {}  # the same keys with their signatures and certificates
        self.digest = b""  # digest of the roster; empty while keys are missing
        self.part = pb.ModelPart()  # message with the roster, for children that do not have it yet
        intake.when_void(self.renew)
        self.renew()

    @property
    def is_formed(self) -> bool:
        """Return whether the round has a roster."""
        return bool(self.digest)

    def begin(self, around: Around) -> None:
        self._around = around

    def asked(self, request: pb.FetchModelRequest) -> bool:
        has_masked = self._around.opened.is_base_of(request.child_id, request.sent_round, request.sent_digest)
        return self.heard(request.child_id, has_masked=has_masked)

    def holds_back(self, request: pb.FetchModelRequest, *, is_sent: bool) -> bool:
        return not self.is_formed

    def first(self, request: pb.FetchModelRequest) -> pb.ModelPart | None:
        """Return the roster of keys with which the child masks its update. If the child already has the roster, return
        None.
        """
        return None if self.digest == request.roster_digest else self.part

    def judge(self, header: pb.UpdateHeader) -> Verdict:
        return Verdict.TAKEN if self.is_formed and header.roster_digest == self.digest else Verdict.LATE

    def lacking(self) -> tuple[tuple[str, ...], str] | None:
        return None if self.is_formed else (self._without_key(), "its mask key")

    def _without_key(self) -> tuple[str, ...]:
        return tuple(child_id for child_id in self._intake.going_on if self._keys.of(child_id) is None)

    async def gather(self) -> None:
        around = self._around
        deadline_s = around.terms.wait.deadline_s
        if await around.messages.wait_awake(lambda: self.is_formed or self._intake.is_complete, deadline_s):
            return
        for child_id in self._without_key():
            around.log.warning("no_key", child=child_id, round=around.opened.number)
            self._intake.exclude(child_id)

    def heard(self, child_id: str, *, has_masked: bool = False) -> bool:
        """Note that a child has sent its key. If the key differs from the key in the roster, all children mask their
        updates again. Return True if this key completes the roster.

        With `has_masked`, the child has already masked its update of this round. For this round, the child's key in the
        roster then stays valid. The new key is for the next global round.

        Raises:
            PayloadError: the child has changed its key too often in this round.
        """
        key = self._keys.of(child_id)
        if key is None or self._intake.state_of(child_id) is not ChildState.AWAITED:
            return False
        if not self.is_formed:
            self.renew()
            return self.is_formed
        if key.public_key != self._known.get(child_id):
            if has_masked:
                return False
            self._shown[child_id] += 1
            if self._shown[child_id] > MOST_KEYS:
                raise PayloadError(f"{child_id} has changed its mask key more than {MOST_KEYS} times in a round")
            self._intake.void()  # this also renews the roster
        elif key != self._vouched.get(child_id) and all(map(self._keys.of, self._intake.going_on)):
            self.renew()  # only the certificate is new, so masks and digest do not change
        return False

    def renew(self) -> None:
        """If all keys are known, make a roster of the children that are still in the round, with their newest keys.
        Otherwise, the round has no roster.
        """
        self.digest, self._known, self._vouched = b"", {}, {}
        members = sorted(self._intake.going_on)
        keys = {child_id: key for child_id in members if (key := self._keys.of(child_id)) is not None}
        if len(keys) < max(len(members), self._keys.min_devices):
            return
        roster = _roster(keys.items(), self._max_examples)
        self._known, self._vouched = {child_id: key.public_key for child_id, key in keys.items()}, keys
        self.digest, self.part = roster_digest(roster), pb.ModelPart(roster=roster)


class MaskedUpdates(PlainUpdates):
    """Accept updates as integers to which children have added masks. The masks cancel in the sum, so the parent learns
    only the sum of the updates.

    In each stream, masks cancel only if every child of the round adds its update to the stream.
    """

    def __init__(self, has_member: Callable[[str], bool], min_devices: int, check: CheckKey) -> None:
        """Set the parameters of the `KeyRing`."""
        self.keys = KeyRing(has_member, min_devices, check)
        self.enough = EnoughToMask(min_devices)

    def encoding(self, link: LinkSettings) -> AnyEncoding:
        return "exact"

    def hear(self, request: pb.FetchModelRequest) -> None:
        """Keep the child's key. Raises PayloadError if the request has no valid key."""
        self.keys.show(request.child_id, request.mask_key)

    def check_size(self, children: int) -> None:
        least = self.keys.min_devices
        if not least <= children <= MOST_MASKED:
            raise RunStoppedError(
                f"a round asks {children} devices, and secure_aggregation needs {least} (min_devices) to "
                f"{MOST_MASKED}; "
                + (
                    "form fewer clusters, or remove secure_aggregation"
                    if children < least
                    else f"set training.participation: {MOST_MASKED}, or form more clusters"
                )
            )

    def stages(self, intake: Intake, max_examples: int) -> list[Stage]:
        return [Masked(self.keys, intake, max_examples)]


def _roster(keys: Iterable[tuple[str, pb.MaskKey]], max_examples: int) -> pb.Roster:
    roster = pb.Roster(max_examples=max_examples)
    places: dict[bytes, int] = {}
    for child_id, key in keys:
        place = places.setdefault(key.certificate, len(places))
        roster.members.add(device_id=child_id, public_key=key.public_key, signature=key.signature, certificate=place)
    roster.certificates.extend(places)
    return roster

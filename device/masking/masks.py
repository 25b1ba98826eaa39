"""The masks of a device. Every two devices of a round share a mask: one adds the mask to its update, and the other
subtracts it.

X25519 gives two devices a common secret. HKDF-SHA256 derives a key from this secret for one run, round, roster and
received model. A roster lists the devices that mask their updates together, with their public keys. ChaCha20 with the
derived key gives one number modulo 2⁶⁴ per weight. Updates are converted to integers, as in all exact sums
(`ExactSum`). So all masks cancel exactly when the updates are added (docs/decisions/secure-aggregation.md).
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from device.masking.masked_for import MaskedFor
from fedstrata.errors import OutdatedError, PayloadError, RosterError
from fedstrata.experiment import Experiment
from fedstrata.experiment.privacy import MOST_MASKED
from fedstrata.privacy.updates import weight_of
from fedstrata.process.quoting import quoted
from fedstrata.rounds import ReceivedModel, Shield, Update
from fedstrata.rounds.child.models_and_updates import Compute
from fedstrata.rounds.mask_roster import keys_in, roster_digest
from fedstrata.tensors import ExactSum, Flat, PayloadCodec
from fedstrata.trust.mask_proofs import Proofs
from fedstrata.v1 import rounds_pb2 as pb

Words = NDArray[np.uint64]
PIECE = 1 << 15  # random numbers that are drawn at once
NONCE = bytes(16)  # counter and nonce of ChaCha20. Zeros are safe, because each key is for one round.


class Masks(Shield):
    """Mask the updates of one device. The device has a new key for each global round in which it takes part."""

    growth = 2  # integers of 8 bytes

    def __init__(self, experiment: Experiment, device_id: str, proofs: Proofs, folder: Path | None = None) -> None:
        """Draw the device's first key from the system's entropy. The folder keeps the device's memory of its masked
        updates. Without a folder, the memory ends with the process.
        """
        settings = experiment.secure_aggregation
        self._min_devices = settings.min_devices if settings else 0
        self._run_id, self._device_id = experiment.run_id, device_id
        self._known_devices = frozenset(experiment.device_ids())
        most_devices = min(experiment.device_count, MOST_MASKED)  # in a round, including dropouts
        self._most_examples = most_devices * weight_of(experiment, experiment.most_examples)
        self._proofs = proofs
        self._rounds_per_global = experiment.training.lps_rounds_per_global_round
        self._secrets: dict[bytes, X25519PrivateKey] = {}  # by public key: the two newest keys
        self._masked_in: dict[bytes, set[int]] = {}  # by public key: the global rounds of updates masked with it
        self._public_key = b""  # this device's key in the newest roster
        self._renew_key()
        _ = self.key  # raises now if the certificate cannot sign the key
        self._shared: dict[bytes, bytes] = {}  # by other devices' keys: the secrets shared with them
        self._others: dict[str, bytes] = {}  # the other devices' public keys by device
        self._hidden: dict[bytes, bytes] = {}  # by what the masks depend on: the digest of the masked values
        self._masked_for = MaskedFor(experiment, device_id, folder)
        self._max_examples = 0
        self.digest = b""  # of the newest roster

    @property
    def key(self) -> pb.MaskKey:
        """Return the newest key of this device, signed by its process."""
        return self._proofs.key_of(self._device_id, self._newest)

    @property
    def _newest(self) -> bytes:
        return next(reversed(self._secrets))

    def _renew_key(self) -> None:
        """Make a key for the next global round. The old key is deleted as soon as this device receives a roster that
        contains the new key.
        """
        secret = X25519PrivateKey.generate()
        public_key = secret.public_key().public_bytes_raw()
        self._secrets[public_key], self._masked_in[public_key] = secret, set()

    def take(self, roster: pb.Roster) -> None:
        """Mask updates for the devices of this roster from now on.

        Raises:
            PayloadError: the roster is not allowed, because it cannot hide this device's update.
            RosterError: a key in the roster does not belong to its device, or has no valid certificate. Or the roster
                has other devices than earlier rosters. This device waits for another roster.
        """
        keys = {member.device_id: member.public_key for member in roster.members}
        if not self._min_devices <= len(keys) == len(roster.members) <= MOST_MASKED:
            raise PayloadError(
                f"the LPS asks to mask an update among {len(roster.members)} devices; expected "
                f"{self._min_devices} to {MOST_MASKED}, each once"
            )
        if strangers := sorted(keys.keys() - self._known_devices):
            raise PayloadError(f"the LPS asks to mask an update among {quoted(*strangers)}, not in this experiment")
        if not 0 < roster.max_examples <= self._most_examples:
            raise PayloadError(
                f"the LPS asks to mask an update for a sum over {roster.max_examples} examples, but the devices of a "
                f"round have at most {self._most_examples}: this LPS lies"
            )
        own = keys.pop(self._device_id, b"")
        if own not in self._secrets:
            raise PayloadError(
                f"the LPS asks to mask an update among {len(roster.members)} devices without this one's key"
            )
        for device_id, key in keys_in(roster):
            try:
                self._proofs.check(device_id, key)
            except (PayloadError, OutdatedError) as error:
                raise RosterError(f"{error}; this device waits for a roster without it") from None
        self._masked_for.check((*keys, self._device_id), roster.max_examples)
        self._others, self._max_examples, self.digest = keys, roster.max_examples, roster_digest(roster)
        known = self._shared if own == self._public_key else {}
        self._shared, self._public_key = {key: known[key] for key in keys.values() if key in known}, own
        self._secrets = {key: self._secrets[key] for key in dict.fromkeys((own, self._newest))}
        self._masked_in = {key: self._masked_in[key] for key in self._secrets}

    def mark(self, request: pb.FetchModelRequest) -> None:
        request.mask_key.CopyFrom(self.key)
        request.roster_digest = self.digest

    async def trained_from(self, received: ReceivedModel, home_id: str, cluster: int, compute: Compute) -> bytes:
        return bytes(await compute(partial(received.trained_from, home_id, cluster)))

    async def hidden(self, update: Update, compute: Compute) -> Update:
        masked: Update = await compute(partial(self.masked, update))
        return masked

    def masked(self, update: Update) -> Update:
        """Return a masked update. The values are multiplied by the number of examples, and converted to integers as in
        any exact sum. Then the masks are added. If a value is too large or is not finite, the result contains this
        reason and no values.

        Raises:
            PayloadError: the same masks have already hidden another update. In the difference of the two masked
                updates, the masks would cancel.
            RosterError: the roster has an old key of this device, but the update belongs to another global round.
            FedstrataError: the errors of `MaskedFor.note`.
        """
        self._masked_for.note(update.round, (*self._others, self._device_id), self._max_examples)
        self._use_key(update.round)
        codec = PayloadCodec(update.codec.layout, "exact")
        total = ExactSum(codec.layout.size, self._max_examples)
        try:
            total.add(as_received(update), update.num_examples)
        except PayloadError:  # the message must not reveal the update's values
            unfit = f"values beyond ±{total.limit:g}, or not finite; training has diverged"
            return replace(update, codec=codec, note=pb.UpdateHeader(roster_digest=self.digest, unfit=unfit))
        sums = total.sums()
        del total
        self._add_masks(sums.view(np.uint64), update)
        note = pb.UpdateHeader(roster_digest=self.digest)
        return replace(update, codec=codec, read=lambda start, stop: sums[start:stop], note=note)

    def _use_key(self, lps_round: int) -> None:
        """Note that the key in the roster masks an update of this LPS round. Make the next key at the end of a global
        round. If the device was not asked at the end of an earlier global round, its key is older than this global
        round. Then make the next key at once.

        Raises:
            RosterError: the device has made a newer key, and the key in the roster belongs to another global round.
        """
        global_round, used = lps_round // self._rounds_per_global, self._masked_in[self._public_key]
        if self._public_key != self._newest and global_round not in used:
            raise RosterError(
                f"the LPS asks to mask an update of global round {global_round + 1} with an old key of this device; "
                "this device waits for a roster with its newest key"
            )
        used.add(global_round)
        is_at_end = (lps_round + 1) % self._rounds_per_global == 0
        if self._masked_in[self._newest] and (is_at_end or len(used) > 1):
            self._renew_key()  # sent with the call for the next round

    def _add_masks(self, words: Words, update: Update) -> None:
        about = f"{self._run_id}\0{update.round}\0".encode() + update.trained_from
        found = sha256(words.tobytes()).digest()
        if self._hidden.setdefault(self.digest + about, found) != found:
            raise PayloadError(
                f"asked to mask another update with the same masks in round {update.round}, which reveals both: "
                "the LPS lies"
            )
        for device_id, public_key in self._others.items():
            fold = np.add if self._device_id < device_id else np.subtract
            pair = "\0".join(sorted((self._device_id, device_id)))  # the masks belong to this pair of devices
            key = self._key_with(public_key, f"{pair}\0".encode() + about)
            for at, drawn in stream(key, len(words)):
                here = words[at : at + len(drawn)]
                fold(here, drawn, out=here)

    def _key_with(self, public_key: bytes, about: bytes) -> bytes:
        """Return a key that only this device and another device can compute. It depends on the present roster and on
        `about`, which contains the run, the round, the two devices and the digest of the received model.
        """
        shared = self._shared.get(public_key)
        if shared is None:
            secret = self._secrets[self._public_key]
            shared = self._shared[public_key] = secret.exchange(X25519PublicKey.from_public_bytes(public_key))
        return HKDF(SHA256(), 32, salt=self.digest, info=b"fedstrata masks\0" + about).derive(shared)


def stream(key: bytes, length: int) -> Iterator[tuple[int, Words]]:
    """Yield `length` random numbers modulo 2⁶⁴ in pieces. They depend only on the key. Each piece comes with the index
    of its first number. The next piece overwrites the memory of this piece.
    """
    cipher = Cipher(ChaCha20(key, NONCE), mode=None).encryptor()
    zeros, drawn = bytes(8 * PIECE), bytearray(8 * PIECE)
    for at in range(0, length, PIECE):
        count = min(PIECE, length - at)
        cipher.update_into(memoryview(zeros)[: 8 * count], memoryview(drawn)[: 8 * count])
        yield at, np.frombuffer(drawn, "<u8", count)


def as_received(update: Update) -> Flat:
    """Return an update's values as the parent would receive them without masks: encoded for the link, then decoded."""
    codec, at = update.codec, 0
    flat = np.empty(codec.layout.size, np.float32)
    for chunk in codec.chunks(update.read):
        values = codec.decode(chunk, at)
        start = at // codec.element_bytes
        flat[start : start + len(values)] = values
        at += len(chunk)
    return flat

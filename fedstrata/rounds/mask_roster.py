"""The roster: the list of the devices that mask updates for the same sum. Parents and children read it with this
module.
"""

import hashlib
from collections.abc import Iterator

from fedstrata.errors import PayloadError
from fedstrata.process.quoting import quoted
from fedstrata.v1 import rounds_pb2 as pb

KEY_BYTES = 32


def roster_digest(roster: pb.Roster) -> bytes:
    """Return the digest of the values of a roster on which masks depend: ids, public keys and the largest number of
    examples. Certificates and signatures do not change the digest.
    """
    said = hashlib.sha256(f"fedstrata roster {roster.max_examples}\n".encode())
    for member in roster.members:
        said.update(f"{len(member.device_id)} {member.device_id} ".encode() + member.public_key)
    return said.digest()


def keys_in(roster: pb.Roster) -> Iterator[tuple[str, pb.MaskKey]]:
    """Yield the devices of a roster with their keys. Raises PayloadError for a key that has an impossible form."""
    for member in roster.members:
        if not 0 <= member.certificate < len(roster.certificates) or len(member.public_key) != KEY_BYTES:
            raise PayloadError(f"the mask key of {quoted(member.device_id)} is not valid")
        certificate = roster.certificates[member.certificate]
        key = pb.MaskKey(public_key=member.public_key, signature=member.signature, certificate=certificate)
        yield member.device_id, key

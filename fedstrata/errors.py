"""All errors that the project raises on purpose. Each has a text for the caller, a gRPC status and an exit code.

There is no other table of errors. If a servicer raises one of these errors, `fedstrata.rpc` answers the call with its
`status`. If a command raises one, the command ends with its `exit_code`. The exit codes are documented in
docs/reference/errors.md.
"""

from collections.abc import Mapping
from typing import Literal

DIVERGED = "training has diverged"  # in each message that says so: a sweep reads the reasons of failed runs

EXIT_OK = 0
EXIT_USAGE = 2  # bad arguments or a bad experiment file
EXIT_DATA = 3  # data are missing or damaged, or fewer than the partition asks for
EXIT_RUN_FAILED = 4  # the run stopped: the quorum was not reached, or a process died too often
EXIT_OUTPUT = 5  # the output folder is not empty, or cannot be written
EXIT_NETWORK = 6  # an address cannot be bound, or a server cannot be reached
EXIT_HANDSHAKE = 7  # a server answers, but the TLS handshake fails
EXIT_DIFFERS = 8  # a result is not what its record or its replay says
EXIT_INCOMPARABLE = 9  # bits cannot be compared on this processor
EXIT_INTERRUPTED = 130  # Ctrl-C or SIGTERM
EXIT_CODES: Mapping[int, str] = {
    EXIT_OK: "The command is done.",
    1: "Fedstrata has an error, or the program that reads standard output has ended.",
    EXIT_USAGE: "An argument, a certificate or the experiment file is wrong, or a certificate does not allow the call.",
    EXIT_DATA: "Data are missing, damaged, or fewer than the partition asks for; or a folder holds no run record.",
    EXIT_RUN_FAILED: "The run ended without a result: no quorum, or a process that could not be kept alive.",
    EXIT_OUTPUT: "The output folder is not empty, or cannot be written.",
    EXIT_NETWORK: "An address cannot be bound, or a server does not answer.",
    EXIT_HANDSHAKE: "A server answers, but one side does not trust the other.",
    EXIT_DIFFERS: "`verify`: a table, a record or a replay differs.",
    EXIT_INCOMPARABLE: "`verify`: nothing differs, but bits cannot be compared on this processor.",
    EXIT_INTERRUPTED: "Ctrl-C or SIGTERM interrupted the command, or the process must start again.",
}

# Names of gRPC's status codes. They are text, so that this module does not need to import gRPC.
Status = Literal[
    "ABORTED", "ALREADY_EXISTS", "DATA_LOSS", "FAILED_PRECONDITION", "INTERNAL", "INVALID_ARGUMENT", "NOT_FOUND",
    "OUT_OF_RANGE", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "UNAUTHENTICATED", "UNAVAILABLE",
]  # fmt: skip


class FedstrataError(Exception):
    """Base class of all errors that Fedstrata raises on purpose. Each has a message of one line, a gRPC status and an
    exit code.
    """

    status: Status = "INTERNAL"
    exit_code: int = EXIT_RUN_FAILED


class ExperimentError(FedstrataError):
    """The experiment file has a setting that is not allowed."""

    status = "INVALID_ARGUMENT"
    exit_code = EXIT_USAGE


class PluginError(ExperimentError):
    """The user's own code, such as `module:function`, cannot be imported, fails, or returns a value that is not
    allowed.
    """


class MissingPackageError(FedstrataError):
    """A package that only some users need is not installed here."""

    status = "FAILED_PRECONDITION"
    exit_code = EXIT_USAGE


class DataError(FedstrataError):
    """A data set is missing, damaged or smaller than required."""

    status = "FAILED_PRECONDITION"
    exit_code = EXIT_DATA


class DifferenceError(FedstrataError):
    """A bundle's tables do not match its records, or a replay differs from its record."""

    status = "FAILED_PRECONDITION"
    exit_code = EXIT_DIFFERS


class IncomparableError(FedstrataError):
    """A record and its replay cannot be compared, because processors with different arithmetic computed them."""

    status = "FAILED_PRECONDITION"
    exit_code = EXIT_INCOMPARABLE


class OutputError(FedstrataError):
    """The output folder exists already, or cannot be written."""

    exit_code = EXIT_OUTPUT


class CertificateError(FedstrataError):
    """A certificate or key is missing or damaged, a key belongs to another certificate, or a name is not allowed."""

    status = "UNAUTHENTICATED"
    exit_code = EXIT_USAGE


class NotAllowedError(FedstrataError):
    """The caller's certificate does not allow the call."""

    status = "PERMISSION_DENIED"
    exit_code = EXIT_USAGE


class OutdatedError(FedstrataError):
    """A certificate is no longer valid, for instance because it has expired. A newer certificate is accepted."""

    status = "UNAUTHENTICATED"


class RosterError(FedstrataError):
    """The device does not mask its update for this list of devices (a roster), and waits for another list."""

    status = "UNAUTHENTICATED"


class TooManyCallsError(FedstrataError):
    """One identity has made more calls than its limit allows. The same call may succeed later."""

    status = "RESOURCE_EXHAUSTED"


class AddressError(FedstrataError):
    """An address cannot be bound, or a peer does not answer."""

    status = "UNAVAILABLE"
    exit_code = EXIT_NETWORK


class AccountError(AddressError):
    """The Kubernetes account of this machine lacks a permission."""


class HandshakeError(AddressError):
    """A server answers, but no connection to it succeeds, and further tries cannot help."""

    exit_code = EXIT_HANDSHAKE


class ParentAwayError(AddressError):
    """The parent has not answered for some time. Its address may have changed."""


class NotServedError(FedstrataError):
    """This LPS does not serve the cluster now. The GPS knows which LPS serves the cluster."""

    status: Status = "NOT_FOUND"


class NotMemberError(NotServedError):
    """The caller's certificate names no member of this cluster. The GPS knows the caller's assignment."""

    status = "PERMISSION_DENIED"


class NotReadyError(FedstrataError):
    """The parent is still starting. The same call succeeds later."""

    status = "UNAVAILABLE"


class ResourceError(FedstrataError):
    """This machine allows a process fewer resources than it needs."""

    status = "RESOURCE_EXHAUSTED"


class StateError(FedstrataError):
    """A state file is truncated or altered, or belongs to another run."""

    status = "DATA_LOSS"


class WrongRunError(FedstrataError):
    """The call comes from another run, or from a process with another experiment file."""

    status = "FAILED_PRECONDITION"
    exit_code = EXIT_USAGE


class BegunAgainError(WrongRunError):
    """The run has begun again since the caller started. The caller's process ends, in order to be restarted."""

    exit_code = EXIT_INTERRUPTED


class UnknownChildError(FedstrataError):
    """This parent does not know the device or LPS."""

    status = "NOT_FOUND"


class DuplicateDeviceError(FedstrataError):
    """A second process claims a device id that is in use."""

    status = "ALREADY_EXISTS"
    exit_code = EXIT_USAGE


class PayloadError(FedstrataError):
    """Tensors differ from their declaration in name, dtype, shape or size, or a value is not finite."""

    status = "INVALID_ARGUMENT"


class OffsetError(FedstrataError):
    """A chunk does not begin at the position that the receiver has reached. Ask the receiver for this position, and
    resume there.
    """

    status = "OUT_OF_RANGE"


class SupersededError(FedstrataError):
    """This stream or model is no longer current, because a newer stream or a newer round has replaced it."""

    status = "ABORTED"


class StalledError(FedstrataError):
    """Too little of an upload has arrived within the allowed time."""

    status = "ABORTED"


class ExcludedError(FedstrataError):
    """The parent refuses the child until the end of the run."""

    status = "PERMISSION_DENIED"


class RunStoppedError(FedstrataError):
    """The run has ended without a result."""

    status = "FAILED_PRECONDITION"


class NoUpdatesError(FedstrataError):
    """A mean was requested before any update was added."""

    status = "FAILED_PRECONDITION"

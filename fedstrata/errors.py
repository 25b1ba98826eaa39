"""Every error the project raises on purpose: what a caller is told, its gRPC status and its exit code.

This is the one error table. A servicer raises one of these and `fedstrata.rpc` answers with `.status`;
a command raises one and ends with `.exit_code`. The exit codes are documented in docs/reference/errors.md.
"""

from collections.abc import Mapping

import grpc

EXIT_OK = 0
EXIT_USAGE = 2  # bad arguments or a bad experiment file
EXIT_DATA = 3  # data missing, corrupt, or less than the partition asks for
EXIT_RUN_FAILED = 4  # the run stopped: quorum not reached, a process could not be kept alive
EXIT_OUTPUT = 5  # the output folder is in the way, or cannot be written
EXIT_NETWORK = 6  # an address that cannot be bound or a server that cannot be reached
EXIT_HANDSHAKE = 7  # a server that is there, and with which no connection comes about
EXIT_INTERRUPTED = 130  # Ctrl-C or SIGTERM
EXIT_CODES: Mapping[int, str] = {
    EXIT_OK: "The command is done.",
    1: "Fedstrata itself is at fault, or the reader of standard output has gone.",
    EXIT_USAGE: "An argument, a certificate or the experiment file is wrong, or a certificate does not allow the call.",
    EXIT_DATA: "Data are missing, damaged, or fewer than the partition asks for; or a folder holds no run record.",
    EXIT_RUN_FAILED: "The run ended without a result: no quorum, or a process that could not be kept alive.",
    EXIT_OUTPUT: "The output folder is not empty, or cannot be written.",
    EXIT_NETWORK: "An address cannot be bound, or a server does not answer.",
    EXIT_HANDSHAKE: "A server answers, but one side does not trust the other.",
    EXIT_INTERRUPTED: "Ctrl-C or SIGTERM interrupted the command.",
}


class FedstrataError(Exception):
    """Base of all: carries a one-line reason, a gRPC status and an exit code."""

    status: grpc.StatusCode = grpc.StatusCode.INTERNAL
    exit_code: int = EXIT_RUN_FAILED


class ExperimentError(FedstrataError):
    """The experiment file says something that is not allowed."""

    status = grpc.StatusCode.INVALID_ARGUMENT
    exit_code = EXIT_USAGE


class PluginError(ExperimentError):
    """A `module:function` that cannot be imported or does not give what its place needs."""


class MissingPackageError(FedstrataError):
    """A package that only some users need, and that is not installed here."""

    status = grpc.StatusCode.FAILED_PRECONDITION
    exit_code = EXIT_USAGE


class DataError(FedstrataError):
    """A data set that is missing, damaged or smaller than what was asked of it."""

    status = grpc.StatusCode.FAILED_PRECONDITION
    exit_code = EXIT_DATA


class OutputError(FedstrataError):
    """An output folder that exists already or cannot be written."""

    exit_code = EXIT_OUTPUT


class CertificateError(FedstrataError):
    """Certificates or keys that are missing, damaged, or not of each other; or a name that none can have."""

    status = grpc.StatusCode.UNAUTHENTICATED
    exit_code = EXIT_USAGE


class NotAllowedError(FedstrataError):
    """A call by somebody whose certificate names nobody that may make it."""

    status = grpc.StatusCode.PERMISSION_DENIED
    exit_code = EXIT_USAGE


class OutdatedError(FedstrataError):
    """A certificate that counted when its connection began and does not now; by a newer one the call goes through."""

    status = grpc.StatusCode.UNAUTHENTICATED


class RosterError(FedstrataError):
    """A roster that a device does not mask its update for: it waits for another roster."""

    status = grpc.StatusCode.UNAUTHENTICATED


class TooManyCallsError(FedstrataError):
    """More calls by one identity than its share; the same call will go through later."""

    status = grpc.StatusCode.RESOURCE_EXHAUSTED


class AddressError(FedstrataError):
    """An address that cannot be bound, or a peer that does not answer."""

    status = grpc.StatusCode.UNAVAILABLE
    exit_code = EXIT_NETWORK


class AccountError(AddressError):
    """What this machine's account at Kubernetes may not do."""


class HandshakeError(AddressError):
    """A server that is there, and with which no connection comes about however often it is tried."""

    exit_code = EXIT_HANDSHAKE


class ParentAwayError(AddressError):
    """A parent that has not answered for a while; it may be somewhere else by now."""


class NotServedError(FedstrataError):
    """A cluster that this LPS does not serve now: ask the GPS which one does."""

    status = grpc.StatusCode.NOT_FOUND


class NotMemberError(NotServedError):
    """A cluster that its caller, by its certificate, does not belong to: ask the GPS for the assignment."""

    status = grpc.StatusCode.PERMISSION_DENIED


class NotReadyError(FedstrataError):
    """A parent that is still starting; the same call will go through later."""

    status = grpc.StatusCode.UNAVAILABLE


class ResourceError(FedstrataError):
    """The machine allows a process less than it needs."""

    status = grpc.StatusCode.RESOURCE_EXHAUSTED


class StateError(FedstrataError):
    """A state file that is truncated, altered or of another run."""

    status = grpc.StatusCode.DATA_LOSS


class WrongRunError(FedstrataError):
    """A call of another run, or of a process started with another experiment file."""

    status = grpc.StatusCode.FAILED_PRECONDITION
    exit_code = EXIT_USAGE


class UnknownChildError(FedstrataError):
    """A device or LPS that this parent does not know."""

    status = grpc.StatusCode.NOT_FOUND


class DuplicateDeviceError(FedstrataError):
    """A second process that claims a device id already in use."""

    status = grpc.StatusCode.ALREADY_EXISTS
    exit_code = EXIT_USAGE


class PayloadError(FedstrataError):
    """Tensors that are not what was declared: name, dtype, shape, size, or a value that is not finite."""

    status = grpc.StatusCode.INVALID_ARGUMENT


class OffsetError(FedstrataError):
    """A chunk that does not continue where the receiver stands; ask for its position and resume there."""

    status = grpc.StatusCode.OUT_OF_RANGE


class SupersededError(FedstrataError):
    """A stream whose sender has opened a newer one for the same payload."""

    status = grpc.StatusCode.ABORTED


class StalledError(FedstrataError):
    """An upload of which nothing, or too little, has come for longer than it is waited for."""

    status = grpc.StatusCode.ABORTED


class ExcludedError(FedstrataError):
    """A child that was refused for the rest of the run."""

    status = grpc.StatusCode.PERMISSION_DENIED


class RunStoppedError(FedstrataError):
    """The run has ended without a result."""

    status = grpc.StatusCode.FAILED_PRECONDITION


class NoUpdatesError(FedstrataError):
    """A mean was asked for before anything was added."""

    status = grpc.StatusCode.FAILED_PRECONDITION

"""Read and write objects in an S3-compatible bucket. Each object is written in one piece. A write fails if another
process has made or changed the object in the meantime.

Only this module calls obstore. The server and the credentials come from AWS's environment variables, such as
AWS_ENDPOINT_URL_S3 and AWS_ACCESS_KEY_ID, or from the identity of a pod or a machine.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from io import BufferedRandom
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any
from urllib.parse import urlsplit

from emulator.shipped.extras import needed
from fedstrata.errors import AddressError, ExperimentError, OutputError
from fedstrata.process.quoting import brief

ADDRESS = re.compile(r"s3://([a-zA-Z0-9._-]{3,63})/+(.*[^/])/*")
PRINTABLE = re.compile("[!-~]+")
HOST = re.compile(r"[a-z0-9._:-]+")
SERVER = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")  # the first that is set applies
IN_HEADERS = (
    "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION",
)  # fmt: skip
AWS = "AWS"  # the server if no variable names one
CONNECT_S, ANSWER_S, RECORD_S = 5, 30, 600  # deadlines for a connection, a small reply, and a record of many MB
RETRIES = {"max_retries": 3, "retry_timeout": timedelta(seconds=ANSWER_S)}
IDENTITY = "/latest/api/token"  # the path that obstore asks on AWS machines if it has no credentials
UNKNOWN = "NotImplemented"  # the code for a header that the store does not know
EXPIRED = "ExpiredToken"
ELSEWHERE = ("incorrectly configured region", "<Code>AuthorizationHeaderMalformed<", "<Code>PermanentRedirect<")


class Bucket:
    """Read and write the objects of a bucket that have names with a given prefix."""

    def __init__(self, address: str) -> None:
        """Check the address and the environment variables. The server is not called yet.

        Raises:
            ExperimentError: the address or an environment variable is wrong.
            MissingPackageError: obstore is not installed.
        """
        found = ADDRESS.fullmatch(address)
        if found is None:
            raise ExperimentError(
                f"--to {address!r} is not the address of a bucket; give a bucket and a prefix, such as s3://lab/five-seeds"
            )
        self._address, self._name = address, found[1]
        self._api, self._errors = needed("obstore"), needed("obstore.exceptions")
        self._server = _server()
        try:
            self._small, self._large = (self._store(found[2], seconds) for seconds in (ANSWER_S, RECORD_S))
        except (self._errors.BaseError, ValueError, OSError) as error:
            raise ExperimentError(
                f"--to {address}: {_sentence(error)}; check the address, AWS_SECRET_ACCESS_KEY and AWS_CA_BUNDLE"
            ) from None

    def _store(self, prefix: str, seconds: int) -> Any:
        ca_file = os.environ.get("AWS_CA_BUNDLE")
        client = {
            "connect_timeout": timedelta(seconds=CONNECT_S), "timeout": timedelta(seconds=seconds),
            "allow_http": self._server.startswith("http://"),
            **({"root_certificate": Path(ca_file).read_bytes()} if ca_file else {}),
        }  # fmt: skip
        settings = {"client_options": client, "retry_config": RETRIES, "conditional_put": "etag"}
        if self._server != AWS:
            settings["endpoint"] = self._server
        return needed("obstore.store").S3Store(self._name, prefix=prefix, **settings)

    def __str__(self) -> str:
        return f"{self._address} at {self._server}"

    def within(self, name: str) -> "Bucket":
        """Return the part of this bucket with names that begin with this bucket's prefix, followed by `/` and
        `name`.
        """
        return Bucket(f"{self._address.rstrip('/')}/{name}")

    def check(self) -> None:
        """Check that the bucket can be written, and that its server refuses to replace an object that has changed.
        Raises FedstrataError if one of these checks fails.
        """
        self.put("probe", b"")
        if self.put("probe", b"") is not None or self.put("probe", b"", over='"0"') is not None:
            raise self._unconditional("ignores")

    def objects(self) -> dict[str, str]:
        """Return the tags of all objects below the prefix, by the objects' names. When an object is written with new
        content, its tag changes.
        """
        with self._answering():
            return {found["path"]: found["e_tag"] for part in self._api.list(self._small) for found in part}

    def content(self, name: str) -> tuple[bytes, str]:
        """Return the content of a small object, and its tag."""
        with self._answering():
            reply = self._api.get(self._small, name)
            return bytes(reply.bytes()), reply.meta["e_tag"]

    @contextmanager
    def opened(self, name: str) -> Iterator[IO[bytes]]:
        """Fetch an object of any size, and open it for reading."""
        with temporary_file() as file:
            with self._answering():
                for piece in self._api.get(self._large, name).stream():
                    file.write(piece)
            file.seek(0)
            yield file

    def put(self, name: str, content: bytes | IO[bytes], *, over: str | None = None) -> str | None:
        """Write a new object. With `over`, replace the object, if its present version has the tag `over`.

        Return the tag of the written version. If the object exists already, or has another tag than `over`, write
        nothing, and return None.
        """
        store = self._small if isinstance(content, bytes) else self._large
        mode = "create" if over is None else {"e_tag": over}
        with self._answering():
            try:
                reply = self._api.put(store, name, content, mode=mode, use_multipart=False)
            except (self._errors.AlreadyExistsError, self._errors.PreconditionError):
                return None
            return str(reply["e_tag"])

    @contextmanager
    def _answering(self) -> Iterator[None]:
        """Run a block that calls the bucket's server.

        Raises:
            ExperimentError: the user has to change the bucket's address, the credentials, an environment variable or
                the store.
            AddressError: the server does not answer, or fails.
        """
        try:
            yield
        except (self._errors.PermissionDeniedError, self._errors.UnauthenticatedError) as error:
            raise self._refusal(error) from None
        except (self._errors.BaseError, FileNotFoundError) as error:
            raise self._failure(error) from None
        except BaseException as error:
            if isinstance(error, NotImplementedError) or type(error).__name__ == "PanicException":  # errors of obstore
                raise ExperimentError(
                    f"{self}: obstore fails: {_sentence(error)}; check the variables that begin with AWS_"
                ) from None
            raise

    def _refusal(self, error: Exception) -> ExperimentError:
        return ExperimentError(
            f"{self} refuses these credentials: {_sentence(error)}; check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, "
            "AWS_SESSION_TOKEN, AWS_REGION and the bucket's policy"
        )

    def _failure(self, error: Exception) -> ExperimentError | AddressError:
        said = str(error)
        if "<Code>NoSuchBucket<" in said:
            return ExperimentError(f"{self}: there is no bucket {self._name}; make it, or give another with --to")
        if f"<Code>{UNKNOWN}<" in said:
            return self._unconditional("does not know")
        if f"<Code>{EXPIRED}<" in said:
            return self._refusal(error)
        if any(sign in said for sign in ELSEWHERE):
            return ExperimentError(
                f"{self} is in another region: {_sentence(error)}; set AWS_REGION to the bucket's region"
            )
        if IDENTITY in said:
            return ExperimentError(f"no credentials for {self}; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
        what, advice = "does not answer", "check AWS_ENDPOINT_URL_S3, AWS_CA_BUNDLE and HTTPS_PROXY"
        if "<Code>" in said:
            what, advice = "failed", "the same command tries again"
        return AddressError(f"{self} {what}: {_sentence(error)}; {advice}")

    def _unconditional(self, does: str) -> ExperimentError:
        return ExperimentError(
            f"{self} {does} the conditions If-None-Match and If-Match of writes; use a newer store, or leave --to out"
        )


def _server() -> str:
    """Return the address of the server from the environment variables. If a variable has a value at which obstore would
    panic, raise ExperimentError.
    """
    for header in IN_HEADERS:
        if not PRINTABLE.fullmatch(os.environ.get(header, "unset")):
            raise ExperimentError(f"{header} is empty, or has a space or line break in it; correct it, or unset it")
    name = next((name for name in SERVER if name in os.environ), None)
    if name is None:
        return AWS
    server = os.environ[name]
    if "@" in server:  # the part before it may have a password, so it is not printed
        raise ExperimentError(
            f"{name} has a user name in its address; give an address such as https://s3.example.org, or unset it"
        )
    with suppress(ValueError):  # raised for a bad port
        parts = urlsplit(server)
        is_host = parts.scheme in {"http", "https"} and HOST.fullmatch(parts.hostname or "") and parts.port != 0
        if is_host and PRINTABLE.fullmatch(server):
            return server
    raise ExperimentError(f"{name} {server!r} is not an address; give one such as https://s3.example.org, or unset it")


@contextmanager
def temporary_file() -> Iterator[BufferedRandom]:
    """Open a temporary file, which is deleted when the block ends. Raises OutputError if the file cannot be written,
    for instance because the disk is full.
    """
    try:
        with TemporaryFile() as file:
            yield file
    except OSError as error:
        raise OutputError(
            f"cannot write to the folder for temporary files: {error.strerror}; free space, or name another in TMPDIR"
        ) from None


def _sentence(error: BaseException) -> str:
    """Return the server's own message about an error. If the server has sent no message, return the reason that obstore
    gives.
    """
    said, _, source = str(error).partition("\n\nDebug source")
    parts = re.findall(r"<(?:Code|Message)>([^<]*)<", said)
    if not parts:
        parts = [said.rpartition(" - ")[2], *re.findall(r'(?:message|error): "([^"]+)"', source)]
        parts += ["no answer in time"] if "TimedOut" in source else []
    return brief(", ".join(parts)).removesuffix(".")

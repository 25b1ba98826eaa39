from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Board(_message.Message):
    __slots__ = ("name", "cores", "memory_bytes", "processor", "data", "public_key", "most_runs")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CORES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    PROCESSOR_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_KEY_FIELD_NUMBER: _ClassVar[int]
    MOST_RUNS_FIELD_NUMBER: _ClassVar[int]
    name: str
    cores: int
    memory_bytes: int
    processor: str
    data: str
    public_key: bytes
    most_runs: int
    def __init__(self, name: _Optional[str] = ..., cores: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., processor: _Optional[str] = ..., data: _Optional[str] = ..., public_key: _Optional[bytes] = ..., most_runs: _Optional[int] = ...) -> None: ...

class BoardRun(_message.Message):
    __slots__ = ("offer_id", "state", "reason")
    OFFER_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    offer_id: str
    state: str
    reason: str
    def __init__(self, offer_id: _Optional[str] = ..., state: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class FetchOffersRequest(_message.Message):
    __slots__ = ("board", "runs", "known_version")
    BOARD_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    KNOWN_VERSION_FIELD_NUMBER: _ClassVar[int]
    board: Board
    runs: _containers.RepeatedCompositeFieldContainer[BoardRun]
    known_version: bytes
    def __init__(self, board: _Optional[_Union[Board, _Mapping]] = ..., runs: _Optional[_Iterable[_Union[BoardRun, _Mapping]]] = ..., known_version: _Optional[bytes] = ...) -> None: ...

class FetchOffersResponse(_message.Message):
    __slots__ = ("offers", "version")
    OFFERS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    offers: _containers.RepeatedCompositeFieldContainer[Offer]
    version: bytes
    def __init__(self, offers: _Optional[_Iterable[_Union[Offer, _Mapping]]] = ..., version: _Optional[bytes] = ...) -> None: ...

class Offer(_message.Message):
    __slots__ = ("offer_id", "experiment", "gps", "ca", "devices", "certificate")
    OFFER_ID_FIELD_NUMBER: _ClassVar[int]
    EXPERIMENT_FIELD_NUMBER: _ClassVar[int]
    GPS_FIELD_NUMBER: _ClassVar[int]
    CA_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    offer_id: str
    experiment: str
    gps: str
    ca: bytes
    devices: str
    certificate: bytes
    def __init__(self, offer_id: _Optional[str] = ..., experiment: _Optional[str] = ..., gps: _Optional[str] = ..., ca: _Optional[bytes] = ..., devices: _Optional[str] = ..., certificate: _Optional[bytes] = ...) -> None: ...

class FetchFleetRequest(_message.Message):
    __slots__ = ("known_version",)
    KNOWN_VERSION_FIELD_NUMBER: _ClassVar[int]
    known_version: bytes
    def __init__(self, known_version: _Optional[bytes] = ...) -> None: ...

class FetchFleetResponse(_message.Message):
    __slots__ = ("boards", "offers", "version")
    BOARDS_FIELD_NUMBER: _ClassVar[int]
    OFFERS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    boards: _containers.RepeatedCompositeFieldContainer[BoardState]
    offers: _containers.RepeatedCompositeFieldContainer[OfferState]
    version: bytes
    def __init__(self, boards: _Optional[_Iterable[_Union[BoardState, _Mapping]]] = ..., offers: _Optional[_Iterable[_Union[OfferState, _Mapping]]] = ..., version: _Optional[bytes] = ...) -> None: ...

class BoardState(_message.Message):
    __slots__ = ("board", "is_here", "runs")
    BOARD_FIELD_NUMBER: _ClassVar[int]
    IS_HERE_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    board: Board
    is_here: bool
    runs: _containers.RepeatedCompositeFieldContainer[BoardRun]
    def __init__(self, board: _Optional[_Union[Board, _Mapping]] = ..., is_here: _Optional[bool] = ..., runs: _Optional[_Iterable[_Union[BoardRun, _Mapping]]] = ...) -> None: ...

class OfferState(_message.Message):
    __slots__ = ("offer_id", "boards")
    OFFER_ID_FIELD_NUMBER: _ClassVar[int]
    BOARDS_FIELD_NUMBER: _ClassVar[int]
    offer_id: str
    boards: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, offer_id: _Optional[str] = ..., boards: _Optional[_Iterable[str]] = ...) -> None: ...

class OfferRunRequest(_message.Message):
    __slots__ = ("offer_id", "experiment", "gps", "ca", "loans")
    OFFER_ID_FIELD_NUMBER: _ClassVar[int]
    EXPERIMENT_FIELD_NUMBER: _ClassVar[int]
    GPS_FIELD_NUMBER: _ClassVar[int]
    CA_FIELD_NUMBER: _ClassVar[int]
    LOANS_FIELD_NUMBER: _ClassVar[int]
    offer_id: str
    experiment: str
    gps: str
    ca: bytes
    loans: _containers.RepeatedCompositeFieldContainer[Loan]
    def __init__(self, offer_id: _Optional[str] = ..., experiment: _Optional[str] = ..., gps: _Optional[str] = ..., ca: _Optional[bytes] = ..., loans: _Optional[_Iterable[_Union[Loan, _Mapping]]] = ...) -> None: ...

class Loan(_message.Message):
    __slots__ = ("board", "devices", "certificate")
    BOARD_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    board: str
    devices: str
    certificate: bytes
    def __init__(self, board: _Optional[str] = ..., devices: _Optional[str] = ..., certificate: _Optional[bytes] = ...) -> None: ...

class OfferRunResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WithdrawRunRequest(_message.Message):
    __slots__ = ("offer_id",)
    OFFER_ID_FIELD_NUMBER: _ClassVar[int]
    offer_id: str
    def __init__(self, offer_id: _Optional[str] = ...) -> None: ...

class WithdrawRunResponse(_message.Message):
    __slots__ = ("was_offered",)
    WAS_OFFERED_FIELD_NUMBER: _ClassVar[int]
    was_offered: bool
    def __init__(self, was_offered: _Optional[bool] = ...) -> None: ...

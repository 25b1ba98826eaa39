"""Convert answers to and from messages. An answer consists of small arrays with names, which are checked against their
question.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from fedstrata.errors import PayloadError, PluginError
from fedstrata.methods.base import Arrays, Question
from fedstrata.process.quoting import quoted, shown
from fedstrata.tensors import CHUNK_BYTES
from fedstrata.v1 import answers_pb2 as pb

DTYPES: Mapping[str, np.dtype[np.generic]] = {name: np.dtype(name) for name in ("float32", "float64", "int64")}
TOLD = "told"  # name of the arrays that the GPS sends to all devices
LARGEST_IN_A_ROUND = CHUNK_BYTES  # largest answer in a round, which is sent as one message


def answer_to_proto(question: Question, arrays: Arrays) -> pb.Answer:
    """Return an answer as a message. This function does not check the arrays, because the parent does. If the device
    stopped for an invalid array, the parent would wait for the device.
    """
    little = {name: np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<")) for name, array in arrays.items()}
    headers = [
        pb.ArrayHeader(name=name, dtype=arrays[name].dtype.name, shape=array.shape) for name, array in little.items()
    ]
    return pb.Answer(
        question=question.name, arrays=headers, data=b"".join(array.tobytes() for array in little.values())
    )


def arrays_of(question: Question, answer: pb.Answer) -> Arrays:
    """Return the arrays of an answer, read-only.

    Raises:
        PayloadError: the answer is to another question, has arrays that the question does not allow, or has a number
            that is not finite.
    """
    if answer.question != question.name:
        raise PayloadError(f"the answer is to {quoted(answer.question)}; expected an answer to {question.name}")
    expected = payload_bytes(question, answer.arrays)
    if len(answer.data) != expected:
        raise PayloadError(f"the answer to {question.name} has {len(answer.data)} bytes; expected {expected}")
    arrays, start = {}, 0
    for header in answer.arrays:
        dtype, count = DTYPES[header.dtype], math.prod(header.shape)
        array = np.frombuffer(answer.data, dtype.newbyteorder("<"), count, start).reshape(tuple(header.shape))
        if not np.isfinite(array).all():
            raise PayloadError(f"{header.name} in the answer to {question.name} has numbers that are not finite")
        arrays[header.name], start = array, start + array.nbytes
    return arrays


@contextmanager
def refused_by_method() -> Iterator[None]:
    """Execute a block in which a method checks an answer. If the user's own method fails in the block, raise
    PayloadError, so that only the device with this answer is refused.
    """
    try:
        yield
    except PluginError as error:
        raise PayloadError(str(error)) from error


def payload_bytes(question: Question, headers: Sequence[pb.ArrayHeader]) -> int:
    """Return the number of bytes of the announced arrays. Raises PayloadError if the question does not allow these
    arrays.
    """
    if [header.name for header in headers] != list(question.arrays):
        names = quoted(*(header.name for header in headers))
        raise PayloadError(f"the answer to {question.name} has arrays [{names}]; expected {list(question.arrays)}")
    total = 0
    for header in headers:
        dtype, most = question.arrays[header.name]
        shape = tuple(header.shape)
        has_fewer = len(shape) == len(most) > 0 and shape[1:] == most[1:] and 0 <= shape[0] < most[0]
        if header.dtype != dtype or not (shape == most or (question.fewer_rows and has_fewer)):
            raise PayloadError(
                f"the answer to {question.name} has {header.name} of {quoted(header.dtype)} and shape {shown(shape)}; "
                f"expected {dtype} and {'at most ' * question.fewer_rows}{most}; check the device's data and feature "
                "map"
            )
        total += math.prod(shape) * DTYPES[dtype].itemsize
    return total


def largest_bytes(question: Question) -> int:
    """Return the largest size of an answer's arrays in bytes."""
    return sum(math.prod(most) * DTYPES[dtype].itemsize for dtype, most in question.arrays.values())


def answer_parts(answer: pb.Answer, header: pb.AnswerHeader) -> Iterator[pb.AnswerPart]:
    """Yield the messages of an answer. `header` already names the device."""
    header.arrays.extend(answer.arrays)
    header.payload_bytes = len(answer.data)
    yield pb.AnswerPart(header=header, question=answer.question)
    for start in range(0, len(answer.data), CHUNK_BYTES):
        yield pb.AnswerPart(data=answer.data[start : start + CHUNK_BYTES], question=answer.question)


def question_named(questions: Iterable[Question], name: str) -> Question:
    """Return the question with this name. Raises PayloadError for an unknown name."""
    for question in questions:
        if question.name == name:
            return question
    raise PayloadError(f"no question is called {quoted(name)} in this run")


def bytes_of(answers: Mapping[int, pb.Answer]) -> int:
    """Return the total size of these answers as messages, in bytes."""
    return sum(answer.ByteSize() for answer in answers.values())

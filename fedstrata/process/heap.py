"""The C library's heap: what it keeps of the memory that comes and goes with every round.

A chunk of 1 MiB is several buffers on its way, a step of training a dozen. Given back to the kernel and asked for
again, each MiB costs 256 page faults, more than its bytes cost to send. Where the C library is not glibc there is
nothing to set, and both functions do nothing.
"""

import ctypes

# Of glibc's malloc.h: what is free at the end of the heap beyond this, and blocks from this size on, are given back.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
MIB = 1 << 20


def keep_for_chunks() -> None:
    """Let a server's heap keep chunks, but no models.

    All threads share one heap: in a heap of its own each keeps the largest chunks that ever passed through it.
    """
    _set({M_MMAP_THRESHOLD: 2 * MIB, M_TRIM_THRESHOLD: 8 * MIB, M_ARENA_MAX: 1})


def keep_for_training() -> None:
    """Let a device's heap keep the weights, gradients and inputs of a stack, too."""
    _set({M_MMAP_THRESHOLD: 8 * MIB, M_TRIM_THRESHOLD: 32 * MIB})


def _set(options: dict[int, int]) -> None:
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return
    for option, value in options.items():
        mallopt(option, value)

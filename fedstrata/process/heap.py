"""The C library's heap: how much freed memory a process keeps between rounds.

A chunk of 1 MiB takes several buffers on its way, and a step of training takes a dozen. If a MiB goes back to the
kernel and is requested again, it costs 256 page faults, which take longer than sending its bytes. With another C
library than glibc both functions do nothing.
"""

import ctypes

# Of glibc's malloc.h: what is free at the end of the heap beyond this, and blocks from this size on, are given back.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
MIB = 1 << 20


def keep_for_chunks() -> None:
    """Let a server's heap keep the freed memory of chunks, but not of models.

    All threads share one heap. With separate heaps, each thread would keep the largest chunks that it has ever handled.
    """
    _set({M_MMAP_THRESHOLD: 2 * MIB, M_TRIM_THRESHOLD: 8 * MIB, M_ARENA_MAX: 1})


def keep_for_training() -> None:
    """Let a device's heap keep the freed memory of chunks, and of the weights, gradients and inputs of a stack."""
    _set({M_MMAP_THRESHOLD: 8 * MIB, M_TRIM_THRESHOLD: 32 * MIB})


def _set(options: dict[int, int]) -> None:
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return
    for option, value in options.items():
        mallopt(option, value)

"""The heap of the C library: how much freed memory a process keeps for later use.

A chunk of 1 MiB takes several buffers, and a step of training a dozen. If a MiB goes back to the kernel and is
requested again, this costs 256 page faults, which take longer than sending the bytes. With another C library than glibc
both functions do nothing.
"""

import ctypes

# Of glibc's malloc.h: what is free at the end of the heap beyond this, and blocks from this size on, are given back.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
MIB = 1 << 20


def keep_for_chunks() -> None:
    """Let a server's heap keep the freed memory of chunks, but not of models.

    All threads use one heap. With separate heaps, each thread would keep as much memory as its largest chunks took.
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

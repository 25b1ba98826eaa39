"""The heap of the C library: how much freed memory a process keeps for later use.

Sending a chunk of 1 MiB needs several buffers, and a training step needs a dozen. If a freed MiB is returned to the
kernel and requested again, this costs 256 page faults. They take longer than sending the bytes. `keep_for_chunks` and
`keep_for_training` prevent this. If the C library is not glibc, they do nothing.
"""

import ctypes

# Options of glibc's mallopt: free memory above which the heap shrinks, size from which blocks are returned to the
# system, and number of arenas.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
MIB = 1 << 20


def keep_for_chunks() -> None:
    """Make a server's heap keep the freed memory of chunks, but not of models.

    All threads use one heap. If each thread had its own heap, each heap would keep the memory of the thread's largest
    chunks.
    """
    _set({M_MMAP_THRESHOLD: 2 * MIB, M_TRIM_THRESHOLD: 8 * MIB, M_ARENA_MAX: 1})


def keep_for_training() -> None:
    """Make the heap of a device process keep the freed memory of chunks. It also keeps the freed memory of weights,
    gradients and inputs of devices that are trained together (stacked).
    """
    _set({M_MMAP_THRESHOLD: 8 * MIB, M_TRIM_THRESHOLD: 32 * MIB})


def _set(options: dict[int, int]) -> None:
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return
    for option, value in options.items():
        mallopt(option, value)

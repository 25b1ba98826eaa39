"""The C library's heap in a process that passes chunks through gRPC's many threads."""

import ctypes

# Of glibc's malloc.h.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
# A chunk of 1 MiB is several buffers on its way. Given back to the kernel and asked for again, each costs 256 page
# faults, more than its bytes cost to send. So such buffers stay in the heap; only larger ones are given back at once.
KEPT_BYTES, LARGE_BYTES = 8 << 20, 2 << 20


def keep_chunks(*, in_one_arena: bool) -> None:
    """Let the heap keep the memory of chunks for the next ones.

    With `in_one_arena` all threads share one heap: in a heap of its own each keeps the largest chunks that ever passed
    through it. Where the C library is not glibc there is nothing to set.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return
    mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
    mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
    if in_one_arena:
        mallopt(M_ARENA_MAX, 1)

"""The C library's heap in a process that gRPC's many threads pass chunks through."""

import ctypes

M_ARENA_MAX = -8  # of glibc's malloc.h


def keep_one_arena() -> None:
    """Let threads share one heap: in a heap of its own each keeps the largest chunks that ever passed through it.

    Where the C library is not glibc there is nothing to set.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return
    mallopt(M_ARENA_MAX, 1)

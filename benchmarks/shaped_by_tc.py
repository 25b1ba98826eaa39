"""Transfers over a link that Linux shapes (`tc`, token bucket), timed as benchmarks/links.py times ours.

    unshare --net python -m benchmarks.shaped_by_tc

Needs root, `tc` and a network namespace of its own: it limits that namespace's loopback. Bytes go through plain TCP
sockets, one connection, each transfer after the other; expected is their bits divided by the rate.
"""

import argparse
import os
import socket
import statistics
import subprocess
import sys
import threading
import time

from benchmarks.links import cases_of

MTU, ASK = 1500, 8


def tc(*words: str) -> None:
    """Run `tc` or `ip`; ends the program with what it says where it fails."""
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(words)}: {done.stderr.strip()}")


def shape(mbit: float) -> None:
    """Limit loopback to so much, with as small a bucket as the rate allows: 10 ms of it, two packets at least."""
    burst = max(2 * MTU + 80, int(mbit * 1e6 / 8 * 0.01))
    wide = ["rate", f"{int(mbit * 1e6)}bit", "burst", str(burst), "latency", "400ms"]
    tc("tc", "qdisc", "replace", "dev", "lo", "root", "tbf", *wide)


def serve(listener: socket.socket) -> None:
    """Send as many bytes as each request of eight asks for."""
    connection, _ = listener.accept()
    with connection:
        while asked := connection.recv(ASK, socket.MSG_WAITALL):
            connection.sendall(bytes(int.from_bytes(asked, "big")))


def seconds_of(connection: socket.socket, size: int) -> float:
    """How long it takes from asking for so many bytes until the last is there."""
    began, left = time.monotonic(), size
    connection.sendall(size.to_bytes(ASK, "big"))
    while left:
        left -= len(connection.recv(min(left, 1 << 16)))
    return time.monotonic() - began


def main() -> None:
    """Print one line a rate."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mbit", type=float, nargs="+", default=[], help="these rates alone")
    options = parser.parse_args()
    if {name for _, name in socket.if_nameindex()} - {"lo"}:
        sys.exit("this limits loopback: start it with `unshare --net`, in a namespace that has nothing else")
    tc("ip", "link", "set", "lo", "up", "mtu", str(MTU))
    print(f"load average {', '.join(f'{each:.1f}' for each in os.getloadavg())}, {os.cpu_count()} cores")
    print("one link by tc tbf   expected      median error          worst")
    for mbit, seconds in cases_of(options.mbit):
        shape(mbit)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            threading.Thread(target=serve, args=(listener,), daemon=True).start()
            with socket.create_connection(listener.getsockname()) as connection:
                size = int(mbit * 1e6 * seconds / 8)
                missed = [1000 * (seconds_of(connection, size) - seconds) for _ in range(options.rounds)]
        middle, worst = statistics.median(missed), max(missed, key=abs)
        share = f"{middle / seconds / 10:+.2f} %"
        print(f"{mbit:>6g} Mbit/s {1000 * seconds:>12.1f} ms {middle:>+8.2f} ms {share:>9} {worst:>+9.2f} ms")


if __name__ == "__main__":
    main()

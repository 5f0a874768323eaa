"""Who is at the other end of a guest's network cards: a process that sends, in a network namespace that has nothing else.

guest.py starts it as `unshare --net python3 source.py QUEUES...`, a number for each card. It makes the taps that QEMU takes, says
so, and sends to whoever connects to PORT of any of its addresses: zeros, as many bytes a second as the first line that it is sent says (0: as
fast as they are taken). It also forwards packets from card to card. The namespace, with all that is in it, goes with it and QEMU.
"""

import contextlib
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

PORT = 7600
READY = "ready\n"
CHUNK = bytes(64 << 10)


def tap(card: int) -> str:
    """The name of a card's tap."""
    return f"net{card}"


def address(card: int) -> str:
    """Where a card's source is. The guest's address ends in 2 (guest/init)."""
    return f"10.76.{card}.1"


def mac(card: int) -> str:
    """A card's own address, by which the guest knows it."""
    return f"52:54:00:76:00:{card:02x}"


def make_tap(card: int, queues: int) -> None:
    """A tap that is up. It has to be of several queues if and only if QEMU opens several."""
    kind = ["multi_queue"] if queues > 1 else []
    for words in (
        ["tuntap", "add", "dev", tap(card), "mode", "tap", *kind],
        ["address", "add", f"{address(card)}/24", "dev", tap(card)],
        ["link", "set", tap(card), "up"],
    ):
        subprocess.run(["ip", *words], check=True)


def serve(connection: socket.socket) -> None:
    """Sends until the other end has enough."""
    with connection, contextlib.suppress(ConnectionError):
        with connection.makefile("r") as asked:
            rate = int(asked.readline() or 0)
        begin, sent = time.monotonic(), 0
        while True:
            connection.sendall(CHUNK)
            sent += len(CHUNK)
            if rate:
                time.sleep(max(0.0, begin + sent / rate - time.monotonic()))


def main(queues: list[int]) -> None:
    """For ever."""
    # This namespace's alone.
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    for card, count in enumerate(queues):
        make_tap(card, count)
    with socket.create_server(("", PORT)) as server:
        print(READY, end="", flush=True)
        while True:
            threading.Thread(target=serve, args=[server.accept()[0]], daemon=True).start()


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]])

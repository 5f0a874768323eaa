"""Writes to a Redis server until it is gone; or checks what it kept.

    redis_writer.py write SOCKET   prints the number of the last write that the server confirmed
    redis_writer.py check SOCKET N   checks that writes 0 to N are there, and at most one more
"""

import hashlib
import socket
import sys


def value(key):
    """Bytes that the key alone decides, a few to some thousands."""
    digest = hashlib.sha256(str(key).encode()).hexdigest()
    return (digest * (1 + key * 7919 % 60)).encode()


class Server:
    """One connection, by a unix socket."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.file = self.socket.makefile("rb")

    def ask(self, *words):
        """The answer to a command: an error is raised, the end of the connection is EOFError."""
        parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        request = b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)
        self.socket.sendall(request)
        line = self.file.readline()
        if not line.endswith(b"\r\n"):
            raise EOFError
        kind, rest = line[:1], line[1:-2]
        if kind == b"-":
            raise RuntimeError(rest.decode())
        if kind != b"$":
            return rest
        if rest == b"-1":
            return None
        bulk = self.file.read(int(rest) + 2)
        return bulk[:-2]


def write(path):
    server = Server(path)
    confirmed = -1
    try:
        while True:
            assert server.ask("SET", f"key:{confirmed + 1}", value(confirmed + 1)) == b"OK"
            confirmed += 1
    except (EOFError, OSError):
        print(confirmed)


def check(path, confirmed):
    server = Server(path)
    assert confirmed > 0, "no write was confirmed"
    for key in range(confirmed + 1):
        found = server.ask("GET", f"key:{key}")
        assert found == value(key), f"key {key}: {'lost' if found is None else 'other bytes'}"
    count = int(server.ask("DBSIZE"))
    assert count in (confirmed + 1, confirmed + 2), f"{count} keys after {confirmed + 1} confirmed writes"


if sys.argv[1] == "write":
    write(sys.argv[2])
else:
    check(sys.argv[2], int(sys.argv[3]))

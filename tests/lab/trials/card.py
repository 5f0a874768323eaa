"""What the kernel tells of a network card, by ioctl: its numbers of queues, and how it spreads packets over them."""

import array
import errno
import fcntl
import socket
import struct

SIOCETHTOOL = 0x8946
GET_QUEUES, SET_QUEUES, SET_TABLE, GET_SPREAD = 0x3C, 0x3D, 0x39, 0x46
# struct ethtool_rxfh before the table: command, context, entries, bytes of key, and what of the hash is no matter here.
HEAD = struct.Struct("=IIIIII")


def ask(card: str, request: bytes) -> bytes | None:
    """The kernel's answer, in place of the request; none where the card's driver does not know it."""
    words = array.array("B", request)
    pointer = struct.pack("16sP", card.encode(), words.buffer_info()[0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            fcntl.ioctl(any_socket, SIOCETHTOOL, pointer)
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            return None
    return words.tobytes()


def queues(card: str) -> tuple[int, ...] | None:
    """How many it has: receive, transmit, other, combined."""
    answer = ask(card, struct.pack("=9I", GET_QUEUES, *[0] * 8))
    return answer and struct.unpack("=9I", answer)[5:]


def spread(card: str) -> bytes | None:
    """Everything that is set of how it spreads packets, as the kernel has it: sizes, hash, table and key."""
    head = ask(card, HEAD.pack(GET_SPREAD, *[0] * 5))
    if head is None:
        return None
    entries, key_bytes = HEAD.unpack(head)[2:4]
    return ask(card, HEAD.pack(GET_SPREAD, 0, entries, key_bytes, 0, 0) + bytes(4 * entries + key_bytes))


def table(card: str) -> list[int]:
    """The queue of each entry of the table by which it spreads packets."""
    told = spread(card)
    return list(struct.unpack_from(f"={HEAD.unpack_from(told)[2]}I", told, HEAD.size))


def set_queues(card: str, combined: int) -> None:
    """As `ethtool -L`."""
    ask(card, struct.pack("=9I", SET_QUEUES, *[0] * 7, combined))


def set_table(card: str, entries: list[int]) -> None:
    """As `ethtool -X`; with no entries the table is as if nobody had set it."""
    ask(card, struct.pack(f"={2 + len(entries)}I", SET_TABLE, len(entries), *entries))

"""Whether this machine's kernel stamps what arrives: Linux does, some sandboxes that look like it do not."""

import socket
import sys
import time
from functools import cache

from cadenza.load.sockets import SocketTransport
from cadenza.load.stamps import ANCILLARY_BYTES, ask_for_stamps

# The kernel turns stamping on a moment after the first socket asks.
WARM_NS = 100_000_000


@cache
def kernel_stamps() -> bool:
    """Tried on a loopback connection, for up to a second."""
    if not sys.platform.startswith("linux"):
        return False
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as here,
        listener.accept()[0] as there,
    ):
        if not ask_for_stamps(here):
            return False
        for _ in range(100):
            there.send(b"x")
            if here.recvmsg(16, ANCILLARY_BYTES)[1]:
                return True
            time.sleep(0.01)
    return False


def warmed(transport: SocketTransport) -> SocketTransport:
    """`transport`, when stamping is on."""
    transport.poll(transport.clock.now_ns() + WARM_NS)
    return transport

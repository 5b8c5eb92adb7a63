"""How much the sockets between our processes hold. Never says what is sent on them."""

import socket

BUFFER_BYTES = 1 << 19

# SO_SNDBUFFORCE and SO_RCVBUFFORCE, by which root goes beyond the system's limit.
_FORCE = {socket.SO_SNDBUF: 32, socket.SO_RCVBUF: 33}


def widen(sock: socket.socket) -> None:
    """Let `sock` hold a few large frames, so that both ends work at once. As much as the system allows, if not root.

    The kernel's default of 208 KiB is less than one frame: each would cost its sender and its reader several wake-ups.
    """
    for option, force in _FORCE.items():
        try:
            sock.setsockopt(socket.SOL_SOCKET, force, BUFFER_BYTES)
        except PermissionError:
            sock.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)

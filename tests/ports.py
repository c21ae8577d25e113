"""Ports for what tests start."""

import contextlib
import random
import socket


def unused(distances=(0,)):
    """Ports of 127.0.0.1 at these distances from each other that nobody listens on.

    They lie below the kernel's range for outgoing connections and port 0 (ip_local_port_range, from 32768): no other
    socket takes them before the server does, and a client that tries too early cannot be connected to itself.
    """
    while True:
        base = random.SystemRandom().randrange(12_000, 32_000)
        with contextlib.ExitStack() as stack:
            try:
                for distance in distances:
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", base + distance))
            except OSError:
                continue
            return [base + distance for distance in distances]

"""Finds out what a port speaks that does not answer as a broker of Kafka does in clear text."""

import socket
import ssl
from contextlib import suppress

_SECONDS = 2.0


def spoken(brokers: str) -> str:
    """Return which of ``brokers`` speaks TLS or HTTP, and what to do; empty if none is seen to."""
    for broker in brokers.split(","):
        host, _, port = broker.rpartition("://")[2].strip().rpartition(":")
        if not port.isdigit():
            continue
        address = (host.strip("[]"), int(port))
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with suppress(OSError), socket.create_connection(address, _SECONDS) as plain:
            with suppress(OSError), context.wrap_socket(plain):
                return f"{broker} speaks TLS: set `security.protocol: ssl`, or `sasl_ssl`, in `kafka.producer`"
            with socket.create_connection(address, _SECONDS) as another:
                another.sendall(b"GET / HTTP/1.0\r\n\r\n")
                if another.recv(5) == b"HTTP/":
                    return f"{broker} speaks HTTP, so it is not a broker of Kafka: correct `kafka.bootstrap_servers`"
    return ""

"""Finds out which protocol a port speaks if it does not answer like a Kafka broker in clear text."""

import socket
import ssl
from contextlib import suppress

_SECONDS = 2.0


def spoken(brokers: str) -> str:
    """Return which of ``brokers`` speaks TLS or another protocol, and what to do; empty if none seems to."""
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
                if answer := another.recv(5):  # a broker closes the connection
                    what = "HTTP" if answer == b"HTTP/" else "another protocol"
                    return f"{broker} speaks {what}, so it is not a Kafka broker: correct `kafka.bootstrap_servers`"
    return ""

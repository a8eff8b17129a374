"""Which lines of librdkafka's log say that a connection has failed that may have carried a request."""

from __future__ import annotations

import logging

import pytest

from relay.kafka.publisher import ConnectionLog

_FAILED = "%s [%s] %s"


@pytest.mark.parametrize(
    ("kind", "text", "has_failed"),
    [
        ("FAIL", "b/1: Disconnected: connection closed by peer (after 8272ms in state UP)", True),
        ("REQTMOUT", "TxnCoordinator/1: Timed out EndTxnRequest in flight (after 60001ms, timeout #0)", True),
        ("FAIL", "b/1: Disconnected (after 3ms in state REAUTH)", True),
        ("FAIL", "b/1: in words that no version has used so far", True),
        ("FAIL", "b/1: Connect to ipv4#127.0.0.1:1 failed: Connection refused (after 0ms in state CONNECT)", False),
        ("FAIL", "b/bootstrap: Failed to resolve 'b:9092' (after 4ms in state TRY_CONNECT)", False),
        ("GETPID", "b/1: Failed to acquire transactional PID (after 3ms in state UP)", False),
    ],
)
def test_a_connection_has_failed_unless_it_is_known_to_have_carried_nothing(
    kind: str, text: str, has_failed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """I3, I5"""
    lines = ConnectionLog(logging.getLogger("relay.test"))
    lines.log(logging.WARNING, _FAILED, kind, "rdkafka#producer-1", text)
    assert lines.has_failed == has_failed
    assert text in caplog.text
    lines.log(logging.INFO, _FAILED, "OTHER", "rdkafka#producer-1", "all is well")
    assert lines.has_failed == has_failed

"""Lean calls as bytes: requests that botocore would send, and answers of every form."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from botocore import UNSIGNED
from botocore.auth import AUTH_TYPE_MAPS, SigV4Auth

from relay.config import DynamoDBConfig
from relay.dynamodb.describe import TableCalls
from relay.dynamodb.stream_calls import StreamSession, Transient
from tests.certificates import Authority
from tests.dynamodb.endpoint import ARN, TABLE
from tests.dynamodb.written_answers import WrittenAnswers

BODY = '{"Records":[],"NextShardIterator":"next"}'
LENGTH = f"Content-Length: {len(BODY)}\r\n"
USUAL = ["HTTP/1.1 200 OK\r\nContent-Type: application/x-amz-json-1.0\r\n", LENGTH, "\r\n", BODY]
LONG = '{"Records":[],"NextShardIterator":"' + 300_000 * "n" + '"}'
LEAN = {
    "in parts": ["HTTP/1.1 200 ", f"OK\r\n{LENGTH[:20]}", f"{LENGTH[20:]}\r", "\n" + BODY[:5], BODY[5:]],
    "in other letters": [f"HTTP/1.1 200 \r\ncontent-length:{len(BODY)}\r\nX: a: b\r\n\r\n", BODY],
    "long": [f"HTTP/1.1 200 OK\r\nContent-Length: {len(LONG)}\r\n\r\n", LONG],
    "the last of its connection": [f"HTTP/1.1 200 OK\r\n{LENGTH}Connection: Close\r\n\r\n", BODY, ""],
    "of an old protocol": ["HTTP/1.0 200 OK\r\n", LENGTH, "\r\n", BODY, ""],
    "without a reason": [f"HTTP/1.1 200\r\n{LENGTH}\r\n", BODY],
    "announced": [f"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n{LENGTH}\r\n", BODY],
    "with its checksum": [f"HTTP/1.1 200 OK\r\nx-amz-crc32: {crc32(BODY.encode())}\r\n{LENGTH}\r\n", BODY],
}
DAMAGED = [f"HTTP/1.1 200 OK\r\nx-amz-crc32: {crc32(BODY.encode())}\r\n{LENGTH}\r\n", BODY.replace("next", "nexu")]
LEFT = {
    "in chunks": [f"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{len(BODY):x}\r\n{BODY}\r\n0\r\n\r\n"],
    "in chunks with a length": [f"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n{LENGTH}\r\n0\r\n\r\n"],
    "without a length": ["HTTP/1.1 200 OK\r\n\r\n", BODY, ""],
    "cut in its body": ["HTTP/1.1 200 OK\r\n", LENGTH, "\r\n", BODY[:-1], ""],
    "cut in its head": ["HTTP/1.1 200 OK\r\n", LENGTH, ""],
    "with a length that is not a number": ["HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", ""],
    "with a negative length": ["HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\n", ""],
    "with a line without an end": ["HTTP/1.1 200 OK\r\nX: " + 70_000 * "x", ""],
    "nothing": [""],
    "not HTTP": ["nonsense\r\n\r\n", ""],
    "another success": ["HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n", ""],
    "a failure": ["HTTP/1.1 500 Oops\r\nContent-Length: 2\r\n\r\n{}"],
    "with the checksum of another": DAMAGED,
}


class Calls:
    """Calls of one client. ``whole``: how many of them botocore has made."""

    def __init__(self, server: WrittenAnswers, scheme: str = "http") -> None:
        self.server = server
        place: dict[str, Any] = {"endpoint_url": f"{scheme}://{server.address}", "region": "us-east-1"}
        self._table = TableCalls(DynamoDBConfig(name="orders", type="dynamodb", table=TABLE, **place))
        streams = self._table.streams
        self.session = StreamSession(streams, ARN)
        self.whole = 0
        streams.meta.events.register("before-call.dynamodb-streams.GetRecords", self._count)

    def _count(self, **_: Any) -> None:
        self.whole += 1

    def __call__(self) -> str | None:
        """Return the next iterator."""
        records, following = self.session.records("iterator")
        assert records == []
        return following

    def close(self) -> None:
        self._table.close()


Serve = Callable[..., Calls]


@pytest.fixture
def serve() -> Iterator[Serve]:
    with ExitStack() as stack:

        def begin(answers: Iterable[list[str]], *, scheme: str = "http", certificate: Path | None = None) -> Calls:
            calls = Calls(stack.enter_context(WrittenAnswers(answers, certificate)), scheme)
            stack.callback(calls.close)
            return calls

        yield begin


def headers(head: str) -> dict[str, str]:
    """Return the headers of a request, without those of botocore's retries, and the values that time changes."""
    first, *lines = head.splitlines()
    found = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    assert len(found) == len(lines)
    for name in ("amz-sdk-invocation-id", "amz-sdk-request"):
        found.pop(name, None)
    found["authorization"] = found["authorization"].partition("Signature=")[0]
    found["x-amz-date"] = found["x-amz-date"][:8]
    assert found.pop("content-length")  # botocore writes JSON with spaces
    return {"": first, **found}


def test_a_lean_request_has_the_headers_of_botocores(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token")
    calls = serve([USUAL, USUAL])
    calls()
    calls()
    assert calls.whole == 1
    first, second = calls.server.heads
    assert headers(second) == headers(first)


@pytest.mark.parametrize("answer", LEAN.values(), ids=LEAN)
def test_an_answer_of_a_usual_form_is_read(serve: Serve, answer: list[str]) -> None:
    calls = serve([USUAL, answer, USUAL])
    calls()
    assert calls() == (LONG[35:-2] if LONG in answer else "next")
    assert calls.whole == 1
    assert calls() == "next"
    assert len(calls.server.heads) == 3


@pytest.mark.parametrize("answer", LEFT.values(), ids=LEFT)
def test_after_another_answer_botocore_asks_again(serve: Serve, answer: list[str]) -> None:
    """I1: an answer that was cut is not taken for an empty page."""
    calls = serve([USUAL, answer, USUAL, USUAL])
    calls()
    assert calls() == "next"
    assert (calls.whole, len(calls.server.heads)) == (2, 3)
    assert calls() == "next"
    assert calls.whole == 2


def test_a_damaged_answer_is_not_read_where_botocore_has_made_the_call(serve: Serve) -> None:
    """I8: botocore compares the checksums of answers about tables, not of those about streams."""
    calls = serve([DAMAGED, USUAL])
    with pytest.raises(Transient, match="checksum"):
        calls()
    assert calls() == "next"


def test_a_connection_that_the_server_has_closed_is_opened_again_and_counts_as_no_failure(serve: Serve) -> None:
    calls = serve([[*USUAL, ""], USUAL, USUAL])
    calls()
    assert calls.server.closed.wait(120)
    assert [calls(), calls()] == ["next", "next"]
    assert (calls.whole, len(calls.server.heads)) == (2, 3)


def test_calls_go_on_where_botocore_keeps_its_connections_elsewhere(serve: Serve) -> None:
    calls = serve([USUAL] * 3)
    client: Any = calls.session.client
    http = client._endpoint.http_session
    del http._proxy_config
    client._endpoint.http_session = type(http)()
    assert [calls() for _ in range(3)] == ["next"] * 3
    assert calls.whole == 3


def test_new_credentials_are_used_at_once(serve: Serve) -> None:
    calls = serve([USUAL] * 3)
    client: Any = calls.session.client
    calls()
    for key in ("one", "two"):
        client._request_signer._credentials.access_key = key
        calls()
        assert f"Credential={key}/" in calls.server.heads[-1]
    assert calls.whole == 1


def test_calls_are_lean_where_botocore_signs_with_another_class(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the package awscrt it does so, by the same rules."""

    class OtherSigner(SigV4Auth):
        pass

    monkeypatch.setitem(AUTH_TYPE_MAPS, "v4", OtherSigner)
    calls = serve([USUAL] * 2)
    assert [calls() for _ in range(2)] == ["next"] * 2
    assert calls.whole == 1
    first, second = calls.server.heads
    assert headers(second) == headers(first)


def test_calls_that_are_signed_by_other_rules_are_botocores(serve: Serve) -> None:
    calls = serve([USUAL] * 2)
    client: Any = calls.session.client
    client._request_signer._signature_version = UNSIGNED
    client.meta.events.register("choose-signer.dynamodb-streams.GetRecords", lambda **_: UNSIGNED)
    assert [calls() for _ in range(2)] == ["next"] * 2
    assert calls.whole == 2
    assert all("authorization" not in head.lower() for head in calls.server.heads)


def test_calls_are_lean_over_tls(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority(tmp_path)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(authority.ca))
    calls = serve([USUAL, LEAN["long"], USUAL], scheme="https", certificate=authority.issue("server"))
    assert [calls(), calls(), calls()] == ["next", LONG[35:-2], "next"]
    assert calls.whole == 1


def test_a_server_that_the_authority_did_not_certify_gets_no_call(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    monkeypatch.setenv("AWS_CA_BUNDLE", str(Authority(tmp_path / "other").ca))
    calls = serve([USUAL], scheme="https", certificate=Authority(tmp_path).issue("server"))
    with pytest.raises(Transient, match="certificate verify failed"):
        calls()
    assert calls.server.heads == []


def test_calls_over_tls_are_lean_through_a_proxy(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority(tmp_path)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(authority.ca))
    with WrittenAnswers([USUAL] * 3, authority.issue("proxy")) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://{proxy.address}")
        calls = serve([], scheme="https", certificate=authority.issue("server"))
        assert [calls() for _ in range(3)] == ["next"] * 3
        assert calls.whole == 1
        assert len(proxy.tunnels) == 1
        assert len(proxy.heads) == 3
        assert calls.server.heads == []


def test_a_proxy_for_plain_http_gets_botocores_calls(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    with WrittenAnswers([USUAL] * 2) as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://{proxy.address}")
        calls = serve([])
        assert [calls() for _ in range(2)] == ["next"] * 2
        assert calls.whole == 2
        assert all(head.startswith(f"POST http://{calls.server.address}/ ") for head in proxy.heads)

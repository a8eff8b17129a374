"""Signed requests, compared with botocore's signer."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import ReadOnlyCredentials
from hypothesis import given
from hypothesis import strategies as st

from relay.dynamodb.lean_calls import RequestForm

HOSTS = st.one_of(
    st.from_regex(r"[a-z][a-z0-9.-]{0,20}[a-z]", fullmatch=True),
    st.sampled_from(["127.0.0.1", "[::1]", "[2001:db8::7]", "Streams.DynamoDB.example"]),
)
URLS = st.builds(
    "{}://{}{}{}".format,
    st.sampled_from(["http", "https"]),
    HOSTS,
    st.sampled_from(["", ":80", ":443", ":8000"]),
    st.sampled_from(["", "/"]),
)
TEXT = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=30)
CREDENTIALS = st.builds(ReadOnlyCredentials, TEXT, TEXT, st.none() | TEXT)
HEADERS = st.fixed_dictionaries(
    {
        "X-Amz-Target": st.just("DynamoDBStreams_20120810.GetRecords"),
        "Content-Type": st.just("application/x-amz-json-1.0"),
        "User-Agent": TEXT,
    },
    optional={"X-Amz-Other": st.from_regex(r"[a-z] {0,3}[a-z]", fullmatch=True), "x-amz-a": TEXT},
)
TIMES = st.integers(0, 4_000_000_000).map(float)


def head_of(request: bytes) -> tuple[str, dict[str, str], bytes]:
    """Return the first line, the headers and the body of a request."""
    head, _, body = request.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    assert len(headers) == len(lines)
    return first, headers, body


def signed_by_botocore(
    url: str, headers: dict[str, str], body: bytes, credentials: ReadOnlyCredentials, region: str, now: float
) -> dict[str, str]:
    """Return the headers with which botocore sends the request."""
    request = AWSRequest("POST", url, headers, body)
    signer: Any = SigV4Auth(credentials, "dynamodb", region)
    # The steps of `add_auth`, at a time of our own.
    request.context["timestamp"] = datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%SZ")
    signer._modify_request_before_signing(request)
    text = signer.string_to_sign(request, signer.canonical_request(request))
    signer._inject_signature_to_request(request, signer.signature(text, request))
    return dict(request.prepare().headers.items())


@given(URLS, HEADERS, st.binary(min_size=1), CREDENTIALS, st.sampled_from(["us-east-1", "eu-west-1"]), TIMES)
def test_a_request_has_the_signature_of_botocore(
    url: str, headers: dict[str, str], body: bytes, credentials: ReadOnlyCredentials, region: str, now: float
) -> None:
    form = RequestForm(url, headers, region=region, service="dynamodb", clock=lambda: now)
    first, sent, rest = head_of(form.request(body, credentials))
    assert (first, rest) == ("POST / HTTP/1.1", body)
    assert sent.pop("Host") == form.host
    assert sent.pop("Accept-Encoding") == "identity"
    assert sent == signed_by_botocore(url, headers, body, credentials, region, now)


@given(st.lists(st.tuples(st.binary(min_size=1), st.sampled_from("ab"), st.sampled_from([None, "t", "u"]), TIMES)))
def test_each_request_is_signed_with_its_own_body_credentials_and_time(
    calls: list[tuple[bytes, str, str | None, float]],
) -> None:
    now = 0.0
    url, headers = "http://localhost:8000/", {"X-Amz-Target": "GetRecords"}
    form = RequestForm(url, headers, region="us-east-1", service="dynamodb", clock=lambda: now)
    for body, secret, token, at in calls:
        now = at
        credentials = ReadOnlyCredentials("key", secret, token)
        _, sent, _ = head_of(form.request(body, credentials))
        theirs = signed_by_botocore(url, headers, body, credentials, "us-east-1", now)
        assert sent["Authorization"] == theirs["Authorization"]
        assert sent.get("X-Amz-Security-Token") == theirs.get("X-Amz-Security-Token")

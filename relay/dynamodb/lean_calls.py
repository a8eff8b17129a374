"""Calls GetRecords with botocore's signer and connections. The rest of botocore would take as much CPU again.

An idle shard is asked all the time, so such calls are most of what a worker with many idle shards does. Only a call
that succeeds at once is made this way. After anything else botocore makes the call as if it were the first, so errors,
retries and their pauses are botocore's. Such a call has one try more than botocore's own, without a pause after it.

This relies on two behaviours of botocore (botocore/client.py): before a client makes a call, it emits
``before-call.<service>.<operation>`` with the request and the signer, and ``_endpoint.http_session`` sends its
requests, through the proxy, with the certificates and within the time that its config and the environment say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
from botocore.awsrequest import AWSRequest
from botocore.exceptions import BotoCoreError

from relay.dynamodb.raw_records import read_answer

if TYPE_CHECKING:
    from types_boto3_dynamodbstreams import DynamoDBStreamsClient

_EVENT = "before-call.dynamodb-streams.GetRecords"


def make_calls_lean(client: DynamoDBStreamsClient) -> None:
    """Make ``client.get_records`` lean. It returns raw records and no ``ResponseMetadata``; threads may share it.

    A botocore that keeps its connections elsewhere makes all calls itself.
    """
    if hasattr(getattr(client, "_endpoint", None), "http_session"):
        client.get_records = _LeanCalls(client)  # type: ignore[method-assign]


class _LeanCalls:
    def __init__(self, client: Any) -> None:
        self._call = client.get_records
        self._http = client._endpoint.http_session
        self._scope = client.meta.service_model.signing_name, client.meta.region_name
        # URL, headers and signer of botocore's last request: lean calls repeat them.
        self._form: tuple[str, dict[str, str], Any] | None = None
        client.meta.events.register(_EVENT, self._learn, unique_id="relay-lean")

    def __call__(self, **arguments: Any) -> Any:
        body = self._send(orjson.dumps(arguments))
        return self._call(**arguments) if body is None else read_answer(body)

    def _learn(self, params: dict[str, Any], request_signer: Any, **_: Any) -> None:
        self._form = params["url"], dict(params["headers"]), request_signer

    def _send(self, body: bytes) -> bytes | None:
        """Return the body of a good answer, otherwise None. Raises ``relay.aws.Refused`` as botocore's call would."""
        if self._form is None:
            return None
        url, headers, signer = self._form
        request = AWSRequest("POST", url, headers, body)
        try:
            signer.get_auth(*self._scope).add_auth(request)  # with new credentials if the old ones expire soon
            answer = self._http.send(request.prepare())
            return answer.content if answer.status_code == 200 else None
        except BotoCoreError:
            return None

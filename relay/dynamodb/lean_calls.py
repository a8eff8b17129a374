"""Calls GetRecords with botocore's signer and connections. The rest of botocore would take as much CPU again.

An idle shard is asked all the time, so such calls are most of what a worker with many idle shards does. Only a call
that succeeds at once is made this way. After anything else botocore makes the call as if it were the first, and some
after it, so errors, retries and their pauses are botocore's, and good calls earn it new retries. A call that fails has
one try more than botocore's own, without a pause after it.

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
_LEFT_TO_BOTOCORE = 30
"""Calls after one that failed. Retries of a call take at most 28 of botocore's 500 tokens; a good call returns one."""


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
        self._left_to_botocore = 0  # roughly, if threads count at the same time
        # URL, headers and signer of botocore's last request: lean calls repeat them.
        self._form: tuple[str, dict[str, str], Any] | None = None
        client.meta.events.register(_EVENT, self._learn, unique_id="relay-lean")

    def __call__(self, **arguments: Any) -> Any:
        if self._left_to_botocore > 0:
            self._left_to_botocore -= 1
            return self._call(**arguments)
        if (body := self._send(orjson.dumps(arguments))) is not None:
            return read_answer(body)
        if self._form is not None:
            self._left_to_botocore = _LEFT_TO_BOTOCORE
        return self._call(**arguments)

    def _learn(self, params: dict[str, Any], request_signer: Any, **_: Any) -> None:
        self._form = params["url"], dict(params["headers"]), request_signer

    def _send(self, body: bytes) -> bytes | None:
        """Return the body of a good answer, otherwise None. Raises ``relay.aws.Refused`` as botocore's call would."""
        if self._form is None:
            return None
        url, headers, signer = self._form
        request = AWSRequest("POST", url, headers, body)
        try:
            # With new credentials if the old ones expire soon.
            signer.get_auth(signer.signing_name, signer.region_name).add_auth(request)
            answer = self._http.send(request.prepare())
            return answer.content if answer.status_code == 200 else None
        except BotoCoreError:
            return None

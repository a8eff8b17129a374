"""A stand-in for AWS: moto, as a server that checks who may do what. STS, IAM and DynamoDB answer at one address.

moto is imported where it is used, or each process that collects the tests would do it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.request import Request, urlopen

import boto3

REGION = "eu-west-1"
ACCOUNT = "123456789012"


@dataclass(frozen=True, slots=True)
class Keys:
    """What a user signs with."""

    access_key: str
    secret_key: str

    @property
    def environment(self) -> dict[str, str]:
        return {"AWS_ACCESS_KEY_ID": self.access_key, "AWS_SECRET_ACCESS_KEY": self.secret_key}


@dataclass(frozen=True, slots=True)
class AwsServer:
    url: str
    administrator: Keys

    def client(self, service: str, keys: Keys | None = None) -> Any:
        who = keys or self.administrator
        return boto3.client(  # type: ignore[call-overload]
            service,
            region_name=REGION,
            endpoint_url=self.url,
            aws_access_key_id=who.access_key,
            aws_secret_access_key=who.secret_key,
        )

    def user(self, name: str, *actions: str) -> Keys:
        """Create a user who may do nothing but ``actions``."""
        iam = self.client("iam")
        iam.create_user(UserName=name)
        if actions:
            iam.put_user_policy(UserName=name, PolicyName="may", PolicyDocument=_allow(actions))
        key = iam.create_access_key(UserName=name)["AccessKey"]
        iam.close()
        return Keys(key["AccessKeyId"], key["SecretAccessKey"])

    def role(self, name: str, *actions: str, external_id: str = "") -> str:
        """Create a role that may do nothing but ``actions``, and return its ARN. It trusts all, or who names the id."""
        iam = self.client("iam")
        trusted: dict[str, Any] = {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"AWS": "*"}}
        if external_id:
            trusted["Condition"] = {"StringEquals": {"sts:ExternalId": external_id}}
        trust = json.dumps({"Version": "2012-10-17", "Statement": [trusted]})
        role = iam.create_role(RoleName=name, AssumeRolePolicyDocument=trust)["Role"]
        if actions:
            iam.put_role_policy(RoleName=name, PolicyName="may", PolicyDocument=_allow(actions))
        iam.close()
        return str(role["Arn"])

    def secret_of(self, access_key: str) -> tuple[str, str]:
        """Return the secret and the session token of credentials that STS has given for a role."""
        from moto.sts.models import sts_backends

        role = sts_backends[ACCOUNT]["aws"].get_assumed_role_from_access_key(access_key)
        if role is None:
            raise PermissionError(f"no role has the access key {access_key}")
        return role.secret_access_key, role.session_token


def _allow(actions: tuple[str, ...]) -> str:
    statement = {"Effect": "Allow", "Action": list(actions), "Resource": "*"}
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})


@contextmanager
def running() -> Iterator[AwsServer]:
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # or it prints a line for each request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        url = f"http://{host}:{port}"
        aws = AwsServer(url, AwsServer(url, Keys("first", "first")).user("administrator", "*"))
        _ask(url, "reset-auth", b"0")  # from here on, moto checks signatures and policies
        yield aws
        _ask(url, "reset-auth", b"inf")
        _ask(url, "reset")
    finally:
        server.stop()


def _ask(url: str, what: str, body: bytes = b"") -> None:
    request = Request(f"{url}/moto-api/{what}", data=body, headers={"Content-Type": "text/plain"}, method="POST")
    with urlopen(request, timeout=60) as answer:
        assert answer.status == 200

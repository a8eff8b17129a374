"""A DynamoDB endpoint in its own process that answers at once, so benchmarks measure only the client."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from multiprocessing.connection import Connection
from socketserver import ThreadingMixIn
from typing import Any

import boto3
from botocore.config import Config as BotoConfig

from relay.config import DynamoDBConfig
from tests.benchmarks.harness import pin

Answer = Callable[[bytes], bytes]
"""The body of the answer by the body of the request; importable by name, as it is sent to the process."""


@contextmanager
def serving(answer: Answer, core: int | None = 1) -> Iterator[str]:
    """Serve ``answer``, by default on the second core, and yield the URL."""
    process_context = multiprocessing.get_context("spawn")
    ours, theirs = process_context.Pipe()
    process = process_context.Process(target=_serve, args=(answer, core, theirs), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{ours.recv()}"
    finally:
        process.terminate()
        process.join()


def stock_client(service: Any, url: str) -> Any:
    """Return a stock boto3 client without retries: a benchmark counts every request."""
    settings = BotoConfig(retries={"mode": "standard", "total_max_attempts": 1})
    return boto3.client(service, endpoint_url=url, region_name="us-east-1", config=settings, **CREDENTIALS)


CREDENTIALS: dict[str, Any] = {"aws_access_key_id": "bench", "aws_secret_access_key": "bench"}


def source(url: str, table: str) -> DynamoDBConfig:
    return DynamoDBConfig(name=table, type="dynamodb", table=table, region="us-east-1", endpoint_url=url)


class _Server(ThreadingMixIn, HTTPServer):
    daemon_threads = True


def _serve(answer: Answer, core: int | None, to: Connection) -> None:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Headers and body are two writes; without this the second one waits for an acknowledgement.
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            body = answer(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Type", "application/x-amz-json-1.0")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            """Log nothing."""

    if core is not None:
        pin(os.getpid(), core)
    server = _Server(("127.0.0.1", 0), Handler)
    to.send(server.server_address[1])
    server.serve_forever()

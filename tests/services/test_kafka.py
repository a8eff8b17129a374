"""How the embedded broker is set up."""

from __future__ import annotations

import base64

from relay.services.kafka import random_id


def test_random_ids_are_16_bytes_and_never_look_like_an_option() -> None:
    ids = {random_id() for _ in range(500)}
    assert len(ids) == 500
    assert {len(base64.urlsafe_b64decode(each + "==")) for each in ids} == {16}
    assert not any(each.startswith("-") for each in ids)

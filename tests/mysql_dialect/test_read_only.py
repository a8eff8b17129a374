from __future__ import annotations

import pytest

from relay.mysql_dialect.read_only import is_read_only


@pytest.mark.parametrize(
    "value", [0, False, None, "", "0", "OFF", "off", "FALSE", "no", b"OFF", b"0", bytearray(b"OFF")]
)
def test_a_server_accepts_writes_if_its_setting_is_off_in_any_form(value: object) -> None:
    assert not is_read_only(value)


@pytest.mark.parametrize(
    "value", [1, True, "1", "ON", "on", "NO_LOCK", "NO_LOCK_NO_ADMIN", b"ON", b"NO_LOCK", "OFF_LATER"]
)
def test_a_server_whose_setting_is_anything_else_is_read_only(value: object) -> None:
    """I1, I6: so is one with a value that is not known yet."""
    assert is_read_only(value)

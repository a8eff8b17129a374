"""Whether a server is read-only, by the value of its ``read_only`` or ``super_read_only``."""

_OFF = ("0", "OFF", "FALSE", "NO", "")


def is_read_only(value: object) -> bool:
    """Return what the value says; None is that of a server without the variable.

    It is a number in MySQL. Since MariaDB 12.0.1, it is one of OFF, ON, NO_LOCK and NO_LOCK_NO_ADMIN, and later servers
    may have more.
    """
    if value is None:
        return False
    text = value.decode(errors="replace") if isinstance(value, (bytes, bytearray)) else str(value)
    return text.upper() not in _OFF

"""Asks vtgate which keyspace ids any number of values have now in a lookup vindex.

An answer may be out of date at once: a row that is deleted and inserted with another key may get another keyspace id,
and a value of a vindex that is not unique may get one more at any time. So no answer is kept here.
"""

from __future__ import annotations

import ssl
from collections import defaultdict
from collections.abc import Iterable
from itertools import islice

from relay.mysql_dialect.catalog import quoted, quoted_text
from relay.vitess.client import Rejected, Vtgate
from relay.vitess.vindex import LOOKUPS, UncomputableVindex, Value, printed

_AT_ONCE = 500  # values in one statement
_TIMEOUT = 10.0  # seconds


class LookupVindex:
    """The lookup vindex ``name`` of ``keyspace``, owned by a table or not. Threads may share it.

    ``vtgate``: host:port of its gRPC server, which is asked for the vindex's type at once. Raises ``Unavailable``, and
    ``UncomputableVindex`` for a vindex that has another type or cannot be queried.
    """

    def __init__(
        self,
        vtgate: str,
        keyspace: str,
        name: str,
        *,
        user: str | None = None,
        password: str | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.keyspace = keyspace
        self.name = name
        self._vtgate = Vtgate(vtgate, user=user, password=password, tls=tls)
        self._target = f"{keyspace}@primary"  # a replica may lag
        found = self._vtgate.execute("show vschema vindexes", target=keyspace)
        types = {each["Name"]: str(each["Type"]) for each in found if each["Keyspace"] == keyspace}
        self.type = types.get(name, "")
        if self.type not in LOOKUPS:
            is_of = f"is of type {self.type}, which is not a lookup" if self.type else "does not exist"
            raise UncomputableVindex(
                f"vindex {name} of keyspace {keyspace} {is_of}; the types of lookups are {', '.join(sorted(LOOKUPS))}"
            )
        try:  # a table of this name hides the vindex
            self._vtgate.execute(f"select hex_keyspace_id from {quoted(name)} where id = 0", target=self._target)
        except Rejected as error:
            raise UncomputableVindex(f"{self}: {error}: is there a table of the same name?") from None

    def __str__(self) -> str:
        return f"vindex {self.name} ({self.type})"

    @property
    def is_unique(self) -> bool:
        """Whether a value has at most one keyspace id."""
        return self.type.endswith("_unique")

    def close(self) -> None:
        self._vtgate.close()

    def keyspace_ids(self, values: Iterable[Value]) -> dict[Value, list[bytes]]:
        """Return the keyspace ids that each value has now: none for NULL, and none for a value without a row.

        Raises ``Unavailable``, ``UncomputableVindex`` while the vindex is being filled, and the errors of `printed`.
        """
        found: dict[Value, list[bytes]] = {value: [] for value in values}
        texts = defaultdict[bytes, list[Value]](list)
        for value in found:
            if value is not None:
                texts[printed(self.name, value)].append(value)
        left = iter(texts.items())
        while batch := dict(islice(left, _AT_ONCE)):
            wanted = ", ".join(_literal(text, value) for text, (value, *_) in batch.items())
            sql = f"select id, keyspace_id from {quoted(self.name)} where id in ({wanted})"
            for text, keyspace_id in self._vtgate.rows(sql, self._target, _TIMEOUT):
                if keyspace_id is None:
                    raise UncomputableVindex(f"{self} is write-only until it has been filled: it has no answers yet")
                for value in batch[text or b""]:
                    found[value].append(keyspace_id)
        return found


def _literal(text: bytes, value: Value) -> str:
    match value:
        case int():
            return text.decode()
        case bytes():
            return f"X'{text.hex()}'"
        case _:
            return f"'{quoted_text(text.decode())}'"

"""The dates of DynamoDB's answers, which tell the time of its clock."""

from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import Any

from relay.process.service_clock import ServiceClock


class AnswerDates:
    """Tells a ``clock`` the ``Date`` of answers. Threads may share it."""

    def __init__(self, clock: ServiceClock) -> None:
        self._clock = clock
        # The last `Date`. Only the first answer in each second adds information.
        self._date: str | None = None

    def note(self, date: str | None) -> None:
        """Note the header ``Date`` of an answer that has just arrived. A proxy's text that is not a date is ignored."""
        if date is not None and date != self._date:
            with suppress(ValueError):
                self._clock.note(parsedate_to_datetime(date).timestamp())
            self._date = date

    def listen(self, client: Any) -> None:
        """Note the date of every answer that a boto3 client gets."""
        client.meta.events.register("after-call", self._answered, unique_id="relay-dates")

    def _answered(self, http_response: Any, **_: Any) -> None:
        self.note(http_response.headers.get("date"))

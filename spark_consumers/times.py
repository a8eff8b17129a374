"""Times in UTC, whatever the time zone of the session is."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

_DAY = 86_400_000_000  # microseconds


def utc_day(time: Column) -> Column:
    """Return the date of a timestamp."""
    of_epoch = F.unix_micros(time)
    days = _quotient(of_epoch - F.pmod(of_epoch, F.lit(_DAY)), _DAY)
    return F.date_add(F.lit("1970-01-01").cast("date"), days.cast("int"))


def iso_utc(time: Column) -> Column:
    """Return a timestamp as ISO text."""
    of_day = F.pmod(F.unix_micros(time), F.lit(_DAY))
    seconds = _quotient(of_day, 1_000_000)
    parts = [_quotient(seconds, 3600), _quotient(seconds, 60) % 60, seconds % 60, of_day % 1_000_000]
    return F.concat(utc_day(time).cast("string"), F.format_string("T%02d:%02d:%02d.%06dZ", *parts))


def _quotient(number: Column, by: int) -> Column:
    return F.call_function("div", number, F.lit(by).cast("bigint"))

"""How the text of a column is decoded, by the id of its collation: what MySQL and MariaDB number them as.

May be changed here: which character sets are read. One that Python decodes otherwise than MySQL does must not be
(I8): what is missing is refused, with its id.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable

BINARY = 63

# The first collations are single numbers (`SHOW COLLATION`); the larger sets have ranges, below.
_CODECS = {
    "big5": (1, 84),
    "iso8859_2": (2, 9, 21, 27, 77),
    "cp850": (4, 80),
    "latin1": (5, 8, 15, 31, 47, 48, 49, 94),
    "koi8_r": (7, 74),
    "ascii": (11, 65),
    "euc_jp": (12, 91),
    "cp1251": (14, 23, 50, 51, 52),
    "iso8859_8": (16, 71),
    "tis_620": (18, 89),
    "euc_kr": (19, 85),
    "iso8859_13": (20, 41, 42, 79),
    "koi8_u": (22, 75),
    "gb2312": (24, 86),
    "iso8859_7": (25, 70),
    "cp1250": (26, 34, 44, 66, 99),
    "gbk": (28, 87),
    "cp1257": (29, 58, 59),
    "iso8859_9": (30, 78),
    "utf_8": (33, 45, 46, 76, 83),
    "utf_16_be": (35, 54, 55, 90),
    "cp866": (36, 68),
    "mac_latin2": (38, 43),
    "mac_roman": (39, 53),
    "cp852": (40, 81),
    "utf_16_le": (56, 62),
    "cp1256": (57, 67),
    "utf_32_be": (60, 61),
    "cp932": (95, 96),
}
_RANGES = (
    (101, 124, "utf_16_be"),
    (128, 151, "utf_16_be"),  # ucs2, which holds no surrogates
    (159, 159, "utf_16_be"),
    (160, 183, "utf_32_be"),
    (192, 215, "utf_8"),
    (223, 247, "utf_8"),
    (248, 250, "gb18030"),
    (255, 323, "utf_8"),
    (576, 578, "utf_8"),
    (608, 610, "utf_8"),
    (640, 642, "utf_16_be"),
    (672, 674, "utf_16_be"),
    (736, 738, "utf_32_be"),
    # MariaDB's uca1400 collations: 256 numbers for each of its character sets.
    (2048, 2559, "utf_8"),
    (2560, 3071, "utf_16_be"),
    (3072, 3327, "utf_32_be"),
)
_NO_PAD = 1024  # MariaDB numbers a collation without padding like the one with it, and this more
_BY_ID = {number: codec for codec, numbers in _CODECS.items() for number in numbers}

# MySQL's latin1 is cp1252, with the five bytes that this leaves undefined as the control characters they are.
_LATIN1 = "".join(
    chr(byte) if byte in (0x81, 0x8D, 0x8F, 0x90, 0x9D) else bytes([byte]).decode("cp1252") for byte in range(256)
)


def codec(collation: int) -> str:
    """Return the name of the codec for text of ``collation``, ``latin1`` being MySQL's; ValueError if there is none.

    0 is a collation that Vitess does not know by name, which those of MariaDB since 10.10 are: all of them Unicode,
    and on any database of today UTF-8.
    """
    if collation == 0:
        return "utf_8"
    number = collation - _NO_PAD if _NO_PAD < collation < 2 * _NO_PAD else collation
    if (name := _BY_ID.get(number)) is not None:
        return name
    for first, last, name in _RANGES:
        if first <= number <= last:
            return name
    raise ValueError(f"its character set, that of collation {collation}, cannot be decoded exactly")


def decoder(name: str) -> Callable[[bytes], str]:
    """Return what decodes text of the codec ``name``. It raises UnicodeDecodeError, a ValueError."""
    if name == "latin1":
        return _latin1
    decode = codecs.getdecoder(name)
    return lambda raw: decode(raw, "strict")[0]


def _latin1(raw: bytes) -> str:
    return codecs.charmap_decode(raw, "strict", _LATIN1)[0]

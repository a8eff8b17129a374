"""Character sets of MySQL and MariaDB by collation id, and their decoders.

A decoder returns the text to which the server itself converts the bytes: ``tests/mysql_dialect/test_charsets.py``
compares them. This is on the wire: decoding a byte to another character than before would change keys. Columns may also
have bytes that are not characters, for which the server shows a question mark: these are `NotText`.
"""

import codecs
from collections.abc import Callable, Mapping
from functools import cache, partial

BINARY = "binary"
_UNDEFINED = "\ufffe"  # refused by Python's charmap decoder

# Collation ids. For ids that both have, MySQL and MariaDB agree.
_COLLATIONS: dict[str, str] = {
    "armscii8": "32 64",
    "ascii": "11 65",
    "big5": "1 84",
    "binary": "63",
    "cp1250": "26 34 44 66 99",
    "cp1251": "14 23 50-52",
    "cp1256": "57 67",
    "cp1257": "29 58-59",
    "cp850": "4 80",
    "cp852": "40 81",
    "cp866": "36 68",
    "cp932": "95-96",
    "dec8": "3 69",
    "eucjpms": "97-98",
    "euckr": "19 85",
    "gb18030": "248-250",
    "gb2312": "24 86",
    "gbk": "28 87",
    "geostd8": "92-93",
    "greek": "25 70",
    "hebrew": "16 71",
    "hp8": "6 72",
    "keybcs2": "37 73",
    "koi8r": "7 74",
    "koi8u": "22 75",
    "latin1": "5 8 15 31 47-49 94",
    "latin2": "2 9 21 27 77",
    "latin5": "30 78",
    "latin7": "20 41-42 79",
    "macce": "38 43",
    "macroman": "39 53",
    "sjis": "13 88",
    "swe7": "10 82",
    "tis620": "18 89",
    "ucs2": "35 90 128-151 159 640-642",
    "ujis": "12 91",
    "utf16": "54-55 101-124 672-674",
    "utf16le": "56 62",
    "utf32": "60-61 160-183 736-738",
    "utf8mb3": "33 76 83 192-215 223 576-578",
    "utf8mb4": "45-46 224-247 255-323 608-610",
}
# MariaDB's NO PAD collations are the padding ones + 1024. Its UCA 14 collations have 256 ids for each character set.
_NO_PAD = 1024
_UCA_1400 = {8: "utf8mb3", 9: "utf8mb4", 10: "ucs2", 11: "utf16", 12: "utf32"}

_PYTHON = {name: name for name in ("ascii", "big5", "cp932", "gb18030", "gb2312", "gbk")} | {
    "eucjpms": "euc_jp",
    "euckr": "cp949",
    "sjis": "shift_jis",
    "ucs2": "utf_16_be",
    "ujis": "euc_jp",
    "utf16": "utf_16_be",
    "utf16le": "utf_16_le",
    "utf32": "utf_32_be",
    "utf8mb3": "utf_8",
    "utf8mb4": "utf_8",
}
# Characters for which the server and Python's codec differ.
_INSTEAD = {
    "gb18030": str.maketrans("\ue7c7ḿ", "ḿ\ue7c7"),  # as in the edition of 2005
    "eucjpms": str.maketrans("〜‖−¢£¬¦", "～∥－￠￡￢￤"),
    "sjis": str.maketrans("＼", "\\"),
    "ujis": str.maketrans("＼", "\\"),
}
# Characters that Python's codec lacks: all from a certain code on.
_BEYOND: dict[str, dict[int, str]] = {
    "big5": {0xF9D6: "碁銹裏墻恒粧嫺"},
    "eucjpms": {
        0xADA1: "①②③④⑤⑥⑦⑧⑨⑩⑪⑫⑬⑭⑮⑯⑰⑱⑲⑳ⅠⅡⅢⅣⅤⅥⅦⅧⅨⅩ",
        0xADC0: "㍉㌔㌢㍍㌘㌧㌃㌶㍑㍗㌍㌦㌣㌫㍊㌻㎜㎝㎞㎎㎏㏄㎡",
        0xADDF: "㍻〝〟№㏍℡㊤㊥㊦㊧㊨㈱㈲㈹㍾㍽㍼≒≡∫∮∑√⊥∠∟⊿∵∩∪",
        0x8FF3F3: "ⅰⅱⅲⅳⅴⅵⅶⅷⅸⅹⅠⅡ",
        0x8FF4A1: "ⅢⅣⅤⅥⅦⅧⅨⅩ＇＂㈱№℡炻仼僴凬匇匤\ufa0e咊坙\ufa0f\ufa10增寬峵嵓\ufa11德悅愠敎昻晥\ufa12"
        "\uf929栁\ufa13\ufa14橫櫢淸淲瀨\ufa15\ufa16甁皂皞\ufa17礰\ufa18\ufa19\ufa1a\ufa1b竧\ufa1c\ufa1d綠"
        "緖\ufa1e荢\ufa1f薰\ufa20\ufa21蠇\ufa22譿賴赶\ufa23\ufa24\ufa25郞\ufa26鄕\ufa27\ufa28閒\uf9dc"
        "\ufa29霻靍靑\ufa2a\ufa2b\ufa2c馞髙魲\ufa2d黑",
    },
    "ujis": {},
}
_OTHER_TILDE = b"\x8f\xa2\xb7"  # bytes that Python takes for ASCII's

_ARMENIAN = "❁§։)(»«—.՝,-՟…՜՛՞ԱաԲբԳգԴդԵեԶզԷէԸըԹթԺժԻիԼլԽխԾծԿկՀհՁձՂղՃճՄմՅյՆնՇշՈոՉչՊպՋջՌռՍսՎվՏտՐրՑցՒւՓփՔքՕօՖֆ’'"
_KAMENICKY = (
    "ČüéďäĎŤčěĚĹÍľĺÄÁÉžŽôöÓůÚýÖÜŠĽÝŘťáíóúňŇŮÔšřŕŔ¼¡«»░▒▓│┤╡╢╖╕╣║╗╝╜╛┐└┴┬├─┼╞╟╚╔╩╦╠═╬╧╨╤╥╙╘╒╓╫╪┘┌█▄▌▐▀"
    "αßΓπΣσµτΦΘΩδ∞φε∩≡±≥≤⌠⌡÷≈°∙·√ⁿ²■\xa0"
)

# One byte per character: Python's codec, and the differences. ``_UNDEFINED``: the server has no character.
_SINGLE: dict[str, tuple[str, dict[int, str]]] = {
    **{name: (name, {}) for name in ("cp1250", "cp1251", "cp1257", "cp850", "cp852")},
    "cp1256": ("cp1256", dict.fromkeys((0x8A, 0x8F, 0x98, 0x9A, 0x9F, 0xAA, 0xC0, 0xFF), _UNDEFINED)),
    "cp866": ("cp866", {0xFC: "ⁿ", 0xFD: "²"}),
    "dec8": (
        "latin_1",
        {0xA8: "¤", 0xD7: "Œ", 0xDD: "Ÿ", 0xF7: "œ", 0xFD: "ÿ"}
        | dict.fromkeys(bytes.fromhex("a4a6 acadaeaf b4b8be d0def0feff"), _UNDEFINED),
    ),
    "greek": ("iso8859_7", {0xA1: "ʽ", 0xA2: "ʼ"} | dict.fromkeys((0xA4, 0xA5, 0xAA), _UNDEFINED)),
    "hebrew": ("iso8859_8", {0xAF: "‾"}),
    "hp8": ("hp_roman8", {}),
    "koi8r": ("koi8_r", {}),
    "koi8u": ("koi8_u", {0x95: "•"}),
    # The Windows code page; its five undefined bytes stay as they are.
    "latin1": ("cp1252", {byte: chr(byte) for byte in (0x81, 0x8D, 0x8F, 0x90, 0x9D)}),
    "latin2": ("iso8859_2", {}),
    "latin5": ("iso8859_9", {}),
    "latin7": ("iso8859_13", {}),
    "macce": ("mac_latin2", {}),
    "macroman": ("mac_roman", {}),
    "swe7": ("ascii", dict(zip(b"@[\\]^`{|}~", "ÉÄÖÅÜéäöåü", strict=True)) | {0x7F: _UNDEFINED}),
    "tis620": ("tis_620", {}),
    # Python has no codec for these.
    "armscii8": ("latin_1", dict(enumerate(_ARMENIAN, 0xA1))),
    "keybcs2": ("ascii", dict(enumerate(_KAMENICKY, 0x80))),
    "geostd8": (
        "latin_1",
        dict.fromkeys((*range(0x80, 0xA0), *range(0xE6, 0x100)), _UNDEFINED)
        | dict(zip((0x80, 0x82, 0x84, 0x85, 0x86, 0x87, 0x89, 0x8B), "€‚„…†‡‰‹", strict=True))
        | dict(zip((*range(0x91, 0x98), 0x9B, 0xFD), "‘’“”•–—›№", strict=True))
        | dict(enumerate("აბგდევზჱთიკლმნჲოპჟრსტჳუფქღყშჩცძწჭხჴჯჰჵ", 0xC0)),
    ),
}


def _spread(numbers: str, base: int = 10) -> list[int]:
    spread: list[int] = []
    for part in numbers.split():
        first, _, last = part.partition("-")
        spread += range(int(first, base), int(last or first, base) + 1)
    return spread


_CHARSETS = {id_: name for name, ids in _COLLATIONS.items() for id_ in _spread(ids)}


def charset(collation: int) -> str:
    """Return the name of a collation's character set. Raises ValueError for an unknown collation id."""
    known = _CHARSETS.get(collation) or _UCA_1400.get(collation >> 8) or _CHARSETS.get(collation - _NO_PAD)
    if known is None:
        raise ValueError(f"unknown collation {collation}")
    return known


def is_single_byte(name: str) -> bool:
    return name in _SINGLE


@cache
def unlike_ascii(name: str) -> bytes:
    """Return the bytes below 0x80 that are not ASCII characters in single-byte text, and those above that are."""
    _, instead = _SINGLE.get(name, ("", {}))
    return bytes(byte for byte, character in instead.items() if (byte < 0x80) != (character < "\x80"))


# The codes of capital letters that servers with `lower_case_table_names = 1` keep in names.
_KEPT = "220 23a-37f 3cf-3d8 3f4-3ff 48a 4c0 4c5 4c9 4cd 4f6 4fa-52e 10a0-1cbf 1e9e 1efa-1efe 2132 2183 2c00-a7ff"


@cache
def _lower() -> dict[int, str]:
    return {0x130: "i"} | {code: chr(code) for code in _spread(_KEPT, 16)}


def lowered(name: str) -> str:
    """Return a name as a server with ``lower_case_table_names = 1`` stores it: each character by itself."""
    kept = _lower()
    return "".join(kept.get(ord(character)) or character.lower() for character in name)


def collation_of(name: str) -> int:
    """Return the id of a collation of a character set. Raises ValueError for an unknown character set."""
    if name not in _COLLATIONS:
        raise ValueError(f"unknown character set {name}")
    return _spread(_COLLATIONS[name])[0]


class NotText(bytes):
    """The bytes of a text that are not characters in its column's character set: a row cannot be carried with them."""

    __slots__ = ()

    def __str__(self) -> str:
        shown = self if len(self) <= 60 else self[:60] + b"..."
        return f"{bytes(shown)!r} is not text in the column's character set"


@cache
def text_reader(name: str) -> Callable[[bytes], str | NotText]:
    """Return what reads the texts of columns with a character set that is not ``binary``."""
    decode = bytes.decode if is_utf8(name) else decoder(name)

    def read(raw: bytes) -> str | NotText:
        try:
            return decode(raw)
        except UnicodeDecodeError:
            return NotText(raw)  # I8: never another character

    return read


@cache
def decoder(name: str) -> Callable[[bytes], str]:
    """Return the decoder of a charset, not ``binary``. It raises ``UnicodeDecodeError`` where there is no character."""
    if name in _SINGLE:
        python, instead = _SINGLE[name]
        table = "".join(instead.get(byte, bytes([byte]).decode(python, "replace")) for byte in range(256))
        table = table.replace("\ufffd", _UNDEFINED)
        return lambda raw: codecs.charmap_decode(raw, "strict", table)[0]
    python, instead_of, errors = _PYTHON[name], _INSTEAD.get(name, {}), "strict"
    if name in _BEYOND:
        errors = f"relay-{name}"
        codecs.register_error(errors, partial(_take, _beyond(name)))
    if name == "eucjpms":
        # These bytes never span two neighbouring characters: 0x8F only begins one.
        return lambda raw: "～".join(
            part.decode(python, errors).translate(instead_of) for part in raw.split(_OTHER_TILDE)
        )
    if instead_of:
        return lambda raw: raw.decode(python, errors).translate(instead_of)
    return bytes.decode if python == "utf_8" else lambda raw: raw.decode(python, errors)


def _beyond(name: str) -> dict[bytes, str]:
    """Return the characters of a character set that Python's codec lacks, by their bytes."""
    codes = {first + at: text for first, run in _BEYOND[name].items() for at, text in enumerate(run)}
    found = {code.to_bytes(3 if code > 0xFFFF else 2, "big"): text for code, text in codes.items()}
    if name != "big5":  # users may define two times ten rows of 94 characters
        for at in range(2 * 10 * 94):
            row, cell = divmod(at, 94)
            found[b"\x8f" * (row // 10) + bytes([0xF5 + row % 10, 0xA1 + cell])] = chr(0xE000 + at)
    return found


def _take(beyond: Mapping[bytes, str], error: UnicodeError) -> tuple[str, int]:
    """Decode a character that a codec lacks, and continue after it. Raises the error if it is not such a character."""
    assert isinstance(error, UnicodeDecodeError)
    for end in (error.start + 2, error.start + 3):
        if (text := beyond.get(error.object[error.start : end])) is not None:
            return text, end
    raise error


def is_utf8(name: str) -> bool:
    """Whether text in this character set is UTF-8. Before MySQL 8.0.30 and MariaDB 10.6, utf8mb3 is called utf8."""
    return name == "utf8" or _PYTHON.get(name) == "utf_8"

"""Error messages about an invalid config, each with its place in the file.

The validators of ``relay.config`` raise ``ValueError``, or ``invalid`` for problems below the validated value;
``explain`` turns everything that pydantic found into one ``ConfigError``, one line per problem.
"""

import difflib
import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any, get_args

from pydantic import BaseModel, BeforeValidator, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticCustomError

from relay.config.hidden import holds_secret, is_secret, redacted
from relay.config.yaml_file import Document, Location
from relay.errors import ConfigError

SOURCE_TYPES = ("dynamodb", "vitess", "mysql")

_LONGEST_SHOWN = 60

# By the type of pydantic's error. The names in braces are pydantic's.
_EXPECTED = {
    "string_type": "text (quote it if it looks like something else)",
    **dict.fromkeys(("int_type", "int_parsing", "int_parsing_size"), "an integer"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    "bool_type": "true or false",
    "list_type": "a list",
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "a mapping of keys to values"),
    "greater_than_equal": "at least {ge:,}",
    "less_than_equal": "at most {le:,}",
}


def invalid(*problems: tuple[Location, str]) -> PydanticCustomError:
    """Return a validator's error: messages, each with a path below the validated value."""
    text = "; ".join(text for _, text in problems)
    return PydanticCustomError("invalid", "{text}", {"text": text, "problems": problems})


def refuse(problems: Iterable[tuple[Location, str]]) -> None:
    if found := list(problems):
        raise invalid(*found)


def mapping(what: str, *, at_least: int = 0) -> BeforeValidator:
    """Annotate a mapping that must have ``at_least`` so many keys. ``what``: the words for it in the error."""

    def check(value: Any) -> Any:
        if not isinstance(value, dict) or len(value) < at_least:
            raise ValueError(f"must be {what}")
        return value

    return BeforeValidator(check)


def wrong_settings(given: Mapping[str, Any], fixed: Mapping[str, str]) -> list[tuple[Location, str]]:
    """Return the problems in another program's settings. ``fixed``: those that cannot be changed, with the reasons."""
    problems: list[tuple[Location, str]] = []
    for key, setting in given.items():
        if key in fixed:
            shown = _kind_of(setting) if is_secret(key) else _value(setting)
            problems.append(((key,), f"cannot be set to {shown}: {fixed[key]}"))
        elif not isinstance(setting, (str, int, float)):
            problems.append(((key,), f"must be text, a number, true or false, not {_kind_of(setting)}"))
    return problems


def explain(document: Document, error: ValidationError, root: type[BaseModel]) -> ConfigError:
    """Return one error that lists every problem: first in the options, then in the file, from top to bottom."""
    found: set[tuple[tuple[int, int], str]] = set()
    for detail in error.errors(include_url=False, include_input=True):
        detail["loc"], kind = without_type_tag(detail["loc"])
        location: Location = detail["loc"]
        for inside, text in _messages(detail, root, kind, document):
            where = (*location, *inside)
            if option := document.option(where):
                found.add(((0, 0), f"{option}: {text}"))
                continue
            place = document.place(where, key=detail["type"] == "extra_forbidden")
            found.add((place, str(document.error(place, text))))
    return ConfigError("\n".join(text for _, text in sorted(found)))


def expected(detail: ErrorDetails) -> str | None:
    """Return the words for the value that pydantic expected, or None for other kinds of errors."""
    wanted = _EXPECTED.get(detail["type"])
    return None if wanted is None else wanted.format(**detail.get("ctx", {}))


def problems_in(detail: ErrorDetails) -> list[tuple[Location, str]]:
    """Return the problems that one of our validators found, as `invalid` takes them; otherwise pydantic's message."""
    if detail["type"] == "invalid":
        return list(detail["ctx"]["problems"])
    return [((), str(detail["ctx"]["error"]) if detail["type"] == "value_error" else detail["msg"])]


def without_type_tag(location: Location) -> tuple[Location, str | None]:
    """Return a location as it is in the file, and the type of the source that contains it."""
    match location:
        case ("sources", int(), str(tag), *rest) if tag in SOURCE_TYPES:
            return (*location[:2], *rest), tag
    return location, None


def _messages(
    detail: ErrorDetails, root: type[BaseModel], source: str | None, document: Document
) -> list[tuple[Location, str]]:
    location, kind, context = detail["loc"], detail["type"], detail.get("ctx", {})
    name = _dotted(location)
    if kind in ("invalid", "value_error"):
        named = ((inside, _dotted((*location, *inside)), text) for inside, text in problems_in(detail))
        return [(inside, f"`{where}`: {text}" if where else text) for inside, where, text in named]
    if kind == "extra_forbidden":
        return [((), _unknown_key(location, root, source))]
    if kind == "union_tag_not_found":
        return [((), f"`{name}.type` is missing; set it to one of {', '.join(SOURCE_TYPES)}")]
    if kind == "union_tag_invalid":
        return [(("type",), f"`{name}.type` must be one of {', '.join(SOURCE_TYPES)}, not {context['tag']!r}")]
    if kind == "missing":
        return [((), f"`{name}` is missing")]
    if kind == "literal_error":
        return [((), f"`{name}` must be {context['expected']}, not {_shown(detail, document)}")]
    if (wanted := expected(detail)) is not None:
        return [((), f"`{name}` must be {wanted}, not {_shown(detail, document)}")]
    if kind in ("too_short", "string_too_short"):
        least = context["min_length"]
        return [((), f"`{name}` must " + ("not be empty" if least == 1 else f"have at least {least} characters"))]
    value = "" if isinstance(detail["input"], (dict, list)) else f", not {_shown(detail, document)}"
    return [((), f"`{name}`: {detail['msg']}{value}")]


def _shown(detail: ErrorDetails, document: Document) -> str:
    """Return a wrong value, or only its kind if it may be a secret or is long."""
    location, value = detail["loc"], detail["input"]
    if location in document.variables:
        return "what its variable contains"
    return _kind_of(value) if holds_secret(location) else _value(value)


def _value(value: Any) -> str:
    """Return the text of a value that is not a secret; only its kind if it is long or contains other values."""
    if not isinstance(value, (str, int, float)) or len(str(value)) > _LONGEST_SHOWN:
        return _kind_of(value)
    return repr(redacted(value)) if isinstance(value, str) else json.dumps(value)


def _unknown_key(location: Location, root: type[BaseModel], source: str | None) -> str:
    *parents, key = location
    model: type[BaseModel] | None = root
    for name in parents:
        if isinstance(name, str):
            found = fields_of(model).get(name) if model else None
            model = model_inside(found.annotation, source) if found else None
    hint = did_you_mean(str(key), fields_of(model) if model else (), "known keys: ")
    where = f" in `{_dotted(tuple(parents))}`" if parents else ""
    return f"unknown key `{key}`{where}; {hint}"


def did_you_mean(name: str, known: Collection[str], they_are: str) -> str:
    """Return a hint about an unknown name: the most similar known one, or else all of them after ``they_are``."""
    like = nearest(name, known)
    return f"{they_are}{', '.join(known)}" if like is None else f"did you mean `{like}`?"


MISSPELT = 0.8
"""How similar a name and a known one must be, for `nearest`, to count as a misspelling."""


def nearest(name: str, known: Collection[str], alike: float = 0.5) -> str | None:
    """Return the known name most similar to an unknown one, or None below the similarity ``alike``; 1 is equal."""
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=alike)), None)


def fields_of(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return the fields of ``model`` by their key in the file."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


def model_inside(annotation: Any, source: str | None = None) -> type[BaseModel] | None:
    """Return the model inside ``list[X]``, ``X | None`` or ``X``; among sources, the one of type ``source``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        kind = annotation.model_fields.get("type")
        return annotation if kind is None or source in (None, *get_args(kind.annotation)) else None
    return next((model for inner in get_args(annotation) if (model := model_inside(inner, source))), None)


def _dotted(location: Location) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return text.removeprefix(".")


def _kind_of(value: Any) -> str:
    kinds = {bool: "true or false", int: "a number", float: "a number", str: "text", list: "a list", dict: "a mapping"}
    return next((text for kind, text in kinds.items() if isinstance(value, kind)), "nothing")

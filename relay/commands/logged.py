"""``--log-format`` for every command: commands that log little use it for warnings and for their error."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException

from relay.commands.options import LogFormatOption, logging_to_stderr
from relay.errors import ConfigError


def _log_format_option() -> Any:
    """Return the ``--log-format`` option as typer makes it."""
    only = typer.Typer()

    @only.command()
    def command(log_format: LogFormatOption = "text") -> None: ...

    return next(each for each in typer.main.get_command(only).params if each.name == "log_format")


def _plain_flags(params: list[Any]) -> list[Any]:
    """Keep the help of flags from showing a type."""
    for each in params:
        if getattr(each, "is_flag", False):
            each.metavar = ""
    return params


class Group(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return _plain_flags(super().get_params(ctx))


class LoggedCommand(TyperCommand):
    """A command with ``--log-format``, its own or ours, whose errors name the invalid value of an option."""

    def __init__(self, *arguments: Any, **others: Any) -> None:
        super().__init__(*arguments, **others)
        self._is_ours = all(each.name != "log_format" for each in self.params)
        if self._is_ours:
            self.params.append(_log_format_option())

    def get_params(self, ctx: Any) -> list[Any]:
        return _plain_flags(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            # typer says what is wrong with a value, but does not always show the value.
            values, _, _ = self.make_parser(ctx).parse_args(args=given)
            value = values.get(error.param.name) if error.param is not None and error.param.name else None
            error.message = _in_our_words(error)
            if isinstance(value, str) and value not in error.message:
                error.message = f"{value!r} {error.message}"
            raise

    def invoke(self, ctx: Any) -> Any:
        if self._is_ours and ctx.params.pop("log_format") == "json":
            with logging_to_stderr("json"):
                return super().invoke(ctx)
        return super().invoke(ctx)


def _in_our_words(error: typer.BadParameter) -> str:
    """Return what is wrong with a value, without pydantic's wording."""
    from pydantic import ValidationError

    from relay.config.errors import expected

    cause = error.__cause__
    if isinstance(cause, ValidationError) and (wanted := expected(cause.errors()[0])) is not None:
        return f"must be {wanted}"
    return error.message.removeprefix("Value error, ")


@contextmanager
def wrong_usage_logged(given: list[str]) -> Iterator[None]:
    """Log wrong arguments as JSON if ``given`` or the environment asks for it; otherwise typer prints them in a box."""
    try:
        yield
    except TyperException as error:
        context = getattr(error, "ctx", None)
        if context is None or not given or not _wants_json(given):
            raise
        with logging_to_stderr("json"):
            raise ConfigError(f"{error.format_message()} Try '{context.command_path} -h' for help.") from error


def _wants_json(given: list[str]) -> bool:
    """Whether arguments that could not be parsed ask for JSON. The last ``--log-format`` counts, as in typer."""
    wanted = os.environ.get("RELAY_LOG_FORMAT", "")
    for each, following in zip_longest(given, given[1:], fillvalue=""):
        if each == "--log-format":
            wanted = following
        elif each.startswith("--log-format="):
            wanted = each.partition("=")[2]
    return wanted == "json"


class Commands(typer.Typer):
    def __init__(self, *, cls: type[TyperGroup] = Group, **others: Any) -> None:
        super().__init__(cls=cls, **others)

    def command(self, name: str | None = None, **others: Any) -> Callable[[Any], Any]:
        return super().command(name, cls=LoggedCommand, **others)

"""Pages that are made from code and data: config, commands, Avro, runbook, benchmarks."""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
import yaml

from relay.cli import app
from relay.config.config import json_schema
from relay.config.model import VARIABLE

ROOT = Path(__file__).parents[2]
BENCHMARKS = Path(__file__).parent / "benchmarks.json"


def pages() -> dict[str, str]:
    """Return the Markdown of each page by its name."""
    return {
        "config": config(),
        "commands": commands(),
        "avro": avro(),
        "runbook": runbook(),
        "benchmarks": benchmarks(),
    }


def config() -> str:
    """Every key of the config, from its JSON schema."""
    schema = json_schema()
    names = _names(schema)
    parts = [
        "# The config",
        "This page is made from the schema that `relay check --schema` prints. `relay check CONFIG --offline --echo` "
        "prints a config with its defaults filled in. There are [examples](deploy/index.md#examples) for each source "
        "and sink.",
        _keys(schema, names),
    ]
    for name, definition in schema["$defs"].items():
        parts += [f"## {names[name]}", _line(definition.get("description", "")), _keys(definition, names)]
    return _joined(parts)


def commands() -> str:
    """Every command with its arguments and options."""
    parts = ["# Commands", "This page is made from the texts that `--help` prints."]
    for command, context in _commands(typer.main.get_command(app), None):
        arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
        options = [parameter for parameter in command.params if parameter.param_type_name == "option"]
        usage = " ".join((context.command_path, *command.collect_usage_pieces(context)))
        parts += [f"## {context.command_path}", f"```\n{usage}\n```", inspect.cleandoc(command.help or "")]
        rows = [(f"`{each.metavar or each.name.upper()}`", _help(each)) for each in arguments]
        rows += [
            (", ".join(f"`{name}`" for name in (*each.opts, *each.secondary_opts)), _help(each)) for each in options
        ]
        if rows:
            parts.append(_table(("argument, option", "meaning"), rows))
    return _joined(parts)


def avro() -> str:
    """The fields of a record, from the schemas."""
    parts = [
        "# Avro",
        "This page lists the fields of a record. The page on [the wire format](schemas/index.md) says in detail what "
        "the fields hold, and how types are mapped.",
    ]
    for name in ("change", "event_token"):
        schema = json.loads((ROOT / "schemas" / f"{name}.avsc").read_text(encoding="utf-8"))
        rows = [
            (f"`{field['name']}`", f"`{_avro_type(field['type'])}`", _line(field.get("doc", "")))
            for field in schema["fields"]
        ]
        parts += [f"## {schema['name']}", schema.get("doc", ""), _table(("field", "type", "meaning"), rows)]
    return _joined(parts)


def runbook() -> str:
    """What to do first about each alert, from the rules."""
    groups = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yaml").read_text(encoding="utf-8"))["groups"]
    parts = [
        "# Runbook",
        "This page says what each [alert of Prometheus](deploy/index.md#alerts-and-dashboards) means, and what to do "
        "first. Other pages explain [the metrics](relay/observe/index.md#metrics) and [the exit "
        "codes](deploy/docs/reference/exit_codes.md). `relay doctor CONFIG` collects everything that a bug report "
        "needs, without secrets. The page is made from [the file with the alerts](deploy/prometheus/alerts.yaml).",
    ]
    rules = [rule for group in groups for rule in group["rules"]]
    rows = [
        (f"[{rule['alert']}](#{rule['alert'].lower()})", rule["labels"]["severity"], rule["annotations"]["description"])
        for rule in rules
    ]
    parts.append(_table(("alert", "severity", "means"), rows))
    for rule in rules:
        after = rule.get("for")
        parts += [
            f"## {rule['alert']}",
            f"**{rule['annotations']['description']}**",
            f"{rule['annotations']['runbook']}",
            f"Severity {rule['labels']['severity']}, raised {f'after {after} of' if after else 'by'}:",
            f"```\n{rule['expr'].strip()}\n```",
        ]
    return _joined(parts)


def benchmarks(file: Path = BENCHMARKS) -> str:
    """The recorded results, with the method from each benchmark's docstring."""
    parts = [
        "# Benchmarks",
        "Each benchmark measures the relay in turn with another program, the *yardstick*, in the same run and on the "
        "same machine. It checks that as many changes arrived as were written, and a result with a wrong count is not "
        "recorded. *Ratio* is the figure of the relay divided by the figure of the yardstick. *A/A* is the yardstick "
        "measured against itself: the further it is from 1, the further a ratio may be off. You can roughly compare "
        "ratios of different days or machines, but not figures. If the unit is a time, less is better. `make bench "
        "NAME=...` runs a benchmark again, and `ARGS=--record` puts its result on this page.",
    ]
    for name, recorded in json.loads(file.read_text(encoding="utf-8")).items():
        rows = [
            (
                f"`{result['name']}`",
                *(number(result[key]) for key in ("figure", "yardstick", "ratio", "aa")),
                result["unit"],
            )
            for result in recorded["results"]
        ]
        parts += [
            f"## {name}",
            _method(name),
            f"{recorded['date']}, commit `{recorded['commit']}`: {recorded['machine']}.",
            _table(("result", "relay", "yardstick", "ratio", "A/A", "unit"), rows),
            "\n".join(f"- `{result['name']}`: {_line(result['note'])}" for result in recorded["results"]),
        ]
    return _joined(parts)


def _method(name: str) -> str:
    module = ROOT / "tests" / "benchmarks" / f"{name}.py"
    return ast.get_docstring(ast.parse(module.read_text(encoding="utf-8"))) or ""


def _names(schema: Mapping[str, Any]) -> dict[str, str]:
    """Return what users call each definition: the key that holds it, or the source of a type."""
    names: dict[str, str] = {}
    for part in (schema, *schema["$defs"].values()):
        for key, value in part["properties"].items():
            names |= dict.fromkeys(re.findall(r"#/\$defs/(\w+)", json.dumps(value)), key)
    for name, definition in schema["$defs"].items():
        if kind := definition["properties"].get("type", {}).get("const"):
            names[name] = f"source of type {kind}"
    return names


def _keys(definition: Mapping[str, Any], names: Mapping[str, str]) -> str:
    required = definition.get("required", ())
    rows = [
        (
            f"`{name}`",
            _line(key.get("description", "")),  # beside the key, for phones show two columns
            _type(key, names),
            "*required*" if name in required else f"`{json.dumps(key['default'])}`" if "default" in key else "",
        )
        for name, key in definition.get("properties", {}).items()
    ]
    return _table(("key", "meaning", "type", "default"), rows)


def _type(key: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """Return the type of a value as people say it. Types of the config are links."""
    if "$ref" in key:
        name = names[key["$ref"].rsplit("/", 1)[1]]
        return f"[{name}](#{name.replace(' ', '-')})"
    for union in ("anyOf", "oneOf"):
        if union in key:
            return " or ".join(dict.fromkeys(_type(each, names) for each in key[union] if each != VARIABLE))
    if "const" in key:
        return f"`{key['const']}`"
    if "enum" in key:
        return " or ".join(f"`{each}`" for each in key["enum"])
    kind = key.get("type", "any value")
    if kind == "array":
        return f"list of {_type(key.get('items', {}), names)}"
    if kind == "object" and isinstance(values := key.get("additionalProperties"), dict):
        return f"mapping to {_type(values, names)}"
    return " or ".join(kind) if isinstance(kind, list) else {"object": "mapping"}.get(kind, kind)


def _commands(command: Any, parent: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the commands below ``command`` with their contexts, as click calls them; typer has a click of its own."""
    context = command.make_context("relay" if parent is None else command.name, [], parent, resilient_parsing=True)
    children = getattr(command, "commands", {})
    if not children:
        yield command, context
    for child in children.values():
        if not child.hidden:
            yield from _commands(child, context)


def _help(parameter: Any) -> str:
    text = _line(getattr(parameter, "help", None) or "")
    default = parameter.default
    shown = getattr(parameter, "show_default", False) and default not in (None, False, ()) and not callable(default)
    return f"{text} Default: `{getattr(default, 'value', default)}`." if shown else text


def _avro_type(kind: Any) -> str:
    if isinstance(kind, list):
        return " or ".join(_avro_type(each) for each in kind)
    if isinstance(kind, dict):
        if "logicalType" in kind:
            return str(kind["logicalType"])
        return (
            f"{kind['type']} of {_avro_type(kind['values'])}"
            if "values" in kind
            else str(kind.get("name", kind["type"]))
        )
    return str(kind)


def number(value: float) -> str:
    """Return a figure as the pages show it."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = (head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _line(text: str) -> str:
    return " ".join(text.split())


def _joined(parts: Iterable[str]) -> str:
    return "\n\n".join(part for part in parts if part) + "\n"

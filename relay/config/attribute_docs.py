"""The docstrings of attributes, read from the source of a class on demand."""

import ast
import functools
import inspect
import textwrap


def attribute_docs(kind: type) -> dict[str, str]:
    """Return the docstring below each attribute of a class, even if inherited; {} if its source is unavailable."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        names = inspect.get_annotations(each)
        if names:
            docs = _docs_in(each)
            found = {name: text for name, text in found.items() if name not in names} | docs
    return found


@functools.cache
def _docs_in(kind: type) -> dict[str, str]:
    try:
        source = textwrap.dedent(inspect.getsource(kind))
    except (OSError, TypeError):  # a class without a file
        return {}
    (definition,) = ast.parse(source).body
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for attribute, text in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(attribute, ast.AnnAssign) and isinstance(attribute.target, ast.Name):
            match text:
                case ast.Expr(value=ast.Constant(value=str(doc))):
                    found[attribute.target.id] = inspect.cleandoc(doc)
    return found

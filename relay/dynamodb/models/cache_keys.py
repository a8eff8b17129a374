"""From the keys of a cache to the keys of items, for ``relay.cache.DynamoDBLoader``."""

from collections.abc import Callable
from contextlib import suppress

from relay.config.template import Template
from relay.dynamodb.models.declaration import Model, declaration_of
from relay.dynamodb.models.errors import InvalidModel
from relay.dynamodb.models.types import Wire
from relay.dynamodb.values import key_attribute


def item_key(model: type[Model], template: str) -> Callable[[str], dict[str, Wire]]:
    """Return what makes the key of an item of a key of a cache, for a ``DynamoDBLoader``::

        loader = DynamoDBLoader(client, engine.table_name(Order), item_key(Order, "order:{customer}:{number}"))
        cache.get_or_load("order:ada:1", loader.load)

    ``template``: one of the class' ``cache_keys``, over the attributes of its key and nothing else; otherwise
    ``InvalidModel``. What it returns raises ValueError for a text that is the cache key of no item, or of several.
    """
    declared = declaration_of(model)
    owner = model.__name__
    parsed = Template.parse(template)
    columns = {each.attribute: each for each in declared.key}
    if template not in declared.cache_keys or set(parsed.columns) != columns.keys():
        raise InvalidModel(
            f"{owner}: {template!r} must be one of its cache_keys, and have the attributes of its key: "
            f"{', '.join(columns)}"
        )

    def read(text: str) -> dict[str, Wire]:
        found: list[dict[str, Wire]] = []
        for texts in parsed.matches(text):
            with suppress(ValueError):
                found.append({name: key_attribute(str(each.type.kind), texts[name]) for name, each in columns.items()})
        if len(found) != 1:
            count = "no item" if not found else "several items"
            raise ValueError(f"{text!r} is the cache key {template} of {count} of {owner}")
        return found[0]

    return read

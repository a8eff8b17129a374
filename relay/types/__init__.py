"""The one list of types: the types of a change's columns (``columns``), and the SQL types they come from (``sql``).

Names and facts about a type are in these tables. Code for a type is where it is used, in a mapping or a match by
`ColumnKind` or `Form`; tests check that no type is missing.
"""

"""The one list of types: what a column of a change may be (``columns``), and the SQL types it may come from (``sql``).

Names and facts about a type stand in these tables. Code for a type stands where it is used, in a mapping or a match by
`ColumnKind` or `Form`; tests check that none is missing.
"""

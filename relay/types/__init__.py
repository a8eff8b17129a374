"""The tables of column types and SQL types. Code for a type is where it is used; tests check that none is missing."""

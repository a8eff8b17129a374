"""The messages of Vitess that are used, compiled from ``vtgate.proto``; made by ``make proto``, not by hand."""

"""Rebuilds a copy or a change log from the topics, and puts it in place of the current one."""

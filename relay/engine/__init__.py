"""A worker of the relay: its loop, its transactions, and what it needs beside them."""

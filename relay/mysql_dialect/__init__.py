"""What Vitess, MySQL and MariaDB have in common: column types, tables, and how transactions become changes."""

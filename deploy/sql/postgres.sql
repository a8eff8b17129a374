-- The role that keeps a copy in PostgreSQL. Replace CHANGE-ME, and "shop" by the database of `copy.url`. It makes a
-- schema for each source. Where others make the schemas: GRANT USAGE, CREATE ON SCHEMA ... in place of CREATE.
CREATE ROLE relay LOGIN PASSWORD 'CHANGE-ME';
GRANT CONNECT, CREATE, TEMPORARY ON DATABASE "shop" TO relay;

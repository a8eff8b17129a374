-- Runs once, before ../sql/mariadb.sql.
CREATE DATABASE legacy;
CREATE TABLE legacy.customer (id INT PRIMARY KEY, name VARCHAR(100), city VARCHAR(100));
INSERT legacy.customer VALUES (1, 'Ada', 'London'), (2, 'Grace', 'New York');

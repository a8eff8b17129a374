-- The account of the relay on each MySQL server, 8.0.1 or later. Replace CHANGE-ME, and `legacy` by `database` of the
-- config. A replica gets it from its primary.
CREATE USER IF NOT EXISTS 'relay'@'%' IDENTIFIED BY 'CHANGE-ME';
-- Read the binlogs; see which there are, and how far a replica is behind.
GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO 'relay'@'%';
-- Read the layout of the tables, and for snapshots their rows.
GRANT SELECT ON `legacy`.* TO 'relay'@'%';
-- For reshards only: where the replication of a new shard records its position (`reshard_checkpoint_table`).
-- GRANT SELECT ON `_vt`.`vreplication` TO 'relay'@'%';

-- The account of the relay on each MariaDB server, 10.5 or later. Replace CHANGE-ME, and `legacy` by `database` of the
-- config. A replica gets it from its primary.
CREATE USER IF NOT EXISTS 'relay'@'%' IDENTIFIED BY 'CHANGE-ME';
-- Read the binlogs; see which there are, and how far a replica is behind.
GRANT REPLICATION SLAVE, BINLOG MONITOR, SLAVE MONITOR ON *.* TO 'relay'@'%';
-- Read the layout of the tables, and for snapshots their rows.
GRANT SELECT ON `legacy`.* TO 'relay'@'%';
-- For reshards only: where the replication of a new shard records its position (`reshard_checkpoint_table`).
-- GRANT SELECT ON `_vt`.`vreplication` TO 'relay'@'%';

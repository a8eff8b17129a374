-- The change log in {engine}: the history of an item, a table as of a time, and the changes between two watermarks.
--
-- The statements read the view relay_log. Create it first, such as by
--
--   {view};
--
-- A moment is a {moment}. deploy/docs/how_to/log.md says what the results mean.

-- All changes of one item, and the rows that snapshots have read of it, numbered in their order.
CREATE OR REPLACE {function} relay_history(of_table{text}, of_key{text}) {as}
SELECT
    row_number() OVER (
        PARTITION BY source
        ORDER BY CASE WHEN operation = 'READ' THEN snapshot_as_of - 1 ELSE token_timestamp END, operation = 'READ',
            topic, partition, {offset}
    ) AS number,
    operation, committed_at, key, old, new, images, token, event_id, source, topic, partition, {offset}, relayed_at
FROM relay_log
WHERE {table} = of_table
    -- A number that has become a BIGINT UNSIGNED or a DECIMAL is text in the key.
    AND {key} = {of_key};

-- The changes that were committed at the source from one watermark on until before another one, in seconds.
CREATE OR REPLACE {function} relay_between(since{seconds}, until{seconds}) {as}
SELECT
    source, {table}, committed_at, event_id, operation, key, old, new, images, token, transaction_id,
    transaction_order, transaction_last, topic, partition, {offset}
FROM relay_log
WHERE operation <> 'READ'
    AND committed_at >= {since} AND committed_at < {until}
    -- The days are in UTC, whatever the time zone is here.
    AND day BETWEEN CAST({since} AS DATE) - 1 AND CAST({until} AS DATE) + 1;

-- The rows that a table had at a time. incomplete: a later change is known, and what it has made of the row is not.
CREATE OR REPLACE {function} relay_as_of(of_table{text}, moment{time}) {as}
WITH changes AS (
    SELECT *,
        operation = 'READ' AS is_read,
        CASE WHEN operation = 'READ' THEN snapshot_as_of ELSE token_timestamp END AS time,
        -- What a snapshot has read is newer than what was committed before its as_of, and older than all the rest.
        CASE WHEN operation = 'READ' THEN snapshot_as_of - 1 ELSE token_timestamp END AS second,
        {key} AS item,
        -- The key range of the shard -80, 80-c0 or -; a name of another kind is all keys.
        coalesce(regexp_extract(token_shard, '/([0-9a-f]*)-([0-9a-f]*)(@[0-9]+)?$', 1), '') AS first_id,
        coalesce(regexp_extract(token_shard, '/([0-9a-f]*)-([0-9a-f]*)(@[0-9]+)?$', 2), '') AS end_id
    FROM relay_log
    WHERE {table} = of_table AND committed_at <= moment AND day <= CAST(moment AS DATE) + 1
),
numbered AS (
    SELECT *,
        row_number() OVER (PARTITION BY source, item ORDER BY second, is_read, topic, partition, {offset}) AS number,
        count(*) OVER (PARTITION BY source, item) AS numbers,
        max(time) OVER (PARTITION BY source, item) AS last_time
    FROM changes WHERE key IS NOT NULL
),
-- The newest change of each item that says what the row is: a change without its image does not.
rows AS (
    SELECT * FROM (
        SELECT *, row_number() OVER (PARTITION BY source, item ORDER BY number DESC) AS newest
        FROM numbered WHERE new IS NOT NULL OR operation = 'DELETE'
    ) WHERE newest = 1 AND operation <> 'DELETE'
),
-- The end of a snapshot deletes the rows that are older than its begin.
snapshots AS (
    SELECT ended.source, max(ended.snapshot_as_of) AS begun
    FROM changes ended JOIN changes begun ON begun.source = ended.source AND begun.snapshot_id = ended.snapshot_id
    WHERE ended.attributes['snapshot'] = 'end' AND begun.attributes['snapshot'] = 'begin'
    GROUP BY ended.source
),
-- A TRUNCATE deletes the older rows of its shard. TRUNCATEs of several shards also delete the rows that one of these
-- shards must have had. A row stays if that is not certain.
truncated AS (
    SELECT source, item,
        max(is_older AND begins AND ends) OR max(is_older AND begins) AND max(is_older AND ends)
            AND {starts} IS NOT DISTINCT FROM {ends} AS is_deleted
    FROM (
        SELECT r.source, r.item,
            CASE
                WHEN r.is_read THEN t.second >= r.time + {read_within}
                WHEN t.second <> r.second THEN true
                WHEN t.topic = r.topic AND t.partition = r.partition THEN true
                ELSE t.token_shard = r.token_shard
            END AS is_older,
            t.first_id <= r.first_id AS begins,
            t.end_id = '' OR (r.end_id <> '' AND r.end_id <= t.end_id) AS ends,
            CASE WHEN is_older AND NOT begins THEN t.first_id END AS inner_start,
            CASE WHEN is_older AND NOT ends THEN t.end_id END AS inner_end
        FROM rows r JOIN changes t ON t.source = r.source
        WHERE t.operation = 'TRUNCATE'
            AND (t.end_id = '' OR r.first_id < t.end_id) AND (r.end_id = '' OR t.first_id < r.end_id)
            AND CASE
                WHEN r.is_read OR t.second <> r.second THEN t.second >= r.time
                WHEN t.topic = r.topic AND t.partition = r.partition THEN t.{offset} > r.{offset}
                WHEN t.token_shard <> r.token_shard THEN true
                WHEN length(t.token_position) = length(r.token_position) THEN t.token_position > r.token_position
                ELSE length(t.token_position) > length(r.token_position)
            END
    ) GROUP BY source, item
)
SELECT r.source, r.{table}, r.key, r.new,
    r.number < r.numbers OR t.item IS NOT NULL AS incomplete, r.event_id, r.token, r.committed_at
FROM rows r
LEFT JOIN snapshots s ON s.source = r.source
LEFT JOIN truncated t ON t.source = r.source AND t.item = r.item
WHERE r.last_time >= coalesce(s.begun, 0) AND NOT coalesce(t.is_deleted, false);

//! Answers of VStream to changes, as far as they are whole transactions of the usual form.
//!
//! BEGIN with a GTID, rows of known tables, VGTID and COMMIT: such a transaction begins and ends here. Everything else is
//! left to `relay.vitess.events`, from the transaction's BEGIN on, and refused there (I8).

use std::collections::HashMap;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

use crate::block::{go_back, mark, Adding, ChangeBlock, Counts, Transaction};
use crate::rows::{CompiledRows, Layout, Row};
use crate::wire::{once, Message, Odd};

const BEGIN: u64 = 2;
const COMMIT: u64 = 3;
const ROW: u64 = 12;
const VGTID: u64 = 15;
/// The other events that `relay.vitess.events` handles.
const HANDLED: [u64; 9] = [4, 5, 6, 7, 8, 9, 11, 13, 16];

#[derive(Default)]
struct Event<'a> {
    kind: u64,
    timestamp: i64,
    rows: Option<&'a [u8]>,
    vgtid: Option<&'a [u8]>,
    gtid: &'a [u8],
}

/// The events of a whole transaction.
struct Events<'a> {
    gtid: &'a str,
    timestamp: i64,
    rows: Vec<&'a [u8]>,
    vgtid: &'a [u8],
}

/// What was read of some answers.
#[pyclass(module = "relay.native._core")]
pub struct WholeTransactions {
    /// How many bytes of the answers were read: up to the end of a transaction.
    #[pyo3(get)]
    consumed: usize,
    /// The executed set and the time of the last transaction; None if there is none.
    #[pyo3(get)]
    executed: Option<String>,
    #[pyo3(get)]
    timestamp: i64,
    /// Of the last transaction with rows; None if there is none.
    #[pyo3(get)]
    position: Option<String>,
    #[pyo3(get)]
    floor: i64,
    /// The rows, the bytes of their values, and how many of their changes are older than the floor was.
    #[pyo3(get)]
    rows: usize,
    #[pyo3(get)]
    size: usize,
    #[pyo3(get)]
    behind: usize,
    /// Whether a transaction has no rows.
    #[pyo3(get)]
    has_empty: bool,
    blocks: Vec<ChangeBlock>,
}

#[pymethods]
impl WholeTransactions {
    /// Return the changes, and keep none.
    fn take(&mut self) -> Vec<ChangeBlock> {
        std::mem::take(&mut self.blocks)
    }
}

#[pyclass(module = "relay.native._core")]
pub struct VStreamReader {
    keyspace: Vec<u8>,
    name: Vec<u8>,
    qualified: String,
    canonical: Py<PyAny>,
    tables: HashMap<Vec<u8>, Arc<Layout>>,
    /// Of the transaction being read.
    counts: Counts,
}

#[pymethods]
impl VStreamReader {
    /// `keyspace`, `name`, `qualified`: of the shard. `canonical`: returns the canonical form of an executed set.
    #[new]
    fn new(keyspace: Vec<u8>, name: Vec<u8>, qualified: String, canonical: Py<PyAny>) -> Self {
        Self { keyspace, name, qualified, canonical, tables: HashMap::new(), counts: Counts::new() }
    }

    /// Read the rows of a table that follow as `rows` says; None leaves them to Python.
    fn set_table(&mut self, table: Vec<u8>, rows: Option<&CompiledRows>) {
        match rows {
            Some(rows) => self.tables.insert(table, rows.0.clone()),
            None => self.tables.remove(&table),
        };
    }

    /// Read whole transactions at the beginning of `answers`, until they have `room` bytes. `floor`: of their tokens.
    /// `latest`: the latest timestamp that one may have, in seconds.
    fn read(&mut self, answers: &Bound<'_, PyBytes>, floor: i64, room: usize, latest: i64) -> WholeTransactions {
        let mut whole = WholeTransactions {
            consumed: 0,
            executed: None,
            timestamp: 0,
            position: None,
            floor,
            rows: 0,
            size: 0,
            behind: 0,
            has_empty: false,
            blocks: Vec::new(),
        };
        let all = answers.as_bytes();
        let mut rest = Message(all);
        while whole.size < room {
            let Ok(Some(events)) = transaction(&mut rest) else { break };
            if events.timestamp > latest {
                break;
            }
            let mark = mark(&whole.blocks);
            if self.add(answers, &events, &mut whole).is_none() {
                go_back(&mut whole.blocks, mark);
                break;
            }
            whole.consumed = all.len() - rest.0.len();
        }
        whole
    }
}

impl VStreamReader {
    /// Add a transaction; None if it is not as usual.
    fn add(&mut self, answers: &Bound<'_, PyBytes>, events: &Events<'_>, whole: &mut WholeTransactions) -> Option<()> {
        let executed = self.executed(answers.py(), events.vgtid)?;
        if !events.rows.is_empty() {
            let (rows, size, changes) = self.add_rows(events, &executed, whole)?;
            whole.rows += rows;
            whole.size += size;
            if events.timestamp < whole.floor {
                whole.behind += changes;
            }
            whole.floor = whole.floor.max(events.timestamp);
            whole.position = Some(executed.clone());
        } else {
            whole.has_empty = true;
        }
        whole.executed = Some(executed);
        whole.timestamp = events.timestamp;
        Some(())
    }

    /// Return the position of the shard in canonical form (I4).
    fn executed(&self, py: Python<'_>, vgtid: &[u8]) -> Option<String> {
        let mut positions = Message(vgtid);
        while let Some((number, value)) = positions.field().ok()? {
            if number != 1 {
                continue;
            }
            let (mut keyspace, mut shard, mut gtid) = (&b""[..], &b""[..], &b""[..]);
            let mut fields = Message(value.bytes().ok()?);
            while let Some((number, value)) = fields.field().ok()? {
                match number {
                    1 => keyspace = value.bytes().ok()?,
                    2 => shard = value.bytes().ok()?,
                    3 => gtid = value.bytes().ok()?,
                    _ => (),
                }
            }
            if keyspace == self.keyspace && shard == self.name {
                let gtid = std::str::from_utf8(gtid).ok()?;
                if is_canonical(gtid) {
                    return Some(gtid.to_owned());
                }
                let text = self.canonical.bind(py).call1((gtid,)).ok()?;
                return Some(text.cast_exact::<PyString>().ok()?.to_str().ok()?.to_owned());
            }
        }
        None
    }

    /// Return how many rows the transaction has, their bytes, and how many changes they are.
    fn add_rows(
        &mut self,
        events: &Events<'_>,
        executed: &str,
        whole: &mut WholeTransactions,
    ) -> Option<(usize, usize, usize)> {
        self.counts.clear();
        // Timestamps never decrease along a lineage.
        let timestamp = whole.floor.max(events.timestamp);
        let committed_at = events.timestamp.checked_mul(1_000_000)?;
        let transaction = Transaction::new(events.gtid, timestamp, &self.qualified, executed, committed_at)?;
        let (mut rows, mut size, mut order) = (0, 0, 0);
        for event in &events.rows {
            let (table, changes) = row_event(event).ok()?;
            let layout = self.tables.get(table)?.clone();
            if changes.is_empty() {
                return None;
            }
            let (blocks, counts) = (&mut whole.blocks, &mut self.counts);
            let mut adding = Adding::to(blocks, &layout, &transaction, counts, order)?;
            for change in changes {
                let (before, after) = images(change).ok()?;
                let bytes: usize = before.iter().chain(&after).map(|row| row.size).sum();
                size += bytes.max(1);
                rows += 1;
                if !is_complete(&layout, before.as_ref(), after.as_ref()) {
                    return None;
                }
                adding.row(before.as_ref(), after.as_ref())?;
            }
            order = adding.order;
        }
        whole.blocks.last_mut()?.changes.last_mut()?.last = true;
        Some((rows, size, usize::try_from(order).ok()?))
    }
}

/// Whether the rows of a change are complete as far as can be seen.
fn is_complete(layout: &Layout, before: Option<&Row<'_>>, after: Option<&Row<'_>>) -> bool {
    before.iter().chain(&after).all(|row| row.cells.len() == layout.columns.len())
        && before.is_none_or(|row| !layout.is_doubtful(&row.cells, after.is_none()))
}

/// Return the next transaction, None if there is no more.
fn transaction<'a>(rest: &mut Message<'a>) -> Result<Option<Events<'a>>, Odd> {
    let mut events: Option<Events<'a>> = None;
    while let Some((number, value)) = rest.field()? {
        if number != 1 {
            continue;
        }
        let event = event(value.bytes()?)?;
        match (event.kind, &mut events) {
            (BEGIN, None) if !event.gtid.is_empty() && event.timestamp > 0 => {
                let gtid = std::str::from_utf8(event.gtid).map_err(|_| Odd)?;
                events = Some(Events { gtid, timestamp: event.timestamp, rows: Vec::new(), vgtid: b"" });
            }
            (ROW, Some(open)) if open.vgtid.is_empty() => open.rows.push(event.rows.ok_or(Odd)?),
            (VGTID, Some(open)) if open.vgtid.is_empty() => open.vgtid = event.vgtid.ok_or(Odd)?,
            (COMMIT, Some(open)) if !open.vgtid.is_empty() => return Ok(events),
            (BEGIN | ROW | VGTID | COMMIT, _) => return Err(Odd),
            (kind, _) if HANDLED.contains(&kind) => return Err(Odd),
            _ => (), // heartbeats, and what else is passed over
        }
    }
    if events.is_some() {
        return Err(Odd); // its end has not come
    }
    Ok(None)
}

fn event(bytes: &[u8]) -> Result<Event<'_>, Odd> {
    let (mut event, mut fields) = (Event::default(), Message(bytes));
    while let Some((number, value)) = fields.field()? {
        match number {
            1 => event.kind = value.number()?,
            2 => event.timestamp = value.number()? as i64,
            5 => once(&mut event.rows, value)?,
            7 => once(&mut event.vgtid, value)?,
            28 => event.gtid = value.bytes()?,
            _ => (),
        }
    }
    Ok(event)
}

/// Return the changes of a ROW event that copies rows; none for other events, also for one of the binlog.
pub fn copied(bytes: &[u8]) -> Result<Vec<&[u8]>, Odd> {
    let event = event(bytes)?;
    match event.rows {
        Some(rows) if event.kind == ROW && event.timestamp == 0 && event.gtid.is_empty() => Ok(row_event(rows)?.1),
        _ => Ok(Vec::new()),
    }
}

/// Return the table and the changes of its rows.
fn row_event(bytes: &[u8]) -> Result<(&[u8], Vec<&[u8]>), Odd> {
    let (mut table, mut changes, mut fields) = (&b""[..], Vec::new(), Message(bytes));
    while let Some((number, value)) = fields.field()? {
        match number {
            1 => table = value.bytes()?,
            2 => changes.push(value.bytes()?),
            6 => return Err(Odd), // an internal table
            _ => (),
        }
    }
    Ok((table, changes))
}

type Images<'a> = (Option<Row<'a>>, Option<Row<'a>>);

pub fn images<'a>(change: &'a [u8]) -> Result<Images<'a>, Odd> {
    let (mut before, mut after, mut fields) = (None, None, Message(change));
    while let Some((number, value)) = fields.field()? {
        match number {
            1 => once(&mut before, value)?,
            2 => once(&mut after, value)?,
            3 | 4 => return Err(Odd), // columns that were not logged
            _ => (),
        }
    }
    let row = |bytes: Option<&'a [u8]>| bytes.map(row).transpose();
    Ok((row(before)?, row(after)?))
}

fn row<'a>(bytes: &'a [u8]) -> Result<Row<'a>, Odd> {
    let (mut lengths, mut values, mut fields) = (None, None, Message(bytes));
    while let Some((number, value)) = fields.field()? {
        match number {
            1 => once(&mut lengths, value)?,
            2 => once(&mut values, value)?,
            _ => (),
        }
    }
    let mut values = values.unwrap_or(b"");
    let size = values.len();
    let mut cells = Vec::new();
    let mut lengths = Message(lengths.unwrap_or(b""));
    while !lengths.0.is_empty() {
        let length = lengths.varint()?;
        if length & 1 == 1 {
            cells.push(None); // negative: NULL
            continue;
        }
        let length = usize::try_from(length >> 1).map_err(|_| Odd)?;
        let (cell, rest) = values.split_at_checked(length).ok_or(Odd)?;
        cells.push(Some(cell));
        values = rest;
    }
    if !values.is_empty() {
        return Err(Odd);
    }
    Ok(Row { cells, size, raw: bytes })
}

/// Whether an executed set is one GTID of MariaDB, or all transactions of one MySQL server: `<uuid>:1-57`.
fn is_canonical(executed: &str) -> bool {
    if let Some(gtid) = executed.strip_prefix("MariaDB/") {
        return !gtid.contains(',') && gtid.matches('-').count() == 2;
    }
    let Some((server, run)) = executed.strip_prefix("MySQL56/").and_then(|set| set.split_once(':')) else {
        return false;
    };
    let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let is_uuid = server.len() == 36
        && server
            .bytes()
            .enumerate()
            .all(|(at, byte)| if [8, 13, 18, 23].contains(&at) { byte == b'-' } else { is_hex(byte) });
    let last = run.strip_prefix("1-").unwrap_or("");
    let is_number = !last.is_empty() && last.len() < 19 && last.bytes().all(|byte| byte.is_ascii_digit());
    is_uuid && is_number && !last.starts_with('0') && last != "1"
}

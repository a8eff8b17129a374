//! Bytes of a binlog's dump to whole transactions of the usual form, whose rows are not read yet.
//!
//! A GTID of the same server as the one before, TABLE_MAPs that are known, rows, XID: such a transaction begins and ends
//! here. Everything else is left to `relay.mysql.binlog.stream`, and refused there (I8).

use std::collections::HashMap;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyBytes;

const QUERY: u8 = 2;
const XID: u8 = 16;
const TABLE_MAP: u8 = 19;
const GTID: u8 = 33;
const MARIADB_GTID: u8 = 162;
/// The text of a statement whose rows follow.
const SILENT: [u8; 2] = [29, 160];
/// In the order of their events' types.
const OPERATIONS: [&str; 3] = ["inserts", "updates", "deletes"];
/// Flags of MariaDB's GTID: no XID follows, a definition, an XA transaction.
const UNUSUAL: u8 = 1 | 32 | 64 | 128;

/// The rows of one event, from `start` to `end`.
pub struct Rows {
    pub table: usize,
    pub operation: &'static str,
    pub start: usize,
    pub end: usize,
    position: u32,
}

pub struct Scanned {
    pub number: u64,
    pub timestamp: u32,
    pub committed_at: Option<u64>,
    pub rows: Vec<Rows>,
}

impl Scanned {
    /// Bytes of its rows.
    pub fn size(&self) -> usize {
        self.rows.iter().map(|rows| rows.end - rows.start).sum()
    }
}

/// Whole transactions of one server, of which those from `at` on were not taken.
#[pyclass(module = "relay.native._core")]
pub struct ScannedTransactions {
    pub buffer: Py<PyBytes>,
    pub transactions: Vec<Scanned>,
    pub at: usize,
    pub run: Run,
    /// The tables of the rows.
    #[pyo3(get)]
    tables: Vec<Py<PyAny>>,
    /// Where the last transaction ends in the buffer, and in the server's file.
    #[pyo3(get)]
    end: usize,
    #[pyo3(get)]
    position: u32,
}

/// The texts of GTIDs and positions, which differ in a number only.
pub struct Run {
    gtid: String,
    front: String,
    back: String,
}

impl Run {
    pub fn gtid(&self, number: u64) -> String {
        format!("{}{number}", self.gtid)
    }

    pub fn position(&self, number: u64) -> String {
        format!("{}{number}{}", self.front, self.back)
    }
}

type Transaction = (String, String, u32, Option<u64>, Vec<RowsPlace>);
type RowsPlace = (Py<PyAny>, &'static str, usize, usize, u32);

#[pymethods]
impl ScannedTransactions {
    /// How many were not taken.
    fn __len__(&self) -> usize {
        self.transactions.len() - self.at
    }

    /// Bytes of the rows of the first that was not taken.
    #[getter]
    fn size(&self) -> usize {
        self.transactions.get(self.at).map_or(0, Scanned::size)
    }

    /// The number of the last one.
    #[getter]
    fn last(&self) -> Option<u64> {
        Some(self.transactions.last()?.number)
    }

    /// The latest timestamp of those that were not taken, in seconds.
    #[getter]
    fn latest(&self) -> Option<u32> {
        self.transactions[self.at..].iter().map(|one| one.timestamp).max()
    }

    /// The set of MySQL's GTIDs that were not taken, or the last GTID of MariaDB, since all name one server.
    #[getter]
    fn gtids(&self) -> Option<String> {
        let (first, last) = (self.transactions.get(self.at)?.number, self.transactions.last()?.number);
        if self.run.gtid.ends_with(':') && first != last {
            return Some(format!("{}{first}-{last}", self.run.gtid));
        }
        Some(self.run.gtid(last))
    }

    #[getter]
    fn buffer(&self, py: Python<'_>) -> Py<PyBytes> {
        self.buffer.clone_ref(py)
    }

    /// Take the next one: GTID, position, timestamp and commit time, and of each event with rows its table, operation,
    /// place in the buffer, and end in the file.
    fn pop(&mut self, py: Python<'_>) -> Option<Transaction> {
        let one = self.transactions.get(self.at)?;
        self.at += 1;
        let place =
            |rows: &Rows| (self.tables[rows.table].clone_ref(py), rows.operation, rows.start, rows.end, rows.position);
        let rows = one.rows.iter().map(place).collect();
        Some((self.run.gtid(one.number), self.run.position(one.number), one.timestamp, one.committed_at, rows))
    }
}

/// A table by its TABLE_MAP: what stands for it in Python, and how many columns it has.
type Mapped = Arc<(Py<PyAny>, usize)>;

#[pyclass(module = "relay.native._core")]
pub struct BinlogScanner {
    /// By the body of the TABLE_MAP; None if the table is not relayed.
    maps: HashMap<Vec<u8>, Option<Mapped>>,
}

#[pymethods]
impl BinlogScanner {
    #[new]
    fn new() -> Self {
        Self { maps: HashMap::new() }
    }

    /// Know a TABLE_MAP by its body. `table`: what stands for it in `ScannedTransactions`, and how many columns it has.
    fn know(&mut self, map: Vec<u8>, table: Option<(Py<PyAny>, usize)>) {
        self.maps.insert(map, table.map(Arc::new));
    }

    fn forget(&mut self) {
        self.maps.clear();
    }

    /// Return the whole transactions at the beginning of `buffer`; None if there is none.
    ///
    /// `is_checked`: whether events have checksums. `server`: the UUID, or domain and server id of MariaDB, of the last
    /// transaction, and `last` its number. `gtid`, `front`, `back`: what is before a number in GTIDs, and around it in
    /// positions.
    #[allow(clippy::too_many_arguments)]
    fn scan(
        &self,
        buffer: &Bound<'_, PyBytes>,
        is_checked: bool,
        server: &[u8],
        last: u64,
        gtid: String,
        front: String,
        back: String,
    ) -> Option<ScannedTransactions> {
        let mut scan = Scan { buffer: buffer.as_bytes(), is_checked, at: 0, end: 0, position: 0, tables: Vec::new() };
        let (mut transactions, mut last) = (Vec::new(), last);
        let (mut end, mut position) = (0, 0);
        while let Some(one) = scan.transaction(&self.maps, server, last) {
            last = one.number;
            transactions.push(one);
            (end, position) = (scan.at, scan.position);
        }
        if transactions.is_empty() {
            return None;
        }
        let tables = scan.tables.iter().map(|table| table.0.clone_ref(buffer.py())).collect();
        let (buffer, run) = (buffer.clone().unbind(), Run { gtid, front, back });
        Some(ScannedTransactions { buffer, transactions, at: 0, run, tables, end, position })
    }
}

/// The packets of a buffer up to `at`.
struct Scan<'a> {
    buffer: &'a [u8],
    is_checked: bool,
    at: usize,
    /// The end of the body of the last event, and its end in the file.
    end: usize,
    position: u32,
    /// Of the rows.
    tables: Vec<Mapped>,
}

struct Header {
    kind: u8,
    timestamp: u32,
    server: u32,
    /// Where its body begins.
    body: usize,
}

impl<'a> Scan<'a> {
    /// Read the next event. None if it is not complete, or not as usual.
    fn event(&mut self) -> Option<Header> {
        let header = self.buffer.get(self.at..self.at + 24)?;
        let length = number(&header[..3]);
        let end = self.at + 4 + length as usize;
        // Status, then the event's header, which has its length.
        if length == 0xFF_FFFF || header[4] != 0 || number(&header[14..18]) + 1 != length {
            return None;
        }
        let mut event = self.buffer.get(self.at + 5..end)?;
        if self.is_checked {
            let checksum;
            (event, checksum) = event.split_at_checked(event.len().checked_sub(4)?)?;
            if u64::from(crc32fast::hash(event)) != number(checksum) {
                return None;
            }
        }
        if event.len() < 19 {
            return None;
        }
        let position = number(&header[18..22]) as u32;
        self.position = if position == 0 { self.position } else { position };
        let body = self.at + 24;
        (self.at, self.end) = (end, self.at + 5 + event.len());
        Some(Header {
            kind: header[9],
            timestamp: number(&header[5..9]) as u32,
            server: number(&header[10..14]) as u32,
            body,
        })
    }

    /// Read the next transaction, None if there is none of the usual form.
    fn transaction(&mut self, maps: &HashMap<Vec<u8>, Option<Mapped>>, server: &[u8], last: u64) -> Option<Scanned> {
        let begin = self.event()?;
        let body = &self.buffer[begin.body..self.end];
        let (number, committed_at) = match begin.kind {
            MARIADB_GTID => (mariadb_gtid(body, begin.server, server, last)?, None),
            GTID => mysql_gtid(body, server, last)?,
            _ => return None,
        };
        let mut open: Vec<(&[u8], Option<Mapped>)> = Vec::new();
        let mut rows = Vec::new();
        loop {
            let event = self.event()?;
            let body = &self.buffer[event.body..self.end];
            match event.kind {
                XID => return Some(Scanned { number, timestamp: begin.timestamp, committed_at, rows }),
                TABLE_MAP => {
                    let known = maps.get(body.get(8..)?)?;
                    open.retain(|(id, _)| *id != &body[..6]);
                    open.push((&body[..6], known.clone()));
                }
                QUERY if begin.kind == GTID && is_begin(body) => (),
                kind if SILENT.contains(&kind) => (),
                kind => {
                    let (operation, has_extra) = match kind {
                        23..=25 => (OPERATIONS[usize::from(kind - 23)], false),
                        30..=32 => (OPERATIONS[usize::from(kind - 30)], true),
                        _ => return None,
                    };
                    let (_, table) = open.iter().find(|(id, _)| body.get(..6) == Some(id))?;
                    let Some(table) = table else { continue };
                    let start = begin_of_rows(body, has_extra, table.1, operation == "updates")?;
                    rows.push(Rows {
                        table: self.table(table),
                        operation,
                        start: event.body + start,
                        end: self.end,
                        position: self.position,
                    });
                }
            }
        }
    }

    fn table(&mut self, table: &Mapped) -> usize {
        self.tables.iter().position(|other| Arc::ptr_eq(other, table)).unwrap_or_else(|| {
            self.tables.push(table.clone());
            self.tables.len() - 1
        })
    }
}

/// A little-endian number.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

/// Return the number of a GTID of the same server, after the `last` one.
fn mariadb_gtid(body: &[u8], origin: u32, server: &[u8], last: u64) -> Option<u64> {
    let (next, domain, flags) = (number(body.get(..8)?), body.get(8..12)?, *body.get(12)?);
    let is_same = server.len() == 8 && domain == &server[..4] && origin.to_le_bytes() == server[4..];
    (is_same && flags & UNUSUAL == 0 && next > last).then_some(next)
}

/// Return the number after the `last` one of the same server, and its commit time, as `events.mysql_gtid` does.
fn mysql_gtid(body: &[u8], server: &[u8], last: u64) -> Option<(u64, Option<u64>)> {
    let (origin, next) = (body.get(1..17)?, number(body.get(17..25)?));
    if origin != server || next != last + 1 {
        return None;
    }
    if body.len() < 49 || body[25] != 2 {
        return Some((next, None));
    }
    let immediate = number(&body[42..49]);
    let is_original = immediate >> 55 == 1;
    Some((next, Some(if is_original { number(body.get(49..56)?) } else { immediate })))
}

/// Whether a QUERY is BEGIN.
fn is_begin(body: &[u8]) -> bool {
    let (Some(name), Some(status)) = (body.get(8), body.get(11..13)) else { return false };
    body.get(13 + number(status) as usize + usize::from(*name) + 1..) == Some(b"BEGIN")
}

/// Return where the rows of an event begin. None if it does not have all columns.
fn begin_of_rows(body: &[u8], has_extra: bool, width: usize, is_update: bool) -> Option<usize> {
    let mut at = 8;
    if has_extra {
        at += number(body.get(8..10)?) as usize;
    }
    if width > 250 || usize::from(*body.get(at)?) != width {
        return None;
    }
    at += 1;
    for _ in 0..if is_update { 2 } else { 1 } {
        let bitmap = body.get(at..at + width.div_ceil(8))?;
        if (0..width).any(|column| bitmap[column / 8] >> (column % 8) & 1 == 0) {
            return None;
        }
        at += bitmap.len();
    }
    Some(at)
}

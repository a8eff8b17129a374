//! Changes of one table as they come from a source: in Avro as far as it is known, and without an object for each.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString};

use crate::avro::{self, Field};
use crate::records::token_json;
use crate::rows::{joined, KeyPart, Layout, Row};

/// The operations of `relay.change` that rows have.
pub const OPERATIONS: [&str; 4] = ["INSERT", "UPDATE", "DELETE", "READ"];
pub const INSERT: usize = 0;
pub const UPDATE: usize = 1;
pub const DELETE: usize = 2;
pub const READ: usize = 3;

/// The images of `relay.change` that they have.
pub const IMAGES: [&str; 4] = ["NEW_AND_OLD", "NEW", "OLD", "KEYS_ONLY"];
const NEW_AND_OLD: usize = 0;
const NEW: usize = 1;

/// What changes come in.
pub enum Kind {
    Transaction,
    /// A snapshot, in Avro.
    Snapshot(Vec<u8>),
    /// A record of DynamoDB: always one change.
    Record(Arc<Attributes>),
}

/// Attributes in Avro, and as `relay.change` has them.
pub struct Attributes {
    pub avro: Vec<u8>,
    pub values: Py<PyDict>,
}

/// What all changes of a transaction share, or all rows of a page of a snapshot.
pub struct Transaction {
    pub kind: Kind,
    /// Of a snapshot, `snapshot/` and its id. Records have none.
    pub gtid: String,
    /// Of the token: seconds, not before the floor. `as_of` of a snapshot.
    pub timestamp: i64,
    pub position: String,
    pub committed_at: i64,
    /// The token in Avro, and as the JSON of its header.
    pub token: Vec<u8>,
    pub header: Vec<u8>,
    /// The place in `IMAGES`.
    pub images: usize,
}

pub struct One {
    pub transaction: usize,
    pub operation: usize,
    pub event_id: [u8; 32],
    pub order: i32,
    pub last: bool,
    pub key: Vec<KeyPart>,
    /// Places in `avro` of the key record and of the images.
    pub key_record: Range<usize>,
    pub old: Option<Range<usize>>,
    pub new: Option<Range<usize>>,
    pub keyspace_id: Option<Vec<u8>>,
    /// Places in `raw` of the rows before and after the change. Records have none.
    pub rows: [Option<Range<usize>>; 2],
}

/// By table and key, how often it was changed in a transaction.
pub type Counts = HashMap<(usize, Vec<u8>), u32>;

/// Changes of one table, in order. A `relay.change.Change` is made of one only if somebody looks at it.
#[pyclass(module = "relay.native._core", sequence)]
pub struct ChangeBlock {
    pub layout: Arc<Layout>,
    pub transactions: Vec<Arc<Transaction>>,
    pub changes: Vec<One>,
    pub avro: Vec<u8>,
    /// The rows as the source has them, of which a `Change` is made.
    raw: Vec<u8>,
    pub resume_timestamp: i64,
    pub relayed_at: i64,
}

#[pymethods]
impl ChangeBlock {
    fn __len__(&self) -> usize {
        self.changes.len()
    }

    fn __getitem__<'py>(&self, py: Python<'py>, at: isize) -> PyResult<Bound<'py, PyAny>> {
        let at = if at < 0 { at + self.changes.len() as isize } else { at };
        let one = usize::try_from(at).ok().and_then(|at| self.changes.get(at));
        let one = one.ok_or_else(no_such_change)?;
        let transaction = &self.transactions[one.transaction];
        let given = PyDict::new(py);
        given.set_item("event_id", String::from_utf8_lossy(&one.event_id))?;
        given.set_item("operation", OPERATIONS[one.operation])?;
        given.set_item("timestamp", transaction.timestamp)?;
        given.set_item("position", &transaction.position)?;
        given.set_item("committed_at", transaction.committed_at)?;
        given.set_item("resume_timestamp", self.resume_timestamp)?;
        given.set_item("relayed_at", self.relayed_at)?;
        if let Kind::Record(attributes) = &transaction.kind {
            self.describe_record(&given, one, transaction, attributes)?;
        } else {
            let [before, after] = one.rows.clone().map(|row| row.map(|place| PyBytes::new(py, &self.raw[place])));
            given.set_item("before", before)?;
            given.set_item("after", after)?;
            given.set_item("gtid", &transaction.gtid)?;
            given.set_item("order", one.order)?;
            given.set_item("last", one.last)?;
            given.set_item("keyspace_id", one.keyspace_id.as_ref().map(|id| PyBytes::new(py, id)))?;
        }
        self.layout.change.bind(py).call((), Some(&given))
    }

    /// Whether a change is a deletion, without making it.
    fn deletes(&self, at: usize) -> PyResult<bool> {
        let one = self.changes.get(at).ok_or_else(no_such_change)?;
        Ok(one.operation == DELETE)
    }

    #[getter]
    fn source<'py>(&self, py: Python<'py>) -> Bound<'py, PyString> {
        PyString::new(py, &self.layout.source)
    }

    #[getter]
    fn table<'py>(&self, py: Python<'py>) -> Bound<'py, PyString> {
        PyString::new(py, &self.layout.table)
    }
}

fn no_such_change() -> PyErr {
    PyIndexError::new_err("no such change")
}

/// How far a block had got.
struct Mark {
    transactions: usize,
    changes: usize,
    avro: usize,
    raw: usize,
}

impl ChangeBlock {
    pub fn new(layout: Arc<Layout>) -> Self {
        Self {
            layout,
            transactions: Vec::new(),
            changes: Vec::new(),
            avro: Vec::new(),
            raw: Vec::new(),
            resume_timestamp: 0,
            relayed_at: 0,
        }
    }

    fn mark(&self) -> Mark {
        Mark {
            transactions: self.transactions.len(),
            changes: self.changes.len(),
            avro: self.avro.len(),
            raw: self.raw.len(),
        }
    }

    fn go_back(&mut self, mark: &Mark) {
        self.transactions.truncate(mark.transactions);
        self.changes.truncate(mark.changes);
        self.avro.truncate(mark.avro);
        self.raw.truncate(mark.raw);
    }

    /// Add the changes of a block of the same layout.
    fn append(&mut self, other: Self) {
        let (avro, raw) = (self.avro.len(), self.raw.len());
        let is_same = self.transactions.last().zip(other.transactions.first()).is_some_and(|(a, b)| Arc::ptr_eq(a, b));
        let transactions = self.transactions.len() - usize::from(is_same);
        let behind = |place: Range<usize>, begun: usize| place.start + begun..place.end + begun;
        self.changes.extend(other.changes.into_iter().map(|one| One {
            transaction: one.transaction + transactions,
            key_record: behind(one.key_record, avro),
            old: one.old.map(|place| behind(place, avro)),
            new: one.new.map(|place| behind(place, avro)),
            rows: one.rows.map(|row| row.map(|place| behind(place, raw))),
            ..one
        }));
        self.avro.extend_from_slice(&other.avro);
        self.raw.extend_from_slice(&other.raw);
        self.transactions.extend(other.transactions.into_iter().skip(usize::from(is_same)));
    }

    /// Add a row of a snapshot, as `relay.mysql_dialect.changes` makes its READ. None if it is not as usual.
    pub fn read(&mut self, row: &Row<'_>) -> Option<()> {
        let layout = self.layout.clone();
        let transaction = self.transactions.len().checked_sub(1)?;
        let key = row.key(&layout)?;
        let event_id = layout.event_id(&self.transactions[transaction].gtid, &joined(&key)?, 0);
        let new = self.image(Some(row))?;
        let one = One {
            transaction,
            operation: READ,
            event_id,
            order: 0,
            last: false,
            keyspace_id: layout.keyspace_id(&key)?,
            key_record: self.key_record(&key)?,
            key,
            old: None,
            new,
            rows: [None, self.kept(Some(row))],
        };
        self.changes.push(one);
        Some(())
    }

    /// Keep a row as it is, and return its place.
    fn kept(&mut self, row: Option<&Row<'_>>) -> Option<Range<usize>> {
        let begun = self.raw.len();
        self.raw.extend_from_slice(row?.raw);
        Some(begun..self.raw.len())
    }

    /// Take its changes out of `counts`.
    pub fn uncount(&self, counts: &mut Counts) {
        for one in &self.changes {
            let Some(key) = joined(&one.key) else { continue };
            let counted = (Arc::as_ptr(&self.layout) as usize, key);
            match counts.get_mut(&counted) {
                Some(n) if *n > 0 => *n -= 1,
                _ => _ = counts.remove(&counted),
            }
        }
    }

    /// The key by column, as `relay.kafka.keys` takes it.
    pub fn key<'py>(&self, py: Python<'py>, one: &One) -> PyResult<Bound<'py, PyDict>> {
        let key = PyDict::new(py);
        for (column, part) in self.layout.key.iter().zip(&one.key) {
            key.set_item(column.field.name.bind(py), part.value(py)?)?;
        }
        Ok(key)
    }

    fn image(&mut self, image: Option<&Row<'_>>) -> Option<Option<Range<usize>>> {
        let Some(image) = image else { return Some(None) };
        let begun = self.avro.len();
        image.write(&self.layout, &mut self.avro)?;
        Some(Some(begun..self.avro.len()))
    }

    /// Write the key record, and return its place.
    pub fn key_record(&mut self, key: &[KeyPart]) -> Option<Range<usize>> {
        let begun = self.avro.len();
        for (column, part) in self.layout.key.iter().zip(key) {
            part.write(&mut self.avro, &column.field)?;
        }
        Some(begun..self.avro.len())
    }
}

impl KeyPart {
    fn write(&self, out: &mut Vec<u8>, field: &Field) -> Option<()> {
        match self {
            KeyPart::Integer(number) => field.write_integer(out, *number),
            KeyPart::Text(text) => field.write_text(out, text.as_bytes()),
            KeyPart::Bytes(bytes) => field.write_bytes(out, bytes),
        }
    }
}

impl Transaction {
    /// None if a text of the token needs escapes.
    pub fn new(gtid: &str, timestamp: i64, shard: &str, position: &str, committed_at: i64) -> Option<Arc<Self>> {
        Self::with_token(Kind::Transaction, gtid, timestamp, shard, position, committed_at, NEW_AND_OLD)
    }

    /// The same of a record of DynamoDB. `images`: the place in `IMAGES`.
    pub fn of_record(
        attributes: Arc<Attributes>,
        timestamp: i64,
        shard: &str,
        position: &str,
        committed_at: i64,
        images: usize,
    ) -> Option<Arc<Self>> {
        Self::with_token(Kind::Record(attributes), "", timestamp, shard, position, committed_at, images)
    }

    fn with_token(
        kind: Kind,
        gtid: &str,
        timestamp: i64,
        shard: &str,
        position: &str,
        committed_at: i64,
        images: usize,
    ) -> Option<Arc<Self>> {
        let mut token = Vec::with_capacity(16 + shard.len() + position.len());
        token.push(avro::PRESENT);
        avro::long(&mut token, timestamp);
        avro::blob(&mut token, shard.as_bytes());
        avro::blob(&mut token, position.as_bytes());
        token.push(avro::NULL); // no origin
        Some(Arc::new(Self {
            kind,
            gtid: gtid.to_owned(),
            timestamp,
            position: position.to_owned(),
            committed_at,
            token,
            header: token_json(timestamp, shard, position)?,
            images,
        }))
    }

    /// What the rows of a page of a snapshot share, which have no token.
    pub fn of_snapshot(id: &str, as_of: i64, committed_at: i64) -> Arc<Self> {
        let mut snapshot = vec![avro::PRESENT];
        avro::blob(&mut snapshot, id.as_bytes());
        avro::long(&mut snapshot, as_of);
        Arc::new(Self {
            kind: Kind::Snapshot(snapshot),
            gtid: format!("snapshot/{id}"),
            timestamp: as_of,
            position: String::new(),
            committed_at,
            token: vec![avro::NULL],
            header: Vec::new(),
            images: NEW,
        })
    }
}

/// Adds the rows of one table to a block, which has their transaction.
pub struct Adding<'a> {
    pub block: &'a mut ChangeBlock,
    pub counts: &'a mut Counts,
    pub order: i32,
}

impl<'a> Adding<'a> {
    /// Add to the last block if it is of the same table, else to a new one.
    pub fn to(
        blocks: &'a mut Vec<ChangeBlock>,
        layout: &Arc<Layout>,
        transaction: &Arc<Transaction>,
        counts: &'a mut Counts,
        order: i32,
    ) -> Option<Self> {
        if blocks.last().is_none_or(|block| !Arc::ptr_eq(&block.layout, layout)) {
            blocks.push(ChangeBlock::new(layout.clone()));
        }
        let block = blocks.last_mut()?;
        if block.transactions.last().is_none_or(|last| !Arc::ptr_eq(last, transaction)) {
            block.transactions.push(transaction.clone());
        }
        Some(Self { block, counts, order })
    }

    /// Add the changes of a row, as `relay.mysql_dialect.changes` makes them. None if something is not as usual.
    pub fn row(&mut self, before: Option<&Row<'_>>, after: Option<&Row<'_>>) -> Option<()> {
        let layout = self.block.layout.clone();
        match (before, after) {
            (None, None) => None,
            (None, Some(new)) => self.change(INSERT, new.key(&layout)?, None, after),
            (Some(old), None) => self.change(DELETE, old.key(&layout)?, before, None),
            (Some(old), Some(new)) => {
                let (gone, key) = (old.key(&layout)?, new.key(&layout)?);
                if gone == key {
                    return self.change(UPDATE, key, before, after);
                }
                // Each with its own key and partition.
                self.change(DELETE, gone, before, None)?;
                self.change(INSERT, key, None, after)
            }
        }
    }

    fn change(
        &mut self,
        operation: usize,
        key: Vec<KeyPart>,
        before: Option<&Row<'_>>,
        after: Option<&Row<'_>>,
    ) -> Option<()> {
        let block = &mut *self.block;
        let counted = (Arc::as_ptr(&block.layout) as usize, joined(&key)?);
        let n = self.counts.get(&counted).map_or(0, |n| n + 1);
        let transaction = block.transactions.len() - 1;
        let event_id = block.layout.event_id(&block.transactions[transaction].gtid, &counted.1, n);
        let (old, new) = (block.image(before)?, block.image(after)?);
        let key_record = block.key_record(&key)?;
        let one = One {
            transaction,
            operation,
            event_id,
            order: self.order,
            last: false,
            keyspace_id: block.layout.keyspace_id(&key)?,
            key,
            key_record,
            old,
            new,
            rows: [before, after].map(|row| block.kept(row)),
        };
        self.order = self.order.checked_add(1)?;
        block.changes.push(one);
        self.counts.insert(counted, n);
        Some(())
    }
}

/// Put `more` behind `blocks`.
pub fn append(blocks: &mut Vec<ChangeBlock>, more: Vec<ChangeBlock>) {
    for block in more {
        match blocks.last_mut() {
            Some(last) if Arc::ptr_eq(&last.layout, &block.layout) => last.append(block),
            _ => blocks.push(block),
        }
    }
}

/// The state of blocks, to go back to.
pub struct BlocksMark(usize, Option<Mark>);

pub fn mark(blocks: &[ChangeBlock]) -> BlocksMark {
    BlocksMark(blocks.len(), blocks.last().map(ChangeBlock::mark))
}

pub fn go_back(blocks: &mut Vec<ChangeBlock>, mark: BlocksMark) {
    blocks.truncate(mark.0);
    if let (Some(block), Some(mark)) = (blocks.last_mut(), mark.1) {
        block.go_back(&mark);
    }
}

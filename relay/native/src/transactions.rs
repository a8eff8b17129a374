//! Row events of a binlog to blocks, one transaction after another.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::binlog::{Scanned, ScannedTransactions};
use crate::block::{append, go_back, mark, Adding, ChangeBlock, Counts, Transaction};
use crate::rows::{CompiledRows, Layout, Row};

/// Keys of a transaction that are counted here. Python counts more of them, in a file (I11).
const COUNTED: usize = 200_000;

/// The open transaction.
struct Open {
    transaction: Arc<Transaction>,
    order: i32,
    /// Of its tables, each with one layout.
    layouts: Vec<Arc<Layout>>,
}

#[pyclass(module = "relay.native._core")]
pub struct BlockBuilder {
    shard: String,
    blocks: Vec<ChangeBlock>,
    /// The changes of the last row, held back because one of them may be the last of the transaction.
    held: Vec<ChangeBlock>,
    open: Option<Open>,
    counts: Counts,
}

#[pymethods]
impl BlockBuilder {
    /// `shard`: globally qualified.
    #[new]
    fn new(shard: String) -> Self {
        Self { shard, blocks: Vec::new(), held: Vec::new(), open: None, counts: Counts::new() }
    }

    /// Begin a transaction. Return whether its rows may be added.
    ///
    /// `timestamp`: of its token, in seconds.
    fn begin(&mut self, gtid: &str, position: &str, timestamp: i64, committed_at: i64) -> bool {
        self.held.clear();
        self.counts.clear();
        let transaction = Transaction::new(gtid, timestamp, &self.shard, position, committed_at);
        self.open = transaction.map(|transaction| Open { transaction, order: 0, layouts: Vec::new() });
        self.open.is_some()
    }

    /// Add the rows of an event, between `start` and `end`. All but the last one may be taken.
    ///
    /// Return how many rows and changes they are. None if something is not as usual: then nothing has changed.
    fn rows(
        &mut self,
        table: &CompiledRows,
        operation: &str,
        buffer: &Bound<'_, PyBytes>,
        start: usize,
        end: usize,
    ) -> Option<(usize, i32)> {
        let open = self.open.as_mut()?;
        let layout = &table.0;
        if !open.layouts.iter().any(|other| Arc::ptr_eq(other, layout)) {
            if open.layouts.iter().any(|other| other.table == layout.table) {
                return None;
            }
            open.layouts.push(layout.clone());
        }
        let (begun, mut event) = (open.order, Event { made: Vec::new(), last: Vec::new(), rows: 0 });
        let rest = buffer.as_bytes().get(start..end)?;
        if event.add(open, layout, operation, rest, &mut self.counts).is_none() {
            open.order = begun;
            event.made.iter().chain(&event.last).for_each(|block| block.uncount(&mut self.counts));
            return None;
        }
        if event.rows > 0 {
            append(&mut self.blocks, std::mem::replace(&mut self.held, event.last));
            append(&mut self.blocks, event.made);
        }
        Some((event.rows, open.order - begun))
    }

    /// Take whole transactions up to one that is not as usual, or with which they would have more than `room` bytes.
    ///
    /// `tables`: of `ScannedTransactions`, None for what is left to Python. `floor`: of their tokens. Return GTID, timestamp
    /// and position of the last one, the bytes of all rows, how many changes are older than the floor, the floor now,
    /// and the position of the last one with rows. None if none was taken.
    #[allow(clippy::type_complexity)]
    fn whole(
        &mut self,
        py: Python<'_>,
        scanned: &mut ScannedTransactions,
        tables: Vec<Option<PyRef<'_, CompiledRows>>>,
        floor: i64,
        room: usize,
    ) -> Option<(String, u32, String, usize, usize, i64, Option<String>)> {
        let buffer = scanned.buffer.clone_ref(py).into_bound(py);
        let (mut size, mut behind, mut reached, mut position) = (0, 0, floor, None);
        let first = scanned.at;
        while let Some(one) = scanned.transactions.get(scanned.at) {
            if size + one.size() > room {
                break;
            }
            if !one.rows.is_empty() {
                let mark = mark(&self.blocks);
                let timestamp = i64::from(one.timestamp);
                let Some(added) = self.one(scanned, one, &tables, &buffer, reached.max(timestamp)) else {
                    self.open = None;
                    self.held.clear();
                    go_back(&mut self.blocks, mark);
                    break;
                };
                size += added.0;
                behind += if timestamp < reached { added.1 } else { 0 };
                reached = reached.max(timestamp);
                position = Some(scanned.run.position(one.number));
            }
            scanned.at += 1;
        }
        let last = &scanned.transactions[scanned.at.checked_sub(1)?];
        let (gtid, executed) = (scanned.run.gtid(last.number), scanned.run.position(last.number));
        (scanned.at > first).then_some((gtid, last.timestamp, executed, size, behind, reached, position))
    }

    /// End the transaction: its last change is the last one.
    fn end(&mut self) {
        if let Some(last) = self.held.last_mut().and_then(|block| block.changes.last_mut()) {
            last.last = true;
        }
        self.release();
    }

    /// Leave the rest of the transaction to Python. Return by table and key how often it was changed.
    fn leave<'py>(&mut self, py: Python<'py>) -> Vec<(String, Bound<'py, PyBytes>, u32)> {
        let Some(open) = self.release() else { return Vec::new() };
        let table = |at: usize| open.layouts.iter().find(|layout| Arc::as_ptr(layout) as usize == at);
        let counts = self.counts.drain();
        counts.filter_map(|((at, key), n)| Some((table(at)?.table.clone(), PyBytes::new(py, &key), n + 1))).collect()
    }

    /// Return the blocks, and keep none but what is held back.
    fn take(&mut self) -> Vec<ChangeBlock> {
        std::mem::take(&mut self.blocks)
    }
}

impl BlockBuilder {
    /// Add a whole transaction with rows. Return their bytes, and how many changes they are.
    fn one(
        &mut self,
        scanned: &ScannedTransactions,
        one: &Scanned,
        tables: &[Option<PyRef<'_, CompiledRows>>],
        buffer: &Bound<'_, PyBytes>,
        timestamp: i64,
    ) -> Option<(usize, usize)> {
        let (gtid, position) = (scanned.run.gtid(one.number), scanned.run.position(one.number));
        let committed_at = one.committed_at.map_or(i64::from(one.timestamp) * 1_000_000, |at| at as i64);
        if !self.begin(&gtid, &position, timestamp, committed_at) {
            return None;
        }
        let (mut size, mut changes) = (0, 0);
        for rows in &one.rows {
            let table = tables.get(rows.table)?.as_ref()?;
            let (count, made) = self.rows(table, rows.operation, buffer, rows.start, rows.end)?;
            size += (rows.end - rows.start).checked_div(count).map_or(0, |each| (each + 1) * count);
            changes += made as usize;
        }
        if changes == 0 {
            return None;
        }
        self.end();
        Some((size, changes))
    }

    /// End the transaction, and let all of it be taken.
    fn release(&mut self) -> Option<Open> {
        append(&mut self.blocks, std::mem::take(&mut self.held));
        self.open.take()
    }
}

/// What is made of an event with rows, its last row apart.
struct Event {
    made: Vec<ChangeBlock>,
    last: Vec<ChangeBlock>,
    rows: usize,
}

impl Event {
    /// Add its rows. None if something is not as usual, after which it has a part of them.
    fn add(
        &mut self,
        open: &mut Open,
        layout: &Arc<Layout>,
        operation: &str,
        mut rest: &[u8],
        counts: &mut Counts,
    ) -> Option<()> {
        while !rest.is_empty() {
            let first = image(layout, &mut rest)?;
            let (before, after) = match operation {
                "inserts" => (None, Some(first)),
                "deletes" => (Some(first), None),
                "updates" => (Some(first), Some(image(layout, &mut rest)?)),
                _ => return None,
            };
            let blocks = if rest.is_empty() { &mut self.last } else { &mut self.made };
            let mut adding = Adding::to(blocks, layout, &open.transaction, counts, open.order)?;
            adding.row(before.as_ref(), after.as_ref())?;
            open.order = adding.order;
            self.rows += 1;
            if counts.len() > COUNTED {
                return None;
            }
        }
        Some(())
    }
}

/// Take the row off the beginning of `rest`.
fn image<'a>(layout: &Layout, rest: &mut &'a [u8]) -> Option<Row<'a>> {
    let whole = *rest;
    let (nulls, left) = rest.split_at_checked(layout.columns.len().div_ceil(8))?;
    if nulls.is_empty() {
        return None; // a row must not be empty, or there is no end of them
    }
    *rest = left;
    let cells = layout.columns.iter().enumerate().map(|(at, column)| {
        if nulls[at / 8] >> (at % 8) & 1 == 1 {
            return Some(None);
        }
        column.take(rest).map(Some)
    });
    let cells = cells.collect::<Option<Vec<_>>>()?;
    let raw = &whole[..whole.len() - rest.len()];
    Some(Row { cells, size: raw.len(), raw })
}

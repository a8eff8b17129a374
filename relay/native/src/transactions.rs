//! Row events of a binlog to blocks, one transaction after another.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::block::{append, Adding, ChangeBlock, Counts, Transaction};
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
        if event.add(open, layout, operation, buffer, rest, &mut self.counts).is_none() {
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
        buffer: &Bound<'_, PyBytes>,
        mut rest: &[u8],
        counts: &mut Counts,
    ) -> Option<()> {
        let all = buffer.as_bytes();
        while !rest.is_empty() {
            let first = image(layout, all, &mut rest)?;
            let (before, after) = match operation {
                "inserts" => (None, Some(first)),
                "deletes" => (Some(first), None),
                "updates" => (Some(first), Some(image(layout, all, &mut rest)?)),
                _ => return None,
            };
            let blocks = if rest.is_empty() { &mut self.last } else { &mut self.made };
            let mut adding = Adding::to(blocks, layout, &open.transaction, buffer, counts, open.order)?;
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

/// Take the row off the beginning of `rest`, which is a part of `all`.
fn image<'a>(layout: &Layout, all: &[u8], rest: &mut &'a [u8]) -> Option<Row<'a>> {
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
    let (begun, size) = (whole.as_ptr() as usize - all.as_ptr() as usize, whole.len() - rest.len());
    Some(Row { cells, size, place: begun..begun + size })
}

//! Whole transactions whose rows are values of Python, from a binlog, to blocks.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyInt, PyList, PyString, PyTuple};

use crate::avro;
use crate::block::{go_back, mark, Adding, ChangeBlock, Counts, Image, Kept, Transaction};
use crate::rows::{CompiledRows, KeyPart, Layout};

struct Values<'py>(Bound<'py, PyTuple>);

impl Image for Values<'_> {
    fn key(&self, _: Python<'_>, layout: &Layout) -> Option<Vec<KeyPart>> {
        layout.key.iter().map(|column| key_part(&self.0.get_item(column.at).ok()?)).collect()
    }

    fn write(&self, _: Python<'_>, layout: &Layout, out: &mut Vec<u8>) -> Option<()> {
        if self.0.len() != layout.columns.len() {
            return None;
        }
        for (column, value) in layout.columns.iter().zip(&self.0) {
            if value.is_none() {
                out.push(avro::NULL);
                continue;
            }
            out.push(avro::PRESENT);
            column.field.write(out, &value).ok()?;
        }
        Some(())
    }

    fn kept(&self) -> Kept {
        Kept::Values(Arc::new(self.0.clone().unbind()))
    }
}

fn key_part(value: &Bound<'_, PyAny>) -> Option<KeyPart> {
    if let Ok(number) = value.cast_exact::<PyInt>() {
        return Some(KeyPart::Integer(number.extract().ok()?));
    }
    if let Ok(text) = value.cast_exact::<PyString>() {
        return Some(KeyPart::Text(text.to_str().ok()?.to_owned()));
    }
    Some(KeyPart::Bytes(value.cast_exact::<PyBytes>().ok()?.as_bytes().to_vec()))
}

#[pyclass(module = "relay.native._core")]
pub struct BlockBuilder {
    shard: String,
    blocks: Vec<ChangeBlock>,
    /// Of the transaction being added.
    counts: Counts,
}

#[pymethods]
impl BlockBuilder {
    /// `shard`: globally qualified.
    #[new]
    fn new(shard: String) -> Self {
        Self { shard, blocks: Vec::new(), counts: Counts::new() }
    }

    /// Add a transaction, and return how many changes it has; None if it is not as usual: then nothing is added.
    ///
    /// `timestamp`: of its token, in seconds. `rows`: by table, each with the tuples before and after each change.
    fn add(
        &mut self,
        py: Python<'_>,
        gtid: &str,
        position: &str,
        timestamp: i64,
        committed_at: i64,
        rows: Vec<(PyRef<'_, CompiledRows>, Bound<'_, PyList>)>,
    ) -> Option<i32> {
        let mark = mark(&self.blocks);
        let transaction = Transaction::new(gtid, timestamp, &self.shard, position, committed_at)?;
        let added = self.add_rows(py, &transaction, &rows);
        if added.is_none() {
            go_back(&mut self.blocks, mark);
        }
        added
    }

    /// Return the blocks, and keep none.
    fn take(&mut self) -> Vec<ChangeBlock> {
        std::mem::take(&mut self.blocks)
    }
}

impl BlockBuilder {
    fn add_rows(
        &mut self,
        py: Python<'_>,
        transaction: &Arc<Transaction>,
        rows: &[(PyRef<'_, CompiledRows>, Bound<'_, PyList>)],
    ) -> Option<i32> {
        self.counts.clear();
        let mut order = 0;
        for (table, changes) in rows {
            let (blocks, counts) = (&mut self.blocks, &mut self.counts);
            let mut adding = Adding::to(py, blocks, &table.0, transaction, None, counts, order)?;
            for change in changes {
                let change = change.cast_exact::<PyTuple>().ok()?;
                let (before, after) = (image(change, 0)?, image(change, 1)?);
                adding.row(before.as_ref(), after.as_ref())?;
            }
            order = adding.order;
        }
        self.blocks.last_mut()?.changes.last_mut()?.last = true;
        Some(order)
    }
}

/// Return the row at a place of a change; None if it is not a tuple.
fn image<'py>(change: &Bound<'py, PyTuple>, at: usize) -> Option<Option<Values<'py>>> {
    let row = change.get_item(at).ok()?;
    if row.is_none() {
        return Some(None);
    }
    Some(Some(Values(row.cast_into_exact::<PyTuple>().ok()?)))
}

//! Pages of a snapshot to blocks: the rows as a MySQL server or vtgate has sent them.

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::block::{ChangeBlock, Transaction};
use crate::rows::{CompiledRows, Row};
use crate::vstream::{copied, images};
use crate::wire::{Message, Odd};

/// Return the READs of a page, which is made without the GIL; None if not all of it is as usual.
///
/// `form`: `text` for rows of MySQL's text protocol, each in a packet of its own, `vstream` for the rows that
/// `copied_parts` has found. `as_of`: of the snapshot called `snapshot`.
#[pyfunction]
pub fn read_rows(
    py: Python<'_>,
    rows: &CompiledRows,
    form: &str,
    pages: Vec<pyo3::pybacked::PyBackedBytes>,
    snapshot: &str,
    as_of: i64,
    committed_at: i64,
) -> Option<ChangeBlock> {
    let layout = rows.0.clone();
    py.detach(|| {
        let mut block = ChangeBlock::new(layout);
        block.transactions.push(Transaction::of_snapshot(snapshot, as_of, committed_at));
        for page in &pages {
            match form {
                "text" => block.read(&text_row(page, block.layout.columns.len())?)?,
                "vstream" => {
                    let mut events = Message(page);
                    while let Some((1, event)) = events.field().ok()? {
                        for change in copied(event.bytes().ok()?).ok()? {
                            let (None, Some(row)) = images(change).ok()? else { return None };
                            if row.cells.len() != block.layout.columns.len() {
                                return None;
                            }
                            block.read(&row)?;
                        }
                    }
                }
                _ => return None,
            }
        }
        Some(block)
    })
}

/// Part an answer of a stream that copies a table, without the GIL; None if Python has to look at it.
///
/// Copied rows that follow each other are one part: how many there are, and an answer that has nothing else. Each other
/// event is a part with 0, in the form of a VEvent.
#[pyfunction]
pub fn copied_parts<'py>(answer: &Bound<'py, PyBytes>) -> Option<Vec<(usize, Bound<'py, PyBytes>)>> {
    let (py, all) = (answer.py(), answer.as_bytes());
    let parts = py.detach(|| parts_of(all)).ok()?;
    Some(parts.into_iter().map(|(count, bytes)| (count, PyBytes::new(py, bytes))).collect())
}

fn parts_of(all: &[u8]) -> Result<Vec<(usize, &[u8])>, Odd> {
    let (mut parts, mut rest, mut run, mut count) = (Vec::new(), Message(all), 0, 0);
    loop {
        let at = all.len() - rest.0.len();
        let event = match rest.field()? {
            Some((1, event)) => Some(event.bytes()?),
            Some(_) => return Err(Odd),
            None => None,
        };
        let rows = event.map(copied).transpose()?.map_or(0, |changes| changes.len());
        if rows == 0 && count > 0 {
            parts.push((count, &all[run..at]));
            count = 0;
        }
        let Some(event) = event else { return Ok(parts) };
        if rows == 0 {
            parts.push((0, event));
        } else {
            run = if count == 0 { at } else { run };
            count += rows;
        }
    }
}

/// Take the first `width` values of a row: others may follow, which are not the table's.
fn text_row(raw: &[u8], width: usize) -> Option<Row<'_>> {
    let (mut rest, mut size) = (raw, 0);
    let mut cells = Vec::with_capacity(width);
    for _ in 0..width {
        let (&first, after) = rest.split_first()?;
        let (length, after) = match first {
            0xFB => {
                cells.push(None);
                rest = after;
                continue;
            }
            0..=0xFA => (u64::from(first), after),
            0xFC => little(after, 2)?,
            0xFD => little(after, 3)?,
            0xFE => little(after, 8)?,
            0xFF => return None,
        };
        let (cell, after) = after.split_at_checked(usize::try_from(length).ok()?)?;
        size += cell.len();
        cells.push(Some(cell));
        rest = after;
    }
    Some(Row { cells, size, raw })
}

/// Take a number of `size` bytes off the beginning.
fn little(raw: &[u8], size: usize) -> Option<(u64, &[u8])> {
    let (number, rest) = raw.split_at_checked(size)?;
    Some((number.iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte)), rest))
}

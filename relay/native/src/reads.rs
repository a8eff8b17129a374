//! Pages of a snapshot to blocks: the rows as a MySQL server or vtgate has sent them.

use pyo3::prelude::*;

use crate::block::{ChangeBlock, Transaction};
use crate::rows::{CompiledRows, Row};
use crate::vstream::{images, row_event};

/// Return the READs of a page, which is made without the GIL; None if not all of it is as usual.
///
/// `form`: `text` for rows of MySQL's text protocol, each in a packet of its own, `vstream` for messages of type
/// RowEvent. `as_of`: of the snapshot called `snapshot`.
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
                    for change in row_event(page).ok()?.1 {
                        let (None, Some(row)) = images(change).ok()? else { return None };
                        if row.cells.len() != block.layout.columns.len() {
                            return None;
                        }
                        block.read(&row)?;
                    }
                }
                _ => return None,
            }
        }
        Some(block)
    })
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

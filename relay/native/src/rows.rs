//! Rows, the values of their columns as VStream or a binlog has them: to Avro, and to the parts of their keys.

use blake2b_simd::{Params, State};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyNone, PyString, PyTuple};

use crate::avro::{self, Field};
use crate::stored::{Stored, Value};

/// How the text of a value is read, or its bytes in a binlog. What has no kind of its own is decoded in Python.
enum Cell {
    Integer,
    Decimal,
    Double,
    Text,
    Bytes,
    Other,
    Stored(Stored),
}

pub struct Column {
    cell: Cell,
    decode: Py<PyAny>,
    pub field: Field,
    /// Whether NULL before a change may mean that the column was not logged.
    pub doubtful: bool,
    pub primary: bool,
}

impl Column {
    /// Write a value. None if it is not as usual, after which `out` may have a part of it.
    ///
    /// The GIL is taken for what Python decodes only.
    pub fn write(&self, out: &mut Vec<u8>, raw: &[u8]) -> Option<()> {
        match &self.cell {
            Cell::Integer => self.field.write_integer(out, integer(raw)?),
            // Python writes one of more digits than Avro has.
            Cell::Decimal => self.field.write_decimal(out, raw).or_else(|| self.write_decoded(out, raw)),
            Cell::Double => self.field.write_double(out, raw),
            Cell::Text => self.field.write_text(out, raw),
            Cell::Bytes => self.field.write_bytes(out, raw),
            Cell::Other => self.write_decoded(out, raw),
            Cell::Stored(stored) => match stored.value(raw)? {
                Value::Integer(number) => self.field.write_integer(out, number),
                Value::Unscaled(number) => self.field.write_unscaled(out, number),
                Value::Double(number) => self.field.write_number(out, number),
                Value::Text(text) => self.field.write_text(out, &text),
                Value::Bytes(bytes) => self.field.write_bytes(out, &bytes),
                Value::Other => self.write_decoded(out, raw),
            },
        }
    }

    fn write_decoded(&self, out: &mut Vec<u8>, raw: &[u8]) -> Option<()> {
        Python::attach(|py| self.field.write(out, &self.decoded(py, raw)?).ok())
    }

    fn decoded<'py>(&self, py: Python<'py>, raw: &[u8]) -> Option<Bound<'py, PyAny>> {
        self.decode.bind(py).call1((PyBytes::new(py, raw),)).ok()
    }

    /// Take the bytes of a binlog's value off the beginning of `rest`.
    pub fn take<'a>(&self, rest: &mut &'a [u8]) -> Option<&'a [u8]> {
        let Cell::Stored(stored) = &self.cell else { return None };
        let (raw, left) = rest.split_at_checked(stored.size(rest)?)?;
        *rest = left;
        Some(raw)
    }

    pub fn key_part(&self, raw: &[u8]) -> Option<KeyPart> {
        Some(match &self.cell {
            Cell::Integer => KeyPart::Integer(integer(raw)?),
            Cell::Text => KeyPart::Text(std::str::from_utf8(raw).ok()?.to_owned()),
            Cell::Bytes => KeyPart::Bytes(raw.to_vec()),
            Cell::Decimal | Cell::Double => return None,
            Cell::Other => return self.decoded_part(raw),
            Cell::Stored(stored) => match stored.value(raw)? {
                Value::Integer(number) => KeyPart::Integer(number),
                Value::Text(text) => KeyPart::Text(std::str::from_utf8(&text).ok()?.to_owned()),
                Value::Bytes(bytes) => KeyPart::Bytes(bytes.into_owned()),
                Value::Unscaled(_) | Value::Double(_) => return None,
                Value::Other => return self.decoded_part(raw),
            },
        })
    }

    fn decoded_part(&self, raw: &[u8]) -> Option<KeyPart> {
        Python::attach(|py| {
            let value = self.decoded(py, raw)?;
            Some(match value.cast_exact::<PyBytes>() {
                Ok(bytes) => KeyPart::Bytes(bytes.as_bytes().to_vec()),
                Err(_) => KeyPart::Text(value.cast_exact::<PyString>().ok()?.to_str().ok()?.to_owned()),
            })
        })
    }
}

/// A row before or after a change. None among its cells is NULL.
pub struct Row<'a> {
    pub cells: Vec<Option<&'a [u8]>>,
    /// Bytes of the values.
    pub size: usize,
    /// The row as its source has it.
    pub raw: &'a [u8],
}

impl Row<'_> {
    /// None for what is not as usual.
    pub fn key(&self, layout: &Layout) -> Option<Vec<KeyPart>> {
        layout.key.iter().map(|column| layout.columns[column.at].key_part(self.cells[column.at]?)).collect()
    }

    /// Write it as a row record. None for what is not as usual.
    pub fn write(&self, layout: &Layout, out: &mut Vec<u8>) -> Option<()> {
        for (column, cell) in layout.columns.iter().zip(&self.cells) {
            match cell {
                None => out.push(avro::NULL),
                Some(raw) => {
                    out.push(avro::PRESENT);
                    column.write(out, raw)?;
                }
            }
        }
        Some(())
    }
}

/// The value of a key column.
#[derive(Clone, PartialEq)]
pub enum KeyPart {
    Integer(i128),
    Text(String),
    Bytes(Vec<u8>),
}

impl KeyPart {
    pub fn value<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(match self {
            KeyPart::Integer(number) => number.into_pyobject(py)?.into_any(),
            KeyPart::Text(text) => PyString::new(py, text).into_any(),
            KeyPart::Bytes(bytes) => PyBytes::new(py, bytes).into_any(),
        })
    }

    /// Append the text of a number, and other values as they are.
    pub fn append(&self, out: &mut Vec<u8>) {
        match self {
            KeyPart::Integer(number) => out.extend_from_slice(number.to_string().as_bytes()),
            KeyPart::Text(text) => out.extend_from_slice(text.as_bytes()),
            KeyPart::Bytes(bytes) => out.extend_from_slice(bytes),
        }
    }
}

/// The bytes of a key, so that different keys have different bytes: one part as it is, several each with its length.
pub fn joined(key: &[KeyPart]) -> Option<Vec<u8>> {
    let [part] = key else { return framed(key) };
    let mut bytes = Vec::with_capacity(24);
    part.append(&mut bytes);
    Some(bytes)
}

/// The parts of a key, each with its length.
pub fn framed(key: &[KeyPart]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(64);
    for part in key {
        let begun = bytes.len();
        bytes.extend_from_slice(&[0; 4]);
        part.append(&mut bytes);
        let size = u32::try_from(bytes.len() - begun - 4).ok()?;
        bytes[begun..begun + 4].copy_from_slice(&size.to_be_bytes());
    }
    Some(bytes)
}

pub struct KeyColumn {
    pub at: usize,
    pub field: Field,
}

/// One layout of one table in one shard.
pub struct Layout {
    pub source: String,
    pub table: String,
    /// Both names in Avro.
    pub names: Vec<u8>,
    pub columns: Vec<Column>,
    pub key: Vec<KeyColumn>,
    pub change: Py<PyAny>,
    keyspace_id: Option<Py<PyAny>>,
    has_others: bool,
    /// The hash of what all event ids of the shard begin with, and what is hashed after the position.
    event_id: State,
    table_part: Vec<u8>,
}

#[derive(FromPyObject)]
enum CellSpec {
    Text(String),
    Stored(String, usize, usize, usize, Vec<String>),
}

type ColumnSpec = (CellSpec, Py<PyAny>, bool, bool, (Py<PyString>, String, (i64, i64), Py<PyAny>));
type KeySpec = (usize, (Py<PyString>, String, (i64, i64), Py<PyAny>));

#[pyclass(module = "relay.native._core", frozen)]
pub struct CompiledRows(pub std::sync::Arc<Layout>);

#[pymethods]
impl CompiledRows {
    /// `columns`: of each how its text is read, or how a binlog has it (see `Stored::new`), its decoder, whether NULL is doubtful in it before a change, whether it
    /// is part of the primary key, and its field in the row. `key`: of each column its place in a row, and its field.
    /// `change`: makes a change from what `ChangeBlock` knows about it. `keyspace_id`: of a row, of which it needs the key.
    #[new]
    #[pyo3(signature = (*, shard, source, table, columns, key, change, keyspace_id))]
    fn new(
        shard: &str,
        source: String,
        table: String,
        columns: Vec<ColumnSpec>,
        key: Vec<KeySpec>,
        change: Py<PyAny>,
        keyspace_id: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let columns = columns.into_iter().map(|(cell, decode, doubtful, primary, field)| {
            let cell = match cell {
                CellSpec::Text(kind) => match kind.as_str() {
                    "integer" => Cell::Integer,
                    "decimal" => Cell::Decimal,
                    "double" => Cell::Double,
                    "text" => Cell::Text,
                    "bytes" => Cell::Bytes,
                    "other" => Cell::Other,
                    _ => return Err(PyValueError::new_err(format!("{kind} is not a kind of value"))),
                },
                CellSpec::Stored(form, size, width, decimals, members) => {
                    let stored = Stored::new(&form, size, width, decimals, members);
                    Cell::Stored(stored.ok_or_else(|| PyValueError::new_err(format!("{form} is not a form of a value")))?)
                }
            };
            Ok(Column { cell, decode, field: Field::new(field.0, &field.1, field.2, field.3)?, doubtful, primary })
        });
        let columns = columns.collect::<PyResult<Vec<_>>>()?;
        let key = key
            .into_iter()
            .map(|(at, field)| Ok(KeyColumn { at, field: Field::new(field.0, &field.1, field.2, field.3)? }))
            .collect::<PyResult<Vec<_>>>()?;
        if key.iter().any(|column| column.at >= columns.len()) {
            return Err(PyValueError::new_err("a key column is not in the row"));
        }
        let layout = Layout::new(shard, source, table, columns, key, change, keyspace_id);
        Ok(Self(std::sync::Arc::new(layout)))
    }

    #[getter]
    fn table(&self) -> &str {
        &self.0.table
    }
}

impl Layout {
    pub fn new(
        shard: &str,
        source: String,
        table: String,
        columns: Vec<Column>,
        key: Vec<KeyColumn>,
        change: Py<PyAny>,
        keyspace_id: Option<Py<PyAny>>,
    ) -> Self {
        let mut names = Vec::new();
        avro::blob(&mut names, source.as_bytes());
        avro::blob(&mut names, table.as_bytes());
        let mut event_id = Params::new().hash_length(16).to_state();
        hash_part(&mut event_id, shard.as_bytes());
        let mut table_part = (table.len() as u32).to_be_bytes().to_vec();
        table_part.extend_from_slice(table.as_bytes());
        let has_others = columns.iter().any(|column| !column.primary);
        Self { source, table, names, columns, key, change, keyspace_id, has_others, event_id, table_part }
    }

    /// Whether NULLs in a row before its change may be columns that were not logged.
    pub fn is_doubtful(&self, before: &[Option<&[u8]>], is_deleted: bool) -> bool {
        let mut cells = self.columns.iter().zip(before);
        if cells.clone().any(|(column, cell)| column.doubtful && cell.is_none()) {
            return true;
        }
        is_deleted && self.has_others && cells.all(|(column, cell)| column.primary || cell.is_none())
    }

    pub fn keyspace_id(&self, key: &[KeyPart]) -> Option<Option<Vec<u8>>> {
        let Some(compute) = &self.keyspace_id else { return Some(None) };
        Python::attach(|py| {
            let mut row = vec![PyNone::get(py).to_owned().into_any(); self.columns.len()];
            for (column, part) in self.key.iter().zip(key) {
                row[column.at] = part.value(py).ok()?;
            }
            let found = compute.bind(py).call1((PyTuple::new(py, row).ok()?,)).ok()?;
            if found.is_none() {
                return Some(None);
            }
            Some(Some(found.cast_exact::<PyBytes>().ok()?.as_bytes().to_vec()))
        })
    }

    /// The id of the n-th change of a key in a transaction, as `relay.change.event_id` makes it (I3).
    pub fn event_id(&self, gtid: &str, key: &[u8], n: u32) -> [u8; 32] {
        let mut state = self.event_id.clone();
        hash_part(&mut state, gtid.as_bytes());
        state.update(&self.table_part);
        hash_part(&mut state, key);
        hash_part(&mut state, &n.to_be_bytes());
        let mut id = [0; 32];
        id.copy_from_slice(state.finalize().to_hex().as_bytes());
        id
    }
}

fn hash_part(state: &mut State, part: &[u8]) {
    state.update(&(part.len() as u32).to_be_bytes()).update(part);
}

/// None for what only Python's `int` takes.
fn integer(text: &[u8]) -> Option<i128> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    if digits.is_empty() || digits.len() > 30 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number = digits.iter().fold(0, |number, digit| number * 10 + i128::from(digit - b'0'));
    Some(if digits.len() < text.len() { -number } else { number })
}

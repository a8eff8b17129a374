//! Records of DynamoDB Streams, as `relay.dynamodb.raw_records` has parsed them, to blocks.

use std::ops::Range;
use std::sync::Arc;

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyException, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString};

use crate::avro::{self, Field};
use crate::block::{Attributes, ChangeBlock, One, Transaction, DELETE, IMAGES, INSERT, UPDATE};
use crate::records::FieldSpec;
use crate::rows::{framed, KeyColumn, KeyPart, Layout};

const EVENTS: [(&str, usize); 3] = [("MODIFY", UPDATE), ("INSERT", INSERT), ("REMOVE", DELETE)];
/// The views of a stream, in the order of `IMAGES`.
const VIEWS: [&str; IMAGES.len()] = ["NEW_AND_OLD_IMAGES", "NEW_IMAGE", "OLD_IMAGE", "KEYS_ONLY"];
/// Seconds, the year 5138: their microseconds fit.
const LATEST: f64 = 1e11;

/// The type of a key column, and whether a text of it is a key as it is.
struct KeyType {
    name: Py<PyString>,
    is_usual: fn(&str) -> bool,
}

#[pyclass(module = "relay.native._core", frozen)]
pub struct CompiledItems {
    layout: Arc<Layout>,
    shard: String,
    key: Vec<KeyType>,
    key_value: Py<PyAny>,
    attributes: Py<PyAny>,
}

/// The changes of a page, and what `relay.dynamodb.reader` counts.
type Page = (ChangeBlock, i64, usize, i64, i64);

#[pymethods]
impl CompiledItems {
    /// `shard`: globally qualified. `key`: of each column its type in DynamoDB, and its field. `change`: makes a change
    /// from the fields that `ChangeBlock` has. `key_value`: makes the rare values of keys. `attributes`: makes the rare
    /// values of a record.
    #[new]
    #[pyo3(signature = (*, shard, source, table, key, change, key_value, attributes))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        py: Python<'_>,
        shard: String,
        source: String,
        table: String,
        key: Vec<(Py<PyString>, FieldSpec)>,
        change: Py<PyAny>,
        key_value: Py<PyAny>,
        attributes: Py<PyAny>,
    ) -> PyResult<Self> {
        let (mut types, mut columns) = (Vec::new(), Vec::new());
        for (name, field) in key {
            let is_usual: fn(&str) -> bool = match name.to_str(py)? {
                "S" => |_| true,
                "N" => is_canonical,
                _ => |_| false,
            };
            types.push(KeyType { name, is_usual });
            columns.push(KeyColumn { at: 0, field: Field::new(field.0, &field.1, field.2, field.3)? });
        }
        let layout = Arc::new(Layout::new(&shard, source, table, Vec::new(), columns, change, None));
        Ok(Self { layout, shard, key: types, key_value, attributes })
    }

    /// Return the changes of records as a block, the timestamp of the last token, how many records are older than one
    /// that they follow, their bytes, and the time of the last one. None if one of them is not as usual.
    ///
    /// `floor`: seconds; no token has an earlier timestamp.
    fn block(&self, records: &Bound<'_, PyList>, floor: &Bound<'_, PyAny>) -> PyResult<Option<Page>> {
        match floor.extract().and_then(|floor| self.page(records, floor)) {
            // The plain path says what is wrong. It leaves interrupts to the caller.
            Err(error) if error.is_instance_of::<PyException>(records.py()) => Ok(None),
            made => made.map(Some),
        }
    }
}

impl CompiledItems {
    fn page(&self, records: &Bound<'_, PyList>, mut floor: i64) -> PyResult<Page> {
        let py = records.py();
        let mut block = ChangeBlock::new(self.layout.clone());
        let (mut created, mut behind, mut size) = (floor, 0, 0);
        let mut versions: Option<(Bound<'_, PyAny>, Arc<Attributes>)> = None;
        for record in records {
            let data = record.getattr(intern!(py, "dynamodb"))?;
            let seconds: f64 = data.getattr(intern!(py, "approximate_creation_date_time"))?.extract()?;
            if !(0.0..LATEST).contains(&seconds) {
                return Err(odd());
            }
            created = seconds as i64;
            behind += usize::from(created < floor);
            floor = floor.max(created);
            let operation = record.getattr(intern!(py, "event_name"))?;
            let operation = operation.cast_exact::<PyString>()?.to_str()?;
            let operation = EVENTS.iter().find(|(name, _)| *name == operation).ok_or_else(odd)?.1;
            let view = data.getattr(intern!(py, "stream_view_type"))?;
            let view = view.cast_exact::<PyString>()?.to_str()?;
            let images = VIEWS.iter().position(|name| *name == view).ok_or_else(odd)?;
            let sequence = data.getattr(intern!(py, "sequence_number"))?;
            let position = ["DynamoDB/", sequence.cast_exact::<PyString>()?.to_str()?].concat();
            let attributes = self.attributes(&record, &mut versions)?;
            let transaction =
                Transaction::of_record(attributes, floor, &self.shard, &position, created * 1_000_000, images);
            let key = self.key(&data.getattr(intern!(py, "keys"))?)?;
            let (old, old_size) = image(&mut block.avro, &data.getattr(intern!(py, "old_image"))?)?;
            let (new, new_size) = image(&mut block.avro, &data.getattr(intern!(py, "new_image"))?)?;
            let weight = match data.getattr(intern!(py, "size_bytes"))?.extract::<i64>()? {
                0 => (old_size + new_size) as i64,
                weight => weight,
            };
            size = i64::checked_add(size, weight).ok_or_else(odd)?;
            block.add_record(transaction.ok_or_else(odd)?, operation, key, old, new).ok_or_else(odd)?;
        }
        Ok((block, floor, behind, size, created))
    }

    fn key(&self, keys: &Bound<'_, PyAny>) -> PyResult<Vec<KeyPart>> {
        let py = keys.py();
        let keys = keys.cast_exact::<PyDict>()?;
        let mut key = Vec::with_capacity(self.key.len());
        for (column, kind) in self.layout.key.iter().zip(&self.key) {
            let value = keys.get_item(column.field.name.bind(py))?.ok_or_else(odd)?;
            let value = value.cast_exact::<PyDict>()?;
            if value.len() == 1 {
                if let Some(text) = value.get_item(kind.name.bind(py))? {
                    let text = text.cast_exact::<PyString>()?.to_str()?;
                    if (kind.is_usual)(text) {
                        key.push(KeyPart::Text(text.to_owned()));
                        continue;
                    }
                }
            }
            let made = self.key_value.bind(py).call1((value,))?;
            key.push(match made.cast_exact::<PyBytes>() {
                Ok(bytes) => KeyPart::Bytes(bytes.as_bytes().to_vec()),
                Err(_) => KeyPart::Text(made.cast_exact::<PyString>()?.to_str()?.to_owned()),
            });
        }
        Ok(key)
    }

    /// `versions`: the attributes of the last record that has only a version, and that version.
    fn attributes<'py>(
        &self,
        record: &Bound<'py, PyAny>,
        versions: &mut Option<(Bound<'py, PyAny>, Arc<Attributes>)>,
    ) -> PyResult<Arc<Attributes>> {
        let py = record.py();
        let version = record.getattr(intern!(py, "event_version"))?;
        let is_only = record.getattr(intern!(py, "user_identity"))?.is_none();
        if let (true, Some((last, attributes))) = (is_only, &versions) {
            if version.eq(last)? {
                return Ok(attributes.clone());
            }
        }
        let values = self.attributes.bind(py).call1((record,))?.cast_into_exact::<PyDict>()?;
        let mut avro = Vec::new();
        avro::texts(&mut avro, &values)?;
        let attributes = Arc::new(Attributes { avro, values: values.unbind() });
        if is_only {
            *versions = Some((version, attributes.clone()));
        }
        Ok(attributes)
    }
}

impl ChangeBlock {
    /// Add the change of a record. None if something is not as usual.
    fn add_record(
        &mut self,
        transaction: Arc<Transaction>,
        operation: usize,
        key: Vec<KeyPart>,
        old: Option<Range<usize>>,
        new: Option<Range<usize>>,
    ) -> Option<()> {
        let one = One {
            transaction: self.transactions.len(),
            operation,
            event_id: self.layout.event_id(&transaction.position, &framed(&key)?, 0),
            order: 0,
            last: false,
            key_record: self.key_record(&key)?,
            key,
            old,
            new,
            keyspace_id: None,
            rows: [None, None],
        };
        self.transactions.push(transaction);
        self.changes.push(one);
        Some(())
    }

    /// Add what only a change of a record has to what is given to its maker.
    pub fn describe_record(
        &self,
        given: &Bound<'_, PyDict>,
        one: &One,
        record: &Transaction,
        attributes: &Attributes,
    ) -> PyResult<()> {
        let py = given.py();
        let text = |place: &Option<Range<usize>>| {
            place.clone().map(|place| String::from_utf8_lossy(avro::blob_bytes(&self.avro[place])))
        };
        given.set_item("key", self.key(py, one)?)?;
        given.set_item("old", text(&one.old))?;
        given.set_item("new", text(&one.new))?;
        given.set_item("images", IMAGES[record.images])?;
        given.set_item("attributes", attributes.values.bind(py))
    }
}

fn odd() -> PyErr {
    PyValueError::new_err("not as usual")
}

/// Write an image as it is, and return its place, None if it is absent, and its bytes.
///
/// Fails for an image that the tolerant parser has read.
fn image(out: &mut Vec<u8>, image: &Bound<'_, PyAny>) -> PyResult<(Option<Range<usize>>, usize)> {
    let buffer = PyBuffer::<u8>::get(image)?;
    let size = buffer.item_count();
    if size == 0 {
        return Ok((None, 0));
    }
    let begun = out.len();
    avro::varint(out, (size as u64) << 1);
    let text = out.len();
    out.resize(text + size, 0);
    buffer.copy_to_slice(image.py(), &mut out[text..])?;
    std::str::from_utf8(&out[text..]).map_err(|_| odd())?;
    Ok((Some(begun..out.len()), size))
}

/// Whether `relay.dynamodb.values.canonical_number` returns the text as it is.
fn is_canonical(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let (whole, decimals) = digits.split_once('.').unwrap_or((digits, "1"));
    let are_digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let is_plain = are_digits(whole) && are_digits(decimals);
    is_plain && (whole == "0" || !whole.starts_with('0')) && !decimals.ends_with('0') && text != "-0"
}

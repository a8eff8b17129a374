//! Changes of one table to records.

use pyo3::exceptions::{PyException, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyInt, PyList, PyString, PyTuple};

use crate::avro::{self, Field, NULL, PRESENT};
use crate::block::{ChangeBlock, Kind, One, IMAGES, OPERATIONS};
use crate::keys::partition;
use crate::rows::{joined, Layout};

/// One of the key columns that choose the partition.
enum Hashed {
    Text(Py<PyString>),
    Bytes(Py<PyString>),
    Integer(Py<PyString>),
}

/// The parts of the last token, which all changes of a transaction share.
struct LastToken {
    token: Py<PyAny>,
    avro: Vec<u8>,
    header: Py<PyTuple>,
}

#[pyclass(module = "relay.native._core")]
pub struct RecordWriter {
    header: Vec<u8>,
    key: Vec<Field>,
    row: Option<Vec<Field>>,
    operations: Vec<String>,
    images: Vec<String>,
    /// The columns whose bytes are both the record key and the choice of the partition; None if it is not that simple.
    hashed: Option<Vec<Hashed>>,
    codec: Py<PyAny>,
    partitions: u32,
    largest: usize,
    last: Option<LastToken>,
    out: Vec<u8>,
}

pub type FieldSpec = (Py<PyString>, String, (i64, i64), Py<PyAny>);

#[pymethods]
impl RecordWriter {
    /// `key`, `row`: name, kind, bounds and writer of each column. `hashed`: name and kind of key columns. `codec`:
    /// `KeyCodec.hash_and_record_key`, for all other keys. `largest`: bytes of value, key and token above which a record
    /// is left to Python.
    #[new]
    #[pyo3(signature = (*, header, key, row, operations, images, hashed, codec, partitions, largest))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        header: Vec<u8>,
        key: Vec<FieldSpec>,
        row: Option<Vec<FieldSpec>>,
        operations: Vec<String>,
        images: Vec<String>,
        hashed: Option<Vec<(Py<PyString>, String)>>,
        codec: Py<PyAny>,
        partitions: u32,
        largest: usize,
    ) -> PyResult<Self> {
        let fields = |specs: Vec<FieldSpec>| -> PyResult<Vec<Field>> {
            specs.into_iter().map(|(name, kind, bounds, writer)| Field::new(name, &kind, bounds, writer)).collect()
        };
        let hashed = hashed.map(|columns| {
            columns
                .into_iter()
                .map(|(name, kind)| match kind.as_str() {
                    "text" => Hashed::Text(name),
                    "bytes" => Hashed::Bytes(name),
                    _ => Hashed::Integer(name),
                })
                .collect()
        });
        Ok(Self {
            header,
            key: fields(key)?,
            row: row.map(fields).transpose()?,
            operations,
            images,
            hashed,
            codec,
            partitions,
            largest,
            last: None,
            out: Vec::new(),
        })
    }

    /// Return `(value, key, partition, headers)` of each change, None for those that are left to Python.
    fn records<'py>(
        &mut self,
        py: Python<'py>,
        changes: &Bound<'py, PyList>,
        resume_timestamp: i64,
        relayed_at: i64,
    ) -> PyResult<Bound<'py, PyList>> {
        let records = PyList::empty(py);
        let (resume, relayed) = (PyInt::new(py, resume_timestamp), PyInt::new(py, relayed_at));
        for change in changes {
            change.setattr(intern!(py, "resume_timestamp"), &resume)?;
            change.setattr(intern!(py, "relayed_at"), &relayed)?;
            match self.record(&change, resume_timestamp, relayed_at) {
                Ok(Some(record)) => records.append(record)?,
                // The plain path says what is wrong, where and what to do. It leaves interrupts to the caller.
                Err(error) if !error.is_instance_of::<PyException>(py) => return Err(error),
                _ => records.append(py.None())?,
            }
        }
        Ok(records)
    }

    /// Return the same of a block of changes.
    fn block_records<'py>(
        &mut self,
        py: Python<'py>,
        block: &mut ChangeBlock,
        resume_timestamp: i64,
        relayed_at: i64,
    ) -> PyResult<Bound<'py, PyList>> {
        (block.resume_timestamp, block.relayed_at) = (resume_timestamp, relayed_at);
        let (operations, images) = (places(&self.operations, &OPERATIONS)?, places(&self.images, &IMAGES)?);
        if !self.has_columns_of(py, &block.layout)? {
            return PyList::new(py, block.changes.iter().map(|_| py.None()));
        }
        let mut header: Option<(usize, Bound<'py, PyTuple>)> = None;
        let (records, mut out) = (PyList::empty(py), std::mem::take(&mut self.out));
        for one in &block.changes {
            let transaction = &block.transactions[one.transaction];
            let (hashed, record_key) = match self.block_key(py, block, one) {
                Ok(made) => made,
                Err(error) if !error.is_instance_of::<PyException>(py) => return Err(error),
                Err(_) => {
                    records.append(py.None())?;
                    continue;
                }
            };
            out.clear();
            out.extend_from_slice(&self.header);
            avro::blob(&mut out, &one.event_id);
            avro::long(&mut out, operations[one.operation]);
            out.extend_from_slice(&block.layout.names);
            out.push(PRESENT);
            out.extend_from_slice(&block.avro[one.key_record.clone()]);
            for image in [&one.old, &one.new] {
                match image {
                    None => out.push(NULL),
                    Some(place) => {
                        out.push(PRESENT);
                        out.extend_from_slice(&block.avro[place.clone()]);
                    }
                }
            }
            avro::long(&mut out, images[transaction.images]);
            out.extend_from_slice(&transaction.token);
            match &transaction.kind {
                Kind::Snapshot(snapshot) => {
                    out.extend_from_slice(snapshot);
                    out.push(NULL); // no transaction
                }
                Kind::Transaction => {
                    out.extend_from_slice(&[NULL, PRESENT]); // no snapshot, a transaction
                    avro::blob(&mut out, transaction.gtid.as_bytes());
                    avro::long(&mut out, i64::from(one.order));
                    out.push(u8::from(one.last));
                }
                Kind::Record(_) => out.extend_from_slice(&[NULL, NULL]),
            }
            match &one.keyspace_id {
                None => out.push(NULL),
                Some(id) => {
                    out.push(PRESENT);
                    avro::blob(&mut out, id);
                }
            }
            avro::long(&mut out, resume_timestamp);
            avro::long(&mut out, transaction.committed_at);
            avro::long(&mut out, relayed_at);
            match &transaction.kind {
                Kind::Record(attributes) => out.extend_from_slice(&attributes.avro),
                _ => out.push(0), // no attributes
            }
            if out.len() + record_key.as_bytes().len() + transaction.header.len() > self.largest {
                records.append(py.None())?;
                continue;
            }
            let event_id = (intern!(py, "event_id"), PyBytes::new(py, &one.event_id)).into_pyobject(py)?;
            if matches!(transaction.kind, Kind::Snapshot(_)) {
                let headers = PyList::new(py, [event_id])?;
                records.append((PyBytes::new(py, &out), record_key, partition(&hashed, self.partitions), headers))?;
                continue;
            }
            if header.as_ref().is_none_or(|(number, _)| *number != one.transaction) {
                let token = (intern!(py, "token"), PyBytes::new(py, &transaction.header)).into_pyobject(py)?;
                header = Some((one.transaction, token));
            }
            let headers = PyList::new(py, [Some(event_id), header.as_ref().map(|(_, token)| token.clone())])?;
            records.append((PyBytes::new(py, &out), record_key, partition(&hashed, self.partitions), headers))?;
        }
        self.out = out;
        Ok(records)
    }
}

impl RecordWriter {
    /// Whether the schema has the columns of a layout, whose blocks are in Avro already. The plain path compares each
    /// change with the schema (I8).
    fn has_columns_of(&self, py: Python<'_>, layout: &Layout) -> PyResult<bool> {
        let own = self.key.iter().chain(self.row.iter().flatten());
        let others =
            layout.key.iter().map(|column| &column.field).chain(layout.columns.iter().map(|column| &column.field));
        if self.key.len() != layout.key.len() || self.row.as_ref().map_or(0, Vec::len) != layout.columns.len() {
            return Ok(false);
        }
        for (field, other) in own.zip(others) {
            if !field.is_same(py, other)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Return the bytes that choose the partition, and the record key.
    fn block_key<'py>(
        &self,
        py: Python<'py>,
        block: &ChangeBlock,
        one: &One,
    ) -> PyResult<(Vec<u8>, Bound<'py, PyBytes>)> {
        if let Some(columns) = &self.hashed {
            if let Some(bytes) = one.key.get(..columns.len()).and_then(joined) {
                let key = PyBytes::new(py, &bytes);
                return Ok((bytes, key));
            }
        }
        let (hashed, key): (Bound<'py, PyBytes>, Bound<'py, PyBytes>) =
            self.codec.call1(py, (block.key(py, one)?,))?.extract(py)?;
        Ok((hashed.as_bytes().to_vec(), key))
    }

    fn record<'py>(
        &mut self,
        change: &Bound<'py, PyAny>,
        resume_timestamp: i64,
        relayed_at: i64,
    ) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let py = change.py();
        let key = change.getattr(intern!(py, "key"))?;
        if key.is_none() {
            return Ok(None);
        }
        let (record_key, number) = self.key(&key)?;
        let event_id = change.getattr(intern!(py, "event_id"))?;
        let event_id = event_id.cast::<PyString>()?.to_str()?.as_bytes();
        self.token(&change.getattr(intern!(py, "token"))?)?;
        let mut out = std::mem::take(&mut self.out);
        out.clear();
        let written = self.value(&mut out, change, &key, event_id, resume_timestamp, relayed_at);
        self.out = out;
        if written?.is_none() {
            return Ok(None);
        }
        let event_id = (intern!(py, "event_id"), PyBytes::new(py, event_id));
        let headers = match &self.last {
            Some(last) => {
                let token = last.header.bind(py).get_borrowed_item(1)?;
                let size = self.out.len() + record_key.as_bytes().len() + token.cast::<PyBytes>()?.as_bytes().len();
                if size > self.largest {
                    return Ok(None);
                }
                PyList::new(py, [event_id.into_pyobject(py)?, last.header.bind(py).clone()])?
            }
            None => {
                if self.out.len() + record_key.as_bytes().len() > self.largest {
                    return Ok(None);
                }
                PyList::new(py, [event_id])?
            }
        };
        let value = PyBytes::new(py, &self.out);
        Ok(Some((value, record_key, number, headers).into_pyobject(py)?))
    }

    /// Return the record key and the partition.
    fn key<'py>(&self, key: &Bound<'py, PyAny>) -> PyResult<(Bound<'py, PyBytes>, u32)> {
        let py = key.py();
        if let Some(bytes) = self.hashed.as_ref().and_then(|columns| hashed_bytes(columns, key)) {
            return Ok((PyBytes::new(py, &bytes), partition(&bytes, self.partitions)));
        }
        let (hashed, record_key): (Bound<'py, PyBytes>, Bound<'py, PyBytes>) =
            self.codec.call1(py, (key,))?.extract(py)?;
        Ok((record_key, partition(hashed.as_bytes(), self.partitions)))
    }

    /// Make `last` the parts of `token`.
    fn token(&mut self, token: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = token.py();
        if token.is_none() {
            self.last = None;
            return Ok(());
        }
        if self.last.as_ref().is_some_and(|last| last.token.is(token)) {
            return Ok(());
        }
        self.last = None;
        let (own, origin) = (Place::of(token)?, token.getattr(intern!(py, "origin"))?);
        let mut avro = vec![PRESENT];
        own.write(&mut avro)?;
        let json = if origin.is_none() { own.json()? } else { None };
        if origin.is_none() {
            avro.push(NULL);
        } else {
            avro.push(PRESENT);
            Place::of(&origin)?.write(&mut avro)?;
        }
        let json = match json {
            Some(json) => PyBytes::new(py, &json).into_any(),
            None => token.call_method0(intern!(py, "to_json_bytes"))?,
        };
        let header = (intern!(py, "token"), json).into_pyobject(py)?.unbind();
        self.last = Some(LastToken { token: token.clone().unbind(), avro, header });
        Ok(())
    }

    /// Write the framing and the change. None for a change that is left to Python.
    fn value(
        &self,
        out: &mut Vec<u8>,
        change: &Bound<'_, PyAny>,
        key: &Bound<'_, PyAny>,
        event_id: &[u8],
        resume_timestamp: i64,
        relayed_at: i64,
    ) -> PyResult<Option<()>> {
        let py = change.py();
        out.extend_from_slice(&self.header);
        avro::blob(out, event_id);
        let Some(operation) = symbol(&self.operations, &change.getattr(intern!(py, "operation"))?)? else {
            return Ok(None);
        };
        avro::long(out, operation);
        avro::text(out, &change.getattr(intern!(py, "source"))?)?;
        avro::text(out, &change.getattr(intern!(py, "table"))?)?;
        out.push(PRESENT);
        avro::record(out, &self.key, key, false)?;
        for image in [change.getattr(intern!(py, "old"))?, change.getattr(intern!(py, "new"))?] {
            if image.is_none() {
                out.push(NULL);
                continue;
            }
            out.push(PRESENT);
            match &self.row {
                None => avro::blob(out, image.cast_exact::<PyString>()?.to_str()?.as_bytes()),
                Some(fields) => avro::record(out, fields, &image, true)?,
            }
        }
        let Some(images) = symbol(&self.images, &change.getattr(intern!(py, "images"))?)? else { return Ok(None) };
        avro::long(out, images);
        match &self.last {
            None => out.push(NULL),
            Some(last) => out.extend_from_slice(&last.avro),
        }
        let snapshot = change.getattr(intern!(py, "snapshot"))?;
        if snapshot.is_none() {
            out.push(NULL);
        } else {
            out.push(PRESENT);
            avro::text(out, &snapshot.getattr(intern!(py, "id"))?)?;
            avro::long(out, snapshot.getattr(intern!(py, "as_of"))?.extract()?);
        }
        let transaction = change.getattr(intern!(py, "transaction"))?;
        if transaction.is_none() {
            out.push(NULL);
        } else {
            out.push(PRESENT);
            avro::text(out, &transaction.getattr(intern!(py, "id"))?)?;
            let order: i32 = transaction.getattr(intern!(py, "order"))?.extract()?;
            avro::long(out, i64::from(order));
            out.push(u8::from(transaction.getattr(intern!(py, "last"))?.cast_exact::<PyBool>()?.is_true()));
        }
        let keyspace_id = change.getattr(intern!(py, "keyspace_id"))?;
        if keyspace_id.is_none() {
            out.push(NULL);
        } else {
            out.push(PRESENT);
            avro::blob(out, keyspace_id.cast_exact::<PyBytes>()?.as_bytes());
        }
        avro::long(out, resume_timestamp);
        avro::long(out, change.getattr(intern!(py, "committed_at"))?.extract()?);
        avro::long(out, relayed_at);
        let attributes = change.getattr(intern!(py, "attributes"))?;
        avro::texts(out, attributes.cast_exact::<PyDict>()?)?;
        Ok(Some(()))
    }
}

/// Return the canonical bytes of key columns: one as it is, several each with its length. None for rare values.
fn hashed_bytes(columns: &[Hashed], key: &Bound<'_, PyAny>) -> Option<Vec<u8>> {
    let key = key.cast_exact::<PyDict>().ok()?;
    let mut bytes = Vec::with_capacity(32);
    for column in columns {
        let (Hashed::Text(name) | Hashed::Bytes(name) | Hashed::Integer(name)) = column;
        let value = key.get_item(name).ok()??;
        let begun = bytes.len();
        if columns.len() > 1 {
            bytes.extend_from_slice(&[0; 4]);
        }
        match column {
            Hashed::Text(_) => bytes.extend_from_slice(value.cast_exact::<PyString>().ok()?.to_str().ok()?.as_bytes()),
            Hashed::Bytes(_) => bytes.extend_from_slice(value.cast_exact::<PyBytes>().ok()?.as_bytes()),
            Hashed::Integer(_) => {
                let number: i64 = value.cast_exact::<PyInt>().ok()?.extract().ok()?;
                bytes.extend_from_slice(number.to_string().as_bytes());
            }
        }
        if columns.len() > 1 {
            let size = u32::try_from(bytes.len() - begun - 4).ok()?;
            bytes[begun..begun + 4].copy_from_slice(&size.to_be_bytes());
        }
    }
    Some(bytes)
}

/// The three fields of both kinds of token.
struct Place<'py> {
    timestamp: i64,
    shard: Bound<'py, PyString>,
    position: Bound<'py, PyString>,
}

impl<'py> Place<'py> {
    fn of(token: &Bound<'py, PyAny>) -> PyResult<Self> {
        let py = token.py();
        Ok(Self {
            timestamp: token.getattr(intern!(py, "timestamp"))?.extract()?,
            shard: token.getattr(intern!(py, "shard"))?.cast_into()?,
            position: token.getattr(intern!(py, "position"))?.cast_into()?,
        })
    }

    fn write(&self, out: &mut Vec<u8>) -> PyResult<()> {
        avro::long(out, self.timestamp);
        avro::blob(out, self.shard.to_str()?.as_bytes());
        avro::blob(out, self.position.to_str()?.as_bytes());
        Ok(())
    }

    /// The JSON of a token without an origin, None if its texts need escapes.
    fn json(&self) -> PyResult<Option<Vec<u8>>> {
        Ok(token_json(self.timestamp, self.shard.to_str()?, self.position.to_str()?))
    }
}

/// The JSON of a token without an origin, None if its texts need escapes.
pub fn token_json(timestamp: i64, shard: &str, position: &str) -> Option<Vec<u8>> {
    let is_plain = |text: &str| text.bytes().all(|byte| byte >= 0x20 && byte != b'"' && byte != b'\\');
    if !is_plain(shard) || !is_plain(position) {
        return None;
    }
    let mut json = Vec::with_capacity(64 + shard.len() + position.len());
    json.extend_from_slice(b"{\"timestamp\":");
    json.extend_from_slice(timestamp.to_string().as_bytes());
    for part in [&b",\"shard\":\""[..], shard.as_bytes(), b"\",\"position\":\"", position.as_bytes()] {
        json.extend_from_slice(part);
    }
    json.extend_from_slice(b"\",\"origin\":null}");
    Some(json)
}

/// Return the places of symbols in an enum of the schema.
fn places(symbols: &[String], wanted: &[&str]) -> PyResult<Vec<i64>> {
    let place = |symbol: &&str| {
        let found = symbols.iter().position(|each| each == symbol).map(|at| at as i64);
        found.ok_or_else(|| PyValueError::new_err(format!("the schema lacks {symbol}")))
    };
    wanted.iter().map(place).collect()
}

fn symbol(symbols: &[String], value: &Bound<'_, PyAny>) -> PyResult<Option<i64>> {
    let value = value.cast::<PyString>()?.to_str()?;
    Ok(symbols.iter().position(|symbol| symbol == value).map(|at| at as i64))
}

//! Integers, texts and columns in Avro's "Binary Encoding".

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyList, PyString, PyType};

static DECIMAL: PyOnceLock<Py<PyType>> = PyOnceLock::new();

pub const NULL: u8 = 0; // the first branch of our unions
pub const PRESENT: u8 = 2; // the second branch

pub fn varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

pub fn long(out: &mut Vec<u8>, number: i64) {
    varint(out, (number << 1 ^ number >> 63) as u64);
}

pub fn blob(out: &mut Vec<u8>, bytes: &[u8]) {
    varint(out, (bytes.len() as u64) << 1);
    out.extend_from_slice(bytes);
}

/// Fails for a lone surrogate, which UTF-8 cannot encode.
pub fn text(out: &mut Vec<u8>, value: &Bound<'_, PyAny>) -> PyResult<()> {
    blob(out, value.cast::<PyString>()?.to_str()?.as_bytes());
    Ok(())
}

/// Write a map of texts.
pub fn texts(out: &mut Vec<u8>, values: &Bound<'_, PyDict>) -> PyResult<()> {
    if !values.is_empty() {
        varint(out, (values.len() as u64) << 1);
        for (name, value) in values {
            text(out, &name)?;
            text(out, &value)?;
        }
    }
    out.push(0);
    Ok(())
}

/// The bytes that `blob` has written.
pub fn blob_bytes(written: &[u8]) -> &[u8] {
    let size = written.iter().take_while(|byte| **byte >= 0x80).count() + 1;
    &written[size..]
}

/// How the usual values of a column type are written. All others are left to the column's writer in Python.
#[derive(PartialEq)]
enum Kind {
    Text,
    Bytes,
    Boolean,
    Integer {
        least: i64,
        most: i64,
    },
    Double,
    Decimal {
        scale: usize,
        limit: i128,
    },
    Texts,
    /// With the bounds, which tell it from another such kind.
    Other((i64, i64)),
}

pub struct Field {
    pub name: Py<PyString>,
    kind: Kind,
    writer: Py<PyAny>,
}

impl Field {
    /// `kind`: as `relay.avro.columns` names them, or `decimal`. `bounds`: of an integer, or a decimal's precision and
    /// scale.
    pub fn new(name: Py<PyString>, kind: &str, bounds: (i64, i64), writer: Py<PyAny>) -> PyResult<Self> {
        let kind = match kind {
            "text" => Kind::Text,
            "bytes" => Kind::Bytes,
            "boolean" => Kind::Boolean,
            "integer" => Kind::Integer { least: bounds.0, most: bounds.1 },
            "double" => Kind::Double,
            "decimal" if (1..=38).contains(&bounds.0) && (0..=bounds.0).contains(&bounds.1) => {
                Kind::Decimal { scale: bounds.1 as usize, limit: 10_i128.pow(bounds.0 as u32) }
            }
            "texts" => Kind::Texts,
            "other" => Kind::Other(bounds),
            _ => return Err(PyValueError::new_err(format!("{kind} {bounds:?} is not a kind of column"))),
        };
        Ok(Self { name, kind, writer })
    }

    /// Whether it has the name and the kind of another.
    pub fn is_same(&self, py: Python<'_>, other: &Self) -> PyResult<bool> {
        Ok(self.kind == other.kind && self.name.bind(py).as_any().eq(other.name.bind(py))?)
    }

    pub fn write(&self, out: &mut Vec<u8>, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = value.py();
        let begun = out.len();
        if self.write_usual(out, value).is_some() {
            return Ok(());
        }
        out.truncate(begun);
        let written = self.writer.bind(py).call1((value,))?;
        out.extend_from_slice(written.cast::<PyBytes>()?.as_bytes());
        Ok(())
    }

    /// None, after which `out` may have a part of the value, for whatever is left to Python.
    fn write_usual(&self, out: &mut Vec<u8>, value: &Bound<'_, PyAny>) -> Option<()> {
        match self.kind {
            Kind::Text => blob(out, value.cast_exact::<PyString>().ok()?.to_str().ok()?.as_bytes()),
            Kind::Bytes => blob(out, value.cast_exact::<PyBytes>().ok()?.as_bytes()),
            Kind::Boolean => out.push(u8::from(value.cast_exact::<PyBool>().ok()?.is_true())),
            Kind::Integer { .. } => {
                let number: i64 = value.cast_exact::<PyInt>().ok()?.extract().ok()?;
                return self.write_integer(out, i128::from(number));
            }
            Kind::Double => {
                let number = value.cast_exact::<PyFloat>().ok()?.value();
                if number.is_nan() {
                    return None;
                }
                out.extend_from_slice(&number.to_le_bytes());
            }
            Kind::Decimal { .. } => {
                if !value.get_type().is(DECIMAL.import(value.py(), "decimal", "Decimal").ok()?) {
                    return None;
                }
                let shown = value.str().ok()?;
                return self.write_decimal(out, shown.to_str().ok()?.as_bytes());
            }
            Kind::Texts => {
                let members = value.cast_exact::<PyList>().ok()?;
                if !members.is_empty() {
                    varint(out, (members.len() as u64) << 1);
                    for member in members {
                        blob(out, member.cast_exact::<PyString>().ok()?.to_str().ok()?.as_bytes());
                    }
                }
                out.push(0);
            }
            Kind::Other(_) => return None,
        }
        Some(())
    }

    // Each of these returns None for what it does not write, before it has written anything.

    pub fn write_integer(&self, out: &mut Vec<u8>, number: i128) -> Option<()> {
        match self.kind {
            Kind::Integer { least, most } if (i128::from(least)..=i128::from(most)).contains(&number) => {
                long(out, number as i64);
            }
            Kind::Decimal { scale: 0, limit } if number.abs() < limit => decimal(out, number),
            _ => return None,
        }
        Some(())
    }

    /// `text`: of a decimal, as a database prints it.
    pub fn write_decimal(&self, out: &mut Vec<u8>, text: &[u8]) -> Option<()> {
        let Kind::Decimal { scale, .. } = self.kind else { return None };
        self.write_unscaled(out, unscaled(text, scale)?)
    }

    /// `number`: a decimal without its point.
    pub fn write_unscaled(&self, out: &mut Vec<u8>, number: i128) -> Option<()> {
        match self.kind {
            Kind::Decimal { limit, .. } if (1 - limit..limit).contains(&number) => decimal(out, number),
            _ => return None,
        }
        Some(())
    }

    /// `text`: of a double, which is the nearest one.
    pub fn write_double(&self, out: &mut Vec<u8>, text: &[u8]) -> Option<()> {
        let is_number = text.iter().all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(byte));
        if !is_number {
            return None;
        }
        self.write_number(out, std::str::from_utf8(text).ok()?.parse().ok()?)
    }

    pub fn write_number(&self, out: &mut Vec<u8>, number: f64) -> Option<()> {
        if number.is_nan() || !matches!(self.kind, Kind::Double) {
            return None;
        }
        out.extend_from_slice(&number.to_le_bytes());
        Some(())
    }

    pub fn write_text(&self, out: &mut Vec<u8>, text: &[u8]) -> Option<()> {
        if !matches!(self.kind, Kind::Text) || std::str::from_utf8(text).is_err() {
            return None;
        }
        blob(out, text);
        Some(())
    }

    pub fn write_bytes(&self, out: &mut Vec<u8>, bytes: &[u8]) -> Option<()> {
        if !matches!(self.kind, Kind::Bytes) {
            return None;
        }
        blob(out, bytes);
        Some(())
    }
}

/// Databases return as many decimals as the column has, so the digits are the unscaled number. None for other texts.
fn unscaled(text: &[u8], scale: usize) -> Option<i128> {
    let (negative, digits) = match text.strip_prefix(b"-") {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let mut number: i128 = 0;
    let point = if scale == 0 { None } else { Some(digits.len().checked_sub(scale + 1)?) };
    if digits.is_empty() || point == Some(0) {
        return None;
    }
    for (at, &byte) in digits.iter().enumerate() {
        if Some(at) == point {
            if byte != b'.' {
                return None;
            }
            continue;
        }
        if !byte.is_ascii_digit() {
            return None;
        }
        number = number.checked_mul(10)?.checked_add(i128::from(byte - b'0'))?;
    }
    Some(if negative { -number } else { number })
}

fn decimal(out: &mut Vec<u8>, number: i128) {
    let bits = 128 - number.unsigned_abs().leading_zeros() as usize;
    let size = (bits + 8) / 8;
    varint(out, (size as u64) << 1);
    out.extend_from_slice(&number.to_be_bytes()[16 - size..]);
}

/// Write a record whose fields are all nullable or none. Fails for a column that is absent or cannot be carried, and
/// for columns that the record does not have.
pub fn record(out: &mut Vec<u8>, fields: &[Field], values: &Bound<'_, PyAny>, nullable: bool) -> PyResult<()> {
    let py = values.py();
    let values = values.cast_exact::<PyDict>()?;
    if values.len() != fields.len() {
        return Err(PyValueError::new_err("other columns than the schema's"));
    }
    for field in fields {
        let Some(value) = values.get_item(field.name.bind(py))? else {
            return Err(PyValueError::new_err("a column is absent"));
        };
        if nullable {
            if value.is_none() {
                out.push(NULL);
                continue;
            }
            out.push(PRESENT);
        }
        field.write(out, &value)?;
    }
    Ok(())
}

//! Values as the row events of a binlog have them, as in `relay.mysql.binlog.values`, which names the formats' sources.

use std::borrow::Cow;

pub enum Value<'a> {
    Integer(i128),
    /// A decimal without its point.
    Unscaled(i128),
    Double(f64),
    Text(Cow<'a, [u8]>),
    Bytes(Cow<'a, [u8]>),
    /// Decoded in Python.
    Other,
}

enum Form {
    Signed,
    Unsigned,
    Year,
    Double,
    Decimal {
        whole: usize,
        decimals: usize,
    },
    Text,
    Bytes,
    /// To this width, with zeros.
    Padded(usize),
    Date,
    Datetime {
        decimals: usize,
    },
    Time {
        decimals: usize,
    },
    Timestamp {
        decimals: usize,
    },
    Enum(Vec<String>),
    Other,
}

/// How a column is stored.
pub struct Stored {
    form: Form,
    /// Bytes of a value, or of the length before it.
    size: usize,
    has_length: bool,
}

impl Stored {
    /// `size`: bytes of a value, or of the length before it for `text`, `bytes`, `padded` and `other_text`. `width`: of
    /// `padded`, or the digits of `decimal`. None for what it does not know.
    pub fn new(form: &str, size: usize, width: usize, decimals: usize, members: Vec<String>) -> Option<Self> {
        let is_fraction = decimals <= 6;
        let has_length = matches!(form, "text" | "bytes" | "padded" | "other_text");
        let (form, is_sized) = match form {
            "signed" => (Form::Signed, (1..=8).contains(&size)),
            "unsigned" => (Form::Unsigned, (1..=8).contains(&size)),
            "year" => (Form::Year, size == 1),
            "double" => (Form::Double, size == 8),
            "decimal" => {
                let whole = width.checked_sub(decimals)?;
                (Form::Decimal { whole, decimals }, (1..=38).contains(&width) && size == decimal_size(whole, decimals))
            }
            "text" => (Form::Text, true),
            "bytes" | "bits" => (Form::Bytes, true),
            "padded" => (Form::Padded(width), true),
            "date" => (Form::Date, size == 3),
            "datetime" => (Form::Datetime { decimals }, is_fraction && size == 5 + decimals.div_ceil(2)),
            "time" => (Form::Time { decimals }, is_fraction && size == 3 + decimals.div_ceil(2)),
            "timestamp" => (Form::Timestamp { decimals }, is_fraction && size == 4 + decimals.div_ceil(2)),
            "enum" => (Form::Enum(members), size <= 2),
            "other" | "other_text" => (Form::Other, true),
            _ => return None,
        };
        (is_sized && (!has_length || (1..=4).contains(&size))).then_some(Self { form, size, has_length })
    }

    /// The bytes of the value at the beginning of `rest`, its length included. None if they cannot be there.
    pub fn size(&self, rest: &[u8]) -> Option<usize> {
        if !self.has_length {
            return Some(self.size);
        }
        self.size.checked_add(usize::try_from(little(rest.get(..self.size)?)).ok()?)
    }

    /// `raw`: the bytes of a value, its length included. None for what is not a value of the column.
    pub fn value<'a>(&'a self, raw: &'a [u8]) -> Option<Value<'a>> {
        let raw = if self.has_length { raw.get(self.size..)? } else { raw };
        Some(match &self.form {
            Form::Signed => {
                let unused = 64 - 8 * raw.len() as u32;
                Value::Integer(i128::from((little(raw) << unused) as i64 >> unused))
            }
            Form::Unsigned => Value::Integer(i128::from(little(raw))),
            Form::Year => Value::Integer(if raw[0] == 0 { 0 } else { 1900 + i128::from(raw[0]) }),
            Form::Double => Value::Double(f64::from_le_bytes(raw.try_into().ok()?)),
            Form::Decimal { whole, decimals } => Value::Unscaled(decimal(raw, *whole, *decimals)?),
            Form::Text => Value::Text(Cow::Borrowed(raw)),
            Form::Bytes => Value::Bytes(Cow::Borrowed(raw)),
            Form::Padded(width) => {
                let mut padded = raw.to_vec();
                padded.resize(padded.len().max(*width), 0);
                Value::Bytes(Cow::Owned(padded))
            }
            Form::Date => {
                let date = little(raw);
                text(format!("{:04}-{:02}-{:02}", date >> 9, date >> 5 & 15, date & 31))
            }
            Form::Datetime { decimals } => {
                let (whole, fraction) = (big(&raw[..5]), fraction(&raw[5..], *decimals));
                if whole & 0x80_0000_0000 == 0 {
                    return None;
                }
                let month = whole >> 22 & 0x1_FFFF;
                let day = format!("{:04}-{:02}-{:02}", month / 13, month % 13, whole >> 17 & 31);
                text(format!("{day} {}", clock(whole >> 12 & 31, whole, fraction, *decimals)))
            }
            Form::Time { decimals } => {
                let fraction_bits = 8 * (raw.len() - 3) as u32;
                let stored = big(raw) as i64 - (0x80_0000 << fraction_bits);
                let (sign, stored) = (if stored < 0 { "-" } else { "" }, stored.unsigned_abs());
                let whole = stored >> fraction_bits;
                let part = stored & ((1 << fraction_bits) - 1);
                let part = if decimals % 2 == 1 { part / 10 } else { part };
                text(format!("{sign}{}", clock(whole >> 12 & 1023, whole, part, *decimals)))
            }
            Form::Timestamp { decimals } => {
                let fraction = fraction(&raw[4..], *decimals) * 10_u64.pow(6 - *decimals as u32);
                Value::Integer(i128::from(big(&raw[..4])) * 1_000_000 + i128::from(fraction))
            }
            Form::Enum(members) => match little(raw) {
                0 => Value::Text(Cow::Borrowed(b"")), // what the server stores for a text that is not a member
                number => Value::Text(Cow::Borrowed(members.get(usize::try_from(number - 1).ok()?)?.as_bytes())),
            },
            Form::Other => Value::Other,
        })
    }
}

fn text<'a>(made: String) -> Value<'a> {
    Value::Text(Cow::Owned(made.into_bytes()))
}

fn little(raw: &[u8]) -> u64 {
    raw.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

fn big(raw: &[u8]) -> u64 {
    raw.iter().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

/// Hours, minutes, seconds and digits after them. `whole`: minutes and seconds are its last twelve bits.
fn clock(hours: u64, whole: u64, fraction: u64, decimals: usize) -> String {
    let clock = format!("{hours:02}:{:02}:{:02}", whole >> 6 & 63, whole & 63);
    if decimals == 0 {
        return clock;
    }
    format!("{clock}.{fraction:0decimals$}")
}

/// The digits after the point as a number.
fn fraction(raw: &[u8], decimals: usize) -> u64 {
    if decimals % 2 == 1 {
        big(raw) / 10
    } else {
        big(raw)
    }
}

const BYTES_OF_DIGITS: [usize; 10] = [0, 1, 1, 2, 2, 3, 3, 4, 4, 4];

fn decimal_size(whole: usize, decimals: usize) -> usize {
    [whole, decimals].iter().map(|digits| digits / 9 * 4 + BYTES_OF_DIGITS[digits % 9]).sum()
}

/// Groups of nine digits in four bytes, shorter groups at both ends.
fn decimal(raw: &[u8], whole: usize, decimals: usize) -> Option<i128> {
    let is_negative = raw.first()? & 0x80 == 0;
    let inverted = if is_negative { 0xFF } else { 0 };
    let groups = std::iter::once(whole % 9)
        .chain(std::iter::repeat_n(9, whole / 9 + decimals / 9))
        .chain(std::iter::once(decimals % 9));
    let (mut number, mut at) = (0_i128, 0);
    for digits in groups {
        let bytes = raw.get(at..at + BYTES_OF_DIGITS[digits])?;
        let group = bytes.iter().enumerate().fold(0_i128, |group, (nth, &byte)| {
            let byte = if at + nth == 0 { byte ^ 0x80 } else { byte };
            group << 8 | i128::from(byte ^ inverted)
        });
        let power = 10_i128.pow(digits as u32);
        if group >= power {
            return None;
        }
        number = number.checked_mul(power)?.checked_add(group)?;
        at += bytes.len();
    }
    Some(if is_negative { -number } else { number })
}

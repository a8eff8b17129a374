//! Messages in the wire format of Protocol Buffers ("Encoding" in its documentation), read in place.

/// What is not as usual, and therefore left to Python: it may be malformed.
pub struct Odd;

pub enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> Value<'a> {
    pub fn number(self) -> Result<u64, Odd> {
        match self {
            Value::Number(number) => Ok(number),
            Value::Bytes(_) => Err(Odd),
        }
    }

    pub fn bytes(self) -> Result<&'a [u8], Odd> {
        match self {
            Value::Bytes(bytes) => Ok(bytes),
            Value::Number(_) => Err(Odd),
        }
    }
}

/// The fields of a message that have not been read yet.
pub struct Message<'a>(pub &'a [u8]);

impl<'a> Message<'a> {
    pub fn varint(&mut self) -> Result<u64, Odd> {
        let mut number = 0;
        for (at, &byte) in self.0.iter().enumerate().take(10) {
            number |= u64::from(byte & 0x7F) << (7 * at);
            if byte < 0x80 {
                self.0 = &self.0[at + 1..];
                return Ok(number);
            }
        }
        Err(Odd)
    }

    /// Return the number and the value of the next field, None at the end.
    pub fn field(&mut self) -> Result<Option<(u64, Value<'a>)>, Odd> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let value = match tag & 7 {
            0 => Value::Number(self.varint()?),
            2 => {
                let size = usize::try_from(self.varint()?).map_err(|_| Odd)?;
                let (bytes, rest) = self.0.split_at_checked(size).ok_or(Odd)?;
                self.0 = rest;
                Value::Bytes(bytes)
            }
            _ => return Err(Odd),
        };
        Ok(Some((tag >> 3, value)))
    }
}

/// Take the only value of a field: a second one would have to be merged with it.
pub fn once<'a>(place: &mut Option<&'a [u8]>, value: Value<'a>) -> Result<(), Odd> {
    if place.replace(value.bytes()?).is_some() {
        return Err(Odd);
    }
    Ok(())
}

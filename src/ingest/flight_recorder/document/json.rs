//! Reads JSON into a [`Document`], without recursion and up to where a file was cut off.
//!
//! Commas and colons are skipped: a dump is data of a known shape, and its punctuation is not
//! checked.

use super::{Document, Invalid, Value};

/// Maximum nesting of lists and dictionaries.
const MAX_DEPTH: usize = 64;

/// Reads a JSON text into a document. Returns the outermost value; a text that ends too early yields the values before
/// the cut.
pub(super) fn read(bytes: &[u8], document: &mut Document) -> Result<Value, Invalid> {
    let mut reader = Reader { bytes, at: 0, document };
    loop {
        match reader.step() {
            Ok(true) => {}
            Ok(false) => break,
            Err(Invalid(text)) => return Err(Invalid(format!("{text}, at byte {}", reader.at))),
        }
    }
    if !document.stack.marks.is_empty() {
        document.cut = Some(format!("it ends after {} bytes", bytes.len()));
    }
    document.unwind().ok_or_else(|| Invalid("it contains no value".into()))
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    document: &'a mut Document,
}

impl Reader<'_> {
    /// Reads one token; false: the outermost value is complete, or the text ends.
    fn step(&mut self) -> Result<bool, Invalid> {
        let Some(&byte) = self.bytes.get(self.at) else {
            return Ok(false);
        };
        match byte {
            b' ' | b'\t' | b'\r' | b'\n' | b',' | b':' => self.at += 1,
            b'[' | b'{' => {
                self.at += 1;
                if self.document.stack.marks.len() >= MAX_DEPTH {
                    let text = format!("lists nested more than {MAX_DEPTH} deep");
                    return Err(Invalid(text));
                }
                let container = match byte {
                    b'[' => self.document.new_list()?,
                    _ => self.document.new_dict()?,
                };
                self.push(container)?;
                self.document.stack.mark(0);
            }
            b']' | b'}' => {
                self.at += 1;
                if self.document.close()?.is_none() {
                    return Err(Invalid("a list or dictionary ends that has no beginning".into()));
                }
            }
            b'"' => match self.text()? {
                Some(text) => self.push(text)?,
                None => {
                    self.at = self.bytes.len();
                    return Ok(false);
                }
            },
            _ => {
                let value = self.word()?;
                self.push(value)?;
            }
        }
        let stack = &self.document.stack;
        let is_complete = stack.marks.is_empty() && !stack.values.is_empty();
        Ok(!is_complete)
    }

    fn push(&mut self, value: Value) -> Result<(), Invalid> {
        self.document.count_value()?;
        self.document.stack.values.push(value);
        Ok(())
    }

    /// A quoted text; `None`: it is cut off.
    fn text(&mut self) -> Result<Option<Value>, Invalid> {
        let rest = &self.bytes[self.at..];
        let mut end = 1;
        loop {
            match rest.get(end) {
                None => return Ok(None),
                Some(b'"') => break,
                Some(b'\\') => end += 2,
                Some(_) => end += 1,
            }
        }
        let quoted = &rest[..=end];
        self.at += quoted.len();
        let inner = &quoted[1..end];
        if !inner.contains(&b'\\') {
            return Ok(Some(Value::Text(self.document.add_text(inner))));
        }
        let unescaped = serde_json::from_slice::<String>(quoted)
            .map_err(|error| Invalid(format!("invalid text: {error}")))?;
        let text = self.document.add_text(unescaped.as_bytes());
        Ok(Some(Value::Text(text)))
    }

    /// A number or one of the constants, `NaN` and `Infinity` included.
    fn word(&mut self) -> Result<Value, Invalid> {
        let rest = &self.bytes[self.at..];
        let is_part = |byte: &&u8| byte.is_ascii_alphanumeric() || b"+-.".contains(byte);
        let len = rest.iter().take_while(is_part).count();
        let word = std::str::from_utf8(&rest[..len]).unwrap_or_default();
        let value = match word {
            "null" => Some(Value::None),
            "true" => Some(Value::Bool(true)),
            "false" => Some(Value::Bool(false)),
            _ => {
                let int = word.parse().ok().map(Value::Int);
                int.or_else(|| word.parse().ok().map(Value::Float))
            }
        };
        // The last word of a text may be cut off.
        let is_last = self.at + len == self.bytes.len();
        match value {
            Some(value) => {
                self.at += len;
                Ok(value)
            }
            None if is_last && len > 0 => {
                self.at += len;
                Ok(Value::None)
            }
            None => Err(Invalid("no JSON value".into())),
        }
    }
}

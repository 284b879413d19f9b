//! Plain data from a file: numbers, texts, lists and dictionaries, in tables instead of a tree.
//!
//! Values refer to lists and dictionaries by number and to texts by position, so a value that a
//! file contains many times is stored once, no operation recurses, and nothing is copied from the
//! file.

/// Maximum number of lists and dictionaries of a file.
const MAX_CONTAINERS: usize = 1 << 22;
/// Maximum number of values of a file, counting repetitions.
const MAX_VALUES: usize = 1 << 24;

/// A value of a [`Document`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Value {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(Text),
    List(u32),
    Dict(u32),
}

/// Position of a text in [`Document::text`], which is at most as long as a file: 128 MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Text {
    pub(super) start: u32,
    pub(super) len: u32,
}

/// The contents of a file.
#[derive(Debug, Default)]
pub(super) struct Document {
    text: Vec<u8>,
    lists: Vec<Vec<Value>>,
    dicts: Vec<Vec<(Value, Value)>>,
    values: usize,
    /// Why the file ends too early, if it does. Values before the cut are present.
    pub(super) cut: Option<String>,
    /// Lists and dictionaries that were being filled at the cut.
    open: Vec<Value>,
}

/// Why a file cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct Invalid(pub(super) String);

impl Document {
    /// Sets the bytes that texts refer to.
    pub(super) fn set_text(&mut self, text: Vec<u8>) {
        self.text = text;
    }

    /// Appends a text.
    pub(super) fn add_text(&mut self, text: &[u8]) -> Text {
        let start = self.text.len() as u32;
        self.text.extend_from_slice(text);
        let len = text.len() as u32;
        Text { start, len }
    }

    pub(super) fn new_list(&mut self) -> Result<Value, Invalid> {
        self.count_container()?;
        self.lists.push(Vec::new());
        Ok(Value::List(self.lists.len() as u32 - 1))
    }

    pub(super) fn new_dict(&mut self) -> Result<Value, Invalid> {
        self.count_container()?;
        self.dicts.push(Vec::new());
        Ok(Value::Dict(self.dicts.len() as u32 - 1))
    }

    fn count_container(&self) -> Result<(), Invalid> {
        if self.lists.len() + self.dicts.len() < MAX_CONTAINERS {
            return Ok(());
        }
        Err(Invalid(format!(
            "it contains more than {MAX_CONTAINERS} lists and dictionaries"
        )))
    }

    /// Counts one more value.
    pub(super) fn count_value(&mut self) -> Result<(), Invalid> {
        self.values += 1;
        if self.values <= MAX_VALUES {
            return Ok(());
        }
        Err(Invalid(format!(
            "it contains more than {MAX_VALUES} values"
        )))
    }

    /// Appends values to a list, or pairs of keys and values to a dictionary. A last key without a
    /// value is dropped.
    pub(super) fn extend(&mut self, container: Value, values: &[Value]) -> Result<(), Invalid> {
        match container {
            Value::List(at) => self.lists[at as usize].extend_from_slice(values),
            Value::Dict(at) => {
                let pairs = values.chunks_exact(2).map(|pair| (pair[0], pair[1]));
                self.dicts[at as usize].extend(pairs);
            }
            _ => return Err(Invalid("it appends to a value that is not a list".into())),
        }
        Ok(())
    }

    pub(super) fn node(&self, value: Value) -> Node<'_> {
        Node {
            document: self,
            value,
        }
    }
}

/// A value with its document.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node<'a> {
    document: &'a Document,
    value: Value,
}

impl<'a> Node<'a> {
    /// The value of a key, if this is a dictionary that has it.
    pub(super) fn get(self, key: &str) -> Option<Self> {
        let mut pairs = self.pairs();
        pairs.find_map(|(name, value)| (name.bytes() == Some(key.as_bytes())).then_some(value))
    }

    /// Keys and values; empty if this is no dictionary.
    pub(super) fn pairs(self) -> impl Iterator<Item = (Self, Self)> {
        let pairs = match self.value {
            Value::Dict(at) => &self.document.dicts[at as usize][..],
            _ => &[],
        };
        let document = self.document;
        let node = |&value| document.node(value);
        pairs
            .iter()
            .map(move |(key, value)| (node(key), node(value)))
    }

    /// Values of a list; empty if this is none.
    pub(super) fn items(self) -> impl ExactSizeIterator<Item = Self> {
        let values = match self.value {
            Value::List(at) => &self.document.lists[at as usize][..],
            _ => &[],
        };
        let document = self.document;
        values.iter().map(move |&value| document.node(value))
    }

    pub(super) const fn is_dict(self) -> bool {
        matches!(self.value, Value::Dict(_))
    }

    pub(super) const fn is_list(self) -> bool {
        matches!(self.value, Value::List(_))
    }

    /// Identifies the value among lists: equal for a list that a file contains several times.
    pub(super) const fn list_id(self) -> Option<u32> {
        match self.value {
            Value::List(at) => Some(at),
            _ => None,
        }
    }

    /// Whether the file ends inside of this list or dictionary.
    pub(super) fn is_cut(self) -> bool {
        self.document.open.contains(&self.value)
    }

    pub(super) fn text(self) -> Option<&'a str> {
        std::str::from_utf8(self.bytes()?).ok()
    }

    fn bytes(self) -> Option<&'a [u8]> {
        let Value::Text(Text { start, len }) = self.value else {
            return None;
        };
        let (start, len) = (start as usize, len as usize);
        self.document.text.get(start..start + len)
    }

    /// An integer, also one that is written as text.
    pub(super) fn int(self) -> Option<i64> {
        match self.value {
            Value::Int(number) => Some(number),
            Value::Text(_) => self.text()?.trim().parse().ok(),
            _ => None,
        }
    }

    pub(super) const fn bool(self) -> Option<bool> {
        match self.value {
            Value::Bool(it) => Some(it),
            _ => None,
        }
    }
}

/// Containers that are being filled, outermost first, and the values collected for each.
#[derive(Debug, Default)]
pub(super) struct Stack {
    pub(super) values: Vec<Value>,
    /// Positions in `values` at which the collections begin.
    pub(super) marks: Vec<usize>,
}

impl Stack {
    /// Closes all open containers, as if the file ended properly. Returns the outermost value.
    pub(super) fn unwind(mut self, document: &mut Document) -> Option<Value> {
        while let Some(mark) = self.marks.pop() {
            let collected = self.values.split_off(mark.min(self.values.len()));
            if let Some(&container) = self.values.last() {
                // Collected values whose container is unknown are dropped.
                drop(document.extend(container, &collected));
                document.open.push(container);
            }
        }
        self.values.first().copied()
    }
}

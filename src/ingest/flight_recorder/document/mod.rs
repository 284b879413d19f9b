//! Plain data from a file: numbers, texts, lists and dictionaries, in tables instead of a tree.
//!
//! [`read`] accepts a pickle (`pickle`) or a JSON text (`json`).
//!
//! Values refer to lists and dictionaries by number and to texts by position, so a value that a
//! file contains many times is stored once, no operation recurses, and nothing is copied from the
//! file.

use std::cell::Cell;
use std::collections::BTreeSet;

mod json;
mod pickle;

/// Maximum number of lists and dictionaries of a file.
const MAX_CONTAINERS: usize = 1 << 22;
/// Maximum number of values of a file, counting repetitions.
const MAX_VALUES: usize = 1 << 24;

/// Number of values that may be visited for each byte of a file, repetitions included: a file can refer to one long list
/// from many places. Dumps of PyTorch need less than one.
const VISITS: u64 = 4;
/// Number of visits whatever the size of a file, for values that each entry has in common with others.
const MIN_VISITS: u64 = 1 << 16;
/// Number of bytes of a text that count as one visit.
const VISITED_TEXT: usize = 16;
/// Maximum length of a number that is written as text, in bytes.
const MAX_NUMBER: usize = 32;

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
    start: u32,
    len: u32,
}

/// The contents of a file.
#[derive(Debug, Default)]
pub(super) struct Document {
    text: Vec<u8>,
    /// Values of lists and dictionaries that were filled at once; of the latter, each key is followed
    /// by its value.
    filled: Vec<Value>,
    lists: Vec<Contents>,
    dicts: Vec<Contents>,
    values: usize,
    /// Why the file ends too early, if it does. Values before the cut are present.
    pub(super) cut: Option<String>,
    /// Lists and dictionaries that were being filled at the cut.
    open: BTreeSet<Container>,
    /// Number of values that may still be visited; afterwards, lists, dictionaries and texts are empty.
    visits: Cell<u64>,
}

/// Identifies a list or a dictionary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Container {
    List(u32),
    Dict(u32),
}

/// Where the values of a list or dictionary are.
#[derive(Debug)]
enum Contents {
    /// Range in [`Document::filled`].
    Filled { start: u32, len: u32 },
    /// Values of one that was filled step by step.
    Own(Vec<Value>),
}

/// Why a file cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct Invalid(pub(super) String);

/// Reads a pickle or a JSON text. Returns its data and the outermost value; a file that ends too early
/// yields the values before the cut.
pub(super) fn read(bytes: Vec<u8>) -> Result<(Document, Value), Invalid> {
    let visits = (bytes.len() as u64).saturating_mul(VISITS).max(MIN_VISITS);
    let (document, root) = decode(bytes)?;
    document.visits.set(visits);
    Ok((document, root))
}

fn decode(bytes: Vec<u8>) -> Result<(Document, Value), Invalid> {
    match bytes.trim_ascii_start().first() {
        Some(0x80) => pickle::read(bytes),
        Some(b'{') => json::read(&bytes),
        Some(_) => Err(Invalid(
            "it is neither a pickle of protocol 2 or later nor JSON, as Flight Recorder dumps are, nor \
             a log"
                .into(),
        )),
        None => Err(Invalid("it is empty".into())),
    }
}

impl Document {
    /// Sets the bytes that texts refer to.
    fn set_text(&mut self, text: Vec<u8>) {
        self.text = text;
    }

    /// Appends a text.
    fn add_text(&mut self, text: &[u8]) -> Text {
        let start = self.text.len() as u32;
        self.text.extend_from_slice(text);
        let len = text.len() as u32;
        Text { start, len }
    }

    fn new_list(&mut self) -> Result<Value, Invalid> {
        self.count_container()?;
        self.lists.push(Contents::EMPTY);
        Ok(Value::List(self.lists.len() as u32 - 1))
    }

    fn new_dict(&mut self) -> Result<Value, Invalid> {
        self.count_container()?;
        self.dicts.push(Contents::EMPTY);
        Ok(Value::Dict(self.dicts.len() as u32 - 1))
    }

    fn count_container(&self) -> Result<(), Invalid> {
        if self.lists.len() + self.dicts.len() < MAX_CONTAINERS {
            return Ok(());
        }
        Err(Invalid(format!("it contains more than {MAX_CONTAINERS} lists and dictionaries")))
    }

    /// Counts one more value.
    fn count_value(&mut self) -> Result<(), Invalid> {
        self.values += 1;
        if self.values <= MAX_VALUES {
            return Ok(());
        }
        Err(Invalid(format!("it contains more than {MAX_VALUES} values")))
    }

    /// Appends values to a list, or pairs of keys and values to a dictionary. A last key without a
    /// value is dropped.
    fn extend(&mut self, container: Value, values: &[Value]) -> Result<(), Invalid> {
        let (contents, values) = match container {
            Value::List(at) => (&mut self.lists[at as usize], values),
            Value::Dict(at) => {
                let whole = values.len() - values.len() % 2;
                (&mut self.dicts[at as usize], &values[..whole])
            }
            _ => return Err(Invalid("it appends to a value that is not a list".into())),
        };
        contents.extend(&mut self.filled, values);
        Ok(())
    }

    pub(super) fn node(&self, value: Value) -> Node<'_> {
        Node { document: self, value }
    }

    /// Counts visited values. Returns whether they may be visited.
    fn visit(&self, count: usize) -> bool {
        let left = self.visits.get().checked_sub(count as u64);
        self.visits.set(left.unwrap_or(0));
        left.is_some()
    }

    /// Values that are visited all at once.
    fn visited<'a>(&self, values: &'a [Value]) -> &'a [Value] {
        if self.visit(values.len()) { values } else { &[] }
    }
}

impl Value {
    const fn container(self) -> Option<Container> {
        match self {
            Self::List(at) => Some(Container::List(at)),
            Self::Dict(at) => Some(Container::Dict(at)),
            _ => None,
        }
    }
}

impl Contents {
    const EMPTY: Self = Self::Filled { start: 0, len: 0 };

    fn extend(&mut self, filled: &mut Vec<Value>, values: &[Value]) {
        let end = filled.len() as u32;
        match self {
            Self::Filled { start, len } if *len == 0 || *start + *len == end => {
                if *len == 0 {
                    *start = end;
                }
                *len += values.len() as u32;
                filled.extend_from_slice(values);
            }
            Self::Filled { start, len } => {
                let known = &filled[*start as usize..(*start + *len) as usize];
                *self = Self::Own([known, values].concat());
            }
            Self::Own(own) => own.extend_from_slice(values),
        }
    }

    fn values<'a>(&'a self, filled: &'a [Value]) -> &'a [Value] {
        match self {
            Self::Filled { start, len } => &filled[*start as usize..(*start + *len) as usize],
            Self::Own(own) => own,
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

    /// Keys and values; empty if this is not a dictionary.
    pub(super) fn pairs(self) -> impl Iterator<Item = (Self, Self)> {
        let document = self.document;
        let values = match self.value {
            Value::Dict(at) => {
                document.visited(document.dicts[at as usize].values(&document.filled))
            }
            _ => &[],
        };
        let pairs = values.chunks_exact(2);
        pairs.map(move |pair| (document.node(pair[0]), document.node(pair[1])))
    }

    /// Values of a list; empty if this is none.
    pub(super) fn items(self) -> impl ExactSizeIterator<Item = Self> {
        let document = self.document;
        let values = match self.value {
            Value::List(at) => {
                document.visited(document.lists[at as usize].values(&document.filled))
            }
            _ => &[],
        };
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
        self.value.container().is_some_and(|it| self.document.open.contains(&it))
    }

    /// Whether more values were visited than the size of the file explains: later ones seem to be empty.
    pub(super) fn is_exhausted(self) -> bool {
        self.document.visits.get() == 0
    }

    pub(super) fn text(self) -> Option<&'a str> {
        std::str::from_utf8(self.bytes()?).ok()
    }

    /// Position of a text: equal for a text that a file contains once and refers to several times.
    pub(super) const fn text_id(self) -> Option<u32> {
        match self.value {
            Value::Text(text) => Some(text.start),
            _ => None,
        }
    }

    pub(super) fn bytes(self) -> Option<&'a [u8]> {
        let Value::Text(Text { start, len }) = self.value else {
            return None;
        };
        let (start, len) = (start as usize, len as usize);
        let text = self.document.text.get(start..start + len);
        text.filter(|it| self.document.visit(it.len() / VISITED_TEXT))
    }

    /// An integer, also one that is written as text.
    pub(super) fn int(self) -> Option<i64> {
        match self.value {
            Value::Int(number) => Some(number),
            Value::Text(text) if text.len as usize <= MAX_NUMBER => {
                self.text()?.trim().parse().ok()
            }
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
struct Stack {
    values: Vec<Value>,
    /// Positions in `values` at which the collections begin.
    marks: Vec<usize>,
}

impl Stack {
    /// Moves the values since the latest mark into a container: the value before them. `None`: there
    /// is not a mark, or not a container.
    fn close(&mut self, document: &mut Document) -> Result<Option<()>, Invalid> {
        let Some(mark) = self.marks.pop() else {
            return Ok(None);
        };
        let bottom = self.marks.last().copied().unwrap_or(0);
        let Some(container) = mark.checked_sub(1).filter(|&at| at >= bottom) else {
            return Ok(None);
        };
        document.extend(self.values[container], &self.values[mark..])?;
        self.values.truncate(mark);
        Ok(Some(()))
    }

    /// Closes all open containers, as if the file ended properly. Returns the outermost value.
    fn unwind(mut self, document: &mut Document) -> Option<Value> {
        while let Some(mark) = self.marks.pop() {
            let collected = self.values.split_off(mark.min(self.values.len()));
            if let Some(&container) = self.values.last() {
                // Collected values whose container is unknown are dropped.
                drop(document.extend(container, &collected));
                document.open.extend(container.container());
            }
        }
        self.values.first().copied()
    }
}

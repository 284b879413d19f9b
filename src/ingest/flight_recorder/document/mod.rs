//! Plain data from a file: numbers, texts, lists and dictionaries, in tables instead of a tree.
//!
//! [`Document::read`] accepts a pickle (`pickle`) or a JSON text (`json`).
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
/// Number of bytes of memory that a document keeps for the next file.
const MAX_REUSED: usize = 16 << 20;

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

/// The contents of a file. Its memory is used again for the next file.
#[derive(Debug, Default)]
pub(super) struct Document {
    text: Vec<u8>,
    /// Values of lists and dictionaries that were filled at once; of the latter, each key is followed
    /// by its value.
    filled: Vec<Value>,
    lists: Vec<Contents>,
    dicts: Vec<Contents>,
    values: usize,
    stack: Stack,
    /// Values that a pickle refers to by their index.
    memo: Vec<Value>,
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

impl Document {
    /// Reads a pickle or a JSON text in place of the previous file. Returns the outermost value; a file that ends too
    /// early yields the values before the cut.
    pub(super) fn read(&mut self, bytes: Vec<u8>) -> Result<Value, Invalid> {
        self.clear();
        let visits = (bytes.len() as u64).saturating_mul(VISITS).max(MIN_VISITS);
        let root = self.decode(bytes)?;
        self.visits.set(visits);
        Ok(root)
    }

    fn decode(&mut self, bytes: Vec<u8>) -> Result<Value, Invalid> {
        match bytes.trim_ascii_start().first() {
            Some(0x80) => {
                let root = pickle::read(&bytes, self)?;
                self.text = bytes;
                Ok(root)
            }
            Some(b'{') => json::read(&bytes, self),
            Some(_) => Err(Invalid(
                "it is neither a pickle of protocol 2 or later nor JSON, as Flight Recorder dumps are, \
                 nor a log"
                    .into(),
            )),
            None => Err(Invalid("it is empty".into())),
        }
    }

    /// Removes the contents of a file, and frees the memory unless it is small.
    pub(super) fn clear(&mut self) {
        let Self { text, filled, stack, memo, .. } = self;
        let values = filled.capacity() + stack.values.capacity() + memo.capacity();
        if text.capacity() + values * size_of::<Value>() > MAX_REUSED {
            *self = Self::default();
            return;
        }
        text.clear();
        filled.clear();
        memo.clear();
        stack.clear();
        self.lists.clear();
        self.dicts.clear();
        self.open.clear();
        (self.values, self.cut) = (0, None);
    }

    /// Memory for the bytes of the next file.
    pub(super) fn take_memory(&mut self) -> Vec<u8> {
        self.clear();
        std::mem::take(&mut self.text)
    }

    /// Appends a text.
    fn add_text(&mut self, text: &[u8]) -> Text {
        let start = self.text.len() as u32;
        self.text.extend_from_slice(text);
        let len = text.len() as u32;
        Text { start, len }
    }

    #[inline]
    fn new_list(&mut self) -> Result<Value, Invalid> {
        self.count_container()?;
        self.lists.push(Contents::EMPTY);
        Ok(Value::List(self.lists.len() as u32 - 1))
    }

    #[inline]
    fn new_dict(&mut self) -> Result<Value, Invalid> {
        self.count_container()?;
        self.dicts.push(Contents::EMPTY);
        Ok(Value::Dict(self.dicts.len() as u32 - 1))
    }

    fn count_container(&self) -> Result<(), Invalid> {
        if self.lists.len() + self.dicts.len() < MAX_CONTAINERS {
            return Ok(());
        }
        Err(too_many(MAX_CONTAINERS, "lists and dictionaries"))
    }

    /// Counts one more value.
    #[inline]
    fn count_value(&mut self) -> Result<(), Invalid> {
        self.values += 1;
        if self.values <= MAX_VALUES {
            return Ok(());
        }
        Err(too_many(MAX_VALUES, "values"))
    }

    /// Moves the values since the latest mark into a container: the value before them. `None`: there
    /// is not a mark, or not a container.
    #[inline]
    fn close(&mut self) -> Result<Option<()>, Invalid> {
        let Some(mark) = self.stack.unmark() else {
            return Ok(None);
        };
        let Some(container) = mark.checked_sub(1).filter(|&at| at >= self.stack.bottom) else {
            return Ok(None);
        };
        self.fill(self.stack.values[container], mark)?;
        Ok(Some(()))
    }

    /// Moves the values since the latest mark into a container. `None`: there is not a mark.
    fn collect(&mut self, container: Value) -> Result<Option<()>, Invalid> {
        let Some(mark) = self.stack.unmark() else {
            return Ok(None);
        };
        self.fill(container, mark)?;
        Ok(Some(()))
    }

    /// Moves the values from an index of the stack on to a list, or as pairs of keys and values to a dictionary. A
    /// last key without a value is dropped.
    #[inline]
    fn fill(&mut self, container: Value, from: usize) -> Result<(), Invalid> {
        let values = &self.stack.values[from..];
        let (contents, values) = match container {
            Value::List(at) => (&mut self.lists[at as usize], values),
            Value::Dict(at) => {
                let whole = values.len() - values.len() % 2;
                (&mut self.dicts[at as usize], &values[..whole])
            }
            _ => return Err(Invalid("it appends to a value that is not a list".into())),
        };
        contents.extend(&mut self.filled, values);
        self.stack.values.truncate(from);
        Ok(())
    }

    /// Closes all open containers, as if the file ended properly. Returns the outermost value.
    fn unwind(&mut self) -> Option<Value> {
        while let Some(mark) = self.stack.unmark() {
            let mark = mark.min(self.stack.values.len());
            if let Some(&container) = self.stack.values[..mark].last() {
                // Collected values whose container is unknown are dropped.
                drop(self.fill(container, mark));
                self.open.extend(container.container());
            }
            self.stack.values.truncate(mark);
        }
        self.stack.values.first().copied()
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

#[cold]
fn too_many(limit: usize, what: &str) -> Invalid {
    Invalid(format!("it contains more than {limit} {what}"))
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

    #[inline]
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
        let mut pairs = self.pairs().iter();
        pairs.find_map(|(name, value)| (name.bytes() == Some(key.as_bytes())).then_some(value))
    }

    /// Keys and values; empty if this is not a dictionary.
    #[inline]
    pub(super) fn pairs(self) -> Pairs<'a> {
        let document = self.document;
        let values = match self.value {
            Value::Dict(at) => {
                document.visited(document.dicts[at as usize].values(&document.filled))
            }
            _ => &[],
        };
        Pairs { document, pairs: values.as_chunks().0 }
    }

    /// Values of a list; empty if this is none.
    #[inline]
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

    #[inline]
    pub(super) fn bytes(self) -> Option<&'a [u8]> {
        let Value::Text(Text { start, len }) = self.value else {
            return None;
        };
        let (start, len) = (start as usize, len as usize);
        let text = self.document.text.get(start..start + len);
        text.filter(|it| self.document.visit(it.len() / VISITED_TEXT))
    }

    /// An integer, also one that is written as text.
    #[inline]
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

/// The keys and values of a dictionary.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pairs<'a> {
    document: &'a Document,
    pairs: &'a [[Value; 2]],
}

/// The keys of a dictionary.
#[derive(Debug, Default)]
pub(super) struct Keys(Vec<Value>);

impl<'a> Pairs<'a> {
    pub(super) fn iter(self) -> impl ExactSizeIterator<Item = (Node<'a>, Node<'a>)> {
        let Self { document, pairs } = self;
        pairs.iter().map(|&[key, value]| (document.node(key), document.node(value)))
    }

    /// The value with this index.
    #[inline]
    pub(super) fn value(self, at: usize) -> Option<Node<'a>> {
        Some(self.document.node(self.pairs.get(at)?[1]))
    }

    pub(super) fn keys(self) -> Keys {
        Keys(self.pairs.iter().map(|pair| pair[0]).collect())
    }

    /// Whether the keys are these, in this order. Texts are compared by their positions: a pickle contains each once.
    #[inline]
    pub(super) fn have_keys(self, Keys(keys): &Keys) -> bool {
        let mut pairs = self.pairs.iter().zip(keys);
        let is_same = |(pair, key): (&[Value; 2], &Value)| match (pair[0], *key) {
            (Value::Text(one), Value::Text(other)) => one.start == other.start,
            _ => false,
        };
        self.pairs.len() == keys.len() && pairs.all(is_same)
    }
}

/// Containers that are being filled, outermost first, and the values collected for each.
#[derive(Debug, Default)]
struct Stack {
    values: Vec<Value>,
    /// Positions in `values` at which the collections begin.
    marks: Vec<usize>,
    /// The latest of these positions, or 0.
    bottom: usize,
}

impl Stack {
    fn clear(&mut self) {
        self.values.clear();
        self.marks.clear();
        self.bottom = 0;
    }

    /// Begins a collection with the last values, of which there must be so many.
    #[inline]
    fn mark(&mut self, count: usize) {
        self.bottom = self.values.len() - count;
        self.marks.push(self.bottom);
    }

    /// Ends the latest collection. Returns where it begins.
    #[inline]
    fn unmark(&mut self) -> Option<usize> {
        let mark = self.marks.pop();
        self.bottom = self.marks.last().copied().unwrap_or(0);
        mark
    }

    /// Values since the latest mark.
    #[inline]
    fn above_mark(&self) -> &[Value] {
        self.values.get(self.bottom..).unwrap_or_default()
    }
}

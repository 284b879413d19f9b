//! A machine for pickles that can build plain data and nothing else.
//!
//! It knows the opcodes that construct numbers, texts, lists, tuples and dictionaries, and rejects
//! the others, above all those that import or call something
//! ([0056](../../../../docs/decisions/0056-pickles-are-plain-data.md)).

use super::{Document, Invalid, Stack, Text, Value};

/// Maximum nesting of lists and dictionaries.
const MAX_DEPTH: usize = 64;
/// Maximum number of remembered values.
const MAX_MEMO: usize = 1 << 22;
/// Maximum length of a text, in bytes.
const MAX_TEXT: usize = 1 << 20;

const NO_VALUE: &str = "an opcode needs a value, and there is none";
const NO_BEGINNING: &str = "a list or dictionary ends that has no beginning";

/// Reads a pickle. Returns its data and the outermost value; a file that ends too early yields the
/// values before the cut.
pub(super) fn read(bytes: Vec<u8>) -> Result<(Document, Value), Invalid> {
    let mut machine =
        Machine { at: 0, stack: Stack::default(), memo: Vec::new(), document: Document::default() };
    let result = loop {
        match machine.step(&bytes) {
            Ok(None) => {}
            Ok(Some(value)) => break Some(value),
            Err(Stop::Cut) => {
                machine.document.cut = Some(format!("it ends after {} bytes", bytes.len()));
                break machine.stack.unwind(&mut machine.document);
            }
            Err(Stop::Invalid(text)) => {
                return Err(Invalid(format!("{text}, at byte {}", machine.at)));
            }
        }
    };
    let Some(value) = result else {
        return Err(Invalid("it ends before its first value".into()));
    };
    machine.document.set_text(bytes);
    Ok((machine.document, value))
}

/// Why the machine stops before the end of the pickle.
enum Stop {
    /// The file ends.
    Cut,
    Invalid(String),
}

impl From<Invalid> for Stop {
    fn from(Invalid(text): Invalid) -> Self {
        Self::Invalid(text)
    }
}

struct Machine {
    /// Position in the file.
    at: usize,
    stack: Stack,
    memo: Vec<Value>,
    document: Document,
}

type Step<T> = Result<T, Stop>;

impl Machine {
    /// Executes one opcode. Returns the result of the pickle at its end.
    fn step(&mut self, bytes: &[u8]) -> Step<Option<Value>> {
        let opcode = self.take(bytes, 1)?[0];
        match opcode {
            // PROTO and FRAME announce, and require nothing.
            0x80 => drop(self.take(bytes, 1)?),
            0x95 => drop(self.take(bytes, 8)?),
            b'.' => return self.pop().map(Some),
            b'(' => self.mark()?,
            b'0' => drop(self.pop()?),
            b'N' => self.push(Value::None)?,
            0x88 => self.push(Value::Bool(true))?,
            0x89 => self.push(Value::Bool(false))?,
            b'K' => self.int::<1>(bytes, false)?,
            b'M' => self.int::<2>(bytes, false)?,
            b'J' => self.int::<4>(bytes, true)?,
            0x8a => {
                let len = self.length::<1>(bytes)?;
                self.long(bytes, len)?;
            }
            b'G' => {
                let number = self.array::<8>(bytes)?;
                self.push(Value::Float(f64::from_be_bytes(number)))?;
            }
            b'X' => self.text::<4>(bytes)?,
            0x8c => self.text::<1>(bytes)?,
            0x8d => self.text::<8>(bytes)?,
            b']' | b')' => {
                let list = self.document.new_list()?;
                self.push(list)?;
            }
            b'}' => {
                let dict = self.document.new_dict()?;
                self.push(dict)?;
            }
            b'a' => self.append(1)?,
            b's' => self.append(2)?,
            b'e' | b'u' => {
                let closed = self.stack.close(&mut self.document)?;
                closed.ok_or_else(|| Stop::Invalid(NO_BEGINNING.into()))?;
            }
            0x85..=0x87 => self.tuple(usize::from(opcode - 0x84))?,
            b't' | b'l' => self.collect()?,
            b'd' => {
                let collected = self.collected()?;
                let dict = self.document.new_dict()?;
                self.push(dict)?;
                self.fill(&collected)?;
            }
            b'q' => {
                let at = self.length::<1>(bytes)?;
                self.remember(at)?;
            }
            b'r' => {
                let at = self.length::<4>(bytes)?;
                self.remember(at)?;
            }
            0x94 => self.remember(self.memo.len())?,
            b'h' => {
                let at = self.length::<1>(bytes)?;
                self.recall(at)?;
            }
            b'j' => {
                let at = self.length::<4>(bytes)?;
                self.recall(at)?;
            }
            _ => return Err(Stop::Invalid(rejected(opcode))),
        }
        Ok(None)
    }

    fn take<'b>(&mut self, bytes: &'b [u8], count: usize) -> Step<&'b [u8]> {
        let end = self.at.checked_add(count).ok_or(Stop::Cut)?;
        let taken = bytes.get(self.at..end).ok_or(Stop::Cut)?;
        self.at = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, bytes: &[u8]) -> Step<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(bytes, N)?);
        Ok(array)
    }

    /// An unsigned number of `N` bytes, used as a length or an index.
    fn length<const N: usize>(&mut self, bytes: &[u8]) -> Step<usize> {
        let taken = self.array::<N>(bytes)?;
        let number = taken.iter().rev().fold(0_u64, |high, &byte| high << 8 | u64::from(byte));
        Ok(usize::try_from(number).unwrap_or(usize::MAX))
    }

    fn int<const N: usize>(&mut self, bytes: &[u8], signed: bool) -> Step<()> {
        let number = self.length::<N>(bytes)? as i64;
        let number = if signed { i64::from(number as u32 as i32) } else { number };
        self.push(Value::Int(number))
    }

    /// An integer of `len` bytes in two's complement. One that exceeds 64 bits is unknown.
    fn long(&mut self, bytes: &[u8], len: usize) -> Step<()> {
        let taken = self.take(bytes, len)?;
        if len > 8 {
            return self.push(Value::None);
        }
        let negative = taken.last().is_some_and(|&last| last >= 0x80);
        let mut number = if negative { [0xff; 8] } else { [0; 8] };
        number[..len].copy_from_slice(taken);
        self.push(Value::Int(i64::from_le_bytes(number)))
    }

    fn text<const N: usize>(&mut self, bytes: &[u8]) -> Step<()> {
        let len = self.length::<N>(bytes)?;
        if len > MAX_TEXT {
            let text = format!("a text of {len} bytes, and at most {MAX_TEXT} are accepted");
            return Err(Stop::Invalid(text));
        }
        let start = self.at as u32;
        self.take(bytes, len)?;
        let len = len as u32;
        self.push(Value::Text(Text { start, len }))
    }

    fn push(&mut self, value: Value) -> Step<()> {
        self.document.count_value()?;
        self.stack.values.push(value);
        Ok(())
    }

    fn mark(&mut self) -> Step<()> {
        if self.stack.marks.len() >= MAX_DEPTH {
            let text = format!("lists nested more than {MAX_DEPTH} deep");
            return Err(Stop::Invalid(text));
        }
        self.stack.marks.push(self.stack.values.len());
        Ok(())
    }

    fn pop(&mut self) -> Step<Value> {
        let bottom = self.stack.marks.last().copied().unwrap_or(0);
        if self.stack.values.len() <= bottom {
            return Err(Stop::Invalid(NO_VALUE.into()));
        }
        self.stack.values.pop().ok_or(Stop::Cut)
    }

    /// Removes the values since the latest mark.
    fn collected(&mut self) -> Step<Vec<Value>> {
        let mark = self.stack.marks.pop().ok_or_else(|| Stop::Invalid(NO_BEGINNING.into()))?;
        Ok(self.stack.values.split_off(mark))
    }

    /// Adds values to the container on top of the stack.
    fn fill(&mut self, values: &[Value]) -> Step<()> {
        let container = self.pop()?;
        self.document.extend(container, values)?;
        self.stack.values.push(container);
        Ok(())
    }

    /// Adds the last values to the container below them.
    fn append(&mut self, count: usize) -> Step<()> {
        self.mark_last(count)?;
        let closed = self.stack.close(&mut self.document)?;
        closed.ok_or_else(|| Stop::Invalid(NO_VALUE.into()))
    }

    fn tuple(&mut self, count: usize) -> Step<()> {
        self.mark_last(count)?;
        self.collect()
    }

    /// Marks the last values, of which there must be so many.
    fn mark_last(&mut self, count: usize) -> Step<()> {
        let bottom = self.stack.marks.last().copied().unwrap_or(0);
        let mark = self.stack.values.len().checked_sub(count);
        let mark =
            mark.filter(|&mark| mark >= bottom).ok_or_else(|| Stop::Invalid(NO_VALUE.into()))?;
        self.stack.marks.push(mark);
        Ok(())
    }

    /// Replaces the values since the latest mark by a list of them.
    fn collect(&mut self) -> Step<()> {
        let mark = self.stack.marks.pop().ok_or_else(|| Stop::Invalid(NO_BEGINNING.into()))?;
        let list = self.document.new_list()?;
        self.document.extend(list, &self.stack.values[mark..])?;
        self.stack.values.truncate(mark);
        self.push(list)
    }

    /// Remembers the value on top of the stack. Writers number these values from 0.
    fn remember(&mut self, at: usize) -> Step<()> {
        let value = self.pop()?;
        self.stack.values.push(value);
        if at < self.memo.len() {
            self.memo[at] = value;
        } else if at == self.memo.len() && at < MAX_MEMO {
            self.memo.push(value);
        } else {
            let text = format!("value {at} is remembered after {}", self.memo.len());
            return Err(Stop::Invalid(text));
        }
        Ok(())
    }

    fn recall(&mut self, at: usize) -> Step<()> {
        let known = self
            .memo
            .get(at)
            .copied()
            .ok_or_else(|| Stop::Invalid(format!("value {at} is not remembered")))?;
        self.push(known)
    }
}

/// Message about an opcode that the machine does not execute.
fn rejected(opcode: u8) -> String {
    let runs_code = matches!(
        opcode,
        b'c' | b'R' | b'b' | b'i' | b'o' | 0x81..=0x84 | 0x92 | 0x93 | b'P' | b'Q'
    );
    let why = if runs_code {
        "it can run code, and dumps never contain it"
    } else {
        "dumps never contain it"
    };
    format!("opcode 0x{opcode:02x} is not executed ({why})")
}

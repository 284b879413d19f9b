//! A machine for pickles that can build plain data and nothing else.
//!
//! It knows the opcodes that construct numbers, texts, lists, tuples and dictionaries, and rejects
//! the others, above all those that import or call something
//! ([0056](../../../../docs/decisions/0056-pickles-are-plain-data.md)).

use std::fmt::Display;

use super::{Document, Invalid, Text, Value};

/// Maximum nesting of lists and dictionaries.
const MAX_DEPTH: usize = 64;
/// Maximum number of remembered values.
const MAX_MEMO: usize = 1 << 22;
/// Maximum length of a text, in bytes.
const MAX_TEXT: usize = 1 << 20;

const NO_VALUE: &str = "an opcode needs a value, and there is none";
const NO_BEGINNING: &str = "a list or dictionary ends that has no beginning";

/// Reads a pickle into a document. Returns the outermost value; a file that ends too early yields the values before
/// the cut.
pub(super) fn read(bytes: &[u8], document: &mut Document) -> Result<Value, Invalid> {
    let mut machine = Machine { bytes, at: 0, document };
    match machine.run() {
        Ok(value) => Ok(value),
        Err(Stop::Cut) => {
            document.cut = Some(format!("it ends after {} bytes", bytes.len()));
            document.unwind().ok_or_else(|| Invalid("it ends before its first value".into()))
        }
        Err(Stop::Invalid(text)) => Err(Invalid(format!("{text}, at byte {}", machine.at))),
    }
}

/// Why the machine stops before the end of the pickle.
enum Stop {
    /// The file ends.
    Cut,
    /// Boxed, because each step returns it.
    Invalid(Box<str>),
}

impl From<Invalid> for Stop {
    fn from(Invalid(text): Invalid) -> Self {
        Self::Invalid(text.into())
    }
}

/// The machine stops because of what it reads.
#[cold]
fn invalid(text: impl Display) -> Stop {
    Stop::Invalid(text.to_string().into())
}

struct Machine<'a> {
    bytes: &'a [u8],
    /// Position in the file.
    at: usize,
    document: &'a mut Document,
}

type Step<T> = Result<T, Stop>;

impl Machine<'_> {
    /// Executes the pickle. Returns its result.
    fn run(&mut self) -> Step<Value> {
        loop {
            let [opcode] = self.array()?;
            match opcode {
                // PROTO and FRAME announce, and require nothing.
                0x80 => self.skip(1)?,
                0x95 => self.skip(8)?,
                b'.' => return self.pop(),
                b'(' => self.mark()?,
                b'0' => drop(self.pop()?),
                b'N' => self.push(Value::None)?,
                0x88 => self.push(Value::Bool(true))?,
                0x89 => self.push(Value::Bool(false))?,
                b'K' => self.int::<1>(false)?,
                b'M' => self.int::<2>(false)?,
                b'J' => self.int::<4>(true)?,
                0x8a => self.long()?,
                b'G' => {
                    let number = self.array()?;
                    self.push(Value::Float(f64::from_be_bytes(number)))?;
                }
                b'X' => self.text::<4>()?,
                0x8c => self.text::<1>()?,
                0x8d => self.text::<8>()?,
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
                b'e' | b'u' => self.document.close()?.ok_or_else(|| invalid(NO_BEGINNING))?,
                0x85..=0x87 => self.tuple(usize::from(opcode - 0x84))?,
                b't' | b'l' => self.collect(Document::new_list)?,
                b'd' => self.collect(Document::new_dict)?,
                b'q' => {
                    let at = self.length::<1>()?;
                    self.remember(at)?;
                }
                b'r' => {
                    let at = self.length::<4>()?;
                    self.remember(at)?;
                }
                0x94 => self.remember(self.document.memo.len())?,
                b'h' => {
                    let at = self.length::<1>()?;
                    self.recall(at)?;
                }
                b'j' => {
                    let at = self.length::<4>()?;
                    self.recall(at)?;
                }
                _ => return Err(invalid(rejected(opcode))),
            }
        }
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Step<[u8; N]> {
        let rest = self.bytes.get(self.at..).ok_or(Stop::Cut)?;
        let taken = rest.first_chunk().ok_or(Stop::Cut)?;
        self.at += N;
        Ok(*taken)
    }

    #[inline]
    fn skip(&mut self, count: usize) -> Step<()> {
        let end = self.at.checked_add(count).filter(|&end| end <= self.bytes.len());
        self.at = end.ok_or(Stop::Cut)?;
        Ok(())
    }

    /// An unsigned number of `N` bytes, used as a length or an index.
    #[inline]
    fn length<const N: usize>(&mut self) -> Step<usize> {
        let taken = self.array::<N>()?;
        let number = taken.iter().rev().fold(0_u64, |high, &byte| high << 8 | u64::from(byte));
        Ok(usize::try_from(number).unwrap_or(usize::MAX))
    }

    #[inline]
    fn int<const N: usize>(&mut self, signed: bool) -> Step<()> {
        let unsigned = self.length::<N>()? as i64;
        let number = if signed { i64::from(unsigned as u32 as i32) } else { unsigned };
        self.push(Value::Int(number))
    }

    /// An integer in two's complement, after its length in bytes. One that exceeds 64 bits is unknown.
    fn long(&mut self) -> Step<()> {
        let len = self.length::<1>()?;
        let start = self.at;
        self.skip(len)?;
        if len > 8 {
            return self.push(Value::None);
        }
        let taken = &self.bytes[start..self.at];
        let negative = taken.last().is_some_and(|&last| last >= 0x80);
        let mut number = if negative { [0xff; 8] } else { [0; 8] };
        number[..len].copy_from_slice(taken);
        self.push(Value::Int(i64::from_le_bytes(number)))
    }

    fn text<const N: usize>(&mut self) -> Step<()> {
        let len = self.length::<N>()?;
        if len > MAX_TEXT {
            return Err(invalid(format!(
                "a text of {len} bytes, and at most {MAX_TEXT} are accepted"
            )));
        }
        let start = self.at as u32;
        self.skip(len)?;
        let len = len as u32;
        self.push(Value::Text(Text { start, len }))
    }

    #[inline]
    fn push(&mut self, value: Value) -> Step<()> {
        self.document.count_value()?;
        self.document.stack.values.push(value);
        Ok(())
    }

    #[inline]
    fn mark(&mut self) -> Step<()> {
        if self.document.stack.marks.len() >= MAX_DEPTH {
            return Err(invalid(format!("lists nested more than {MAX_DEPTH} deep")));
        }
        self.document.stack.mark(0);
        Ok(())
    }

    fn pop(&mut self) -> Step<Value> {
        let value = self.top()?;
        self.document.stack.values.pop();
        Ok(value)
    }

    /// The value on top of the stack.
    #[inline]
    fn top(&self) -> Step<Value> {
        self.document.stack.above_mark().last().copied().ok_or_else(|| invalid(NO_VALUE))
    }

    /// Adds the last values to the container below them.
    fn append(&mut self, count: usize) -> Step<()> {
        self.mark_last(count)?;
        self.document.close()?.ok_or_else(|| invalid(NO_VALUE))
    }

    fn tuple(&mut self, count: usize) -> Step<()> {
        self.mark_last(count)?;
        self.collect(Document::new_list)
    }

    /// Marks the last values, of which there must be so many.
    #[inline]
    fn mark_last(&mut self, count: usize) -> Step<()> {
        let stack = &mut self.document.stack;
        if stack.above_mark().len() < count {
            return Err(invalid(NO_VALUE));
        }
        stack.mark(count);
        Ok(())
    }

    /// Replaces the values since the latest mark by a container of them.
    fn collect(&mut self, new: fn(&mut Document) -> Result<Value, Invalid>) -> Step<()> {
        let container = new(self.document)?;
        self.document.collect(container)?.ok_or_else(|| invalid(NO_BEGINNING))?;
        self.push(container)
    }

    /// Remembers the value on top of the stack. Writers number these values from 0.
    #[inline]
    fn remember(&mut self, at: usize) -> Step<()> {
        let value = self.top()?;
        let memo = &mut self.document.memo;
        if at == memo.len() && at < MAX_MEMO {
            memo.push(value);
        } else if let Some(known) = memo.get_mut(at) {
            *known = value;
        } else {
            return Err(invalid(format!("value {at} is remembered after {}", memo.len())));
        }
        Ok(())
    }

    #[inline]
    fn recall(&mut self, at: usize) -> Step<()> {
        let Some(&known) = self.document.memo.get(at) else {
            return Err(invalid(format!("value {at} is not remembered")));
        };
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

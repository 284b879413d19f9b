//! Entries in little memory: a dump has thousands, and most of them concern nothing. Entries of one kind follow each
//! other with small differences, so that each takes few bytes instead of 56.

use super::{Entry, Kind, State};

/// The entry has the next record number.
const NEXT_RECORD: u8 = 1 << 2;
/// The entry has the same number of messages as the one before.
const SAME_MESSAGES: u8 = 1 << 3;
/// The watchdog no longer waits for the entry.
const RETIRED: u8 = 1 << 4;
/// The time of completion is recorded.
const HAS_COMPLETED: u8 = 1 << 5;
/// The diagnosis does not need the entry.
const SETTLED: u8 = 1 << 6;

/// The entries of a dump, oldest first.
#[derive(Debug, Default)]
pub(in super::super) struct Entries {
    bytes: Vec<u8>,
    len: usize,
    /// Numbers of the entries by index of their kinds.
    numbers: Vec<Numbers>,
}

/// Sequence numbers of the entries of a kind.
#[derive(Clone, Copy, Debug, Default)]
pub(in super::super) struct Numbers {
    pub(in super::super) lowest: u64,
    pub(in super::super) highest: u64,
    pub(in super::super) count: u64,
}

/// Packs entries.
#[derive(Default)]
pub(super) struct Packer {
    packed: Entries,
    last: Last,
}

/// What the next entry is compared with.
#[derive(Default)]
struct Last {
    record: i64,
    seq_of_messages: u64,
    created: u64,
    completed: u64,
    /// Sequence numbers by index of the kind.
    seqs: Vec<u64>,
}

impl Packer {
    pub(super) fn push(&mut self, entry: &Entry<'_>) {
        let Self { packed: Entries { bytes, len, numbers }, last } = self;
        let kind = entry.index as usize;
        if kind >= numbers.len() {
            numbers.resize(kind + 1, Numbers::default());
            last.seqs.resize(kind + 1, 0);
        }
        numbers[kind].add(entry.seq);
        *len += 1;
        let is_next = entry.record == last.record.wrapping_add(1);
        let has_same = entry.seq_of_messages == last.seq_of_messages;
        let state = match entry.state {
            State::Scheduled => 0,
            State::Started => 1,
            State::Completed => 2,
        };
        let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        bytes.push(
            state
                | flag(is_next, NEXT_RECORD)
                | flag(has_same, SAME_MESSAGES)
                | flag(entry.retired, RETIRED)
                | flag(entry.is_settled, SETTLED)
                | flag(entry.completed > 0, HAS_COMPLETED),
        );
        write(bytes, u64::from(entry.index));
        write_difference(bytes, entry.seq, last.seqs[kind]);
        last.seqs[kind] = entry.seq;
        write_difference(bytes, entry.created, last.created);
        last.created = entry.created;
        if !is_next {
            write_difference(bytes, entry.record as u64, last.record as u64);
        }
        last.record = entry.record;
        if !has_same {
            write_difference(bytes, entry.seq_of_messages, last.seq_of_messages);
            last.seq_of_messages = entry.seq_of_messages;
        }
        if entry.completed > 0 {
            write_difference(bytes, entry.completed, last.completed);
            last.completed = entry.completed;
        }
    }

    pub(super) fn finish(mut self) -> Entries {
        self.packed.bytes.shrink_to_fit();
        self.packed.numbers.shrink_to_fit();
        self.packed
    }
}

impl Entries {
    pub(in super::super) const fn len(&self) -> usize {
        self.len
    }

    /// Sequence numbers of the entries of a kind.
    pub(in super::super) fn numbers(&self, kind: &Kind) -> Numbers {
        self.numbers.get(kind.index as usize).copied().unwrap_or_default()
    }

    pub(super) fn iter<'a>(&'a self, kinds: &'a [Kind]) -> impl Iterator<Item = Entry<'a>> {
        let mut bytes = &self.bytes[..];
        let mut last = Last { seqs: vec![0; self.numbers.len()], ..Last::default() };
        (0..self.len).map(move |_| {
            let flags = read_byte(&mut bytes);
            let index = read(&mut bytes) as usize;
            let seq = last.seqs[index].wrapping_add(read_difference(&mut bytes));
            last.seqs[index] = seq;
            last.created = last.created.wrapping_add(read_difference(&mut bytes));
            last.record = if flags & NEXT_RECORD != 0 {
                last.record.wrapping_add(1)
            } else {
                last.record.wrapping_add(read_difference(&mut bytes) as i64)
            };
            if flags & SAME_MESSAGES == 0 {
                let difference = read_difference(&mut bytes);
                last.seq_of_messages = last.seq_of_messages.wrapping_add(difference);
            }
            if flags & HAS_COMPLETED != 0 {
                last.completed = last.completed.wrapping_add(read_difference(&mut bytes));
            }
            Entry {
                kind: &kinds[index],
                record: last.record,
                seq,
                seq_of_messages: last.seq_of_messages,
                created: last.created,
                completed: if flags & HAS_COMPLETED != 0 { last.completed } else { 0 },
                state: match flags & 3 {
                    0 => State::Scheduled,
                    1 => State::Started,
                    _ => State::Completed,
                },
                retired: flags & RETIRED != 0,
                is_settled: flags & SETTLED != 0,
            }
        })
    }
}

impl<'a> FromIterator<Entry<'a>> for Entries {
    fn from_iter<I: IntoIterator<Item = Entry<'a>>>(entries: I) -> Self {
        let mut packer = Packer::default();
        for entry in entries {
            packer.push(&entry);
        }
        packer.finish()
    }
}

impl Numbers {
    fn add(&mut self, seq: u64) {
        self.lowest = if self.count == 0 { seq } else { self.lowest.min(seq) };
        self.highest = self.highest.max(seq);
        self.count += 1;
    }
}

/// Writes a number, seven bits in each byte, the lowest first.
fn write(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// Writes how much a number differs from an earlier one: small differences of both signs are short.
fn write_difference(bytes: &mut Vec<u8>, number: u64, earlier: u64) {
    let difference = number.wrapping_sub(earlier) as i64;
    write(bytes, (difference << 1 ^ difference >> 63) as u64);
}

fn read_byte(bytes: &mut &[u8]) -> u8 {
    let Some((&first, rest)) = bytes.split_first() else { return 0 };
    *bytes = rest;
    first
}

fn read(bytes: &mut &[u8]) -> u64 {
    let mut number = 0;
    let mut shift = 0;
    loop {
        let byte = read_byte(bytes);
        number |= u64::from(byte & 0x7f) << shift;
        shift += 7;
        if byte < 0x80 {
            return number;
        }
    }
}

fn read_difference(bytes: &mut &[u8]) -> u64 {
    let number = read(bytes);
    number >> 1 ^ (number & 1).wrapping_neg()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_those_that_were_packed() {
        let kinds: Vec<Kind> = (0..=300).map(|index| Kind { index, ..Kind::default() }).collect();
        let entry = |kind: usize, record: i64, numbers: [u64; 4], state: State, retired: bool| {
            let [seq, seq_of_messages, created, completed] = numbers;
            Entry {
                kind: &kinds[kind],
                record,
                seq,
                seq_of_messages,
                created,
                completed,
                state,
                retired,
                is_settled: !retired,
            }
        };
        let entries = [
            entry(0, 0, [0; 4], State::Scheduled, false),
            entry(300, 1, [u64::MAX, 7, u64::MAX, 1], State::Started, true),
            entry(1, i64::MIN, [1, 7, 0, 0], State::Completed, false),
            entry(300, i64::MAX, [3, 0, 1 << 62, u64::MAX], State::Completed, true),
            entry(300, i64::MIN, [4, 0, (1 << 62) - 5, 2], State::Scheduled, true),
        ];
        let packed: Entries = entries.into_iter().collect();
        let shown = |it: &Entry<'_>| format!("{} {it:?}", it.index);
        let unpacked: Vec<String> = packed.iter(&kinds).map(|it| shown(&it)).collect();
        assert_eq!(unpacked, entries.each_ref().map(shown));
        let Numbers { lowest, highest, count } = packed.numbers(&kinds[300]);
        assert_eq!((packed.len(), lowest, highest, count), (5, 3, u64::MAX, 3));
    }
}

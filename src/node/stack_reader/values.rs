//! The values of a few local variables of Python frames: those that name the group and the partner of a call, and
//! those that number the ranks of a launcher which sets no variables of the environment.
//!
//! Dictionaries, tuples and integers are read as CPython lays them out (`Include/cpython/{dictobject,tupleobject,
//! longintrepr}.h`, `Include/internal/pycore_dict.h`), for 64-bit machines.

use std::collections::BTreeMap;

use crate::stack_reader::layout::Version;
use crate::stack_reader::memory::{Fault, Memory, Pages, at};

/// Maximum number of entries of a dictionary that are read.
const MAX_ENTRIES: u64 = 1 << 16;
/// Maximum number of elements of a tuple or a list that are read.
const MAX_ELEMENTS: u64 = 4096;
/// Maximum length of a name, in characters.
const MAX_TEXT: u64 = 4096;
/// Lowest bits of references, which are flags from 3.14 on.
const FLAGS: u64 = 7;

/// Offsets of a `str`, which differ between versions.
#[derive(Clone, Copy, Debug)]
pub struct TextLayout {
    /// Number of characters.
    pub length: u64,
    /// Bit field, four bytes, with the representation.
    pub state: u64,
    /// Characters of an ASCII string.
    pub ascii: u64,
    /// Characters of any other string.
    pub other: u64,
}

/// Reads objects of an interpreter.
pub struct Objects<'p, 'm, M> {
    /// The memory of the process.
    pub pages: &'p mut Pages<'m, M>,
    /// Version of the interpreter.
    pub version: Version,
    /// Layout of its strings.
    pub text: TextLayout,
}

impl<M: Memory> Objects<'_, '_, M> {
    /// Reads a `str`.
    ///
    /// # Errors
    ///
    /// If it cannot be read, or is an instance of a subclass.
    pub fn text(&mut self, address: u64) -> Result<String, Fault> {
        let layout = self.text;
        let length = self.pages.u64(at(address, layout.length)?)?;
        let state = self.pages.u32(at(address, layout.state)?)?;
        // Bits, from the lowest: two for interned, three for the width in bytes, compact, ASCII.
        let (width, is_compact, is_ascii) =
            (state >> 2 & 7, state >> 5 & 1 == 1, state >> 6 & 1 == 1);
        if length > MAX_TEXT || !is_compact || ![1, 2, 4].contains(&width) {
            return Err(Fault::Invalid("a name"));
        }
        let start = if is_ascii { layout.ascii } else { layout.other };
        let width = width as usize;
        let bytes = self.pages.vec(at(address, start)?, length as usize * width)?;
        let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |n, &b| n << 8 | u32::from(b));
        Ok(bytes
            .chunks_exact(width)
            .map(|bytes| char::from_u32(number(bytes)).unwrap_or(char::REPLACEMENT_CHARACTER))
            .collect())
    }

    /// The elements of a `tuple`.
    ///
    /// # Errors
    ///
    /// If it cannot be read.
    pub fn tuple(&mut self, address: u64) -> Result<Vec<u64>, Fault> {
        let length = self.pages.u64(at(address, 16)?)?;
        if length > MAX_ELEMENTS {
            return Err(Fault::Invalid("a tuple"));
        }
        // From 3.14 on its hash precedes the elements.
        let start = at(address, if self.version >= (3, 14) { 32 } else { 24 })?;
        (0..length).map(|index| Ok(self.pages.u64(at(start, 8 * index)?)? & !FLAGS)).collect()
    }

    /// The elements of a `list`.
    ///
    /// # Errors
    ///
    /// If it cannot be read, or is something else.
    pub fn list(&mut self, address: u64) -> Result<Vec<u64>, Fault> {
        let invalid = Fault::Invalid("a list");
        if address == 0 || !self.reads_type(address, b"list\0") {
            return Err(invalid);
        }
        let length = self.pages.u64(at(address, 16)?)?;
        if length > MAX_ELEMENTS {
            return Err(invalid);
        }
        let start = self.pages.u64(at(address, 24)?)?;
        (0..length).map(|index| Ok(self.pages.u64(at(start, 8 * index)?)? & !FLAGS)).collect()
    }

    /// The keys and values of a `dict` that has no values of its own (of instances), in order.
    ///
    /// # Errors
    ///
    /// If it cannot be read.
    pub fn dict(&mut self, address: u64) -> Result<Vec<(u64, u64)>, Fault> {
        let keys = self.pages.u64(at(address, 32)?)?;
        let (entries, count, size) = if self.version >= (3, 11) {
            let header = self.pages.u64(at(keys, 8)?)?.to_le_bytes();
            let [_, index_bytes, kind, ..] = header;
            let size = match kind {
                0 => 24,
                1 => 16,
                _ => return Err(Fault::Invalid("a dictionary")),
            };
            if index_bytes > 40 {
                return Err(Fault::Invalid("a dictionary"));
            }
            (at(keys, 32 + (1 << index_bytes))?, self.pages.u64(at(keys, 24)?)?, size)
        } else {
            let slots = self.pages.u64(at(keys, 8)?)?;
            let width = match slots {
                0..=0xff => 1,
                0x100..=0xffff => 2,
                _ => 4,
            };
            let indices = slots.checked_mul(width).ok_or(Fault::Invalid("a dictionary"))?;
            (at(keys, 40 + indices)?, self.pages.u64(at(keys, 32)?)?, 24)
        };
        if count > MAX_ENTRIES {
            return Err(Fault::Invalid("a dictionary"));
        }
        let mut found = Vec::new();
        for index in 0..count {
            let entry = at(entries, size * index + size - 16)?;
            let (key, value) =
                (self.pages.u64(entry)? & !FLAGS, self.pages.u64(at(entry, 8)?)? & !FLAGS);
            // Removed entries have no value.
            if key != 0 && value != 0 {
                found.push((key, value));
            }
        }
        Ok(found)
    }

    /// The value of an `int` of at most 30 bits.
    ///
    /// # Errors
    ///
    /// If it cannot be read, or is larger.
    pub fn int(&mut self, address: u64) -> Result<i64, Fault> {
        let tag = self.pages.u64(at(address, 16)?)?;
        let digit = i64::from(self.pages.u32(at(address, 24)?)?);
        let (digits, sign) = if self.version >= (3, 12) {
            (tag >> 3, [1, 0, -1].get((tag & 3) as usize).copied())
        } else {
            (tag.cast_signed().unsigned_abs(), Some(tag.cast_signed().signum()))
        };
        match (digits, sign) {
            (0 | 1, Some(sign)) if digit < 1 << 30 => Ok(digit * sign),
            _ => Err(Fault::Invalid("an integer")),
        }
    }

    /// Whether an object is `None`.
    fn reads_none(&mut self, address: u64) -> bool {
        address == 0 || self.reads_type(address, b"NoneType\0")
    }

    /// The value of an object if it is an `int` of at most 30 bits.
    pub fn integer(&mut self, address: u64) -> Option<i64> {
        let is_int = address != 0 && self.reads_type(address, b"int\0");
        if is_int { self.int(address).ok() } else { None }
    }

    /// Whether the type of an object has this name, which ends with 0.
    fn reads_type(&mut self, address: u64, expected: &[u8]) -> bool {
        let mut name = || {
            let of_type = self.pages.u64(at(address, 8)?)?;
            let name = self.pages.u64(at(of_type, 24)?)?;
            self.pages.vec(name, expected.len())
        };
        name().is_ok_and(|name| name == expected)
    }

    /// The values of a dictionary with these names.
    ///
    /// # Errors
    ///
    /// If it cannot be read.
    pub fn named<const N: usize>(
        &mut self,
        dict: u64,
        names: [&str; N],
    ) -> Result<[Option<u64>; N], Fault> {
        let mut found = [None; N];
        for (key, value) in self.dict(dict)? {
            let Ok(key) = self.text(key) else { continue };
            if let Some(index) = names.iter().position(|name| *name == key) {
                found[index] = Some(value);
            }
        }
        Ok(found)
    }
}

/// The process group of a call, as Python's `torch.distributed` knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallGroup {
    /// Its name.
    pub name: String,
    /// Global ranks in group order.
    pub members: Vec<u32>,
    /// Global rank of the root or the peer.
    pub partner: Option<u32>,
}

/// Names of arguments with a process group.
const GROUPS: [&str; 2] = ["group", "pg"];
/// Names of arguments with the global rank of a root or a peer.
const GLOBAL_PARTNERS: [&str; 2] = ["src", "dst"];
/// Names of arguments with such a rank within the group.
const GROUP_PARTNERS: [&str; 2] = ["group_src", "group_dst"];

/// The function of `distributed_c10d.py` that knows the name and the ranks of the group that it creates.
pub const MAKER: &str = "_new_group_with_tag";
/// A function that it calls, whose group is not complete.
pub const INNER_MAKER: &str = "_new_process_group_helper";

/// The group that a frame of [`MAKER`] with these local variables creates.
///
/// # Errors
///
/// If it cannot be read.
pub fn created_group<M: Memory>(
    objects: &mut Objects<'_, '_, M>,
    locals: &BTreeMap<String, u64>,
) -> Result<CallGroup, Fault> {
    let none = Fault::Invalid("the group that a call creates");
    let variable = |name: &str| locals.get(name).copied().filter(|&it| it != 0).ok_or(none);
    let name = objects.text(variable("group_name")?)?;
    let ranks = objects.list(variable("ranks")?)?.into_iter();
    let numbers: Option<Vec<u32>> =
        ranks.map(|it| objects.integer(it).and_then(|it| u32::try_from(it).ok())).collect();
    let members = numbers.filter(|it| !it.is_empty()).ok_or(none)?;
    Ok(CallGroup { name, members, partner: None })
}

/// The group of a frame of `distributed_c10d.py` with these local variables and globals.
///
/// # Errors
///
/// If it cannot be read, or the frame has none.
pub fn group_of_call<M: Memory>(
    objects: &mut Objects<'_, '_, M>,
    locals: &BTreeMap<String, u64>,
    globals: u64,
) -> Result<CallGroup, Fault> {
    let none = Fault::Invalid("the group of a call");
    let object = GROUPS.iter().find_map(|name| locals.get(*name).copied()).ok_or(none)?;
    let [names, ranks] = objects.named(globals, ["_pg_names", "_pg_group_ranks"])?;
    let names = objects.dict(names.ok_or(none)?)?;
    // The first group is that of all ranks, which stands for no group.
    let known = names.iter().find(|(group, _)| *group == object);
    // A deleted argument is not an object.
    let is_none = known.is_none() && objects.reads_none(object);
    let &(group, name) = known.or_else(|| names.first().filter(|_| is_none)).ok_or(none)?;
    let name = objects.text(name)?;
    let ranks = objects.dict(ranks.ok_or(none)?)?;
    let (_, ranks) = ranks.into_iter().find(|(key, _)| *key == group).ok_or(none)?;
    let mut members = Vec::new();
    for (global, in_group) in objects.dict(ranks)? {
        members.push((
            objects.int(in_group)?,
            u32::try_from(objects.int(global)?).map_err(|_error| none)?,
        ));
    }
    members.sort_unstable();
    let members: Vec<u32> = members.into_iter().map(|(_, global)| global).collect();
    let mut number = |names: [&str; 2]| {
        let mut given = names.iter().filter_map(|name| locals.get(*name));
        let number = given.find_map(|&it| objects.integer(it))?;
        u32::try_from(number).ok()
    };
    let in_group = number(GROUP_PARTNERS).and_then(|it| members.get(it as usize).copied());
    let partner = in_group.or_else(|| number(GLOBAL_PARTNERS));
    Ok(CallGroup { name, partner: partner.filter(|it| members.contains(it)), members })
}

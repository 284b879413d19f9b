//! Unwinds a native frame to its caller, by the compiler's unwind tables for exceptions.
//!
//! For a thread that sleeps in the kernel, only the instruction pointer and the stack pointer are
//! known without stopping it. That is sufficient for code that addresses its frame by the stack
//! pointer. Other code also needs the frame pointer, which an inner frame may have saved; otherwise
//! the frames end there.
//!
//! Sources: LSB Core, "Exception Frames" (`.eh_frame`, `.eh_frame_hdr`); DWARF 5, section 6.4;
//! System V ABI, AMD64, "DWARF Register Number Mapping".

use crate::node::stacks::memory::{Fault, Memory, Pages, at};

/// Number of registers in unwind tables of x86-64.
const REGISTERS: usize = 17;
const STACK_POINTER: usize = 7;
const RETURN_ADDRESS: usize = 16;
/// Maximum length of an entry of a table, in bytes.
const MAX_BYTES: u64 = 1 << 16;
/// Maximum number of rows on the stack of an entry (`DW_CFA_remember_state`).
const MAX_SAVED_ROWS: usize = 16;

/// The known registers of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registers([Option<u64>; REGISTERS]);

impl Registers {
    /// The registers of the innermost frame.
    #[must_use]
    pub const fn new(place: u64, stack: u64) -> Self {
        let mut registers = [None; REGISTERS];
        registers[RETURN_ADDRESS] = Some(place);
        registers[STACK_POINTER] = Some(stack);
        Self(registers)
    }

    /// Address of its current instruction, or its return address.
    #[must_use]
    pub const fn place(&self) -> Option<u64> {
        self.0[RETURN_ADDRESS]
    }

    /// The registers of the caller; `None` if there is none, or it is not known. `table` is the
    /// address of the table for this frame's code. `is_innermost` is whether the place is the
    /// current instruction and not a return address.
    ///
    /// # Errors
    ///
    /// If the table or the stack cannot be read, or is invalid.
    pub fn caller<M: Memory>(
        &self,
        pages: &mut Pages<'_, M>,
        table: u64,
        is_innermost: bool,
    ) -> Result<Option<Self>, Fault> {
        let (Some(place), Some(stack)) = (self.0[RETURN_ADDRESS], self.0[STACK_POINTER]) else {
            return Ok(None);
        };
        // A call may be the last instruction of a function; its return address then belongs to the
        // next one.
        let place = if is_innermost { place } else { place.wrapping_sub(1) };
        let Some(entry) = Entry::find(pages, table, place)? else {
            return Ok(None);
        };
        let row = entry.row(place)?;
        let base = match row.base {
            Base::Register(register, offset) => self
                .0
                .get(register)
                .copied()
                .flatten()
                .map(|value| value.wrapping_add_signed(offset)),
            Base::Behind(register, offset) => match self.0.get(register).copied().flatten() {
                Some(value) => Some(pages.u64(value.wrapping_add_signed(offset))?),
                None => None,
            },
            Base::Unknown => None,
        };
        // Stacks grow downwards, so that the caller's frame is at a higher address.
        let Some(base) = base.filter(|base| *base > stack) else {
            return Ok(None);
        };
        let mut caller = *self;
        for (value, rule) in caller.0.iter_mut().zip(row.rules) {
            *value = match rule {
                Rule::Same => *value,
                Rule::At(offset) => Some(pages.u64(base.wrapping_add_signed(offset))?),
                Rule::Unknown => None,
            };
        }
        caller.0[STACK_POINTER] = Some(base);
        // A frame entered by a call has its return address on the stack.
        if !matches!(row.rules[RETURN_ADDRESS], Rule::At(_)) {
            return Ok(None);
        }
        Ok(caller.0[RETURN_ADDRESS].filter(|place| *place != 0).map(|_| caller))
    }
}

/// Rule for the base of a frame, its canonical frame address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Base {
    /// A register plus an offset.
    Register(usize, i64),
    /// The value in memory at that address, for frames with more than the ABI's alignment.
    Behind(usize, i64),
    /// A rule that is not supported.
    Unknown,
}

/// Location of the caller's value of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// Still in the register.
    Same,
    /// In memory, at this offset from the base.
    At(i64),
    /// Unknown.
    Unknown,
}

/// The rules at one instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Row {
    base: Base,
    rules: [Rule; REGISTERS],
}

/// The entry of a function (FDE) with the common part (CIE) that it refers to.
struct Entry {
    code_factor: u64,
    data_factor: i64,
    encoding: u8,
    start: u64,
    first: Vec<u8>,
    /// Address of the function's own instructions, which may contain addresses relative to
    /// themselves.
    own_at: u64,
    own: Vec<u8>,
}

impl Entry {
    /// The entry for this instruction, by the sorted table of `.eh_frame_hdr`.
    fn find<M: Memory>(
        pages: &mut Pages<'_, M>,
        table: u64,
        place: u64,
    ) -> Result<Option<Self>, Fault> {
        let mut header = [0; 12];
        pages.bytes(table, &mut header)?;
        // Version 1, a count of four bytes, and pairs of signed offsets of four bytes relative to
        // the table.
        if header[0] != 1 || header[2] != 0x03 || header[3] != 0x3b || header[1] & 0x0f != 0x0b {
            return Ok(None);
        }
        let count = u32::from_le_bytes([header[8], header[9], header[10], header[11]]);
        let pairs = at(table, 12)?;
        let mut read = |index: u32, second: u64| {
            let offset = pages.u32(at(pairs, 8 * u64::from(index) + 4 * second)?)?;
            Ok(table.wrapping_add_signed(i64::from(offset.cast_signed())))
        };
        let (mut low, mut high) = (0, count);
        while low < high {
            let middle = low + (high - low) / 2;
            if read(middle, 0)? <= place {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let Some(index) = low.checked_sub(1) else {
            return Ok(None);
        };
        let entry = read(index, 1)?;
        let entry = Self::read(pages, entry)?;
        Ok(entry.filter(|(it, end)| (it.start..*end).contains(&place)).map(|(it, _)| it))
    }

    /// Reads an entry; also returns the end of its function.
    fn read<M: Memory>(
        pages: &mut Pages<'_, M>,
        address: u64,
    ) -> Result<Option<(Self, u64)>, Fault> {
        let own = Piece::read(pages, address)?;
        let mut own_bytes = own.bytes();
        let back = own_bytes.u32()?;
        let common_at = own.start.wrapping_sub(u64::from(back));
        let common = Piece::read(pages, common_at)?;
        let mut bytes = common.bytes();
        let (id, version) = (bytes.u32()?, bytes.u8()?);
        if id != 0 || !matches!(version, 1 | 3) {
            return Ok(None);
        }
        let mut augmentation = Vec::new();
        loop {
            match bytes.u8()? {
                0 => break,
                letter => augmentation.push(letter),
            }
        }
        let code_factor = bytes.unsigned()?;
        let data_factor = bytes.signed()?;
        let return_address = match version {
            1 => u64::from(bytes.u8()?),
            _ => bytes.unsigned()?,
        };
        let mut encoding = 0;
        let mut first = bytes.0;
        if let Some((b'z', letters)) = augmentation.split_first() {
            let length = bytes.unsigned()?;
            first = bytes.0.get(length as usize..).ok_or(INVALID)?;
            for letter in letters {
                match letter {
                    b'R' => encoding = bytes.u8()?,
                    b'L' => _ = bytes.u8()?,
                    b'P' => {
                        let size = size_of_encoded(bytes.u8()?).ok_or(INVALID)?;
                        bytes.skip(size)?;
                    }
                    // Among others `S`: the frame of a signal, which was not entered by a call.
                    _ => return Ok(None),
                }
            }
        }
        let is_known = encoding & 0x70 == 0x10 && size_of_encoded(encoding) == Some(4);
        if return_address != RETURN_ADDRESS as u64 || !is_known {
            return Ok(None);
        }
        // Relative to its own position, after the reference to the common part.
        let start = i64::from(own_bytes.u32()?.cast_signed());
        let start = at(own.start, 4)?.wrapping_add_signed(start);
        let end = start.wrapping_add(u64::from(own_bytes.u32()?));
        if augmentation.first() == Some(&b'z') {
            let length = own_bytes.unsigned()?;
            own_bytes.skip(length as usize)?;
        }
        let rest = own_bytes.0;
        let entry = Self {
            code_factor,
            data_factor,
            encoding,
            start,
            first: first.to_vec(),
            own_at: own.start + (own.content.len() - rest.len()) as u64,
            own: rest.to_vec(),
        };
        Ok(Some((entry, end)))
    }

    /// The rules at this instruction.
    fn row(&self, place: u64) -> Result<Row, Fault> {
        let mut machine = Machine {
            entry: self,
            location: self.start,
            row: Row { base: Base::Unknown, rules: [Rule::Same; REGISTERS] },
            initial: [Rule::Same; REGISTERS],
            remembered: Vec::new(),
        };
        machine.run(&self.first, 0, place)?;
        machine.initial = machine.row.rules;
        machine.run(&self.own, self.own_at, place)?;
        Ok(machine.row)
    }
}

/// Runs call frame instructions.
struct Machine<'a> {
    entry: &'a Entry,
    location: u64,
    row: Row,
    initial: [Rule; REGISTERS],
    remembered: Vec<Row>,
}

impl Machine<'_> {
    /// Runs instructions until they refer to code after `place`. `start` is the address of the
    /// first one.
    fn run(&mut self, instructions: &[u8], start: u64, place: u64) -> Result<(), Fault> {
        let mut bytes = Bytes(instructions);
        while !bytes.0.is_empty() {
            let code = bytes.u8()?;
            let low = usize::from(code & 0x3f);
            match code >> 6 {
                1 => self.advance(low as u64),
                2 => {
                    let offset = bytes.unsigned()?;
                    self.set(low, self.saved(offset.cast_signed()));
                }
                3 => self.restore(low),
                _ => match low {
                    0x00 => {} // nop
                    0x01 => {
                        // set_loc, encoded like the start of a function.
                        if self.entry.encoding & 0x0f != 0x0b {
                            return Err(INVALID);
                        }
                        let here = start + (instructions.len() - bytes.0.len()) as u64;
                        let offset = i64::from(bytes.u32()?.cast_signed());
                        self.location = here.wrapping_add_signed(offset);
                    }
                    0x02 => {
                        let delta = bytes.u8()?;
                        self.advance(u64::from(delta));
                    }
                    0x03 => {
                        let delta = bytes.u16()?;
                        self.advance(u64::from(delta));
                    }
                    0x04 => {
                        let delta = bytes.u32()?;
                        self.advance(u64::from(delta));
                    }
                    0x05 => {
                        let (register, offset) = (bytes.unsigned()?, bytes.unsigned()?);
                        self.set(register as usize, self.saved(offset.cast_signed()));
                    }
                    0x06 => {
                        let register = bytes.unsigned()?;
                        self.restore(register as usize);
                    }
                    0x07 => {
                        let register = bytes.unsigned()?;
                        self.set(register as usize, Rule::Unknown);
                    }
                    0x08 => {
                        let register = bytes.unsigned()?;
                        self.set(register as usize, Rule::Same);
                    }
                    0x09 => {
                        // Saved in another register, which is not followed.
                        let register = bytes.unsigned()?;
                        bytes.unsigned()?;
                        self.set(register as usize, Rule::Unknown);
                    }
                    0x0a => {
                        if self.remembered.len() == MAX_SAVED_ROWS {
                            return Err(INVALID);
                        }
                        self.remembered.push(self.row);
                    }
                    0x0b => self.row = self.remembered.pop().ok_or(INVALID)?,
                    0x0c => {
                        let (register, offset) = (bytes.unsigned()?, bytes.unsigned()?);
                        self.row.base = Base::Register(register as usize, offset.cast_signed());
                    }
                    0x0d => {
                        let register = bytes.unsigned()? as usize;
                        self.row.base = match self.row.base {
                            Base::Register(_, offset) => Base::Register(register, offset),
                            _ => Base::Unknown,
                        };
                    }
                    0x0e => {
                        let offset = bytes.unsigned()?;
                        self.rebase(offset.cast_signed());
                    }
                    0x0f => self.row.base = simple(bytes.block()?),
                    0x10 | 0x16 => {
                        let register = bytes.unsigned()?;
                        bytes.block()?;
                        self.set(register as usize, Rule::Unknown);
                    }
                    0x11 => {
                        let (register, offset) = (bytes.unsigned()?, bytes.signed()?);
                        self.set(register as usize, self.saved(offset));
                    }
                    0x12 => {
                        let (register, offset) = (bytes.unsigned()?, bytes.signed()?);
                        let offset = offset.wrapping_mul(self.entry.data_factor);
                        self.row.base = Base::Register(register as usize, offset);
                    }
                    0x13 => {
                        let offset = bytes.signed()?;
                        self.rebase(offset.wrapping_mul(self.entry.data_factor));
                    }
                    0x2e => _ = bytes.unsigned()?, // GNU_args_size
                    _ => return Err(INVALID),
                },
            }
            if self.location > place {
                return Ok(());
            }
        }
        Ok(())
    }

    fn advance(&mut self, units: u64) {
        let bytes = units.wrapping_mul(self.entry.code_factor);
        self.location = self.location.saturating_add(bytes);
    }

    const fn saved(&self, factored: i64) -> Rule {
        Rule::At(factored.wrapping_mul(self.entry.data_factor))
    }

    /// Sets the rule of a register; registers beyond [`REGISTERS`] are ignored.
    fn set(&mut self, register: usize, rule: Rule) {
        if let Some(place) = self.row.rules.get_mut(register) {
            *place = rule;
        }
    }

    fn restore(&mut self, register: usize) {
        if let Some(&rule) = self.initial.get(register) {
            self.set(register, rule);
        }
    }

    fn rebase(&mut self, offset: i64) {
        self.row.base = match self.row.base {
            Base::Register(register, _) => Base::Register(register, offset),
            _ => Base::Unknown,
        };
    }
}

/// Parses the expression `breg N offset; deref`, which compilers use for aligned frames.
fn simple(expression: &[u8]) -> Base {
    let read = || {
        let mut bytes = Bytes(expression);
        let register = bytes.u8().ok()?.checked_sub(0x70)?;
        let offset = bytes.signed().ok()?;
        let is_it = usize::from(register) < REGISTERS && bytes.0 == [0x06];
        is_it.then_some(Base::Behind(usize::from(register), offset))
    };
    read().unwrap_or(Base::Unknown)
}

const INVALID: Fault = Fault::Invalid("a table of frames");

/// The bytes of an entry, a CIE or an FDE.
struct Piece {
    /// Address of its content, after the length.
    start: u64,
    content: Vec<u8>,
}

impl Piece {
    fn read<M: Memory>(pages: &mut Pages<'_, M>, address: u64) -> Result<Self, Fault> {
        let length = u64::from(pages.u32(address)?);
        // Also rejects 0xffffffff, which marks the 64-bit format.
        if length > MAX_BYTES {
            return Err(INVALID);
        }
        let start = at(address, 4)?;
        let content = pages.vec(start, length as usize)?;
        Ok(Self { start, content })
    }

    fn bytes(&self) -> Bytes<'_> {
        Bytes(&self.content)
    }
}

/// Size of an encoded pointer in bytes; `None` for encodings that are not supported.
const fn size_of_encoded(encoding: u8) -> Option<usize> {
    match encoding & 0x0f {
        0x00 | 0x04 | 0x0c => Some(8),
        0x03 | 0x0b => Some(4),
        0x02 | 0x0a => Some(2),
        _ => None,
    }
}

/// The bytes that are left to read.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn skip(&mut self, count: usize) -> Result<&'a [u8], Fault> {
        let (now, later) = self.0.split_at_checked(count).ok_or(INVALID)?;
        self.0 = later;
        Ok(now)
    }

    fn u8(&mut self) -> Result<u8, Fault> {
        Ok(self.skip(1)?[0])
    }

    fn u16(&mut self) -> Result<u16, Fault> {
        let bytes = self.skip(2)?;
        Ok(u16::from_le_bytes([bytes[0], bytes[1]]))
    }

    fn u32(&mut self) -> Result<u32, Fault> {
        let bytes = self.skip(4)?;
        Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    /// An unsigned LEB128.
    fn unsigned(&mut self) -> Result<u64, Fault> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(INVALID)
    }

    /// A signed LEB128.
    fn signed(&mut self) -> Result<i64, Fault> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            value |= i64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                let unused = 64_i32 - shift - 7;
                return Ok(if unused > 0 { value << unused >> unused } else { value });
            }
        }
        Err(INVALID)
    }

    fn block(&mut self) -> Result<&'a [u8], Fault> {
        let length = self.unsigned()?;
        self.skip(usize::try_from(length).map_err(|_large| INVALID)?)
    }
}

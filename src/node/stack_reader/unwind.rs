//! Unwinds a native frame to its caller, by the compiler's unwind tables for exceptions.
//!
//! For a thread that sleeps in the kernel, only the instruction pointer and the stack pointer are
//! known without stopping it. That is sufficient for code that addresses its frame by the stack
//! pointer. Other code also needs the frame pointer, which an inner frame may have saved; otherwise
//! the frames end there. On AArch64 they also end at a function that has not saved its return address.
//!
//! Sources: LSB Core, "Exception Frames" (`.eh_frame`, `.eh_frame_hdr`); System V ABI, AMD64, "DWARF
//! Register Number Mapping"; DWARF for the Arm 64-bit Architecture. `gimli` evaluates the tables.

use gimli::{
    BaseAddresses, CfaRule, EhFrame, EhFrameOffset, Encoding, EndianSlice, EvaluationResult,
    FrameDescriptionEntry, LittleEndian, Location, Register, RegisterRule, UnwindContext,
    UnwindExpression, UnwindSection, Value, Vendor,
};

use crate::stack_reader::memory::{Fault, Memory, Pages, at};

type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// The registers of an architecture, by their numbers in DWARF.
struct Architecture {
    stack_pointer: Register,
    return_address: Register,
    /// The address bits of a code pointer; others may have a signature (pointer authentication).
    code_mask: u64,
    vendor: Vendor,
}

#[cfg(target_arch = "aarch64")]
const HOST: Architecture = Architecture {
    stack_pointer: gimli::AArch64::SP,
    return_address: gimli::AArch64::X30,
    code_mask: (1 << 48) - 1,
    vendor: Vendor::AArch64,
};
#[cfg(not(target_arch = "aarch64"))]
const HOST: Architecture = Architecture {
    stack_pointer: gimli::X86_64::RSP,
    return_address: gimli::X86_64::RA,
    code_mask: u64::MAX,
    vendor: Vendor::Default,
};

/// Number of registers that are followed: the general ones of both architectures.
const REGISTERS: usize = 32;
/// Maximum length of an entry of a table, in bytes.
const MAX_BYTES: u64 = 1 << 16;
/// Maximum number of operations of an expression.
const MAX_OPERATIONS: u32 = 256;
const INVALID: Fault = Fault::Invalid("a table of frames");

/// The known registers of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registers {
    place: u64,
    known: [Option<u64>; REGISTERS],
}

impl Registers {
    /// The registers of the innermost frame.
    #[must_use]
    pub const fn new(place: u64, stack: u64) -> Self {
        let mut known = [None; REGISTERS];
        known[HOST.stack_pointer.0 as usize] = Some(stack);
        Self { place, known }
    }

    /// Address of its current instruction, or its return address.
    #[must_use]
    pub const fn place(&self) -> u64 {
        self.place
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
        // A call may be the last instruction of a function; its return address then belongs to the
        // next one.
        let place = if is_innermost { self.place } else { self.place.wrapping_sub(1) };
        let Some(address) = find_entry(pages, table, place)? else {
            return Ok(None);
        };
        let entry = Entry::read(pages, address)?;
        let section = entry.section();
        let bases = entry.bases();
        let function = entry.function(&section, &bases)?;
        // The frame of a signal was not entered by a call.
        let is_called = function.contains(place) && !function.is_signal_trampoline();
        if !is_called || function.cie().return_address_register() != HOST.return_address {
            return Ok(None);
        }
        let mut context = UnwindContext::new();
        let row = function
            .unwind_info_for_address(&section, &bases, &mut context, place)
            .map_err(invalid)?;
        let frame =
            Frame { registers: self, section: &section, encoding: function.cie().encoding() };
        let base = match row.cfa() {
            CfaRule::RegisterAndOffset { register, offset } => {
                self.get(*register).map(|value| value.wrapping_add_signed(*offset))
            }
            CfaRule::Expression(expression) => frame.evaluate(pages, *expression, None)?,
        };
        // Stacks grow downwards, so that the caller's frame is at a higher address.
        let stack = self.get(HOST.stack_pointer);
        let Some(base) = base.filter(|base| stack.is_some_and(|stack| *base > stack)) else {
            return Ok(None);
        };
        let mut known = [None; REGISTERS];
        for (register, value) in (0..).map(Register).zip(&mut known) {
            let rule = row.register(register).unwrap_or(RegisterRule::SameValue);
            *value = frame.restore(pages, register, &rule, base)?;
        }
        // The return address of the caller is where its own table says.
        let returns_to = known.get_mut(usize::from(HOST.return_address.0)).and_then(Option::take);
        known[usize::from(HOST.stack_pointer.0)] = Some(base);
        let place = returns_to.map_or(0, |it| it & HOST.code_mask);
        Ok((place != 0).then_some(Self { place, known }))
    }

    fn get(&self, register: Register) -> Option<u64> {
        self.known.get(usize::from(register.0)).copied().flatten()
    }
}

/// What the rules of a frame refer to.
struct Frame<'a> {
    registers: &'a Registers,
    section: &'a EhFrame<Slice<'a>>,
    encoding: Encoding,
}

impl Frame<'_> {
    /// The caller's value of a register, by its rule; `base` is the frame's canonical frame address.
    fn restore<M: Memory>(
        &self,
        pages: &mut Pages<'_, M>,
        register: Register,
        rule: &RegisterRule<usize>,
        base: u64,
    ) -> Result<Option<u64>, Fault> {
        Ok(match *rule {
            RegisterRule::SameValue => self.registers.get(register),
            RegisterRule::Offset(offset) => Some(pages.u64(base.wrapping_add_signed(offset))?),
            RegisterRule::ValOffset(offset) => Some(base.wrapping_add_signed(offset)),
            RegisterRule::Register(other) => self.registers.get(other),
            RegisterRule::Constant(value) => Some(value),
            RegisterRule::Expression(expression) => {
                match self.evaluate(pages, expression, Some(base))? {
                    Some(address) => Some(pages.u64(address)?),
                    None => None,
                }
            }
            RegisterRule::ValExpression(expression) => {
                self.evaluate(pages, expression, Some(base))?
            }
            _ => None,
        })
    }

    /// The value of an expression; `None` if it needs an unknown register or is not supported.
    fn evaluate<M: Memory>(
        &self,
        pages: &mut Pages<'_, M>,
        expression: UnwindExpression<usize>,
        initial: Option<u64>,
    ) -> Result<Option<u64>, Fault> {
        let expression = expression.get(self.section).map_err(invalid)?;
        let mut evaluation = expression.evaluation(self.encoding);
        evaluation.set_max_iterations(MAX_OPERATIONS);
        if let Some(value) = initial {
            evaluation.set_initial_value(value);
        }
        let mut state = evaluation.evaluate().map_err(invalid)?;
        loop {
            state = match state {
                EvaluationResult::Complete => break,
                EvaluationResult::RequiresRegister { register, .. } => {
                    let Some(value) = self.registers.get(register) else {
                        return Ok(None);
                    };
                    evaluation.resume_with_register(Value::Generic(value)).map_err(invalid)?
                }
                EvaluationResult::RequiresMemory { address, size: 8, .. } => {
                    let value = Value::Generic(pages.u64(address)?);
                    evaluation.resume_with_memory(value).map_err(invalid)?
                }
                _ => return Ok(None),
            };
        }
        let result = evaluation.result();
        Ok(match result.first().map(|piece| &piece.location) {
            Some(Location::Address { address }) => Some(*address),
            _ => None,
        })
    }
}

/// Address of the entry for this instruction, by the sorted table of `.eh_frame_hdr`.
fn find_entry<M: Memory>(
    pages: &mut Pages<'_, M>,
    table: u64,
    place: u64,
) -> Result<Option<u64>, Fault> {
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
    low.checked_sub(1).map(|index| read(index, 1)).transpose()
}

/// The entry of a function (FDE) behind the common part (CIE) that it refers to: a section of two entries, as if
/// they were neighbors. The rest of the section is not read.
struct Entry {
    bytes: Vec<u8>,
    /// Position of the function's entry in `bytes`.
    function_at: usize,
    /// Address of `bytes`, by which the function's entry is at its actual address.
    start: u64,
}

impl Entry {
    fn read<M: Memory>(pages: &mut Pages<'_, M>, address: u64) -> Result<Self, Fault> {
        let mut function = piece(pages, address)?;
        let back = function.get_mut(4..8).ok_or(INVALID)?;
        let distance = u32::from_le_bytes([back[0], back[1], back[2], back[3]]);
        let common = piece(pages, at(address, 4)?.wrapping_sub(u64::from(distance)))?;
        let function_at = common.len();
        let distance = u32::try_from(function_at + 4).map_err(|_long| INVALID)?;
        back.copy_from_slice(&distance.to_le_bytes());
        let start = address.wrapping_sub(function_at as u64);
        Ok(Self { bytes: [common, function].concat(), function_at, start })
    }

    fn section(&self) -> EhFrame<Slice<'_>> {
        let mut section = EhFrame::new(&self.bytes, LittleEndian);
        section.set_address_size(8);
        section.set_vendor(HOST.vendor);
        section
    }

    fn bases(&self) -> BaseAddresses {
        BaseAddresses::default().set_eh_frame(self.start)
    }

    fn function<'a>(
        &self,
        section: &EhFrame<Slice<'a>>,
        bases: &BaseAddresses,
    ) -> Result<FrameDescriptionEntry<Slice<'a>>, Fault> {
        let position = EhFrameOffset(self.function_at);
        section.fde_from_offset(bases, position, EhFrame::cie_from_offset).map_err(invalid)
    }
}

/// The bytes of an entry, with its length in front.
fn piece<M: Memory>(pages: &mut Pages<'_, M>, address: u64) -> Result<Vec<u8>, Fault> {
    let length = u64::from(pages.u32(address)?);
    // Also rejects 0xffffffff, which marks the 64-bit format.
    if length > MAX_BYTES {
        return Err(INVALID);
    }
    pages.vec(address, 4 + length as usize)
}

fn invalid(_error: gimli::Error) -> Fault {
    INVALID
}

//! Layout of the structs of CPython that are read.
//!
//! From 3.13 on an interpreter publishes it for debuggers and profilers (`_Py_DebugOffsets` at the
//! start of `_PyRuntime`). Older versions, which no longer change, have tables here, taken from the
//! headers of CPython (`Include/internal/pycore_{runtime,interp,frame,gil}.h`,
//! `Include/cpython/{pystate,code,frameobject,unicodeobject}.h`) for 64-bit machines.

use crate::stack_reader::lines::LineFormat;
use crate::stack_reader::memory::{Fault, Memory, Pages, at};

/// Offsets within CPython's structs, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// `_PyRuntime` → the first interpreter.
    pub interpreters: u64,
    /// Interpreter → the next one.
    pub next_interpreter: u64,
    /// Interpreter → its first thread.
    pub threads: u64,
    /// Location of the lock (GIL).
    pub gil: Gil,
    /// Thread → the next one.
    pub next_thread: u64,
    /// Thread → its interpreter.
    pub interpreter: u64,
    /// Thread → its `pthread_t`.
    pub pthread: u64,
    /// Thread → its id in the operating system; `None` if this version does not store it.
    pub native_id: Option<u64>,
    /// Thread → its innermost frame.
    pub innermost: Innermost,
    /// Frame → the next outer one.
    pub outer: u64,
    /// Frame → its code.
    pub code: u64,
    /// Frame → its current instruction.
    pub place: Place,
    /// Frame → its owner, one byte; a frame with 3 or more is not a Python frame.
    pub owner: Option<u64>,
    /// Frame → its first local variable.
    pub locals: u64,
    /// Frame → its globals.
    pub globals: u64,
    /// Code → names of local variables.
    pub local_names: u64,
    /// Code → file.
    pub file: u64,
    /// Code → function.
    pub function: u64,
    /// Code → line table.
    pub lines: u64,
    /// Format of the line table.
    pub line_format: LineFormat,
    /// Code → first line, four bytes.
    pub first_line: u64,
    /// `bytes` → length.
    pub bytes_length: u64,
    /// `bytes` → content.
    pub bytes: u64,
    /// `str` → number of characters.
    pub text_length: u64,
    /// `str` → bit field, four bytes, with the representation.
    pub text_state: u64,
    /// `str` → characters of an ASCII string.
    pub text_ascii: u64,
    /// `str` → characters of any other string.
    pub text_other: u64,
}

/// Offsets of the lock: whether it is held (four bytes), and the thread that held it last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the variants document the offsets")]
pub enum Gil {
    /// In `_PyRuntime`.
    Runtime { locked: u64, holder: u64 },
    /// In the interpreter.
    Interpreter { locked: u64, holder: u64 },
    /// In a struct that a pointer in the interpreter refers to.
    Behind { pointer: u64, locked: u64, holder: u64 },
}

/// Offset of a thread's pointer to its innermost frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Innermost {
    /// In the thread.
    Here(u64),
    /// Offset of a pointer in the thread, and the offset in the struct that it refers to.
    Behind(u64, u64),
}

/// Representation of a frame's current instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Offset of the number of the instruction, four bytes.
    Number(u64),
    /// Offset of its offset in bytes, four bytes.
    Byte(u64),
    /// Offset of its address, and offset of the first instruction in the code object.
    Address(u64, u64),
}

/// Version of an interpreter: major and minor.
pub type Version = (u8, u8);

impl Layout {
    /// The layout of a version that does not publish it; `None` for other versions.
    #[must_use]
    pub fn for_version(version: Version) -> Option<Self> {
        match version {
            (3, 9) => Some(PYTHON_3_9),
            (3, 10) => Some(PYTHON_3_10),
            (3, 11) => Some(PYTHON_3_11),
            (3, 12) => Some(PYTHON_3_12),
            _ => None,
        }
    }

    /// Whether interpreters of this version publish their layout in a known format.
    #[must_use]
    pub const fn is_published(version: Version) -> bool {
        matches!(version, (3, 13 | 14))
    }

    /// The layout that an interpreter publishes at the start of its `_PyRuntime`.
    ///
    /// # Errors
    ///
    /// If it is missing or invalid.
    pub fn published<M: Memory>(
        pages: &mut Pages<'_, M>,
        runtime: u64,
        version: Version,
    ) -> Result<Self, Fault> {
        /// Upper bound of a valid offset.
        const MAX_OFFSET: u64 = 1 << 20;
        if pages.vec(runtime, 8)? != *b"xdebugpy" {
            return Err(Fault::Invalid("the layout that the interpreter publishes"));
        }
        let positions = match version {
            (3, 13) => &PUBLISHED_3_13,
            (3, 14) => &PUBLISHED_3_14,
            _ => return Err(Fault::Invalid("the version of the interpreter")),
        };
        let mut get = |position| match pages.u64(at(runtime, position)?)? {
            offset if offset < MAX_OFFSET => Ok(offset),
            _ => Err(Fault::Invalid("the layout that the interpreter publishes")),
        };
        let text_ascii = get(positions.text_ascii)?;
        Ok(Self {
            interpreters: get(positions.interpreters)?,
            next_interpreter: get(positions.next_interpreter)?,
            threads: get(positions.threads)?,
            gil: Gil::Interpreter {
                locked: get(positions.gil_locked)?,
                holder: get(positions.gil_holder)?,
            },
            next_thread: get(positions.next_thread)?,
            interpreter: get(positions.interpreter)?,
            pthread: get(positions.pthread)?,
            native_id: Some(get(positions.native_id)?),
            innermost: Innermost::Here(get(positions.innermost)?),
            outer: get(positions.outer)?,
            code: get(positions.code)?,
            place: Place::Address(get(positions.place)?, get(positions.instructions)?),
            owner: Some(get(positions.owner)?),
            locals: get(positions.locals)?,
            globals: GLOBALS,
            local_names: get(positions.local_names)?,
            file: get(positions.file)?,
            function: get(positions.function)?,
            lines: get(positions.lines)?,
            line_format: LineFormat::Locations,
            first_line: get(positions.first_line)?,
            bytes_length: get(positions.bytes_length)?,
            bytes: get(positions.bytes)?,
            text_length: get(positions.text_length)?,
            text_state: get(positions.text_state)?,
            text_ascii,
            // `PyCompactUnicodeObject` has two more words.
            text_other: text_ascii + 16,
        })
    }

    /// Whether an interpreter that publishes its layout was built without the lock.
    ///
    /// # Errors
    ///
    /// If this cannot be read.
    pub fn read_free_threading<M: Memory>(
        pages: &mut Pages<'_, M>,
        runtime: u64,
    ) -> Result<bool, Fault> {
        Ok(pages.u64(at(runtime, 16)?)? != 0)
    }
}

/// Frame → its globals in 3.12 to 3.14, which do not publish it.
const GLOBALS: u64 = 24;

const PYTHON_3_9: Layout =
    Layout { place: Place::Byte(104), locals: 360, line_format: LineFormat::Deltas, ..PYTHON_3_10 };

const PYTHON_3_10: Layout = Layout {
    interpreters: 32,
    next_interpreter: 0,
    threads: 8,
    gil: Gil::Runtime { locked: 368, holder: 360 },
    next_thread: 8,
    interpreter: 16,
    pthread: 176,
    native_id: None,
    innermost: Innermost::Here(24),
    outer: 24,
    code: 32,
    place: Place::Number(96),
    owner: None,
    locals: 352,
    globals: 48,
    local_names: 72,
    file: 104,
    function: 112,
    lines: 120,
    line_format: LineFormat::Pairs,
    first_line: 40,
    bytes_length: 16,
    bytes: 32,
    text_length: 16,
    text_state: 32,
    text_ascii: 48,
    text_other: 72,
};

const PYTHON_3_11: Layout = Layout {
    interpreters: 40,
    next_interpreter: 0,
    threads: 16,
    gil: Gil::Runtime { locked: 376, holder: 368 },
    next_thread: 8,
    interpreter: 16,
    pthread: 152,
    native_id: Some(160),
    innermost: Innermost::Behind(56, 8),
    outer: 48,
    code: 32,
    place: Place::Address(56, 184),
    owner: Some(69),
    locals: 72,
    globals: 8,
    local_names: 96,
    file: 112,
    function: 128,
    lines: 136,
    line_format: LineFormat::Locations,
    first_line: 72,
    bytes_length: 16,
    bytes: 32,
    text_length: 16,
    text_state: 32,
    text_ascii: 48,
    text_other: 72,
};

const PYTHON_3_12: Layout = Layout {
    interpreters: 40,
    next_interpreter: 0,
    threads: 72,
    gil: Gil::Behind { pointer: 384, locked: 16, holder: 8 },
    next_thread: 8,
    interpreter: 16,
    pthread: 136,
    native_id: Some(144),
    innermost: Innermost::Behind(56, 0),
    outer: 8,
    code: 0,
    place: Place::Address(56, 192),
    owner: Some(70),
    locals: 72,
    globals: GLOBALS,
    local_names: 96,
    file: 112,
    function: 128,
    lines: 136,
    line_format: LineFormat::Locations,
    first_line: 68,
    bytes_length: 16,
    bytes: 32,
    text_length: 16,
    text_state: 32,
    text_ascii: 40,
    text_other: 56,
};

/// Positions of the offsets in `_Py_DebugOffsets`.
struct Published {
    interpreters: u64,
    next_interpreter: u64,
    threads: u64,
    gil_locked: u64,
    gil_holder: u64,
    next_thread: u64,
    interpreter: u64,
    innermost: u64,
    pthread: u64,
    native_id: u64,
    outer: u64,
    code: u64,
    place: u64,
    owner: u64,
    locals: u64,
    local_names: u64,
    file: u64,
    function: u64,
    lines: u64,
    first_line: u64,
    instructions: u64,
    bytes_length: u64,
    bytes: u64,
    text_state: u64,
    text_length: u64,
    text_ascii: u64,
}

const PUBLISHED_3_13: Published = Published {
    interpreters: 40,
    next_interpreter: 64,
    threads: 72,
    gil_locked: 136,
    gil_holder: 144,
    next_thread: 168,
    interpreter: 176,
    innermost: 184,
    pthread: 192,
    native_id: 200,
    outer: 232,
    code: 240,
    place: 248,
    owner: 264,
    locals: 256,
    local_names: 328,
    file: 280,
    function: 296,
    lines: 304,
    first_line: 312,
    instructions: 344,
    bytes_length: 520,
    bytes: 528,
    text_state: 544,
    text_length: 552,
    text_ascii: 560,
};

const PUBLISHED_3_14: Published = Published {
    interpreters: 40,
    next_interpreter: 64,
    threads: 72,
    gil_locked: 144,
    gil_holder: 152,
    next_thread: 192,
    interpreter: 200,
    innermost: 208,
    pthread: 216,
    native_id: 224,
    outer: 256,
    code: 264,
    place: 272,
    owner: 288,
    locals: 280,
    local_names: 368,
    file: 320,
    function: 336,
    lines: 344,
    first_line: 352,
    instructions: 384,
    bytes_length: 600,
    bytes: 608,
    text_state: 624,
    text_length: 632,
    text_ascii: 640,
};

//! The Python frames of all threads of a process, read from outside while it runs.
//!
//! The path is interpreter → threads → frames → code objects, as CPython links them. The process is
//! not stopped, so that a thread may call and return between two reads. The chain of a thread's
//! frames is accepted once two consecutive reads agree; names and lines are read only then.

use std::collections::{BTreeMap, HashMap};

use ddp_doctor_proto::report::Where;

use crate::stack_reader::elf::Image;
use crate::stack_reader::layout::{Gil, Innermost, Layout, Place, Version};
use crate::stack_reader::maps::Loaded;
use crate::stack_reader::memory::{Fault, Memory, Pages, at};
use crate::stack_reader::values::{self, CallGroup, Objects, TextLayout};

/// Maximum number of interpreters of a process that are read.
const MAX_INTERPRETERS: usize = 16;
/// Maximum number of threads that are read.
pub const MAX_THREADS: usize = 512;
/// Maximum number of frames of a thread that are read, from the innermost on.
pub const MAX_FRAMES: usize = 256;
/// Maximum number of reads of a moving thread.
const MAX_READS: u32 = 6;
/// Maximum size of a line table, in bytes.
const MAX_LINE_TABLE: u64 = 1 << 20;
/// Frames with this owner or a higher one are not Python frames, but entries from C or trampolines.
const NOT_PYTHON: u8 = 3;

/// The file of `torch.distributed` whose functions issue collectives.
const CALLS: &str = "torch/distributed/distributed_c10d.py";

/// A running interpreter.
#[derive(Clone, Debug)]
pub struct Interpreter {
    /// Its version.
    pub version: Version,
    runtime: u64,
    layout: Layout,
}

/// Reason why an interpreter cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoInterpreter {
    /// Its layout is unknown. The flag is whether it is free-threaded.
    #[error("Python {}.{}{} is not supported by this version of ddp-doctor", .0.0, .0.1, if *.1 { " (free-threaded)" } else { "" })]
    UnknownVersion(Version, bool),
    /// Its version is unknown.
    #[error("it runs a Python of an unknown version")]
    NoVersion,
    /// Its memory cannot be read.
    #[error("its Python interpreter cannot be read: {0}")]
    Fault(#[from] Fault),
}

/// A Python thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PythonThread {
    /// Its `pthread_t`.
    pub pthread: u64,
    /// Its id in the operating system; `None` if this version of Python does not store it.
    pub native_id: Option<u64>,
    /// Whether it holds the GIL.
    pub holds_gil: bool,
    /// Its frames, innermost first.
    pub frames: Vec<Where>,
    /// Defect of the frames.
    pub gap: Option<Gap>,
    /// The group of the innermost call of `torch.distributed`.
    pub group: Option<CallGroup>,
}

/// Defect of a thread's frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gap {
    /// The thread moved during the reads, so that frames may be of slightly different moments.
    Moving,
    /// Outer frames are left out.
    Deeper,
    /// Frames could not be read.
    Fault(Fault),
}

/// A frame as stored in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RawFrame {
    address: u64,
    code: u64,
    /// Byte offset within the code.
    instruction: i64,
}

/// Values of local variables, by name.
pub type Integers = BTreeMap<String, i64>;

/// Frames of a thread, and whether outer frames are left out.
type Chain = (Vec<RawFrame>, bool);

impl Interpreter {
    /// The interpreter in a loaded file; `None` if there is none.
    ///
    /// # Errors
    ///
    /// If there is one that cannot be read.
    pub fn find<M: Memory>(
        pages: &mut Pages<'_, M>,
        loaded: &Loaded,
    ) -> Result<Option<Self>, NoInterpreter> {
        // A file that is loaded in an unusual way is not Python.
        let Ok(image) = Image::at(pages, loaded.start) else {
            return Ok(None);
        };
        let Some(runtime) = image.symbol(pages, "_PyRuntime")? else {
            return Ok(None);
        };
        let said = match image.symbol(pages, "Py_Version")? {
            Some(address) => {
                let [_, _, minor, major] = pages.u32(address)?.to_le_bytes();
                Some((major, minor))
            }
            None => version_in(loaded.file_name()),
        };
        let version = said.ok_or(NoInterpreter::NoVersion)?;
        let layout = if let Some(known) = Layout::for_version(version) {
            known
        } else if !Layout::is_published(version) {
            return Err(NoInterpreter::UnknownVersion(version, false));
        } else if Layout::read_free_threading(pages, runtime)? {
            return Err(NoInterpreter::UnknownVersion(version, true));
        } else {
            Layout::published(pages, runtime, version)?
        };
        Ok(Some(Self { version, runtime, layout }))
    }

    /// All its threads with their frames.
    ///
    /// # Errors
    ///
    /// If the list of threads cannot be read, since the interpreter is not initialized yet or has
    /// ended.
    pub fn threads<M: Memory>(&self, memory: &M) -> Result<Vec<PythonThread>, Fault> {
        let mut pages = Pages::new(memory);
        let mut codes =
            Codes { pages: Pages::new(memory), interpreter: self, known: HashMap::new() };
        let threads = self.list(&mut pages)?;
        Ok(threads
            .into_iter()
            .map(|(address, mut thread)| {
                match self.stable_chain(&mut pages, address) {
                    Ok(((chain, is_deeper), settled)) => {
                        thread.gap = match (settled, is_deeper) {
                            (false, _) => Some(Gap::Moving),
                            (true, true) => Some(Gap::Deeper),
                            (true, false) => None,
                        };
                        let mut has_group = false;
                        for frame in chain {
                            match codes.place(frame) {
                                Ok(place) => {
                                    if !has_group && place.file.ends_with(CALLS) {
                                        let function = &place.function;
                                        thread.group =
                                            self.group_of(&mut pages, frame, function).ok();
                                        has_group =
                                            thread.group.is_some() || function == values::MAKER;
                                    }
                                    thread.frames.push(place);
                                }
                                Err(_) if !settled => {}
                                Err(fault) => thread.gap = Some(Gap::Fault(fault)),
                            }
                        }
                    }
                    Err(fault) => thread.gap = Some(Gap::Fault(fault)),
                }
                thread
            })
            .collect())
    }

    /// Addresses of the threads, and the threads without their frames.
    fn list<M: Memory>(&self, pages: &mut Pages<'_, M>) -> Result<Vec<(u64, PythonThread)>, Fault> {
        let layout = &self.layout;
        let mut found = Vec::new();
        let mut interpreter = pages.u64(at(self.runtime, layout.interpreters)?)?;
        for _ in 0..MAX_INTERPRETERS {
            if interpreter == 0 {
                break;
            }
            let holder = self.holder(pages, interpreter)?;
            let mut thread = pages.u64(at(interpreter, layout.threads)?)?;
            while thread != 0 && found.len() < MAX_THREADS {
                // Detects an invalid pointer.
                if pages.u64(at(thread, layout.interpreter)?)? != interpreter {
                    return Err(Fault::Invalid("its list of threads"));
                }
                let native_id =
                    layout.native_id.map(|offset| pages.u64(at(thread, offset)?)).transpose()?;
                found.push((
                    thread,
                    PythonThread {
                        pthread: pages.u64(at(thread, layout.pthread)?)?,
                        native_id,
                        holds_gil: holder == thread,
                        frames: Vec::new(),
                        gap: None,
                        group: None,
                    },
                ));
                thread = pages.u64(at(thread, layout.next_thread)?)?;
            }
            interpreter = pages.u64(at(interpreter, layout.next_interpreter)?)?;
        }
        Ok(found)
    }

    /// Address of the thread that holds the lock; 0 if none does.
    fn holder<M: Memory>(&self, pages: &mut Pages<'_, M>, interpreter: u64) -> Result<u64, Fault> {
        let (place, locked, holder) = match self.layout.gil {
            Gil::Runtime { locked, holder } => (self.runtime, locked, holder),
            Gil::Interpreter { locked, holder } => (interpreter, locked, holder),
            Gil::Behind { pointer, locked, holder } => {
                (pages.u64(at(interpreter, pointer)?)?, locked, holder)
            }
        };
        // −1 before the lock is created.
        if pages.u32(at(place, locked)?)? != 1 {
            return Ok(0);
        }
        pages.u64(at(place, holder)?)
    }

    /// A thread's frames, and whether two consecutive reads of them agreed.
    fn stable_chain<M: Memory>(
        &self,
        pages: &mut Pages<'_, M>,
        thread: u64,
    ) -> Result<(Chain, bool), Fault> {
        let mut before = None;
        for _ in 0..MAX_READS {
            pages.clear();
            let now = self.chain(pages, thread);
            if let (Ok(now), Some(Ok(before))) = (&now, &before)
                && is_same(now, before)
            {
                return Ok((now.clone(), true));
            }
            before = Some(now);
        }
        // The result of the last read.
        let last = before.ok_or(Fault::LimitReached)??;
        Ok((last, false))
    }

    /// The group of the call of a frame of [`CALLS`], or the one that its function creates.
    fn group_of<M: Memory>(
        &self,
        pages: &mut Pages<'_, M>,
        frame: RawFrame,
        function: &str,
    ) -> Result<CallGroup, Fault> {
        let mut objects = self.objects(pages);
        let locals = self.locals(&mut objects, frame)?;
        match function {
            values::MAKER => return values::created_group(&mut objects, &locals),
            values::INNER_MAKER => return Err(Fault::Invalid("the group of a call")),
            _ => {}
        }
        let globals = objects.pages.u64(at(frame.address, self.layout.globals)?)?;
        values::group_of_call(&mut objects, &locals, globals)
    }

    /// The local variables of a frame, by name.
    fn locals<M: Memory>(
        &self,
        objects: &mut Objects<'_, '_, M>,
        frame: RawFrame,
    ) -> Result<BTreeMap<String, u64>, Fault> {
        let names = objects.pages.u64(at(frame.code, self.layout.local_names)?)?;
        let mut locals = BTreeMap::new();
        for (index, name) in (0..).zip(objects.tuple(names)?) {
            let place = at(at(frame.address, self.layout.locals)?, 8 * index)?;
            let value = objects.pages.u64(place)? & !7;
            locals.insert(objects.text(name)?, value);
        }
        Ok(locals)
    }

    /// The global variables of a frame that have one of these names.
    fn globals<M: Memory>(
        &self,
        objects: &mut Objects<'_, '_, M>,
        frame: RawFrame,
        names: &[&str],
    ) -> Result<BTreeMap<String, u64>, Fault> {
        let globals = objects.pages.u64(at(frame.address, self.layout.globals)?)?;
        let variables = objects.dict(globals)?.into_iter();
        // Names may be of any type.
        let named = variables.filter_map(|(name, value)| Some((objects.text(name).ok()?, value)));
        Ok(named.filter(|(name, _)| names.contains(&name.as_str())).collect())
    }

    /// The frames of a thread, innermost first, each with those of its variables that have one of these names and are
    /// integers: its local ones, or those of a module.
    ///
    /// # Errors
    ///
    /// If the frames cannot be read.
    pub fn integers<M: Memory>(
        &self,
        memory: &M,
        is_thread: impl Fn(&PythonThread) -> bool,
        names: &[&str],
    ) -> Result<Vec<(Where, Integers)>, Fault> {
        let mut pages = Pages::new(memory);
        let mut codes =
            Codes { pages: Pages::new(memory), interpreter: self, known: HashMap::new() };
        let mut threads = self.list(&mut pages)?.into_iter();
        let Some((address, _)) = threads.find(|(_, thread)| is_thread(thread)) else {
            return Ok(Vec::new());
        };
        let ((chain, _), _) = self.stable_chain(&mut pages, address)?;
        let frames = chain.into_iter().map(|frame| {
            let place = codes.place(frame)?;
            let mut objects = self.objects(&mut pages);
            let bindings = if place.function == "<module>" {
                self.globals(&mut objects, frame, names)
            } else {
                self.locals(&mut objects, frame)
            };
            let variables = bindings.unwrap_or_default().into_iter();
            let named = variables.filter(|(name, _)| names.contains(&name.as_str()));
            let known = named.filter_map(|(name, value)| Some((name, objects.integer(value)?)));
            Ok((place, known.collect()))
        });
        frames.collect()
    }

    fn objects<'p, 'm, M>(&self, pages: &'p mut Pages<'m, M>) -> Objects<'p, 'm, M> {
        let Layout { text_length, text_state, text_ascii, text_other, .. } = self.layout;
        let text = TextLayout {
            length: text_length,
            state: text_state,
            ascii: text_ascii,
            other: text_other,
        };
        Objects { pages, version: self.version, text }
    }

    fn chain<M: Memory>(&self, pages: &mut Pages<'_, M>, thread: u64) -> Result<Chain, Fault> {
        let layout = &self.layout;
        let mut frame = match layout.innermost {
            Innermost::Here(offset) => pages.u64(at(thread, offset)?)?,
            Innermost::Behind(pointer, offset) => match pages.u64(at(thread, pointer)?)? {
                0 => 0,
                behind => pages.u64(at(behind, offset)?)?,
            },
        };
        let mut chain = Vec::new();
        // The chain may contain frames that are not Python frames.
        for _ in 0..3 * MAX_FRAMES {
            if frame == 0 || chain.len() == MAX_FRAMES {
                break;
            }
            let owner = match layout.owner {
                Some(offset) => {
                    let mut byte = [0];
                    pages.bytes(at(frame, offset)?, &mut byte)?;
                    byte[0]
                }
                None => 0,
            };
            if owner < NOT_PYTHON {
                // From 3.14 on the lowest bits of a reference are flags.
                let code = pages.u64(at(frame, layout.code)?)? & !7;
                let instruction = match layout.place {
                    Place::Number(offset) => {
                        2 * i64::from(pages.u32(at(frame, offset)?)?.cast_signed())
                    }
                    Place::Byte(offset) => i64::from(pages.u32(at(frame, offset)?)?.cast_signed()),
                    Place::Address(offset, first) => {
                        pages.u64(at(frame, offset)?)?.wrapping_sub(at(code, first)?).cast_signed()
                    }
                };
                chain.push(RawFrame { address: frame, code, instruction });
            }
            frame = pages.u64(at(frame, layout.outer)?)?;
        }
        Ok((chain, frame != 0))
    }
}

/// Whether two chains are equal, except for the instruction of the innermost frame.
fn is_same((a, _): &Chain, (b, _): &Chain) -> bool {
    let place = |chain: &[RawFrame]| chain.first().map(|frame| (frame.address, frame.code));
    place(a) == place(b) && a.get(1..) == b.get(1..)
}

/// Cache of code objects.
struct Codes<'a, 'm, M> {
    pages: Pages<'m, M>,
    interpreter: &'a Interpreter,
    known: HashMap<u64, Result<Code, Fault>>,
}

/// A code object.
#[derive(Clone)]
struct Code {
    file: String,
    function: String,
    first_line: i32,
    lines: Vec<u8>,
}

impl<M: Memory> Codes<'_, '_, M> {
    fn place(&mut self, frame: RawFrame) -> Result<Where, Fault> {
        if !self.known.contains_key(&frame.code) {
            let code = self.read(frame.code);
            self.known.insert(frame.code, code);
        }
        let code = self.known[&frame.code].as_ref().map_err(|fault| *fault)?;
        let format = self.interpreter.layout.line_format;
        let line = format.line(&code.lines, code.first_line, frame.instruction);
        Ok(Where {
            file: code.file.clone(),
            line: line.unwrap_or(0),
            function: code.function.clone(),
            ..Where::default()
        })
    }

    fn read(&mut self, code: u64) -> Result<Code, Fault> {
        let layout = &self.interpreter.layout;
        let file = self.pages.u64(at(code, layout.file)?)?;
        let function = self.pages.u64(at(code, layout.function)?)?;
        let table = self.pages.u64(at(code, layout.lines)?)?;
        let length = self.pages.u64(at(table, layout.bytes_length)?)?;
        if length > MAX_LINE_TABLE {
            return Err(Fault::Invalid("a line table"));
        }
        Ok(Code {
            file: self.interpreter.objects(&mut self.pages).text(file)?,
            function: self.interpreter.objects(&mut self.pages).text(function)?,
            first_line: self.pages.u32(at(code, layout.first_line)?)?.cast_signed(),
            lines: self.pages.vec(at(table, layout.bytes)?, length as usize)?,
        })
    }
}

/// The version in a file name such as `libpython3.10.so.1.0`.
fn version_in(file_name: &str) -> Option<Version> {
    let (_, after) = file_name.split_once("python3.")?;
    let digits = after.bytes().take_while(u8::is_ascii_digit).count();
    Some((3, after[..digits].parse().ok()?))
}

#[cfg(test)]
#[path = "python_tests.rs"]
mod tests;

//! What the Python package passes when it loads this library, and what is remembered of it.

use std::array;
use std::cell::{Cell, OnceCell};

use crate::frame::{self, Frame};
use crate::library::{self, Library};
use crate::memo::{ARGUMENTS, Memo, WHOLE, Way};
use crate::object::{Attribute, Owned, Ref};
use crate::signatures::SignatureCache;
use crate::tables::{Arguments, Kernels, MAX_METHODS, Method, What};
use crate::torch::{Boxes, Torch, Trust};
use crate::variables::{Group, Training};

/// An object of the Python package, which is kept alive forever.
type Static = Ref<'static>;

/// Minimum interval of samples of the GPU memory: that of `_memory.py`, and a tick of this clock.
const SAMPLE_EVERY_MS: u64 = 104;
/// Number of operations that PyTorch can distinguish.
const MAX_OPS: usize = 64;
/// Kind of the code of installed packages, as in `_origin.py`.
pub(crate) const LIBRARY: u32 = 4;
/// For a code object: it belongs to torch.distributed.distributed_c10d.
const OF_C10D: u32 = 1 << 31;

/// Functions and dictionaries of the Python package.
pub(crate) struct Python {
    /// id of a code object → `[code, kind, {instruction: site}, {instruction: entry of _OPS}]`
    codes: Static,
    /// Number of an operation → entry of `_OPS`
    ops: Static,
    /// `(frame)` → `(site, flags)` of the user's frame at or outside this one.
    locate: Static,
    /// `(args, group, frame)`: records a call.
    pub(crate) issue: Static,
    /// `(method, arguments of the method…)` → args
    pub(crate) described: Static,
    /// id of PyTorch's group → Group
    pub(crate) groups: Static,
    /// PyTorch's guard that makes the dispatcher skip the Autograd keys.
    pub(crate) below_autograd: Static,
    /// Its `__enter__` and `__exit__`.
    pub(crate) enter_guard: Static,
    pub(crate) exit_guard: Static,
    /// `(args)`: called before a call with a new signature.
    pub(crate) record_gpu: Static,
    /// `(exception)`: records an exception that is being handled.
    pub(crate) in_flight: Static,
    /// `()`: records the GPU memory of the process if it has changed.
    sample_memory: Static,
    /// `(work, call, site)`: remembers a Work that may be waited for.
    pub(crate) remember: Static,
    /// `(work)`: remembers the Work of a synchronous call for a check.
    pub(crate) expect: Static,
    /// `(work)`: checks that c10d waits for that Work. Returns whether to check the next one.
    pub(crate) check: Static,
    /// `(work, frame)`: records the start of any other wait. Returns the call.
    pub(crate) waits: Static,
    /// `(exception)`: records an exception that leaves a wait.
    pub(crate) record_exception: Static,
}

/// Names of attributes and variables.
pub(crate) struct Names {
    pub(crate) name: Static,
    pub(crate) root: Static,
    pub(crate) work: Static,
    pub(crate) async_op: Static,
    pub(crate) input_tensors: Static,
    pub(crate) output_tensors: Static,
    pub(crate) tensor: Static,
    pub(crate) op: Static,
    pub(crate) root_rank: Static,
    pub(crate) group_src: Static,
    pub(crate) group_dst: Static,
    pub(crate) address: Static,
    op_list: Static,
    argument_count: Static,
    cells: Static,
    variables: Static,
}

/// The state of this library.
pub(crate) struct State {
    pub(crate) library: Library,
    pub(crate) python: Python,
    pub(crate) names: Names,
    pub(crate) frames: frame::Names,
    pub(crate) group: Group,
    pub(crate) training: Training,
    pub(crate) torch: Torch,
    pub(crate) trust: Trust,
    pub(crate) boxes: Boxes,
    dtype_of: Attribute,
    shape_of: Attribute,
    /// Address of a dtype → its number.
    dtypes: Vec<(usize, u8)>,
    /// Address of a reduction operator → its number.
    reduce_ops: Vec<(usize, u8)>,
    /// The types of tensors whose attributes no program can override.
    tensors: Vec<usize>,
    pub(crate) memo: Memo,
    by_number: [Cell<Option<What>>; MAX_OPS],
    pub(crate) signatures: SignatureCache,
    /// The original of `Work.wait`, once it is replaced.
    pub(crate) original_wait: OnceCell<Ref<'static>>,
    /// The replaced methods of `ProcessGroup`.
    pub(crate) methods: [OnceCell<Method>; MAX_METHODS],
    pub(crate) kernels: Kernels,
    /// Generation of the open black box; 0: none is open.
    pub(crate) generation: Cell<u64>,
    /// When the GPU memory was last sampled, in milliseconds.
    sampled: Cell<u64>,
    /// Whether c10d's waits are still checked.
    pub(crate) checking: Cell<bool>,
}

fn find(table: &[(usize, u8)], object: Ref<'_>) -> Option<u8> {
    let found = table.iter().find(|(address, _)| *address == object.address());
    found.map(|&(_, number)| number)
}

/// Numbers by the addresses of the objects that `address` returns for a key.
fn numbers(dict: Ref<'_>, address: impl Fn(Ref<'_>) -> Option<usize>) -> Vec<(usize, u8)> {
    let mut all = Vec::new();
    dict.each(|key, value| {
        let number = value.as_int().and_then(|it| u8::try_from(it).ok());
        if let (Some(address), Some(number)) = (address(key), number) {
            all.push((address, number));
        }
    });
    all
}

impl State {
    /// The state for what the package passes; `None`: something is missing.
    pub(crate) fn new(library: Library, passed: Ref<'_>) -> Option<Self> {
        let kept = |name| passed.entry(name).map(Owned::leak);
        let name = |text| Owned::name(text).map(Owned::leak);
        let tensors = passed.entry(c"tensors")?;
        let count = tensors.as_ref().tuple_length()?;
        let types = (0..count).map(|at| tensors.as_ref().tuple_item(at).map(Ref::address));
        Some(Self {
            library,
            python: Python {
                codes: kept(c"codes")?,
                ops: kept(c"ops")?,
                locate: kept(c"locate")?,
                issue: kept(c"issue")?,
                described: kept(c"described")?,
                groups: kept(c"groups")?,
                below_autograd: kept(c"below_autograd")?,
                enter_guard: kept(c"enter_guard")?,
                exit_guard: kept(c"exit_guard")?,
                record_gpu: kept(c"record_gpu")?,
                in_flight: kept(c"in_flight")?,
                sample_memory: kept(c"sample_memory")?,
                remember: kept(c"remember")?,
                expect: kept(c"expect")?,
                check: kept(c"check")?,
                waits: kept(c"waits")?,
                record_exception: kept(c"record_exception")?,
            },
            names: Names {
                name: name(c"name")?,
                root: name(c"root")?,
                work: name(c"work")?,
                async_op: name(c"async_op")?,
                input_tensors: name(c"input_tensors")?,
                output_tensors: name(c"output_tensors")?,
                tensor: name(c"tensor")?,
                op: name(c"op")?,
                root_rank: name(c"rootRank")?,
                group_src: name(c"group_src")?,
                group_dst: name(c"group_dst")?,
                address: name(c"_cdata")?,
                op_list: name(c"op_list")?,
                argument_count: name(c"co_argcount")?,
                cells: name(c"co_cellvars")?,
                variables: name(c"co_varnames")?,
            },
            frames: frame::Names::new()?,
            group: Group::new(passed.entry(c"group")?.as_ref())?,
            training: Training::new(passed)?,
            torch: Torch::new(),
            trust: Trust::new(),
            boxes: Boxes::new(),
            dtype_of: Attribute::new(c"dtype", kept(c"dtype_of")?)?,
            shape_of: Attribute::new(c"shape", kept(c"shape_of")?)?,
            dtypes: numbers(kept(c"dtypes")?, |dtype| Some(dtype.address())),
            reduce_ops: numbers(kept(c"reduce_ops")?, |id| usize::try_from(id.as_number()?).ok()),
            tensors: types.collect::<Option<_>>()?,
            memo: Memo::new(),
            by_number: array::from_fn(|_| Cell::new(None)),
            signatures: SignatureCache::new(),
            original_wait: OnceCell::new(),
            methods: array::from_fn(|_| OnceCell::new()),
            kernels: Kernels::new(),
            sampled: Cell::new(0),
            generation: Cell::new(0),
            checking: Cell::new(true),
        })
    }

    /// Records the GPU memory of the process if the last sample is old enough.
    pub(crate) fn sample_memory(&self) {
        let now = library::coarse_milliseconds();
        if now.wrapping_sub(self.sampled.get()) >= SAMPLE_EVERY_MS {
            self.sampled.set(now);
            self.python.sample_memory.call(&[]);
        }
    }

    /// Forgets what belongs to an earlier black box.
    pub(crate) fn bind(&self, generation: u64) {
        self.generation.set(generation);
        self.sampled.set(0);
        self.memo.clear();
        self.training.paths.clear();
        self.signatures.clear();
    }

    /// Number of the dtype of a plain tensor.
    pub(crate) fn dtype_of(&self, tensor: Ref<'_>) -> Option<u8> {
        find(&self.dtypes, self.dtype_of.get(tensor)?.as_ref())
    }

    /// Shape of a plain tensor.
    pub(crate) fn shape_of(&self, tensor: Ref<'_>) -> Option<Owned> {
        self.shape_of.get(tensor)
    }

    pub(crate) fn reduce_op(&self, value: Ref<'_>) -> Option<u8> {
        find(&self.reduce_ops, value)
    }

    pub(crate) fn is_plain_tensor(&self, tensor: Ref<'_>) -> bool {
        self.tensors.contains(&tensor.kind())
    }

    /// Entry of a code object in `_sites.codes`.
    fn entry(&self, code: Ref<'_>) -> Option<Owned> {
        let id = Owned::number(code.address() as u64)?;
        let entry = self.python.codes.value(id.as_ref())?;
        let owner = entry.as_ref().item(0)?;
        (owner.as_ref() == code).then_some(entry)
    }

    /// Kind of a code object as in `_sites.py`, and whether it belongs to distributed_c10d.
    pub(crate) fn kind(&self, code: Ref<'_>) -> Option<(u32, bool)> {
        let value = match self.memo.get(code, WHOLE) {
            Some(value) => value,
            None => {
                let entry = self.entry(code)?;
                let kind = u32::try_from(entry.as_ref().item(1)?.as_ref().as_int()?).ok()?;
                let is_of_c10d = !entry.as_ref().item(3)?.as_ref().is_none();
                let value = kind | if is_of_c10d { OF_C10D } else { 0 };
                self.memo.put(code, WHOLE, value);
                value
            }
        };
        Some((value & !OF_C10D, value & OF_C10D != 0))
    }

    /// Site of an instruction of the user's code.
    pub(crate) fn site(&self, code: Ref<'_>, instruction: i32) -> Option<u32> {
        self.cached(code, instruction, 2, |site| u32::try_from(site.as_int()?).ok())
    }

    /// Site of an instruction of the user's code that was reached by a way through installed
    /// packages, whose innermost frame is `start`.
    pub(crate) fn site_by(&self, way: Way, user: &Frame, start: &Frame) -> Option<u32> {
        let (code, instruction) = (user.code()?, user.instruction()?);
        if let Some(site) = self.memo.get_by(way, code.as_ref(), instruction) {
            return Some(site);
        }
        let located = self.python.locate.call(&[start.object()])?;
        let site = u32::try_from(located.as_ref().tuple_item(0)?.as_int()?).ok()?;
        self.memo.put_by(way, code.as_ref(), instruction, site);
        Some(site)
    }

    /// The way that continues `way` by a frame of an installed package.
    pub(crate) fn extend(&self, way: Way, code: Ref<'_>, frame: &Frame) -> Option<Way> {
        self.memo.extend(way, code, frame.instruction()?)
    }

    /// The call that an instruction of distributed_c10d makes.
    pub(crate) fn at_place(&self, code: Ref<'_>, instruction: i32) -> Option<What> {
        let read = |entry: Ref<'_>| What::read(entry).map(What::pack);
        self.cached(code, instruction, 3, read).map(What::unpack)
    }

    /// The arguments of a c10d function that describe its call; `None`: its other variables may
    /// describe it as well.
    pub(crate) fn arguments(&self, code: Ref<'_>) -> Option<Arguments> {
        let packed = self.memo.get(code, ARGUMENTS).unwrap_or_else(|| {
            let found = self.find_arguments(code);
            let packed = found.map_or(Arguments::INSUFFICIENT, Arguments::pack);
            self.memo.put(code, ARGUMENTS, packed);
            packed
        });
        Arguments::unpack(packed)
    }

    fn find_arguments(&self, code: Ref<'_>) -> Option<Arguments> {
        let names = &self.names;
        let count = code.attribute(names.argument_count)?.as_ref().as_int()?;
        let variables = code.attribute(names.variables)?;
        let cells = code.attribute(names.cells)?;
        let all = variables.as_ref().tuple_length()?;
        let find = |name: Ref<'_>| {
            let is_it = |at: &isize| variables.as_ref().tuple_item(*at) == Some(name);
            match (0..all).find(is_it) {
                None => Some(None),
                Some(at) if (at as i64) < count => u8::try_from(at).ok().map(Some),
                Some(_) => None, // a variable that may not be set yet
            }
        };
        let is_plain = cells.as_ref().tuple_length()? == 0 && find(names.op_list)?.is_none();
        let root = match (find(names.group_src)?, find(names.group_dst)?) {
            (Some(_), Some(_)) => None,
            (source, destination) => source.or(destination),
        };
        let found = Arguments {
            tensor: find(names.tensor)?,
            op: find(names.op)?,
            async_op: find(names.async_op)?,
            root,
        };
        is_plain.then_some(found)
    }

    /// Value of an instruction in the dictionary at item `at` of a code object's entry.
    fn cached(
        &self,
        code: Ref<'_>,
        instruction: i32,
        at: isize,
        read: impl FnOnce(Ref<'_>) -> Option<u32>,
    ) -> Option<u32> {
        if let Some(value) = self.memo.get(code, instruction) {
            return Some(value);
        }
        let instructions = self.entry(code)?.as_ref().item(at)?;
        let found = instructions.as_ref().value(Owned::int(instruction.into())?.as_ref())?;
        let value = read(found.as_ref())?;
        self.memo.put(code, instruction, value);
        Some(value)
    }

    /// The call with this number of PyTorch's.
    pub(crate) fn numbered(&self, number: i64) -> Option<What> {
        let slot = self.by_number.get(usize::try_from(number).ok()?)?;
        if slot.get().is_none() {
            let entry = self.python.ops.value(Owned::int(number)?.as_ref())?;
            slot.set(What::read(entry.as_ref()));
        }
        slot.get()
    }
}

//! Functions of `libc10.so` and `libtorch_cpu.so`.
#![expect(unsafe_code, reason = "calls functions of PyTorch by their addresses")]

use std::cell::Cell;
use std::ffi::{CStr, c_int, c_void};
use std::mem;
use std::ptr::{self, NonNull};
use std::slice;

use ddp_doctor_proto::blackbox::Call;

use super::arguments::Tensor;

/// Number of PyTorch's dtypes, which it numbers from 0.
const MAX_DTYPES: usize = 64;
/// Result of the functions for tensors.
const SUCCESS: i32 = 0;

type IsGradEnabled = unsafe extern "C" fn() -> bool;
type GetTask = unsafe extern "C" fn() -> c_int;
type GetEngine = unsafe extern "C" fn() -> *mut c_void;
type Queue = unsafe extern "C" fn(*mut c_void, *mut Function);
type GetDtype = unsafe extern "C" fn(Tensor, *mut i32) -> i32;
type GetDimensions = unsafe extern "C" fn(Tensor, *mut i64) -> i32;
type GetSizes = unsafe extern "C" fn(Tensor, *mut *const i64) -> i32;

/// `std::function<void()>` of libstdc++, for a function without captured variables.
#[repr(C)]
struct Function {
    captured: Captured,
    manage: unsafe extern "C" fn(*mut Captured, *const Captured, c_int) -> bool,
    invoke: unsafe extern "C" fn(*const Captured),
}

/// `std::_Any_data`: here the function to call, or what [`manage`] returns.
type Captured = [*const c_void; 2];

/// Operations of `std::_Manager_operation`; the fourth destroys.
const GET_TYPE: c_int = 0;
const GET_POINTER: c_int = 1;
const CLONE: c_int = 2;

unsafe extern "C" fn manage(to: *mut Captured, from: *const Captured, operation: c_int) -> bool {
    // SAFETY: the library passes a place for the result, and a function that it keeps.
    unsafe {
        match operation {
            GET_TYPE => (*to)[0] = ptr::null(),
            GET_POINTER => (*to)[0] = from.cast(),
            CLONE => *to = *from,
            _ => {}
        }
    }
    false
}

unsafe extern "C" fn invoke(captured: *const Captured) {
    // SAFETY: the first word is the function of [`Engine::queue`].
    unsafe { mem::transmute::<*const c_void, fn()>((*captured)[0])() }
}

/// The engine of autograd.
struct Engine {
    task: GetTask,
    engine: GetEngine,
    queue: Queue,
}

impl Engine {
    /// Lets the backward of this thread call a function when its graph is done. Returns false if there is none.
    fn queue(&self, function: fn()) -> bool {
        let captured = [function as *const c_void, ptr::null()];
        let mut function = Function { captured, manage, invoke };
        // SAFETY: the functions have these types. The last one moves the argument, and throws an exception only without a
        // backward, or without memory.
        unsafe {
            if (self.task)() < 0 {
                return false;
            }
            (self.queue)((self.engine)(), &raw mut function);
        }
        true
    }
}

/// Functions of PyTorch's C interface for tensors.
struct Tensors {
    dtype: GetDtype,
    dimensions: GetDimensions,
    sizes: GetSizes,
    /// PyTorch's number of a dtype → ours; 0: unknown.
    numbers: [Cell<u8>; MAX_DTYPES],
}

impl Tensors {
    fn number(&self, tensor: Tensor) -> Option<&Cell<u8>> {
        let mut dtype = -1;
        // SAFETY: the function has this type, catches its exceptions, and the tensor is alive.
        let result = unsafe { (self.dtype)(tensor, &raw mut dtype) };
        let index = usize::try_from(dtype).ok().filter(|_| result == SUCCESS)?;
        self.numbers.get(index)
    }

    fn describe(&self, tensor: Tensor, record: &mut Call) -> Option<()> {
        let dtype = self.number(tensor)?.get();
        let (mut count, mut sizes) = (-1, ptr::null());
        // SAFETY: the functions have these types, catch their exceptions, and the tensor is alive, which keeps its sizes.
        let sizes = unsafe {
            let results =
                [(self.dimensions)(tensor, &raw mut count), (self.sizes)(tensor, &raw mut sizes)];
            let count = usize::try_from(count).ok()?;
            if dtype == 0 || results != [SUCCESS; 2] {
                return None;
            }
            if count == 0 {
                &[]
            } else {
                slice::from_raw_parts(NonNull::new(sizes.cast_mut())?.as_ptr(), count)
            }
        };
        record.tensors = 1;
        record.dtype = dtype;
        record.set_shape(sizes.iter().map(|size| size.cast_unsigned()));
        Some(())
    }
}

/// The functions of this process's PyTorch; `None`: it lacks them.
pub(crate) struct Torch {
    grad_enabled: Option<IsGradEnabled>,
    engine: Option<Engine>,
    tensors: Option<Tensors>,
}

/// A library that the process has loaded.
struct Loaded(NonNull<c_void>);

impl Loaded {
    fn find(name: &CStr) -> Option<Self> {
        // SAFETY: the name ends with NUL. A library is never unloaded, since the handle is kept.
        NonNull::new(unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) })
            .map(Self)
    }

    /// # Safety
    ///
    /// The function of this name has the type `T`, a pointer to a function.
    unsafe fn function<T: Copy>(&self, name: &CStr) -> Option<T> {
        // SAFETY: the handle is valid, and the name ends with NUL.
        let found = NonNull::new(unsafe { libc::dlsym(self.0.as_ptr(), name.as_ptr()) })?;
        // SAFETY: the caller vouches for the type, which has the size of a pointer.
        Some(unsafe { mem::transmute_copy(&found) })
    }
}

impl Torch {
    pub(crate) fn new() -> Self {
        let (core, cpu) = (Loaded::find(c"libc10.so"), Loaded::find(c"libtorch_cpu.so"));
        // SAFETY: the functions of these names have these types in PyTorch 2.1 to 2.15.
        unsafe {
            let engine = |cpu: &Loaded| {
                Some(Engine {
                    task: cpu.function(c"_ZN5torch8autograd25get_current_graph_task_idEv")?,
                    engine: cpu.function(c"_ZN5torch8autograd6Engine18get_default_engineEv")?,
                    queue: cpu
                        .function(c"_ZN5torch8autograd6Engine14queue_callbackESt8functionIFvvEE")?,
                })
            };
            let tensors = |cpu: &Loaded| {
                Some(Tensors {
                    dtype: cpu.function(c"aoti_torch_get_dtype")?,
                    dimensions: cpu.function(c"aoti_torch_get_dim")?,
                    sizes: cpu.function(c"aoti_torch_get_sizes")?,
                    numbers: [const { Cell::new(0) }; MAX_DTYPES],
                })
            };
            Self {
                grad_enabled: core
                    .and_then(|core| core.function(c"_ZN3c108GradMode10is_enabledEv")),
                engine: cpu.as_ref().and_then(engine),
                tensors: cpu.as_ref().and_then(tensors),
            }
        }
    }

    /// `torch.is_grad_enabled()`; `None`: unknown.
    pub(crate) fn is_grad_enabled(&self) -> Option<bool> {
        // SAFETY: the function has this type, and does not throw.
        self.grad_enabled.map(|function| unsafe { function() })
    }

    /// Lets the backward of this thread call a function when its graph is done. Returns whether it will.
    pub(crate) fn queue(&self, function: fn()) -> bool {
        self.engine.as_ref().is_some_and(|engine| engine.queue(function))
    }

    /// Stores dtype and shape of a tensor in a record; `None`: not known.
    pub(crate) fn describe(&self, tensor: Tensor, record: &mut Call) -> Option<()> {
        self.tensors.as_ref()?.describe(tensor, record)
    }

    /// Remembers the number of the dtype of this tensor.
    pub(crate) fn learn(&self, tensor: Tensor, number: u8) {
        if let Some(known) = self.tensors.as_ref().and_then(|it| it.number(tensor)) {
            known.set(number);
        }
    }
}

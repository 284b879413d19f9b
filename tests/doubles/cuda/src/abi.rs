//! The exported functions, with the driver's signatures.
#![expect(unsafe_code, reason = "exports functions by their C names")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use crate::capture::Mode;
use crate::pointers::{HostFunction, Out, Text};
use crate::stream::Task;
use crate::{Result, Status, capture, device, event, pointers, stream};

/// Reported version: CUDA 12.8.
const VERSION: c_int = 12_080;

/// A handle or a device address.
type Handle = usize;
type Callback = Option<unsafe extern "C" fn(*mut c_void)>;

/// Declares exported functions with their name for `cuGetProcAddress` and the version of CUDA that
/// introduced them. `initialized` functions fail until `cuInit` was called.
macro_rules! exports {
    ($($when:ident $version:literal $known_as:literal
       fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name($($argument: $type),*) -> c_int {
                let run = move || -> Result<()> {
                    exports!($when);
                    $body
                };
                match run() {
                    Ok(()) => 0,
                    Err(Status(number)) => number,
                }
            }
        )*

        /// Names, versions and addresses.
        fn functions() -> impl Iterator<Item = (&'static str, c_int, usize)> {
            [$(($known_as, $version, ($name as *const c_void).addr())),*].into_iter()
        }
    };
    (always) => {};
    (initialized) => { device::must_be_initialized()? };
}

exports! {
    always 2000 "cuInit"
    fn cuInit(flags: c_uint) {
        if flags != 0 {
            return Err(Status::INVALID_VALUE);
        }
        device::initialize();
        Ok(())
    }

    always 2020 "cuDriverGetVersion"
    fn cuDriverGetVersion(version: Out<c_int>) {
        version.put(VERSION)
    }

    always 11030 "cuGetProcAddress"
    fn cuGetProcAddress(symbol: Text, function: Out<usize>, version: c_int, _flags: u64) {
        find(&symbol, &function, version)
    }

    always 12000 "cuGetProcAddress"
    fn cuGetProcAddress_v2(
        symbol: Text, function: Out<usize>, version: c_int, _flags: u64, status: Out<c_int>,
    ) {
        let found = find(&symbol, &function, version);
        status.offer(c_int::from(found.is_err()));
        found
    }

    always 6000 "cuGetErrorName"
    fn cuGetErrorName(error: c_int, text: Out<*const c_char>) {
        text.put(error_name(error)?.as_ptr())
    }

    always 6000 "cuGetErrorString"
    fn cuGetErrorString(error: c_int, text: Out<*const c_char>) {
        text.put(error_name(error)?.as_ptr())
    }

    // --- Devices and contexts

    initialized 2000 "cuDeviceGetCount"
    fn cuDeviceGetCount(count: Out<c_int>) {
        count.put(c_int::try_from(device::count()).unwrap_or(c_int::MAX))
    }

    initialized 2000 "cuDeviceGet"
    fn cuDeviceGet(device: Out<c_int>, number: c_int) {
        device::device(number)?;
        device.put(number)
    }

    initialized 2000 "cuDeviceGetName"
    fn cuDeviceGetName(name: Out<u8>, room: c_int, number: c_int) {
        device::device(number)?;
        name.fill(b"CUDA double\0", usize::try_from(room).unwrap_or(0))
    }

    initialized 11040 "cuDeviceGetUuid"
    fn cuDeviceGetUuid_v2(uuid: Out<[u8; 16]>, number: c_int) {
        let mut bytes = *b"GPU double #    ";
        bytes[12..].copy_from_slice(&u32::try_from(device::device(number)?).unwrap_or(0).to_be_bytes());
        uuid.put(bytes)
    }

    initialized 4010 "cuDeviceGetPCIBusId"
    fn cuDeviceGetPCIBusId(text: Out<u8>, room: c_int, number: c_int) {
        let id = format!("0000:{:02x}:00.0\0", device::device(number)? + 1);
        text.fill(id.as_bytes(), usize::try_from(room).unwrap_or(0))
    }

    initialized 3020 "cuDeviceTotalMem"
    fn cuDeviceTotalMem_v2(bytes: Out<usize>, number: c_int) {
        device::device(number)?;
        bytes.put(device::total())
    }

    initialized 2000 "cuDeviceGetAttribute"
    fn cuDeviceGetAttribute(value: Out<c_int>, attribute: c_int, number: c_int) {
        device::device(number)?;
        value.put(match attribute {
            33 => number + 1, // PCI bus
            75 => 9,          // compute capability, major
            76 => 0,          // … and minor
            115 => 0,         // pools of memory
            _ => 1,
        })
    }

    initialized 7000 "cuDevicePrimaryCtxRetain"
    fn cuDevicePrimaryCtxRetain(context: Out<Handle>, number: c_int) {
        context.put(device::retain_primary(device::device(number)?))
    }

    initialized 11000 "cuDevicePrimaryCtxRelease"
    fn cuDevicePrimaryCtxRelease_v2(number: c_int) {
        device::release_primary(device::device(number)?)
    }

    initialized 7000 "cuDevicePrimaryCtxGetState"
    fn cuDevicePrimaryCtxGetState(number: c_int, flags: Out<c_uint>, is_active: Out<c_int>) {
        let device = device::device(number)?;
        flags.put(0)?;
        is_active.put(c_int::from(device::has_primary(device)))
    }

    initialized 3020 "cuCtxCreate"
    fn cuCtxCreate_v2(context: Out<Handle>, _flags: c_uint, number: c_int) {
        context.put(device::create(device::device(number)?))
    }

    initialized 4000 "cuCtxDestroy"
    fn cuCtxDestroy_v2(context: Handle) {
        device::destroy(context)
    }

    initialized 4000 "cuCtxGetCurrent"
    fn cuCtxGetCurrent(context: Out<Handle>) {
        context.put(device::current().unwrap_or(0))
    }

    initialized 4000 "cuCtxSetCurrent"
    fn cuCtxSetCurrent(context: Handle) {
        device::set_current(context)
    }

    initialized 4000 "cuCtxPushCurrent"
    fn cuCtxPushCurrent_v2(context: Handle) {
        device::push(context)
    }

    initialized 4000 "cuCtxPopCurrent"
    fn cuCtxPopCurrent_v2(context: Out<Handle>) {
        let popped = device::pop()?;
        context.offer(popped);
        Ok(())
    }

    initialized 2000 "cuCtxGetDevice"
    fn cuCtxGetDevice(device: Out<c_int>) {
        let number = device::device_of(device::current()?)?;
        device.put(c_int::try_from(number).unwrap_or(c_int::MAX))
    }

    initialized 2000 "cuCtxSynchronize"
    fn cuCtxSynchronize() {
        stream::synchronize_all(device::current()?)
    }

    // --- Memory

    initialized 3020 "cuMemGetInfo"
    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) {
        free.put(device::unused()?)?;
        total.put(device::total())
    }

    initialized 3020 "cuMemAlloc"
    fn cuMemAlloc_v2(address: Out<Handle>, bytes: usize) {
        address.put(device::allocate(bytes)?)
    }

    initialized 3020 "cuMemFree"
    fn cuMemFree_v2(address: Handle) {
        device::free(address)
    }

    initialized 3020 "cuMemcpyHtoD"
    fn cuMemcpyHtoD_v2(to: Handle, from: Handle, bytes: usize) {
        copy_now(to, from, bytes)
    }

    initialized 3020 "cuMemcpyDtoH"
    fn cuMemcpyDtoH_v2(to: Handle, from: Handle, bytes: usize) {
        copy_now(to, from, bytes)
    }

    initialized 4000 "cuMemcpyAsync"
    fn cuMemcpyAsync(to: Handle, from: Handle, bytes: usize, stream: Handle) {
        stream::get(stream)?.put(Task::Copy { to, from, bytes })
    }

    // These return when host memory that is not page-locked can be reused. No host memory is
    // page-locked here, so that they wait.
    initialized 3020 "cuMemcpyHtoDAsync"
    fn cuMemcpyHtoDAsync_v2(to: Handle, from: Handle, bytes: usize, stream: Handle) {
        let stream = stream::get(stream)?;
        stream.put(Task::Copy { to, from, bytes })?;
        stream.synchronize()
    }

    initialized 3020 "cuMemcpyDtoHAsync"
    fn cuMemcpyDtoHAsync_v2(to: Handle, from: Handle, bytes: usize, stream: Handle) {
        let stream = stream::get(stream)?;
        stream.put(Task::Copy { to, from, bytes })?;
        stream.synchronize()
    }

    initialized 3020 "cuMemsetD8Async"
    fn cuMemsetD8Async(to: Handle, value: u8, bytes: usize, stream: Handle) {
        stream::get(stream)?.put(Task::Set { to, value, bytes })
    }

    // --- Streams

    initialized 2000 "cuStreamCreate"
    fn cuStreamCreate(stream: Out<Handle>, _flags: c_uint) {
        stream.put(stream::create()?)
    }

    initialized 5050 "cuStreamCreateWithPriority"
    fn cuStreamCreateWithPriority(stream: Out<Handle>, _flags: c_uint, _priority: c_int) {
        stream.put(stream::create()?)
    }

    initialized 4000 "cuStreamDestroy"
    fn cuStreamDestroy_v2(stream: Handle) {
        stream::destroy(stream)
    }

    initialized 2000 "cuStreamQuery"
    fn cuStreamQuery(stream: Handle) {
        stream::get(stream)?.query()
    }

    initialized 2000 "cuStreamSynchronize"
    fn cuStreamSynchronize(stream: Handle) {
        stream::get(stream)?.synchronize()
    }

    initialized 9020 "cuStreamGetCtx"
    fn cuStreamGetCtx(stream: Handle, context: Out<Handle>) {
        context.put(stream::get(stream)?.context)
    }

    initialized 3020 "cuStreamWaitEvent"
    fn cuStreamWaitEvent(stream: Handle, event: Handle, _flags: c_uint) {
        stream::get(stream)?.wait_for(event::get(event)?)
    }

    initialized 10000 "cuLaunchHostFunc"
    fn cuLaunchHostFunc(stream: Handle, function: Callback, data: *mut c_void) {
        let function = HostFunction::new(function, data)?;
        stream::get(stream)?.put(Task::Call(function))
    }

    // --- Events

    initialized 2000 "cuEventCreate"
    fn cuEventCreate(event: Out<Handle>, _flags: c_uint) {
        event.put(event::create(device::current()?))
    }

    initialized 4000 "cuEventDestroy"
    fn cuEventDestroy_v2(event: Handle) {
        event::destroy(event)
    }

    initialized 2000 "cuEventRecord"
    fn cuEventRecord(event: Handle, stream: Handle) {
        stream::get(stream)?.record(event::get(event)?)
    }

    initialized 2000 "cuEventQuery"
    fn cuEventQuery(event: Handle) {
        capture::may_disturb()?;
        event::get(event)?.query()
    }

    initialized 2000 "cuEventSynchronize"
    fn cuEventSynchronize(event: Handle) {
        capture::may_disturb()?;
        let event = event::get(event)?;
        let mark = event.latest().ok_or(Status::CAPTURED_EVENT)?;
        event.wait_for(mark);
        Ok(())
    }

    initialized 2000 "cuEventElapsedTime"
    fn cuEventElapsedTime(milliseconds: Out<f32>, from: Handle, to: Handle) {
        let (from, to) = (event::get(from)?.at()?, event::get(to)?.at()?);
        milliseconds.put(to.saturating_duration_since(from).as_secs_f32() * 1000.0)
    }

    // --- Capture

    initialized 10010 "cuThreadExchangeStreamCaptureMode"
    fn cuThreadExchangeStreamCaptureMode(mode: Out<c_uint>) {
        mode.exchange(|number| Ok(capture::exchange(Mode::new(number)?).number()))
    }

    initialized 10010 "cuStreamBeginCapture"
    fn cuStreamBeginCapture_v2(stream: Handle, mode: c_uint) {
        if stream <= 1 {
            return Err(Status::CAPTURE_UNSUPPORTED);
        }
        stream::get(stream)?.begin_capture(Mode::new(mode)?)
    }

    initialized 10000 "cuStreamEndCapture"
    fn cuStreamEndCapture(stream: Handle, graph: Out<Handle>) {
        graph.put(stream::get(stream)?.end_capture()?)
    }

    initialized 10000 "cuStreamIsCapturing"
    fn cuStreamIsCapturing(stream: Handle, status: Out<c_uint>) {
        status.put(stream::get(stream)?.capture_status())
    }

    initialized 10010 "cuStreamGetCaptureInfo"
    fn cuStreamGetCaptureInfo(stream: Handle, status: Out<c_uint>, id: Out<u64>) {
        let stream = stream::get(stream)?;
        status.put(stream.capture_status())?;
        id.offer(stream.captures().unwrap_or(0));
        Ok(())
    }

    initialized 11030 "cuStreamGetCaptureInfo"
    fn cuStreamGetCaptureInfo_v2(
        stream: Handle, status: Out<c_uint>, id: Out<u64>, graph: Out<Handle>,
        dependencies: Out<Handle>, count: Out<usize>,
    ) {
        let stream = stream::get(stream)?;
        status.put(stream.capture_status())?;
        id.offer(stream.captures().unwrap_or(0));
        // The graph under construction is not exposed.
        graph.offer(0);
        dependencies.offer(0);
        count.offer(0);
        Ok(())
    }

    initialized 12000 "cuGraphInstantiate"
    fn cuGraphInstantiateWithFlags(executable: Out<Handle>, graph: Handle, _flags: u64) {
        executable.put(stream::instantiate(graph)?)
    }

    initialized 10000 "cuGraphLaunch"
    fn cuGraphLaunch(executable: Handle, stream: Handle) {
        stream::replay(executable, &stream::get(stream)?)
    }

    initialized 10000 "cuGraphExecDestroy"
    fn cuGraphExecDestroy(executable: Handle) {
        stream::forget_executable(executable)
    }

    initialized 10000 "cuGraphDestroy"
    fn cuGraphDestroy(graph: Handle) {
        stream::forget_graph(graph)
    }
}

/// Finds the newest variant of a function up to a version of CUDA.
fn find(symbol: &Text, function: &Out<usize>, version: c_int) -> Result<()> {
    let name = symbol.get()?;
    let known = functions().filter(|(known_as, since, _)| *known_as == name && *since <= version);
    match known.max_by_key(|(_, since, _)| *since) {
        Some((.., address)) => function.put(address),
        None => {
            function.put(0)?;
            Err(Status::NOT_FOUND)
        }
    }
}

fn copy_now(to: usize, from: usize, bytes: usize) -> Result<()> {
    capture::may_disturb()?;
    pointers::copy(to, from, bytes);
    Ok(())
}

fn error_name(error: c_int) -> Result<&'static CStr> {
    Ok(match error {
        0 => c"CUDA_SUCCESS",
        1 => c"CUDA_ERROR_INVALID_VALUE",
        2 => c"CUDA_ERROR_OUT_OF_MEMORY",
        3 => c"CUDA_ERROR_NOT_INITIALIZED",
        101 => c"CUDA_ERROR_INVALID_DEVICE",
        201 => c"CUDA_ERROR_INVALID_CONTEXT",
        400 => c"CUDA_ERROR_INVALID_HANDLE",
        500 => c"CUDA_ERROR_NOT_FOUND",
        600 => c"CUDA_ERROR_NOT_READY",
        900 => c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
        901 => c"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
        903 => c"CUDA_ERROR_STREAM_CAPTURE_UNMATCHED",
        905 => c"CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
        907 => c"CUDA_ERROR_CAPTURED_EVENT",
        908 => c"CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
        _ => return Err(Status::INVALID_VALUE),
    })
}

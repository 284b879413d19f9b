//! Classifies what a thread does or waits for, from its frames and the kernel function it sleeps
//! in.

use ddp_doctor_proto::report::Where;

use crate::input::event::{ChildProcess, Stacks, ThreadStack};
use crate::stacks::code::{Frames, is_stdlib};
use crate::stacks::thread_in;

/// What a process does or waits for outside collectives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A batch from a worker of a data loader.
    DataLoader,
    /// A C function that keeps the global interpreter lock, in this thread or another one.
    Gil,
    /// A user at a debugger.
    Debugger,
    /// The lock file of another process that builds an extension.
    BuildLock,
    /// A file that another process has locked.
    FileLock,
    /// A lock, a condition or a result of another thread.
    Lock,
    /// An item that another thread puts into a queue.
    Queue,
    /// The exit of a child process.
    Child,
    /// A process that waits for it.
    Circle,
    /// A message, and a process below it has ended: all others below it have ended as well, or wait for this one.
    DeadChild,
    /// Something that it checks between sleeps.
    Poll,
    /// A key of a store of c10d.
    Store,
    /// The other workers, in a call of an engine that all of them have to make.
    Workers,
    /// A message of another process: a pipe, a queue between processes, a selector.
    Message,
    /// A socket.
    Network,
    /// The answer of a service: HTTP, a database, an object store.
    Service,
    /// A file.
    File,
    /// The GPU.
    Gpu,
    /// A sleep.
    Sleep,
    /// A compiler.
    Compilation,
    /// Writing or reading a checkpoint.
    Checkpoint,
    /// Preparing a data set: download, tokenization, index.
    Preparation,
    /// Importing a module.
    Import,
    /// Unknown.
    Unknown,
}

impl What {
    /// Whether another thread of the process can end the wait.
    pub const fn is_of_threads(self) -> bool {
        matches!(self, Self::Lock | Self::Queue)
    }

    /// Name of work that takes long in healthy jobs as well.
    pub const fn long_work(self) -> Option<&'static str> {
        match self {
            Self::Compilation => Some("compilation"),
            Self::Checkpoint => Some("checkpoint"),
            Self::Preparation => Some("preparation of the data set"),
            Self::Import => Some("import"),
            _ => None,
        }
    }
}

/// Activities by module, most specific first: a wait for a data loader's worker is also one for a
/// pipe. A folder covers all files in it.
const MODULES: &[(&str, What)] = &[
    ("/torch/utils/data/dataloader.py", What::DataLoader),
    ("/torch/utils/data/_utils/", What::DataLoader),
    ("/torch/utils/file_baton.py", What::BuildLock),
    ("/filelock/", What::FileLock),
    ("/torch/utils/cpp_extension.py", What::Compilation),
    ("/torch/_inductor/", What::Compilation),
    ("/torch/_dynamo/", What::Compilation),
    ("/torch/_functorch/", What::Compilation),
    ("/triton/", What::Compilation),
    ("/torch/serialization.py", What::Checkpoint),
    ("/torch/distributed/checkpoint/", What::Checkpoint),
    ("/safetensors/", What::Checkpoint),
    ("/datasets/", What::Preparation),
    ("/huggingface_hub/", What::Preparation),
    ("/tokenizers/", What::Preparation),
    ("/torchvision/datasets/", What::Preparation),
    ("/torch/cuda/", What::Gpu),
    ("/requests/", What::Service),
    ("/urllib3/", What::Service),
    ("/httpx/", What::Service),
    ("/httpcore/", What::Service),
    ("/aiohttp/", What::Service),
    ("/botocore/", What::Service),
    ("/boto3/", What::Service),
    ("/google/cloud/", What::Service),
    ("/azure/", What::Service),
    ("/grpc/", What::Service),
    ("/openai/", What::Service),
    ("/wandb/", What::Service),
    ("/mlflow/", What::Service),
    ("/psycopg", What::Service),
    ("/pymysql/", What::Service),
    ("/pymongo/", What::Service),
    ("/redis/", What::Service),
    ("/sqlalchemy/", What::Service),
    ("/fsspec/", What::File),
    ("/zmq/", What::Message),
    // Workers of Ray Train agree on what they report.
    ("/ray/train/v2/_internal/execution/context.py", What::Workers),
    // Results of actors and of tasks.
    ("/ray/", What::Message),
];

/// Activities by module of the standard library.
const STDLIB: &[(&str, What)] = &[
    ("/pdb.py", What::Debugger),
    ("/bdb.py", What::Debugger),
    ("/subprocess.py", What::Child),
    ("/multiprocessing/popen_fork.py", What::Child),
    ("/multiprocessing/pool.py", What::Child),
    ("/http/client.py", What::Service),
    ("/urllib/request.py", What::Service),
    ("/sqlite3/", What::Service),
    ("/ssl.py", What::Network),
    ("/socket.py", What::Network),
    ("/shutil.py", What::File),
    ("/concurrent/futures/_base.py", What::Lock),
    ("/multiprocessing/synchronize.py", What::Lock),
    ("/multiprocessing/connection.py", What::Message),
    ("/multiprocessing/queues.py", What::Message),
    ("/selectors.py", What::Message),
    ("/queue.py", What::Queue),
    ("/threading.py", What::Lock),
];

/// Parts of names of native functions in glibc, CPython and CUDA.
const NATIVE: &[(&str, What)] = &[
    ("nanosleep", What::Sleep),
    ("usleep", What::Sleep),
    ("pysleep", What::Sleep),
    ("time_sleep", What::Sleep),
    ("PyThread_acquire_lock", What::Lock),
    ("pthread_mutex", What::Lock),
    ("pthread_cond", What::Lock),
    ("lll_lock", What::Lock),
    ("sem_wait", What::Lock),
    ("sem_clockwait", What::Lock),
    ("waitpid", What::Child),
    ("wait4", What::Child),
    ("waitid", What::Child),
    ("flock", What::FileLock),
    ("recv", What::Network),
    ("connect", What::Network),
    ("accept", What::Network),
    ("SSL_", What::Network),
    ("zmq_", What::Message),
    ("epoll_", What::Message),
    ("select", What::Message),
    ("poll", What::Message),
    ("fsync", What::File),
    ("pread", What::File),
    ("pwrite", What::File),
    ("StreamSynchronize", What::Gpu),
    ("EventSynchronize", What::Gpu),
    ("CtxSynchronize", What::Gpu),
    ("DeviceSynchronize", What::Gpu),
];

/// Parts of names of kernel functions in which threads sleep.
const CHANNELS: &[(&str, What)] = &[
    ("nanosleep", What::Sleep),
    ("nsleep", What::Sleep),
    ("futex", What::Lock),
    ("do_wait", What::Child),
    ("wait_consider", What::Child),
    ("flock", What::FileLock),
    ("locks_lock", What::FileLock),
    ("posix_lock", What::FileLock),
    ("fcntl_setlk", What::FileLock),
    ("sk_wait", What::Network),
    ("inet_", What::Network),
    ("tcp_", What::Network),
    ("skb_wait", What::Network),
    ("nfs", What::File),
    ("rpc_wait", What::File),
    ("fuse", What::File),
    ("request_wait_answer", What::File),
    ("io_schedule", What::File),
    ("folio_wait", What::File),
    ("wait_on_page", What::File),
    ("jbd2", What::File),
    ("balance_dirty", What::File),
    ("pipe_read", What::Message),
    ("pipe_write", What::Message),
    ("unix_stream", What::Message),
    ("do_poll", What::Message),
    ("do_sys_poll", What::Message),
    ("do_select", What::Message),
    ("ep_poll", What::Message),
    ("poll_schedule_timeout", What::Message),
];

/// Whether there are processes below a process, and all have ended.
fn have_all_ended(children: &[ChildProcess]) -> bool {
    !children.is_empty() && children.iter().all(|it| it.state == Some('Z'))
}

/// Whether a thread waits for a process that waits for it.
pub(super) fn waits_in_circle(stacks: &Stacks, tid: u32) -> bool {
    let on = thread_in(stacks, tid).and_then(|it| it.blocked_on.as_ref());
    on.is_some_and(|it| it.is_circle)
}

/// What the program's thread does in the later capture; `None` if it is inside a collective that
/// was not recorded.
pub(super) fn what(looks: [&Stacks; 2], thread: &ThreadStack, frames: &Frames<'_>) -> Option<What> {
    let is_in = |frame: &Where, module: &str| {
        let at = frame.file.find(module);
        at.is_some_and(|at| module.ends_with('/') || at + module.len() == frame.file.len())
    };
    let below = |module: &str| frames.below.iter().any(|frame| is_in(frame, module));
    let library = MODULES.iter().find(|(module, _)| below(module)).map(|(_, what)| *what);
    if frames.collective().is_some() && library != Some(What::Compilation) {
        return None;
    }
    if keeps_gil(looks) {
        return Some(What::Gil);
    }
    if looks.iter().all(|stacks| waits_in_circle(stacks, thread.tid)) {
        let has_ended = |it: &ChildProcess| it.state == Some('Z');
        let is_dead = looks[1].children.iter().any(has_ended);
        return Some(if is_dead { What::DeadChild } else { What::Circle });
    }
    if let Some(library) = library {
        return Some(library);
    }
    let standard = STDLIB.iter().find(|(module, _)| {
        let mut below = frames.below.iter();
        below.any(|frame| is_stdlib(&frame.file, module) && !begins_a_thread(frame))
    });
    if let Some((_, what)) = standard {
        let is_lost = *what == What::Message && have_all_ended(&looks[1].children);
        return Some(if is_lost { What::DeadChild } else { *what });
    }
    // An import runs code of other modules: it counts only if nothing more specific runs in it.
    let imports = |frame: &Where| frame.file.starts_with("<frozen importlib");
    if frames.below.iter().any(imports) {
        return Some(What::Import);
    }
    /// Frames beyond these belong to the interpreter and its callers.
    const MAX_INNERMOST: usize = 6;
    // In newer versions of glibc (seen in 2.43), a call of the kernel has frames without names inside it.
    let native = thread.native.iter();
    let mut innermost = native.skip_while(|frame| frame.function.is_empty()).take(MAX_INNERMOST);
    // Its client waits for the network.
    let mut stores = innermost.clone();
    let is_store =
        |frame: &Where| frame.function.contains("c10d::") && frame.function.contains("Store::");
    let store = stores.any(is_store).then_some(What::Store);
    let native = innermost.find_map(|frame| named(NATIVE, &frame.function));
    // The functions in which the driver sleeps are not specific.
    let driver = is_in_driver(thread).then_some(What::Gpu);
    let native = driver.or(store).or(native);
    let channel = || of_channel(thread.wait_channel.as_deref()?);
    let device = || (thread.state == Some('D')).then_some(What::File);
    Some(native.or_else(channel).or_else(device).unwrap_or(What::Unknown))
}

/// Whether a thread begins in this function of the standard library, which waits for nothing.
fn begins_a_thread(frame: &Where) -> bool {
    let name = frame.function.rsplit('.').next().unwrap_or_default();
    frame.file.ends_with("/threading.py")
        && ["_bootstrap", "_bootstrap_inner", "run"].contains(&name)
}

/// What a thread that sleeps in this kernel function waits for.
pub(super) fn of_channel(name: &str) -> Option<What> {
    named(CHANNELS, name)
}

fn named(names: &[(&str, What)], name: &str) -> Option<What> {
    let found = names.iter().find(|(piece, _)| name.contains(piece));
    found.map(|(_, what)| *what)
}

/// Whether a thread holds the global interpreter lock in both captures without running: it is in a
/// C function that should release the lock.
fn keeps_gil([first, last]: [&Stacks; 2]) -> bool {
    let keeps = |thread: &ThreadStack| {
        thread.holds_gil == Some(true) && thread.state.is_some_and(|state| state != 'R')
    };
    last.threads.iter().filter(|thread| keeps(thread)).any(|thread| {
        let before = first.threads.iter().find(|old| old.tid == thread.tid);
        before.is_some_and(keeps)
    })
}

/// Libraries in which programs wait for a device.
const DRIVERS: [&str; 2] = ["libcuda.so", "libcudart.so"];

/// Whether a sleeping thread is inside the driver. The function that the program called may be
/// missing from the stack: frames below it may not lead further out.
pub fn is_in_driver(thread: &ThreadStack) -> bool {
    let is_driver = |frame: &Where| {
        let name = frame.file.rsplit('/').next().unwrap_or_default();
        DRIVERS.iter().any(|driver| name.starts_with(driver))
    };
    thread.native.iter().any(is_driver)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thread(frames: &[&str]) -> ThreadStack {
        let frame = |file: &&str| Where {
            file: (*file).into(),
            line: 1,
            function: "f".into(),
            ..Where::default()
        };
        ThreadStack {
            state: Some('S'),
            python: frames.iter().map(frame).collect(),
            ..ThreadStack::default()
        }
    }

    fn sorted(thread: ThreadStack) -> Option<What> {
        let stacks = Stacks { threads: vec![thread], ..Stacks::default() };
        let thread = &stacks.threads[0];
        what([&stacks, &stacks], thread, &Frames::new(thread))
    }

    #[test]
    fn driver_takes_precedence_over_the_function_it_sleeps_in() {
        let frame = |&(file, function): &(&str, &str)| Where {
            file: file.into(),
            line: 0,
            function: function.into(),
            ..Where::default()
        };
        let native = |frames: &[(&str, &str)]| ThreadStack {
            native: frames.iter().map(frame).collect(),
            ..thread(&["/job/train.py"])
        };
        let sleeps = ("/usr/lib/libc.so.6", "pthread_cond_wait");
        let driver = ("/usr/lib/libcuda.so.1", "");
        assert_eq!(sorted(native(&[sleeps, driver])), Some(What::Gpu));
        assert_eq!(sorted(native(&[sleeps])), Some(What::Lock));
        let receives = ("/usr/lib/libc.so.6", "recv");
        let store = ("/v/torch/lib/libtorch_cpu.so", "c10d::TCPStore::doWait");
        assert_eq!(sorted(native(&[receives, store])), Some(What::Store));
        let (glibc, torch) = (("/usr/lib/libc.so.6", ""), ("/v/torch/lib/libtorch_cpu.so", ""));
        let polls = ("/usr/lib/libc.so.6", "poll");
        let newer = [glibc, glibc, glibc, polls, torch, torch, store];
        assert_eq!(sorted(native(&newer)), Some(What::Store));
        let other = ("/v/ray/_raylet.so", "ray::core::CoreWorkerMemoryStore::GetImpl");
        assert_eq!(sorted(native(&[sleeps, other])), Some(What::Lock));
    }

    #[test]
    fn most_specific_library_frame_decides() {
        let loader = [
            "/u/lib/python3.11/selectors.py",
            "/u/lib/python3.11/multiprocessing/connection.py",
            "/u/lib/python3.11/multiprocessing/queues.py",
            "/v/lib/python3.11/site-packages/torch/utils/data/dataloader.py",
            "/job/train.py",
        ];
        assert_eq!(sorted(thread(&loader)), Some(What::DataLoader));
        let baton = [
            "/v/lib/python3.11/site-packages/torch/utils/file_baton.py",
            "/v/lib/python3.11/site-packages/torch/utils/cpp_extension.py",
            "/job/train.py",
        ];
        assert_eq!(sorted(thread(&baton)), Some(What::BuildLock));
        let lock = ["/u/lib/python3.11/threading.py", "/job/train.py"];
        assert_eq!(sorted(thread(&lock)), Some(What::Lock));
        // Frames above the user's line are irrelevant.
        let called =
            ["/job/train.py", "/v/lib/python3.11/site-packages/torch/utils/data/dataloader.py"];
        assert_eq!(sorted(thread(&called)), Some(What::Unknown));
    }

    #[test]
    fn report_to_ray_train_waits_for_the_other_workers() {
        let ray = |file: &str| format!("/v/lib/python3.11/site-packages/ray/{file}");
        let worker = ray("_private/worker.py");
        let context = ray("train/v2/_internal/execution/context.py");
        let reports = [&*worker, &*context, "/job/train.py", &*context];
        assert_eq!(sorted(thread(&reports)), Some(What::Workers));
        // The loop of a worker is called from there.
        assert_eq!(sorted(thread(&[&*worker, "/job/train.py", &*context])), Some(What::Message));
    }

    #[test]
    fn thread_inside_a_collective_is_not_outside() {
        let c10d = "/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py";
        assert_eq!(sorted(thread(&[c10d, "/job/train.py"])), None);
        let backward = "/v/lib/python3.11/site-packages/torch/autograd/graph.py";
        assert_eq!(sorted(thread(&[backward, "/job/train.py"])), None);
        let saves = "/v/lib/python3.11/site-packages/torch/distributed/checkpoint/filesystem.py";
        assert_eq!(sorted(thread(&[saves, "/job/train.py"])), Some(What::Checkpoint));
    }

    #[test]
    fn kernel_function_decides_without_library_frames() {
        let sleeps = |channel: &str| ThreadStack {
            wait_channel: Some(channel.into()),
            ..thread(&["/job/train.py"])
        };
        assert_eq!(sorted(sleeps("hrtimer_nanosleep")), Some(What::Sleep));
        assert_eq!(sorted(sleeps("futex_wait_queue")), Some(What::Lock));
        assert_eq!(sorted(sleeps("")), Some(What::Unknown));
        let device = ThreadStack { state: Some('D'), ..thread(&["/job/train.py"]) };
        assert_eq!(sorted(device), Some(What::File));
        let holds = ThreadStack { holds_gil: Some(true), ..sleeps("hrtimer_nanosleep") };
        assert_eq!(sorted(holds), Some(What::Gil));
    }
}

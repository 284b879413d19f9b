//! Streams: queues of tasks, each with a thread that runs them.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::thread;

use crate::capture::{self, Mode};
use crate::event::Event;
use crate::handles::Handles;
use crate::pointers::HostFunction;
use crate::{Result, Status, device, lock, pointers};

static STREAMS: Handles<Arc<Stream>> = Handles::new(0x7500_0000_0000);
static GRAPHS: Handles<Arc<Vec<Task>>> = Handles::new(0x7600_0000_0000);
static EXECUTABLES: Handles<Arc<Vec<Task>>> = Handles::new(0x7700_0000_0000);
/// All streams, including those without a handle.
static ALL: Mutex<Vec<Weak<Stream>>> = Mutex::new(Vec::new());
/// The default streams of contexts.
static DEFAULTS: Mutex<Vec<Arc<Stream>>> = Mutex::new(Vec::new());

thread_local! {
    /// The default streams of this thread, one per context.
    static OWN: RefCell<Vec<Arc<Stream>>> = const { RefCell::new(Vec::new()) };
}

/// Stack size of a stream's thread, which also runs the host functions of programs.
const STACK: usize = 512 << 10;

/// A task of a stream.
#[derive(Clone, Debug)]
pub(crate) enum Task {
    Call(HostFunction),
    /// Passes a mark of an event.
    Pass(Arc<Event>, u64),
    /// Waits for a mark of an event.
    Await(Arc<Event>, u64),
    Copy {
        to: usize,
        from: usize,
        bytes: usize,
    },
    Set {
        to: usize,
        value: u8,
        bytes: usize,
    },
}

#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) context: usize,
    queue: Mutex<Queue>,
    changed: Condvar,
    capture: Mutex<Option<Capture>>,
}

#[derive(Debug, Default)]
struct Queue {
    tasks: VecDeque<Task>,
    /// Number of tasks queued so far, and of those done.
    put: u64,
    done: u64,
    has_thread: bool,
    /// Whether the stream was destroyed.
    is_closed: bool,
}

#[derive(Debug)]
struct Capture {
    id: u64,
    tasks: Vec<Task>,
}

impl Task {
    fn run(&self) {
        match self {
            Self::Call(function) => function.call(),
            Self::Pass(event, mark) => event.pass(*mark),
            Self::Await(event, mark) => event.wait_for(*mark),
            Self::Copy { to, from, bytes } => pointers::copy(*to, *from, *bytes),
            Self::Set { to, value, bytes } => pointers::set(*to, *value, *bytes),
        }
    }
}

pub(crate) fn create() -> Result<usize> {
    Ok(STREAMS.insert(Stream::new(device::current()?)))
}

/// The stream of a handle: 0 and 1 are the context's default stream, 2 is the thread's.
pub(crate) fn get(handle: usize) -> Result<Arc<Stream>> {
    match handle {
        0 | 1 => Ok(one_of(&mut lock(&DEFAULTS), device::current()?)),
        2 => {
            let context = device::current()?;
            Ok(OWN.with_borrow_mut(|own| one_of(own, context)))
        }
        _ => STREAMS.get(handle).ok_or(Status::INVALID_HANDLE),
    }
}

fn one_of(streams: &mut Vec<Arc<Stream>>, context: usize) -> Arc<Stream> {
    if let Some(stream) = streams.iter().find(|it| it.context == context) {
        return Arc::clone(stream);
    }
    let stream = Stream::new(context);
    streams.push(Arc::clone(&stream));
    stream
}

/// Destroys a stream; its queued tasks are still done.
pub(crate) fn destroy(handle: usize) -> Result<()> {
    let stream = STREAMS.remove(handle).ok_or(Status::INVALID_HANDLE)?;
    if let Some(capture) = lock(&stream.capture).take() {
        capture::spoil(capture.id);
    }
    lock(&stream.queue).is_closed = true;
    stream.changed.notify_all();
    Ok(())
}

/// Waits for all streams of a context.
pub(crate) fn synchronize_all(context: usize) -> Result<()> {
    capture::may_disturb()?;
    let streams: Vec<_> = lock(&ALL).iter().filter_map(Weak::upgrade).collect();
    for stream in streams.iter().filter(|it| it.context == context) {
        stream.wait();
    }
    Ok(())
}

impl Stream {
    fn new(context: usize) -> Arc<Self> {
        let stream = Arc::new(Self {
            context,
            queue: Mutex::default(),
            changed: Condvar::new(),
            capture: Mutex::default(),
        });
        let mut all = lock(&ALL);
        all.retain(|it| it.strong_count() > 0);
        all.push(Arc::downgrade(&stream));
        stream
    }

    /// Appends a task to the queue, or to the capture in progress.
    pub(crate) fn put(self: &Arc<Self>, task: Task) -> Result<()> {
        if let Some(capture) = lock(&self.capture).as_mut() {
            if capture::is_spoilt(capture.id) {
                return Err(Status::CAPTURE_INVALIDATED);
            }
            capture.tasks.push(task);
            return Ok(());
        }
        let mut queue = lock(&self.queue);
        queue.tasks.push_back(task);
        queue.put += 1;
        if !queue.has_thread {
            let stream = Arc::clone(self);
            let thread = thread::Builder::new().name("cuda-stream".into()).stack_size(STACK);
            let started = thread.spawn(move || stream.work());
            started.or(Err(Status::OUT_OF_MEMORY))?;
            queue.has_thread = true;
        }
        self.changed.notify_all();
        Ok(())
    }

    /// Adds a mark of an event.
    pub(crate) fn record(self: &Arc<Self>, event: Arc<Event>) -> Result<()> {
        if event.context != self.context {
            return Err(Status::INVALID_HANDLE);
        }
        let mark = event.mark(self.captures().is_some());
        self.put(Task::Pass(event, mark))
    }

    /// Makes later tasks wait for an event.
    pub(crate) fn wait_for(self: &Arc<Self>, event: Arc<Event>) -> Result<()> {
        let Some(mark) = event.latest() else {
            return match self.captures() {
                // The event was captured in this stream, where it is in order anyway.
                Some(_) => Ok(()),
                None => Err(Status::CAPTURE_ISOLATION),
            };
        };
        if self.captures().is_some() {
            return Err(Status::CAPTURE_ISOLATION);
        }
        self.put(Task::Await(event, mark))
    }

    pub(crate) fn query(&self) -> Result<()> {
        self.must_not_capture()?;
        capture::may_disturb()?;
        let queue = lock(&self.queue);
        if queue.done < queue.put {
            return Err(Status::NOT_READY);
        }
        Ok(())
    }

    pub(crate) fn synchronize(&self) -> Result<()> {
        self.must_not_capture()?;
        capture::may_disturb()?;
        self.wait();
        Ok(())
    }

    /// Waits for the tasks that are in the queue now.
    fn wait(&self) {
        let queue = lock(&self.queue);
        let put = queue.put;
        let waited = self.changed.wait_while(queue, |queue| queue.done < put);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    fn must_not_capture(&self) -> Result<()> {
        if let Some(capture) = lock(&self.capture).as_ref() {
            capture::spoil(capture.id);
            return Err(Status::CAPTURE_UNSUPPORTED);
        }
        Ok(())
    }

    fn work(&self) {
        loop {
            let queue = lock(&self.queue);
            let idle = |queue: &mut Queue| queue.tasks.is_empty() && !queue.is_closed;
            let waited = self.changed.wait_while(queue, idle);
            let mut queue = waited.unwrap_or_else(PoisonError::into_inner);
            let Some(task) = queue.tasks.pop_front() else {
                return;
            };
            if let Task::Pass(event, mark) = &task {
                // Counted under the lock: an observer of the passed event must find the task done.
                event.pass(*mark);
                queue.done += 1;
            } else {
                drop(queue);
                task.run();
                lock(&self.queue).done += 1;
            }
            self.changed.notify_all();
        }
    }

    // --- Capture -------------------------------------------------------------------------------

    pub(crate) fn begin_capture(&self, mode: Mode) -> Result<()> {
        let mut under_way = lock(&self.capture);
        if under_way.is_some() {
            return Err(Status::CAPTURE_UNMATCHED);
        }
        *under_way = Some(Capture { id: capture::begin(mode), tasks: Vec::new() });
        Ok(())
    }

    /// Ends the capture; returns the handle of its graph.
    pub(crate) fn end_capture(&self) -> Result<usize> {
        let mut under_way = lock(&self.capture);
        let id = under_way.as_ref().ok_or(Status::CAPTURE_UNMATCHED)?.id;
        let ended = capture::end(id);
        if ended == Err(Status::CAPTURE_WRONG_THREAD) {
            return ended.map(|()| 0);
        }
        let tasks = under_way.take().map(|it| it.tasks).unwrap_or_default();
        ended?;
        Ok(GRAPHS.insert(Arc::new(tasks)))
    }

    /// Id of the capture in progress.
    pub(crate) fn captures(&self) -> Option<u64> {
        lock(&self.capture).as_ref().map(|it| it.id)
    }

    /// `CUstreamCaptureStatus`: none (0), active (1), or invalidated (2).
    pub(crate) fn capture_status(&self) -> u32 {
        match self.captures() {
            None => 0,
            Some(id) if capture::is_spoilt(id) => 2,
            Some(_) => 1,
        }
    }
}

pub(crate) fn instantiate(graph: usize) -> Result<usize> {
    let tasks = GRAPHS.get(graph).ok_or(Status::INVALID_HANDLE)?;
    Ok(EXECUTABLES.insert(tasks))
}

pub(crate) fn replay(executable: usize, stream: &Arc<Stream>) -> Result<()> {
    let tasks = EXECUTABLES.get(executable).ok_or(Status::INVALID_HANDLE)?;
    for task in tasks.iter() {
        stream.put(task.clone())?;
    }
    Ok(())
}

pub(crate) fn forget_graph(graph: usize) -> Result<()> {
    let known = GRAPHS.remove(graph);
    known.map(|_| ()).ok_or(Status::INVALID_HANDLE)
}

pub(crate) fn forget_executable(executable: usize) -> Result<()> {
    let known = EXECUTABLES.remove(executable);
    known.map(|_| ()).ok_or(Status::INVALID_HANDLE)
}

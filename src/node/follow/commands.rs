//! Commands to the follower, from any thread.

use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};

use ddp_doctor_host::files::Dir;
use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::v1;
use tokio::sync::mpsc;

/// A command for the follower.
#[derive(Debug)]
pub enum Command {
    /// A coordinator is connected: send everything to it.
    Attached(mpsc::Sender<v1::Report>),
    /// The coordinator requests records again.
    Repeat {
        /// The box.
        process: u64,
        /// The first record.
        ticket: u64,
    },
    /// The coordinator requests digests instead of records.
    Summarize,
    /// The coordinator requests the records that digests replaced.
    Pull(v1::Pull),
    /// The coordinator measures the clock of this node.
    Ping {
        /// Time of the request, coordinator clock.
        sent_unix_ns: u64,
        /// Time of its arrival, clock of this node.
        received: Timestamp,
    },
    /// The coordinator requests stacks.
    TakeStacks {
        /// The boxes; empty for all.
        processes: Vec<u64>,
        /// Whether a user requested them.
        on_request: bool,
    },
    /// The coordinator requests what PyTorch's Flight Recorder shows.
    ReadDeviceCalls {
        /// The boxes.
        processes: Vec<u64>,
    },
    /// Answer whether requested stacks are still being captured.
    IsCapturing {
        /// Receives the answer.
        answer: Sender<bool>,
    },
    /// The follower's process was continued after a stop.
    Continued,
    /// The whole job was asked to end, with this signal.
    Interrupted(i32),
    /// Write all evidence to the disk, and answer.
    Secure {
        /// Directory for the black boxes instead of the run directory.
        into: Option<Dir>,
        /// Receives the answer.
        answer: Sender<Secured>,
    },
    /// The command is about to be ended: later events are a consequence and no evidence.
    Close {
        /// Exit status to report.
        status: i32,
        /// The finding for which it is ended.
        reason: v1::KillReason,
        /// Notified when the job is closed.
        done: Sender<()>,
    },
    /// The command has ended, with this exit status as a shell reports it.
    CommandEnded(i32),
    /// End the follower.
    Stop,
}

/// Answer to [`Command::Secure`].
#[derive(Debug)]
pub struct Secured {
    /// Whether the evidence is on the disk.
    pub on_disk: bool,
    /// Living processes that were seen below the command at any time, with their start times.
    pub descendants: Vec<(u32, u64)>,
}

/// Sends commands to the follower, from any thread.
#[derive(Clone, Debug)]
pub struct Commander {
    channel: Sender<Command>,
    /// `None` if there is no pipe; commands are then found at the next poll.
    wake: Option<Arc<PipeWriter>>,
}

/// The receiving end of a [`Commander`].
#[derive(Debug)]
pub struct Commands {
    channel: Receiver<Command>,
    wake: Option<PipeReader>,
}

impl Commander {
    /// Creates both ends.
    #[must_use]
    pub fn new() -> (Self, Commands) {
        let (reader, writer) = std::io::pipe().ok().unzip();
        let (sender, receiver) = channel();
        let commander = Self { channel: sender, wake: writer.map(Arc::new) };
        let commands = Commands { channel: receiver, wake: reader };
        (commander, commands)
    }

    /// Sends a command; returns whether the follower is still running.
    pub fn send(&self, command: Command) -> bool {
        let is_there = self.channel.send(command).is_ok();
        if is_there && let Some(wake) = &self.wake {
            // If this fails, the next poll finds the command.
            drop((&**wake).write(&[0]));
        }
        is_there
    }
}

impl Commands {
    /// Readable when a command arrives; `None`: there is no pipe.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.wake.as_ref().map(AsFd::as_fd)
    }

    /// Empties the pipe: it has one byte per command, and the commands are in the channel.
    pub(super) fn clear(&mut self) {
        if let Some(wake) = &mut self.wake {
            drop(wake.read(&mut [0; 64]));
        }
    }

    /// Waits for the next command; `None`: there are no more.
    #[must_use]
    pub fn wait(&self) -> Option<Command> {
        self.channel.recv().ok()
    }

    /// The next pending command, if any.
    pub(crate) fn next(&self) -> Result<Command, TryRecvError> {
        self.channel.try_recv()
    }
}

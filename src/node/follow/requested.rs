//! Evidence that is collected on request alone: stacks, and what PyTorch's Flight Recorder shows.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;
use std::time::Duration;

use ddp_doctor_host::files::Dir;
use ddp_doctor_host::proc;
use ddp_doctor_ingest::flight_recorder::device_calls;
use ddp_doctor_proto::v1;
use v1::event::Kind;

use super::Follower;
use super::rank::Rank;
use crate::flight_recorder::{self, FILES, PIPE, Recorder};

/// Time limit for dumps: those of the other ranks are read then.
const MAX_DUMP: Duration = Duration::from_secs(10);
/// Maximum number of requests at a time.
const MAX_REQUESTS: usize = 4;

/// Reads dumps of Flight Recorders in a separate thread.
#[derive(Debug, Default)]
pub(super) struct DumpReader {
    /// Folder of the FIFOs and dumps of ranks that have no other ones.
    folder: Option<PathBuf>,
    /// The dumps that are being read, by request.
    pending: Vec<Receiver<v1::DeviceCalls>>,
}

impl DumpReader {
    pub(super) fn new(folder: Option<PathBuf>) -> Self {
        Self { folder, pending: Vec::new() }
    }

    /// Asks the Flight Recorders of these ranks: number of the process in messages, process id and rank. Too many
    /// requests at a time are dropped: the coordinator repeats them if it has to.
    fn request(&mut self, ranks: Vec<(u64, u32, u32)>) {
        let has_room = self.pending.len() < MAX_REQUESTS;
        let Some(folder) = self.folder.clone().filter(|_| has_room) else { return };
        let (sender, receiver) = channel();
        let work = move || {
            let recorders: Vec<Recorder> =
                ranks.iter().map(|&(_, pid, rank)| recorder(&folder, pid, rank)).collect();
            // Why one cannot be asked changes nothing for the user: its completion stays unknown.
            let (dumps, _) = flight_recorder::request(&recorders, MAX_DUMP);
            for dump in dumps {
                let mut asked = recorders.iter().filter(|it| it.rank == dump.rank);
                asked.next().into_iter().for_each(|it| remove(&folder, it));
                let known = ranks.iter().find(|(.., rank)| *rank == dump.rank);
                let calls = known
                    .and_then(|&(process, ..)| device_calls(process, dump.contents, dump.asked));
                calls.map(|it| sender.send(it));
            }
        };
        let thread = thread::Builder::new().name("ddp-recorders".into());
        if thread.spawn(work).is_ok() {
            self.pending.push(receiver);
        }
    }

    /// Returns what dumps show that were read since the last call.
    fn poll(&mut self) -> Vec<v1::DeviceCalls> {
        let mut read = Vec::new();
        self.pending.retain(|pending| {
            loop {
                match pending.try_recv() {
                    Ok(calls) => read.push(calls),
                    Err(error) => return error == TryRecvError::Empty,
                }
            }
        });
        read
    }
}

/// The Flight Recorder of a rank: that of the user's variables, or that in the folder of the run. Its launcher may have
/// passed on variables with names of its own there.
fn recorder(folder: &Path, pid: u32, rank: u32) -> Recorder {
    let environment = proc::environment(pid);
    let variable = |name: &str| {
        let mut values =
            environment.iter().filter_map(|it| it.strip_prefix(name)?.strip_prefix('='));
        values.find(|it| !it.is_empty() && !Path::new(it).starts_with(folder))
    };
    let ours = prefix(folder, pid, rank);
    let file = FILES.iter().find_map(|name| variable(name)).unwrap_or(&ours);
    let pipe = variable(PIPE).unwrap_or(&ours);
    Recorder { rank, pid, pipe: pipe.to_owned(), file: Some(file.to_owned()) }
}

/// Beginning of the names of FIFO and dump of a rank in the folder of the run: the process id of the rank, or of the
/// process that it was forked from.
fn prefix(folder: &Path, pid: u32, rank: u32) -> String {
    let of = |pid: u32| folder.join(format!("{pid}_")).display().to_string();
    let pids = std::iter::once(pid).chain(proc::ancestors(pid));
    let found = pids.map(of).find(|it| Path::new(&format!("{it}{rank}.pipe")).exists());
    found.unwrap_or_else(|| of(pid))
}

/// Removes a dump that was requested and read from the folder of the run: one that stays was written at a timeout.
fn remove(folder: &Path, recorder: &Recorder) {
    let file = recorder.file.as_deref().and_then(|it| Path::new(it).strip_prefix(folder).ok());
    if let Some(prefix) = file.and_then(Path::to_str) {
        let name = format!("{prefix}{}", recorder.rank);
        drop(Dir::open_private(folder).and_then(|it| it.remove_file(name.as_ref())));
    }
}

impl Follower {
    /// Requests stacks of these processes; empty for all.
    pub(super) fn request_stacks(&mut self, processes: &[u64], on_request: bool) {
        let requests = self
            .ranks
            .iter()
            .filter_map(Rank::stack_request)
            .filter(|it| processes.is_empty() || processes.contains(&it.process));
        self.stacks.request(requests, on_request);
    }

    /// Requests what Flight Recorders show of these processes.
    pub(super) fn request_dumps(&mut self, processes: &[u64]) {
        let ranks = self.ranks.iter().filter(|it| processes.contains(&it.process()));
        let living = ranks.filter_map(|it| Some((it.stack_request()?, it.rank()?)));
        self.recorders.request(living.map(|(it, rank)| (it.process, it.pid, rank)).collect());
    }

    /// Reports what dumps show that were read since the last call.
    pub(super) fn report_device_calls(&mut self) {
        for calls in self.recorders.poll() {
            self.report(Kind::DeviceCalls(calls));
        }
    }

    /// Reports stacks captured since the last call, except those of processes that have ended
    /// since.
    pub(super) fn report_stacks(&mut self) {
        for stacks in self.stacks.poll() {
            let Some(stacks) = self.started.add_stacks(stacks, &mut self.out) else {
                continue;
            };
            let mut ranks = self.ranks.iter_mut();
            if let Some(rank) =
                ranks.find(|rank| rank.process() == stacks.process && !rank.has_ended())
            {
                rank.add_stacks(stacks, &mut self.out);
            }
        }
    }
}

//! Dumps of PyTorch's Flight Recorder, requested from ranks that run.
//!
//! With `TORCH_NCCL_DEBUG_INFO_PIPE_FILE` in its environment, each rank has a FIFO. A byte in it lets a thread of PyTorch
//! write what the rank recorded of its calls over NCCL: it takes none of the program's locks, and the job goes on. Since
//! each rank then prints one line, `attach` does this only if the stacks leave open why ranks seem to be stuck, and `run`
//! only while ranks wait for their devices.

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use ddp_doctor_diagnosis::words::{self, Ranks};
use ddp_doctor_host::files;
use ddp_doctor_host::input_files;
use ddp_doctor_host::proc;
use ddp_doctor_host::source_files::ProcessRoot;
use ddp_doctor_proto::report::Timestamp;

/// Variable with the beginning of the name of the FIFOs.
pub const PIPE: &str = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE";
/// Variables with the beginning of the name of the dumps, the one that counts first.
pub const FILES: [&str; 2] = ["TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"];
/// Time limit for the dumps if somebody waits for them: PyTorch looks at the FIFO and resolves frames for up to some 5 s.
pub const MAX_WAIT: Duration = Duration::from_secs(6);
/// Time between two looks at a dump that is being written.
const POLL: Duration = Duration::from_millis(200);
/// Maximum size of a dump, in bytes.
const MAX_DUMP: u64 = 64 << 20;

/// A rank with such a FIFO.
#[derive(Clone, Debug)]
pub struct Recorder {
    /// The rank.
    pub rank: u32,
    /// Its process.
    pub pid: u32,
    /// The beginning of the name of its FIFO, as in the variable.
    pub pipe: String,
    /// The beginning of the name of its dump; `None`: unknown.
    pub file: Option<String>,
}

impl Recorder {
    /// That of a rank with these variables; `None`: it has no FIFO.
    pub fn new<'v>(
        rank: u32,
        pid: u32,
        variable: impl Fn(&str) -> Option<&'v str>,
    ) -> Option<Self> {
        let pipe = variable(PIPE)?.to_owned();
        let file = FILES.iter().find_map(|name| variable(name)).map(str::to_owned);
        Some(Self { rank, pid, pipe, file })
    }
}

/// What a rank recorded of its calls.
#[derive(Clone, Debug)]
pub struct Dump {
    /// The rank.
    pub rank: u32,
    /// The contents of its file.
    pub contents: Vec<u8>,
    /// When it was requested.
    pub asked: Timestamp,
    /// When it was read.
    pub at: Timestamp,
}

/// A rank whose dump is awaited.
#[derive(Debug)]
struct Awaited {
    rank: u32,
    asked: Timestamp,
    file: PathBuf,
    /// The root directory of the rank, if its paths name other files than here.
    root: Option<ProcessRoot>,
    /// When an earlier dump was written.
    before: Option<SystemTime>,
    /// Length and time of the file at the last look.
    seen: Option<(u64, SystemTime)>,
}

/// Requests the dumps of these ranks, and waits for them up to this long. The second result is what the user should know.
#[must_use]
pub fn request(recorders: &[Recorder], limit: Duration) -> (Vec<Dump>, Vec<String>) {
    let mut awaited: Vec<Awaited> = Vec::new();
    let mut notes: Vec<String> = Vec::new();
    for recorder in recorders {
        match Awaited::wake(recorder) {
            Ok(it) => awaited.push(it),
            Err(why) => notes.push(format!("the Flight Recorder of rank {} {why}", recorder.rank)),
        }
    }
    // One reason is enough.
    notes.truncate(1);
    if awaited.is_empty() {
        return (Vec::new(), notes);
    }
    let mut dumps = Vec::new();
    let asked = numbers(&awaited);
    let until = Instant::now() + limit;
    while !awaited.is_empty() && Instant::now() < until {
        thread::sleep(POLL);
        awaited.retain_mut(|it| match it.take() {
            Some(contents) => {
                let (rank, asked) = (it.rank, it.asked);
                dumps.push(Dump { rank, contents, asked, at: Timestamp::now() });
                false
            }
            None => true,
        });
    }
    dumps.sort_by_key(|it| it.rank);
    let each = words::number(&asked, "it prints", "each prints");
    let mut note = format!(
        "requested a dump of the Flight Recorder of {}: {each} one line and continues",
        Ranks(&asked)
    );
    if !awaited.is_empty() {
        let late = numbers(&awaited);
        note += &format!("; {} wrote nothing within {} s", Ranks(&late), limit.as_secs());
    }
    notes.insert(0, note);
    (dumps, notes)
}

fn numbers(awaited: &[Awaited]) -> Vec<u32> {
    awaited.iter().map(|it| it.rank).collect()
}

impl Awaited {
    /// Writes to the FIFO of a rank. Otherwise returns why that is not done.
    fn wake(recorder: &Recorder) -> Result<Self, String> {
        let Recorder { rank, pid, pipe, file } = recorder;
        if !proc::is_own(*pid) {
            return Err("is not queried: run this as the user of the job".into());
        }
        let file = file
            .as_deref()
            .ok_or_else(|| format!("is not queried: start the job with {} as well", FILES[0]))?;
        let path = |beginning: &str, end: &str| {
            let directory = fs::read_link(format!("/proc/{pid}/cwd")).unwrap_or_default();
            directory.join(format!("{beginning}{rank}{end}"))
        };
        let (file, pipe) = (path(file, ""), path(pipe, ".pipe"));
        let root = ProcessRoot::open(*pid);
        let before = opened(root.as_ref(), &file).ok().map(|it| it.1.1);
        let asked = Timestamp::now();
        let woken = match &root {
            None => files::wake_reader(&pipe),
            Some(root) => root.reach(&pipe).and_then(|found| files::wake_reader_of(&found, &pipe)),
        };
        woken.map_err(|error| format!("cannot be asked: {error}"))?;
        Ok(Self { rank: *rank, asked, file, root, before, seen: None })
    }

    /// The dump, once two looks show the same new file.
    fn take(&mut self) -> Option<Vec<u8>> {
        let (file, status) = opened(self.root.as_ref(), &self.file).ok()?;
        let is_new = self.before.is_none_or(|before| status.1 > before) && status.0 > 0;
        let is_whole = self.seen == Some(status);
        self.seen = Some(status);
        if !is_new || !is_whole || status.0 > MAX_DUMP {
            return None;
        }
        let mut contents = Vec::new();
        file.take(MAX_DUMP).read_to_end(&mut contents).ok()?;
        Some(contents)
    }
}

/// A file of this user, with its length and the time of its last change. `root`: where its path is resolved.
fn opened(root: Option<&ProcessRoot>, path: &Path) -> io::Result<(fs::File, (u64, SystemTime))> {
    let reached = match root {
        None => input_files::reach(path)?,
        Some(root) => root.reach(path)?,
    };
    let (file, metadata) = input_files::regular(&reached, path)?;
    if metadata.uid() != files::user_id() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    Ok((file, (metadata.len(), metadata.modified()?)))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;
    /// A process that writes a dump once its FIFO gets a byte, in two parts.
    const RECORDER: &str = r#"
mkfifo pipe0.pipe; exec 3<>pipe0.pipe; echo ready; head -c 1 <&3 > /dev/null
printf 'first part' > dump0; sleep 0.1; printf ', second part' >> dump0; sleep 60
"#;

    fn rank(pid: u32, directory: &Path, variables: &[(&str, &str)]) -> Vec<Recorder> {
        let texts: Vec<(&str, String)> = variables
            .iter()
            .map(|(name, value)| (*name, format!("{}/{value}", directory.display())))
            .collect();
        let variable = |name: &str| {
            let found = texts.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| value.as_str())
        };
        Vec::from_iter(Recorder::new(0, pid, variable))
    }

    #[test]
    fn dump_that_a_byte_requests_is_read_whole() {
        let directory = tempfile::tempdir().unwrap();
        let mut command = Command::new("bash");
        command.args(["-c", RECORDER]).current_dir(&directory).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
        fs::write(directory.path().join("dump0"), "of an earlier request").unwrap();
        let variables = [(PIPE, "pipe"), (FILES[1], "dump")];
        let (dumps, notes) = request(&rank(child.id(), directory.path(), &variables), MAX_WAIT);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(dumps.len(), 1, "{notes:?}");
        assert_eq!(String::from_utf8_lossy(&dumps[0].contents), "first part, second part");
        assert!(notes[0].ends_with("of rank 0: it prints one line and continues"));
    }

    #[test]
    fn dump_of_a_rank_in_a_container_is_read_below_its_root() {
        if files::user_id() != 0 {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        // The names of its files lead elsewhere on the host.
        let script = r#"mkdir "$0/old"; mount --bind "$0" "$0" && cd "$0" || exit
            for it in usr lib lib64 bin proc dev; do mkdir "$0/$it"; mount --rbind /$it "$0/$it"; done
            mkdir job; pivot_root . old; cd /job; umount -l /old; "#;
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "--propagation", "private", "bash", "-c"])
            .arg(format!("{script}{RECORDER}"))
            .arg(directory.path())
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // Without it, mount namespaces are not permitted.
        let is_ready = child.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).is_ok();
        let variables = [(PIPE, "pipe"), (FILES[1], "dump")];
        let asked =
            is_ready.then(|| request(&rank(child.id(), Path::new("/job"), &variables), MAX_WAIT));
        child.kill().unwrap();
        child.wait().unwrap();
        let Some((dumps, notes)) = asked else { return };
        let read = dumps.iter().map(|it| String::from_utf8_lossy(&it.contents));
        assert_eq!(read.collect::<Vec<_>>(), ["first part, second part"], "{notes:?}");
    }

    #[test]
    fn ranks_without_a_reader_or_a_file_are_not_awaited() {
        let directory = tempfile::tempdir().unwrap();
        let note = |variables: &[(&str, &str)]| {
            let (dumps, notes) =
                request(&rank(std::process::id(), directory.path(), variables), MAX_WAIT);
            assert!(dumps.is_empty());
            notes
        };
        assert_eq!(note(&[]), [""; 0]);
        assert!(note(&[(PIPE, "pipe")])[0].contains("with TORCH_FR_DUMP_TEMP_FILE as well"));
        let both = [(PIPE, "pipe"), (FILES[0], "dump")];
        assert!(note(&both)[0].starts_with("the Flight Recorder of rank 0 cannot be asked: "));
    }
}

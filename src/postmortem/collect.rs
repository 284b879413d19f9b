//! Finds the evidence in paths. The kind of a file follows from its content, not from its name.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ddp_doctor_agent::blackbox::{NoBox, OpenError};
use ddp_doctor_evidence::blackbox;
use ddp_doctor_evidence::journal::{self, JournalError, Reader};
use ddp_doctor_host::boxes::BoxDir;
use ddp_doctor_host::input_files;
use ddp_doctor_host::names::word;
use ddp_doctor_host::private::SHARED_MEMORY;
use ddp_doctor_host::run_description::Description;
use ddp_doctor_ingest::{
    flight_recorder,
    logs::{self, Log},
    own_dump,
};
use ddp_doctor_proto::v1::{self, event::Kind};

use super::below::{self, Below, MAX_DEPTH, MAX_FILES};
use super::kind::{FileKind, is_named_log, is_packed, kind_of};
use super::pieces::{BoxFile, Gap, JournalFile, NoBoxFile, Place, is_gone};
use super::read_logs::{self, ReadLogs};
use super::{Progress, Remark};

/// Maximum number of names listed in a remark.
const LISTED: usize = 3;

/// The evidence found in the paths.
#[derive(Debug, Default)]
pub(super) struct Collected {
    pub(super) journals: Vec<JournalFile>,
    pub(super) boxes: Vec<BoxFile>,
    pub(super) no_boxes: Vec<NoBoxFile>,
    /// Logs that state something.
    pub(super) logs: Vec<Log>,
    /// Logs below folders with dumps, by subdirectory.
    pub(super) beside: Vec<Vec<Log>>,
    /// Files that may contain Flight Recorder dumps.
    pub(super) dumps: Vec<PathBuf>,
    /// Evidence that exists and is unreadable.
    pub(super) gaps: Vec<Gap>,
    /// Logs that state nothing but that their job ended well.
    pub(super) successes: Vec<Log>,
    pub(super) remarks: Vec<Remark>,
    /// Files that cannot be read.
    closed: Vec<(PathBuf, io::Error)>,
    read_logs: ReadLogs,
    /// Device and inode of files already taken: each is taken once.
    taken: HashSet<(u64, u64)>,
    /// Number of pieces of evidence found, including repeated ones.
    pieces: usize,
    progress: Progress,
}

/// Finds the evidence in these paths.
pub(super) fn collect(paths: &[PathBuf], progress: &Progress) -> Collected {
    let mut found = Collected { progress: progress.clone(), ..Collected::default() };
    // Before any of them is read: a link from one to another leads to what the user named.
    paths.iter().for_each(|path| input_files::confine(path));
    for (place, path) in paths.iter().enumerate() {
        match input_files::evidence(path) {
            Ok(metadata) if metadata.is_dir() => found.directory(path, place),
            Ok(metadata) => found.file(path, &metadata, place),
            Err(error) => found.remark(path, reason(&error)),
        }
    }
    found.report_closed();
    found.remarks = folded(std::mem::take(&mut found.remarks), paths);
    found
}

/// Remarks of which those with one text on more than a few entries of a folder are one, unless the entries are `named`.
fn folded(remarks: Vec<Remark>, named: &[PathBuf]) -> Vec<Remark> {
    let key = |it: &Remark| {
        let parent = it.path.parent().filter(|_| !named.contains(&it.path))?;
        Some((parent.to_owned(), it.text.clone()))
    };
    let mut alike: HashMap<_, Vec<String>> = HashMap::new();
    for it in &remarks {
        if let Some((key, name)) = key(it).zip(file_name(&it.path)) {
            alike.entry(key).or_default().push(name);
        }
    }
    alike.retain(|_, names| names.len() > LISTED);
    let each = remarks.into_iter().filter_map(|it| {
        let Some(key) = key(&it).filter(|key| alike.contains_key(key)) else { return Some(it) };
        // In place of the first of them.
        let names = std::mem::take(alike.get_mut(&key)?);
        let (count, listed) = (names.len(), names.get(..LISTED)?.join(", "));
        let text = format!("each of {count} entries, such as {listed}: {}", key.1);
        Some(Remark { path: key.0, text })
    });
    each.collect()
}

impl Collected {
    /// Files that cannot be read and whose names are those of the dump of a rank are dumps. Others are
    /// reported if opening them fails.
    fn report_closed(&mut self) {
        let series: HashSet<String> =
            self.dumps.iter().filter_map(|path| flight_recorder::series(path)).collect();
        let folders: HashSet<PathBuf> =
            self.dumps.iter().filter_map(|path| path.parent()).map(Path::to_owned).collect();
        for (path, error) in std::mem::take(&mut self.closed) {
            let is_beside = path.parent().is_some_and(|it| folders.contains(it));
            let is_alike = flight_recorder::series(&path).is_some_and(|it| series.contains(&it));
            match error.kind() {
                io::ErrorKind::InvalidData if is_packed(&path) => self.remark(&path, PACKED),
                _ if is_alike => self.dumps.push(path),
                io::ErrorKind::InvalidData => {}
                io::ErrorKind::InvalidInput => self.remark(&path, reason(&error)),
                // It is more likely the dump of another rank than anything else.
                _ if is_beside => self.dumps.push(path),
                _ => self.remark(&path, reason(&error)),
            }
        }
    }

    fn remark(&mut self, path: &Path, text: impl Into<String>) {
        let remark = Remark { path: path.to_owned(), text: text.into() };
        // A folder that cannot be opened is noticed by several readers.
        if self.remarks.last() != Some(&remark) {
            self.remarks.push(remark);
        }
    }

    /// Adds a file that was given as a path.
    fn file(&mut self, path: &Path, metadata: &Metadata, place: Place) {
        if !metadata.is_file() {
            return self.remark(path, "it is neither a directory nor a regular file");
        }
        let text = match kind_of(path) {
            Err(error) => return self.closed.push((path.to_owned(), error)),
            Ok(FileKind::Journal) => {
                let description = path.parent().and_then(|dir| Description::read(dir).ok());
                return self.journal(path, place, description.flatten().as_ref());
            }
            Ok(FileKind::BlackBox) => return self.black_box(path, place, None),
            Ok(_) if self.marker(path, place) => return,
            Ok(FileKind::FlightRecorder) => return self.dump(path),
            Ok(FileKind::Report) => {
                "this is a report of ddp-doctor: pass the evidence that it was made from, the run \
                 directory"
                    .into()
            }
            Ok(FileKind::Description) => {
                "this is the description of a run: pass the directory that contains it".into()
            }
            Ok(FileKind::Dump) => {
                if self.log(path, |path, _| own_dump::read(path)) {
                    return;
                }
                "these stacks show no rank".into()
            }
            Ok(FileKind::Text) => {
                if self.log(path, logs::read) {
                    return;
                }
                format!("{NOTHING_IN_TEXT}: {WANTED}")
            }
            Ok(FileKind::Empty) => "the file is empty".into(),
            Ok(FileKind::Unknown) if is_packed(path) => PACKED.into(),
            Ok(FileKind::Unknown) => format!("this is not evidence of a known kind: {WANTED}"),
        };
        self.remark(path, text);
    }

    /// Adds a log. Returns whether it states anything about a job.
    fn log(&mut self, path: &Path, read: fn(&Path, u64) -> io::Result<Log>) -> bool {
        if let Some(states) = self.read_logs.known(path) {
            self.pieces += usize::from(states);
            return states;
        }
        let Some(limit) = self.read_logs.room() else {
            self.remark(path, read_logs::FULL);
            return true;
        };
        self.progress.found(1);
        let log = read(path, limit);
        self.progress.read();
        let log = match log {
            Ok(log) => log,
            Err(error) => {
                self.remark(path, reason(&error));
                return true;
            }
        };
        self.read_logs.add(path, &log);
        if let Some(trouble) = &log.trouble {
            self.remark(path, trouble.clone());
        }
        let is_empty = log.is_empty();
        let states_success = log.states_success();
        if is_empty && states_success {
            self.remark(path, "this text does not state a failure: its job ended normally");
        }
        if !is_empty && self.takes(path) {
            self.logs.push(log);
        } else if is_empty && states_success && self.takes(path) {
            self.successes.push(log);
        }
        !is_empty || states_success
    }

    /// Adds a run directory, or any directory with evidence.
    fn directory(&mut self, dir: &Path, place: Place) {
        let description = match Description::read(dir) {
            Ok(description) => description,
            Err(error) => {
                let file = dir.join("run.json");
                let shown: &Path = if input_files::metadata(&file).is_ok() { &file } else { dir };
                self.remark(shown, reason(&error));
                None
            }
        };
        let before = (self.pieces, self.remarks.len(), self.closed.len());
        let dumps = self.dumps.len();
        // Boxes of an active run, or of one that was killed, are still in shared memory. These are first,
        // because another process may move them to the run directory meanwhile.
        let canonical = input_files::canonical(dir).unwrap_or_else(|_| dir.to_owned());
        let kept = dir.join("boxes");
        for folder in BoxDir::awaited(Path::new(SHARED_MEMORY), &canonical) {
            self.folder(&folder, place, description.as_ref(), Some(&kept));
        }
        self.folder(dir, place, description.as_ref(), None);
        for below in [dir.join(journal::LATER), kept] {
            if input_files::is_dir(&below) {
                self.folder(&below, place, description.as_ref(), None);
            }
        }
        // Beside recordings, the output of a job says nothing more.
        let mut runs = Vec::new();
        if self.pieces - before.0 == self.dumps.len() - dumps {
            let below = Below::list(dir);
            self.dumps_below(dir, &below);
            let files = self.logs(dir, |_| true);
            if self.dumps.len() > dumps {
                self.logs_below(dir, &below, files);
            }
            runs = below.runs;
        }
        if (self.pieces, self.remarks.len(), self.closed.len()) == before {
            self.remark(dir, nothing_in(dir, runs));
        } else if let Some(first) = runs.first() {
            let (what, are) = match runs.len() {
                1 => ("run directory", "is"),
                _ => ("run directories", "are"),
            };
            let text = format!(
                "{} {what} below it {are} left out: to analyze one, pass its path, such as {}",
                runs.len(),
                word(first)
            );
            self.remark(dir, text);
        }
    }

    /// Adds the logs of a folder whose paths are accepted. Returns all that may be logs.
    fn logs(&mut self, dir: &Path, accepts: impl Fn(&Path) -> bool) -> logs::Files {
        let files = logs::find(dir);
        for path in files.paths.iter().filter(|path| accepts(path)) {
            if matches!(kind_of(path), Ok(FileKind::Text)) {
                self.log(path, logs::read);
            }
        }
        if let Some(first) = files.earlier.first() {
            let text = format!(
                "{} earlier launches or attempts are left out: to analyze one, pass its folder, such as {}",
                files.earlier.len(),
                word(first)
            );
            self.remark(dir, text);
        }
        files
    }

    /// Adds the logs in the subdirectories of a folder with dumps. Those of each subdirectory may be of
    /// another job. `known`: the files of the folder itself.
    fn logs_below(&mut self, dir: &Path, below: &Below, known: logs::Files) {
        let mut searched: HashSet<PathBuf> = HashSet::new();
        let mut earlier: Vec<PathBuf> = Vec::new();
        let mut groups: BTreeMap<PathBuf, Vec<Log>> = BTreeMap::new();
        let mut files = known;
        let mut folders = below.folders.iter();
        loop {
            // Folders of a launcher are searched with the folder that they are in.
            let within = files.paths.iter().flat_map(|path| path.ancestors().skip(1));
            searched.extend(within.map(Path::to_owned));
            earlier.append(&mut files.earlier);
            let is_new = |folder: &&PathBuf| {
                let is_of_launch = earlier.iter().any(|it| folder.starts_with(it));
                !is_of_launch && !searched.contains(*folder)
            };
            let Some(folder) = folders.find(is_new) else {
                break;
            };
            let before = self.logs.len();
            files = self.logs(folder, is_named_log);
            let part = folder.strip_prefix(dir).ok().and_then(|it| it.iter().next());
            let group = groups.entry(dir.join(part.unwrap_or_default()));
            group.or_default().extend(self.logs.drain(before..));
        }
        self.beside.extend(groups.into_values());
    }

    /// Adds the files of a folder. `kept`: where another process may move its boxes meanwhile.
    fn folder(
        &mut self,
        folder: &Path,
        place: Place,
        description: Option<&Description>,
        kept: Option<&Path>,
    ) {
        let is_file = |path: &Path| !input_files::is_dir(path) && !BoxDir::is_partial(path);
        let entries = match below::entries(folder, is_file) {
            Ok(entries) => entries,
            // It was moved.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(error) => return self.remark(folder, reason(&error)),
        };
        for path in entries {
            match kind_of(&path) {
                Ok(FileKind::Journal) => self.journal(&path, place, description),
                Ok(FileKind::BlackBox) => self.black_box(&path, place, kept),
                Ok(FileKind::FlightRecorder) => self.dump(&path),
                Ok(kind) if !self.marker(&path, place) => self.other(&path, kind),
                Ok(_) => {}
                Err(error) => self.closed(&path, error),
            }
        }
    }

    /// Adds the dumps in subdirectories, of which there may be one for each host.
    fn dumps_below(&mut self, dir: &Path, below: &Below) {
        for path in &below.files {
            match kind_of(path) {
                Ok(FileKind::FlightRecorder) => self.dump(path),
                Ok(kind) => self.other(path, kind),
                Err(error) => self.closed(path, error),
            }
        }
        for (folder, error) in &below.closed {
            self.remark(folder, reason(error));
        }
        if below.is_cut {
            let text = format!("only the first {MAX_FILES} files below it are examined");
            self.remark(dir, text);
        }
    }

    /// A file of a folder that is not evidence of a known kind.
    fn other(&mut self, path: &Path, kind: FileKind) {
        let why = match kind {
            FileKind::Empty => "the file is empty",
            FileKind::Unknown => PACKED,
            _ => return,
        };
        self.closed(path, io::Error::new(io::ErrorKind::InvalidData, why));
    }

    fn closed(&mut self, path: &Path, error: io::Error) {
        // It was moved.
        if error.kind() != io::ErrorKind::NotFound {
            self.closed.push((path.to_owned(), error));
        }
    }

    fn journal(&mut self, path: &Path, place: Place, description: Option<&Description>) {
        if !self.takes(path) {
            return;
        }
        match first_event(path) {
            Ok(Some((segment, hello))) => self.journals.push(JournalFile {
                path: path.to_owned(),
                segment,
                later: Vec::new(),
                place,
                goes_on: description.is_some_and(Description::is_running_here),
                hello,
            }),
            Ok(None) => self.gap(
                path,
                place,
                "the journal was cut off before it identifies its job: pass the black boxes of its \
                 ranks instead"
                    .into(),
            ),
            Err(JournalError::Io(error)) => self.gap(path, place, reason(&error)),
            Err(error @ JournalError::Version(_)) => {
                let text = format!("{error}: analyze it with the ddp-doctor that wrote it");
                self.gap(path, place, text);
            }
            Err(error @ (JournalError::NotAJournal | JournalError::Limit(_))) => {
                self.gap(path, place, error.to_string());
            }
        }
    }

    fn black_box(&mut self, path: &Path, place: Place, kept: Option<&Path>) {
        if !self.takes(path) {
            return;
        }
        match blackbox::open(path) {
            Ok(reader) => self.boxes.push(BoxFile {
                path: path.to_owned(),
                moved: kept.and_then(|kept| Some(kept.join(path.file_name()?))),
                place,
                identity: reader.identity(),
            }),
            // It was moved.
            Err(error) if is_gone(&error) => {}
            Err(error) => {
                // The error text begins with the path.
                let text = error.to_string();
                let file = path.display().to_string();
                let text = match (&error, text.strip_prefix(&file)) {
                    (OpenError::Io { source, .. }, _) => reason(source),
                    (_, Some(rest)) => format!("this black box {}", rest.trim_start()),
                    _ => text,
                };
                self.gap(path, place, text);
            }
        }
    }

    fn dump(&mut self, path: &Path) {
        if self.takes(path) {
            self.dumps.push(path.to_owned());
        }
    }

    /// Adds the marker that a file is. Returns whether it is one.
    fn marker(&mut self, path: &Path, place: Place) -> bool {
        let marker = file_name(path).and_then(|name| NoBox::parse(&name));
        let Some(marker) = marker else {
            return false;
        };
        self.pieces += 1;
        self.no_boxes.push(NoBoxFile { place, marker });
        true
    }

    /// Records evidence that is unreadable.
    fn gap(&mut self, path: &Path, place: Place, text: String) {
        let name = file_name(path).unwrap_or_default();
        self.gaps.push(Gap { place, text: format!("{name} could not be read: {text}") });
        self.remark(path, text);
    }

    /// Whether the file was not taken before, under any name.
    fn takes(&mut self, path: &Path) -> bool {
        self.pieces += 1;
        match input_files::metadata(path) {
            Ok(metadata) => self.taken.insert((metadata.dev(), metadata.ino())),
            // Opening the file reports the error.
            Err(_) => true,
        }
    }
}

const NOTHING_IN_TEXT: &str = "nothing in this text states how a job ended: it has no such line of a launcher (torchrun, \
     Slurm, mpirun, Ray, Kubernetes, Lightning, Composer, DeepSpeed), PyTorch, NCCL (ncclras, too), HCCL, oneCCL, ACCL, \
     Horovod, JAX, vLLM, SGLang, ROCm or the NVIDIA driver, and no stacks";
const PACKED: &str = "this form of compression or archive is not read: unpack it";
const WANTED: &str = "pass run directories, journals, black boxes, Flight Recorder dumps (pickle or JSON), logs of a \
     job, or stacks as text";

/// Number of the segment and Hello of the journal; `None`: it ends before that.
fn first_event(path: &Path) -> Result<Option<(u32, v1::Hello)>, JournalError> {
    let mut reader = Reader::open(path)?;
    while let Some(report) = reader.read()? {
        let segment = report.segment.map_or(1, |it| it.number);
        match report.events.into_iter().next().and_then(|it| it.kind) {
            Some(Kind::Hello(hello)) => return Ok(Some((segment, hello))),
            // An empty report is only a sign of life.
            None => {}
            Some(_) => break,
        }
    }
    Ok(None)
}

/// Message about a directory without evidence; `runs`: run directories below it.
fn nothing_in(dir: &Path, runs: Vec<PathBuf>) -> String {
    let modified = |path: &PathBuf| input_files::metadata(path).ok()?.modified().ok();
    let mut runs: Vec<_> = runs.into_iter().map(|path| (modified(&path), word(&path))).collect();
    runs.sort();
    let names: Vec<&str> = runs.iter().rev().map(|(_, name)| name.as_str()).collect();
    match names.as_slice() {
        [] if input_files::metadata(&dir.join("report.json")).is_ok() => {
            "there is a report and no evidence: journal and black boxes are gone".into()
        }
        [] => format!(
            "it contains no evidence: no journal, no black box, no log that states a failure, and no \
             Flight Recorder dump here or in its subdirectories down to {MAX_DEPTH} levels"
        ),
        [one] => format!("this is not a run directory; there is one in it: {one}"),
        several => format!(
            "this is not a run directory; there are {} in it, the newest: {}",
            several.len(),
            several[..several.len().min(LISTED)].join(", ")
        ),
    }
}

fn file_name(path: &Path) -> Option<String> {
    Some(path.file_name()?.to_string_lossy().into_owned())
}

/// Why a file is unreadable, and what to do about it if possible.
fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "there is no such file or directory".into(),
        io::ErrorKind::PermissionDenied => {
            "permission denied: run this as the user who ran the job".into()
        }
        _ => format!("it cannot be read: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folded_texts(named: &[&str]) -> Vec<String> {
        let remark = |path: &str, text: &str| Remark { path: path.into(), text: text.into() };
        let mut remarks: Vec<Remark> =
            ["a", "b", "c", "d"].iter().map(|it| remark(&format!("/logs/{it}"), "why")).collect();
        remarks.insert(1, remark("/logs/e", "another reason"));
        remarks.extend(["f", "g", "h"].map(|it| remark(&format!("/other/{it}"), "why")));
        let named: Vec<PathBuf> = named.iter().map(PathBuf::from).collect();
        let folded = folded(remarks, &named);
        folded.iter().map(|it| format!("{}: {}", it.path.display(), it.text)).collect()
    }

    #[test]
    fn equal_remarks_on_many_entries_are_one() {
        let others = ["/other/f: why", "/other/g: why", "/other/h: why"];
        let first = ["/logs: each of 4 entries, such as a, b, c: why", "/logs/e: another reason"];
        assert_eq!(folded_texts(&[]), [&first[..], &others].concat());
        // What the user named has a line of its own.
        let each = ["/logs/a: why", "/logs/e: another reason", "/logs/b: why"];
        assert_eq!(
            folded_texts(&["/logs/a"]),
            [&each[..], &["/logs/c: why", "/logs/d: why"], &others].concat()
        );
    }
}

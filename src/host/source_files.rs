//! Source files of a job that may be read. Evidence chooses the names of files, and what a report shows of
//! them is published: so only files with the extension of a source file are read, and only below folders
//! that the evidence did not choose.
//!
//! The folders of a job that runs here, or ran here in a run directory of this user, are the working
//! directory and those of the program. Evidence from elsewhere has none, unless `--source` names one. Files of a
//! process in a container are read below the root directory of that process ([`ProcessRoot`]).
//!
//! A path that the evidence chose is looked up only if it is, as text, below such a folder, and links of other users
//! there are not followed: elsewhere, a lookup alone can mount the directory of another host, or never return.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use ddp_doctor_proto::report::Where;
use ddp_doctor_proto::words::{plain, source_line};
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};

use crate::input_files;

/// Extensions of source files.
const EXTENSIONS: [&str; 12] =
    ["c", "cc", "cpp", "cu", "cuh", "cxx", "h", "hpp", "ipynb", "py", "pyx", "rs"];
/// Maximum size of a source file that is read, in bytes.
const MAX_BYTES: u64 = 4 << 20;
/// Why no source is shown.
pub const NOT_SHOWN: &str = "source lines are not shown: the evidence is not of a run of yours on this machine, or it was \
                             moved; --source DIR names the folder of its program";

/// The root directory of a process for which paths name other files than for this one: in a container, or after
/// `chroot`.
#[derive(Clone, Debug)]
pub struct ProcessRoot(Arc<File>);

impl ProcessRoot {
    /// The root directory of a process; `None`: it is that of this process, or may not be read.
    #[must_use]
    pub fn open(pid: u32) -> Option<Self> {
        let opened = Self::of_process(pid).ok()?.0;
        let identity = |it: fs::Metadata| (it.dev(), it.ino());
        let is_same_directory =
            identity(opened.metadata().ok()?) == identity(fs::metadata("/").ok()?);
        let mounts = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
        let is_same = is_same_directory && mounts(&pid.to_string()) == mounts("self");
        (!is_same).then_some(Self(opened))
    }

    /// The root directory of a process, also if it is that of this process.
    ///
    /// # Errors
    ///
    /// If it may not be read.
    pub fn of_process(pid: u32) -> io::Result<Self> {
        let as_it_is = libc::O_PATH | libc::O_DIRECTORY;
        let mut options = File::options();
        options.read(true).custom_flags(as_it_is);
        Ok(Self(Arc::new(options.open(format!("/proc/{pid}/root"))?)))
    }

    /// Identifies a file of the process. Links are resolved as for the process, so that none leads out of its root
    /// directory. Kernels before 5.6 cannot do that.
    #[must_use]
    pub fn find(&self, file: &Path) -> Option<File> {
        let inside = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        openat2(&*self.0, file, flags, Mode::empty(), inside).ok().map(File::from)
    }

    /// Opens a file or directory of the process with `O_PATH`, by its absolute path there. No component may be a link: others in the
    /// container could have made it.
    ///
    /// # Errors
    ///
    /// If there is no such file, or on kernels before 5.6.
    pub fn reach(&self, file: &Path) -> io::Result<File> {
        let inside = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        Ok(openat2(&*self.0, file, flags, Mode::empty(), inside)?.into())
    }

    /// Canonical path, as this process knows it, of the folder of a source file, or of a directory.
    fn folder(&self, path: &Path) -> Option<PathBuf> {
        let found = self.find(path)?;
        let folder = match found.metadata().ok()? {
            it if it.is_dir() => canonical(&found)?,
            it if it.is_file() && is_source(path) => canonical(&found)?.parent()?.to_owned(),
            _ => return None,
        };
        (folder != canonical(&self.0)?).then_some(folder)
    }
}

/// A folder below which source files are read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Folder {
    /// Canonical path, as this process knows it.
    canonical: PathBuf,
    /// Paths without `..` by which the job may name it.
    names: Vec<PathBuf>,
}

/// The folders below which source files are read.
#[derive(Clone, Debug, Default)]
pub struct SourceFolders {
    folders: Vec<Folder>,
    /// Folders of processes with other root directories.
    in_roots: Vec<(ProcessRoot, Vec<Folder>)>,
    /// Folders that the user gave. The recorded path of a file may end in a path below them.
    given: Vec<Folder>,
}

impl Folder {
    /// A folder of this process; `None`: it does not exist, or its path has a link of another user.
    fn open(path: &Path) -> Option<Self> {
        Self::named(path, input_files::canonical(path).ok()?)
    }

    fn named(path: &Path, canonical: PathBuf) -> Option<Self> {
        Some(Self { names: vec![canonical.clone(), absolute(path)?], canonical })
    }

    /// The path below the folder of a path without `..`; `None`: as text, it is not below.
    fn below<'a>(&self, file: &'a Path) -> Option<&'a Path> {
        self.names.iter().find_map(|name| file.strip_prefix(name).ok())
    }
}

impl SourceFolders {
    /// Folders of a job of this user that runs on this machine, through whatever links it was started.
    #[must_use]
    pub fn of_program(folders: &[PathBuf]) -> Self {
        let open = |it: &PathBuf| Folder::named(it, it.canonicalize().ok()?);
        Self::opened(folders.iter().filter_map(open))
    }

    /// Folders that a job of this user recorded on this machine. Meanwhile, another user can have put a link in place of
    /// a part of their paths.
    #[must_use]
    pub fn of_record(folders: &[PathBuf]) -> Self {
        Self::opened(folders.iter().filter_map(|it| Folder::open(it)))
    }

    fn opened(folders: impl Iterator<Item = Folder>) -> Self {
        // Everything is below the root.
        let mut folders: Vec<Folder> =
            folders.filter(|it| it.canonical.parent().is_some()).collect();
        folders.sort();
        folders.dedup();
        Self { folders, ..Self::default() }
    }

    /// Folders of a process with this root directory, which runs a command in a working directory.
    #[must_use]
    pub fn in_root<T: AsRef<OsStr>>(
        root: ProcessRoot,
        command: &[T],
        working_directory: &Path,
    ) -> Self {
        let files = command.iter().map(|word| working_directory.join(word.as_ref()));
        let sources = files.filter(|file| is_source(file));
        let folder = |path: PathBuf| {
            let canonical = root.folder(&path)?;
            let named = absolute(if is_source(&path) { path.parent()? } else { &path })?;
            Some(Folder { canonical, names: vec![named] })
        };
        let all = sources.chain([working_directory.to_owned()]);
        let mut folders: Vec<Folder> = all.filter_map(folder).collect();
        folders.sort();
        folders.dedup();
        Self { in_roots: vec![(root, folders)], ..Self::default() }
    }

    /// The working directory, and the folders of source files among the words of a command, each by all paths that are
    /// known: links may lead to it.
    #[must_use]
    pub fn of_command<T: AsRef<OsStr>>(command: &[T], working_directory: &Path) -> Vec<PathBuf> {
        let files = command.iter().map(|word| working_directory.join(word.as_ref()));
        let sources = files.filter(|file| is_source(file) && file.is_file());
        let real = |file: &PathBuf| Some(file.canonicalize().ok()?.parent()?.to_owned());
        let named = |file: &PathBuf| Some(absolute(file)?.parent()?.to_owned());
        let folders = sources.flat_map(|file| [real(&file), named(&file)]).flatten();
        // A shell follows links by name.
        let by_shell = std::env::var_os("PWD")
            .map(PathBuf::from)
            .filter(|it| it.canonicalize().is_ok_and(|it| it.as_path() == working_directory));
        let mut folders: Vec<PathBuf> =
            folders.chain([working_directory.to_owned()]).chain(by_shell).collect();
        folders.sort();
        folders.dedup();
        folders
    }

    /// Adds folders that the user gave.
    #[must_use]
    pub fn and_given(mut self, folders: &[PathBuf]) -> Self {
        self.given.extend(folders.iter().filter_map(|it| Folder::open(it)));
        self
    }

    /// Whether no file is read.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let has_none = self.in_roots.iter().all(|(_, folders)| folders.is_empty());
        self.folders.is_empty() && self.given.is_empty() && has_none
    }

    /// Reads a source file as text; `None` if that is not admitted, or it cannot be read.
    #[must_use]
    pub fn read(&self, file: &str) -> Option<String> {
        let opened = self.open(Path::new(file))?;
        if opened.metadata().ok()?.len() > MAX_BYTES {
            return None;
        }
        let mut bytes = Vec::new();
        io::Read::read_to_end(&mut io::Read::take(opened, MAX_BYTES), &mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn open(&self, file: &Path) -> Option<File> {
        if self.is_empty() || !is_source(file) {
            return None;
        }
        let named = absolute(file)?;
        let here = || {
            let mut folders = self.folders.iter().chain(&self.given);
            folders.find_map(|it| open_below(it.below(&named)?, it))
        };
        let in_root = || {
            let mut folders = self
                .in_roots
                .iter()
                .flat_map(|(root, folders)| folders.iter().map(move |folder| (root, folder)));
            folders.find_map(|(root, folder)| {
                folder.below(&named)?;
                open_found_below(root.find(&named)?, folder)
            })
        };
        here().or_else(in_root).or_else(|| {
            // The job had another path to the program: the longest end of it that exists is taken.
            let parts: Vec<Component<'_>> = file.components().collect();
            let is_end =
                |parts: &[Component<'_>]| parts.iter().all(|it| matches!(it, Component::Normal(_)));
            let mut ends = (0..parts.len()).map(|from| &parts[from..]).filter(|it| is_end(it));
            ends.find_map(|end| {
                let end: PathBuf = end.iter().collect();
                self.given.iter().find_map(|folder| open_below(&end, folder))
            })
        })
    }
}

/// Lines of source files; each file is read once.
pub struct SourceLines {
    folders: SourceFolders,
    /// The lines of a file; none if it may not be read.
    files: HashMap<String, Vec<Box<str>>>,
}

impl SourceLines {
    /// Reads lines of files below these folders.
    #[must_use]
    pub fn below(folders: &SourceFolders) -> Self {
        Self { folders: folders.clone(), files: HashMap::new() }
    }

    /// The line at a place, as it is shown; `None` if its file may not be read.
    pub fn line(&mut self, place: &Where) -> Option<String> {
        let at = (place.line as usize).checked_sub(1)?;
        source_line(self.lines(place).get(at)?, 1)
    }

    /// The lines of a source file around a place, with their numbers.
    pub fn around(&mut self, place: &Where, lines: u32) -> Vec<(u32, String)> {
        let first = place.line.saturating_sub(lines).max(1);
        let numbers = first..=place.line.saturating_add(lines);
        let all = self.lines(place).iter().skip(first as usize - 1);
        numbers
            .zip(all)
            .map(|(number, line)| (number, plain(&line.replace('\t', "    "))))
            .collect()
    }

    fn lines(&mut self, place: &Where) -> &[Box<str>] {
        let (file, folders) = (&place.file, &self.folders);
        self.files.entry(file.clone()).or_insert_with(|| {
            let text = folders.read(file).unwrap_or_default();
            text.lines().map(Box::from).collect()
        })
    }
}

/// Opens a regular file that is a source file below a folder, once all links are resolved, by its path there. Links of
/// other users are not followed.
fn open_below(path: &Path, folder: &Folder) -> Option<File> {
    open_found_below(input_files::reach(&folder.canonical.join(path)).ok()?, folder)
}

/// Like [`open_below`], for a file that was identified (`O_PATH`) before it is opened for reading, and cannot be
/// exchanged in between.
fn open_found_below(found: File, folder: &Folder) -> Option<File> {
    let path = canonical(&found)?;
    let is_below = path.starts_with(&folder.canonical);
    if !is_below || !is_source(&path) || !found.metadata().ok()?.is_file() {
        return None;
    }
    input_files::reopen(&found).ok()
}

/// An absolute path without `.` and `..`, as text: nothing is looked up. `None`: it leads out of the root directory.
fn absolute(path: &Path) -> Option<PathBuf> {
    let mut found = PathBuf::from("/");
    for part in std::path::absolute(path).ok()?.components() {
        match part {
            Component::Normal(name) => found.push(name),
            Component::ParentDir => found.pop().then_some(())?,
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    Some(found)
}

/// Path of an open file without links.
fn canonical(file: &File) -> Option<PathBuf> {
    input_files::path_of(file).ok()
}

/// Whether a path has the extension of a source file.
#[must_use]
pub fn is_source(path: &Path) -> bool {
    path.extension().is_some_and(|it| EXTENSIONS.iter().any(|known| it == *known))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn only_source_files_below_the_folders_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let (program, home) = (dir.path().join("program"), dir.path().join("home"));
        fs::create_dir_all(program.join("lib")).unwrap();
        fs::create_dir(&home).unwrap();
        fs::write(program.join("lib/model.py"), "x").unwrap();
        fs::write(program.join("credentials"), "secret").unwrap();
        fs::write(home.join("settings.py"), "secret").unwrap();
        fs::write(home.join("credentials"), "secret").unwrap();
        symlink(home.join("settings.py"), program.join("link.py")).unwrap();
        symlink(program.join("credentials"), program.join("other.py")).unwrap();
        symlink(program.join("lib/model.py"), program.join("model.py")).unwrap();
        symlink(&home, program.join("home")).unwrap();
        let folders = SourceFolders::of_program(std::slice::from_ref(&program));
        let read = |file: &str| folders.read(program.join(file).to_str().unwrap());
        assert_eq!(read("lib/model.py").as_deref(), Some("x"));
        assert_eq!(read("model.py").as_deref(), Some("x"));
        for file in
            ["credentials", "link.py", "other.py", "home/settings.py", "../home/settings.py", "lib"]
        {
            assert_eq!(read(file), None, "{file}");
        }
        assert_eq!(folders.read(home.join("settings.py").to_str().unwrap()), None);
        assert_eq!(SourceFolders::default().read(program.join("model.py").to_str().unwrap()), None);
        assert!(SourceFolders::of_program(&["/".into()]).is_empty());
    }

    #[test]
    fn paths_elsewhere_are_not_looked_up() {
        let dir = tempfile::tempdir().unwrap();
        let (program, elsewhere) = (dir.path().join("program"), dir.path().join("elsewhere"));
        fs::create_dir(&program).unwrap();
        fs::write(program.join("model.py"), "x").unwrap();
        symlink(&program, &elsewhere).unwrap();
        let read = |folders: &SourceFolders, file: &str| {
            folders.read(dir.path().join(file).to_str().unwrap())
        };
        let folders = SourceFolders::of_program(std::slice::from_ref(&program));
        // That this link leads to the program would be known only after it was followed.
        for file in ["elsewhere/model.py", "elsewhere/../elsewhere/model.py"] {
            assert_eq!(read(&folders, file), None, "{file}");
        }
        // As text, this is below the program.
        assert_eq!(read(&folders, "absent/../program/model.py").as_deref(), Some("x"));
        let named = SourceFolders::of_command(&["elsewhere/model.py"], dir.path());
        let folders = SourceFolders::of_program(&named);
        for file in ["elsewhere/model.py", "program/model.py"] {
            assert_eq!(read(&folders, file).as_deref(), Some("x"), "{file}");
        }
    }

    #[test]
    fn special_and_large_files_are_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let folders = SourceFolders::of_program(&[dir.path().to_owned()]);
        let large = dir.path().join("large.py");
        File::create(&large).unwrap().set_len(MAX_BYTES + 1).unwrap();
        let fifo = dir.path().join("fifo.py");
        assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        fs::create_dir(dir.path().join("folder.py")).unwrap();
        for file in ["large.py", "fifo.py", "folder.py"] {
            assert_eq!(folders.read(dir.path().join(file).to_str().unwrap()), None, "{file}");
        }
    }

    #[test]
    fn given_folder_has_the_program_of_another_machine() {
        let dir = tempfile::tempdir().unwrap();
        let copy = dir.path().join("copy");
        fs::create_dir_all(copy.join("lib")).unwrap();
        fs::write(copy.join("lib/model.py"), "model").unwrap();
        fs::write(dir.path().join("other.py"), "other").unwrap();
        let folders = SourceFolders::default().and_given(std::slice::from_ref(&copy));
        assert_eq!(folders.read("/cluster/program/lib/model.py").as_deref(), Some("model"));
        assert_eq!(folders.read("lib/model.py").as_deref(), Some("model"));
        assert_eq!(
            folders.read(copy.join("lib/model.py").to_str().unwrap()).as_deref(),
            Some("model")
        );
        for file in ["/cluster/../other.py", "/x/lib/../../other.py", "/cluster/other.py"] {
            assert_eq!(folders.read(file), None, "{file}");
        }
    }

    #[test]
    fn folders_of_a_command_are_those_of_its_sources() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().canonicalize().unwrap();
        fs::create_dir_all(dir.join("program")).unwrap();
        fs::write(dir.join("program/train.py"), "").unwrap();
        let command = ["torchrun", "--nproc-per-node", "2", "program/train.py", "--lr", "none.py"];
        let folders = SourceFolders::of_command(&command, &dir);
        assert_eq!(folders, [dir.clone(), dir.join("program")]);
    }

    /// A process with a program below `/opt`, in mounts of its own; `None`: the system does not allow that.
    fn contained() -> Option<std::process::Child> {
        let script = "mount -t tmpfs none /opt && mkdir /opt/app /opt/other && cd /opt/app &&
            echo program > main.py && echo other > /opt/other/other.py && echo secret > secret &&
            ln -s /opt/app/main.py inside.py && ln -s /opt/other/other.py outside.py &&
            ln -s secret text.py && ln -s /proc/self/root/opt/app/main.py magic.py && echo ready && exec sleep 60";
        let mut unshare = std::process::Command::new("unshare");
        unshare.args(["--user", "--map-root-user", "--mount", "sh", "-c", script]);
        let output = unshare.stdout(std::process::Stdio::piped()).spawn();
        let mut child = output.ok()?;
        let mut ready = [0; 5];
        let begun = io::Read::read_exact(child.stdout.as_mut()?, &mut ready);
        begun.is_ok().then_some(child)
    }

    #[test]
    fn files_of_a_container_are_those_below_its_root() {
        let Some(mut child) = contained() else {
            return;
        };
        let root = ProcessRoot::open(child.id());
        let words = ["sleep", "/opt/other/absent.py"];
        let folders = root
            .map(|it| SourceFolders::in_root(it, &words, "/opt/app".as_ref()))
            .unwrap_or_default();
        let names = [
            "app/main.py",
            "app/inside.py",
            "app/outside.py",
            "other/other.py",
            "app/text.py",
            "app/magic.py",
            "app/../../opt/app/main.py",
        ];
        let read: Vec<Option<String>> =
            names.iter().map(|name| folders.read(&format!("/opt/{name}"))).collect();
        let here = SourceFolders::of_program(&["/opt/app".into()]).read("/opt/app/main.py");
        child.kill().unwrap();
        child.wait().unwrap();
        let program = Some("program\n".to_owned());
        let expected = [program.clone(), program.clone(), None, None, None, None, program];
        assert_eq!(read, expected);
        assert_eq!(here, None);
        assert!(ProcessRoot::open(std::process::id()).is_none());
    }
}

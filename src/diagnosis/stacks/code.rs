//! Classifies frames: the user's code, a library, or a wait in the standard library.

use ddp_doctor_proto::report::Where;

use crate::input::event::ThreadStack;
use crate::input::place::{is_of_capture, is_of_pytorch};

/// Modules of the standard library that wait for their callers. The position within them is
/// irrelevant: they poll.
const WAITING: &[&str] = &[
    "/queue.py",
    "/selectors.py",
    "/socket.py",
    "/ssl.py",
    "/subprocess.py",
    "/threading.py",
    "/concurrent/futures/_base.py",
    "/multiprocessing/connection.py",
    "/multiprocessing/popen_fork.py",
    "/multiprocessing/queues.py",
    "/multiprocessing/synchronize.py",
];

/// Modules of PyTorch that pass an operation of a tensor on to its implementation: `torch.set_default_device` puts
/// them between every operation and the line that calls it.
const PASSING: &[&str] = &["/torch/utils/_device.py", "/torch/overrides.py"];

/// The Python frames of a thread, split at the user's line.
#[derive(Debug)]
pub(super) struct Frames<'a> {
    all: &'a [Where],
    /// Innermost frame of the user's code.
    pub(super) line: Option<&'a Where>,
    /// Frames of libraries below it, innermost first, without those that only pass an operation on; all frames if
    /// none is the user's.
    pub(super) below: &'a [Where],
}

impl<'a> Frames<'a> {
    pub(super) fn new(thread: &'a ThreadStack) -> Self {
        let all = &thread.python[..];
        let at = all
            .iter()
            .position(|frame| is_users(&frame.file))
            .filter(|&at| !is_console_script(all, at))
            .or_else(|| installed_program(all));
        let below = &all[..at.unwrap_or(all.len())];
        let passes_on = |frame: &&Where| PASSING.iter().any(|end| frame.file.ends_with(end));
        let passing = below.iter().take_while(passes_on).count();
        Self { all, line: at.map(|at| &all[at]), below: &below[passing..] }
    }

    /// The function of PyTorch called by the user, if the thread is in one that issues collectives
    /// or waits for them.
    pub(super) fn collective(&self) -> Option<&'a Where> {
        let in_folder = |frame: &Where, folder: &str| frame.file.contains(folder);
        let saves =
            self.below.iter().any(|frame| in_folder(frame, "/torch/distributed/checkpoint/"));
        let mut called = self.below.iter().rev();
        called.find(|frame| {
            let logs = frame.file.ends_with("/c10d_logger.py");
            in_folder(frame, "/torch/distributed/") && !saves && !logs
                || in_folder(frame, "/torch/autograd/")
                || frame.file.ends_with("/torch/nn/parallel/distributed.py")
        })
    }

    /// The place of the thread, without the frames in which a wait polls.
    pub(super) fn standing(&self) -> &'a [Where] {
        let waits = |frame: &&Where| WAITING.iter().any(|end| is_stdlib(&frame.file, end));
        let waiting = self.all.iter().take_while(waits).count();
        &self.all[waiting..]
    }
}

/// Innermost frame of a program that is itself an installed package: the package of the outermost
/// frame.
fn installed_program(frames: &[Where]) -> Option<usize> {
    let program = frames
        .iter()
        .rev()
        .find_map(|frame| package(&frame.file))
        .filter(|name| *name != "torch")?;
    frames.iter().position(|frame| package(&frame.file) == Some(program))
}

/// Whether a frame is the script that an installer wrote beside a package, and that calls it.
fn is_console_script(frames: &[Where], at: usize) -> bool {
    let file = &frames[at].file;
    let script = file.rsplit_once("/bin/").map(|(root, _)| root);
    let called = at.checked_sub(1).and_then(|at| frames.get(at));
    let package = called
        .filter(|frame| package(&frame.file).is_some())
        .and_then(|frame| Some(frame.file.split_once("/lib/")?.0));
    let has_no_extension = !file.ends_with(".py");
    has_no_extension && frames[at].function == "<module>" && script.is_some() && script == package
}

/// Name of the installed package that a file belongs to.
fn package(file: &str) -> Option<&str> {
    let inner =
        ["/site-packages/", "/dist-packages/"].iter().find_map(|folder| file.split_once(folder))?.1;
    inner.split('/').next()
}

/// Whether a file belongs neither to an installed package, nor to the standard library, nor to the
/// capture.
pub(crate) fn is_users(file: &str) -> bool {
    // cloudpickle names all functions that it ships `<dynamic-code>`.
    let is_typed =
        file.starts_with("<ipython-input-") || matches!(file, "<stdin>" | "<dynamic-code>");
    !(file.is_empty()
        || file.starts_with('<') && !is_typed
        || package(file).is_some()
        || file.contains("/torchinductor_")
        || is_of_capture(file)
        || is_of_pytorch(file)
        || in_stdlib(file).is_some())
}

/// Whether the file is this module of the standard library, such as "/queue.py".
pub(super) fn is_stdlib(file: &str, module: &str) -> bool {
    in_stdlib(file) == Some(module)
}

/// Path within the standard library, with a leading slash: "/multiprocessing/queues.py". Its folder
/// is `lib/python3.11`, or of another version, wherever it is installed.
fn in_stdlib(file: &str) -> Option<&str> {
    if package(file).is_some() {
        return None;
    }
    let (_, rest) =
        ["/lib/python3.", "/lib64/python3."].iter().find_map(|folder| file.split_once(folder))?;
    let after_version = rest.trim_start_matches(|c: char| c.is_ascii_digit());
    // "python3.13t" is built without the global interpreter lock.
    let inner = after_version.strip_prefix('t').unwrap_or(after_version);
    inner.starts_with('/').then_some(inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_files_are_distinguished_from_libraries() {
        for users in [
            "train.py",
            "/home/me/python3.11/train.py",
            "/home/me/ddp_doctor/train.py",
            "mytorch/nn/train.py",
            "/job/queue.py",
            "<ipython-input-3-ab12>",
            "<dynamic-code>",
            "/tmp/ipykernel_17/12.py",
            "<stdin>",
        ] {
            assert!(is_users(users), "{users}");
        }
        for library in [
            "/usr/lib/python3.11/queue.py",
            "/opt/conda/lib/python3.13t/threading.py",
            "/venv/lib/python3.11/site-packages/requests/api.py",
            "/opt/site/torch/distributed/distributed_c10d.py",
            "torch/distributed/distributed_c10d.py",
            "<frozen importlib._bootstrap>",
            "<string>",
            "/tmp/torchinductor_me/ab/cab.py",
        ] {
            assert!(!is_users(library), "{library}");
        }
        assert!(is_stdlib("/usr/lib/python3.11/queue.py", "/queue.py"));
        assert!(!is_stdlib("/job/queue.py", "/queue.py"));
        assert!(is_stdlib(
            "/usr/lib64/python3.12/multiprocessing/queues.py",
            "/multiprocessing/queues.py"
        ));
    }

    #[test]
    fn installed_program_has_user_lines() {
        let frame = |file: &str| Where {
            file: file.into(),
            line: 1,
            function: "f".into(),
            ..Where::default()
        };
        let thread = ThreadStack {
            python: vec![
                frame("/v/lib/python3.11/socket.py"),
                frame("/v/lib/python3.11/site-packages/urllib3/connection.py"),
                frame("/v/lib/python3.11/site-packages/trainer/data.py"),
                frame("/v/lib/python3.11/site-packages/trainer/main.py"),
                frame("<frozen runpy>"),
            ],
            ..ThreadStack::default()
        };
        let frames = Frames::new(&thread);
        assert_eq!(frames.line, Some(&thread.python[2]));
        assert_eq!(frames.below.len(), 2);
    }

    #[test]
    fn console_script_is_passed_over() {
        let frame = |file: &str, function: &str| Where {
            file: file.into(),
            line: 1,
            function: function.into(),
            ..Where::default()
        };
        let called_from = |script: &str| ThreadStack {
            python: vec![
                frame("/v/lib/python3.11/socket.py", "recv"),
                frame("/v/lib/python3.11/site-packages/trainer/main.py", "main"),
                frame(script, "<module>"),
            ],
            ..ThreadStack::default()
        };
        let installed = called_from("/v/bin/train");
        assert_eq!(Frames::new(&installed).line, Some(&installed.python[1]));
        for own in ["/home/me/bin/train", "/v/bin/train.py"] {
            let own = called_from(own);
            assert_eq!(Frames::new(&own).line, Some(&own.python[2]));
        }
    }
}

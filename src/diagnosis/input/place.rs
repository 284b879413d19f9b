//! The user's line among the frames of a stack.

use ddp_doctor_proto::report::Where;

use crate::input::event::{Stacks, ThreadStack};

impl Stacks {
    /// The main thread, if it was captured.
    pub fn main(&self) -> Option<&ThreadStack> {
        self.threads.first()
    }

    /// Current place of the program: the user's line in its main thread.
    pub fn place(&self) -> Option<&Where> {
        users_frame(&self.main()?.python)
    }
}

/// The innermost of these frames, innermost first, that belongs to the user, not to PyTorch, the
/// capture or Python's own library. If there is none, the innermost of all.
pub fn users_frame(frames: &[Where]) -> Option<&Where> {
    let own = frames.iter().find(|frame| is_users(&frame.file));
    own.or(frames.first())
}

/// Whether a file belongs to the user's program, or to a package that it uses.
pub fn is_users(file: &str) -> bool {
    !(file.starts_with("<frozen ")
        || is_of_python(file)
        || is_of_capture(file)
        || is_of_pytorch(file))
}

/// Whether it is a file of PyTorch, which may also be in a source tree or in a folder of `PYTHONPATH`. Files in a program
/// of PyInstaller have relative names.
pub(crate) fn is_of_pytorch(file: &str) -> bool {
    const FOLDERS: [&str; 7] = [
        "-packages/torch/",
        "/torch/_",
        "/torch/autograd/",
        "/torch/distributed/",
        "/torch/nn/",
        "/torch/optim/",
        "/torch/utils/",
    ];
    let is_in = |folder: &&str| {
        file.contains(*folder) || folder.strip_prefix('/').is_some_and(|it| file.starts_with(it))
    };
    FOLDERS.iter().any(is_in)
}

/// Whether it is a file of the Python package. A user's folder may have the same name.
pub(crate) fn is_of_capture(file: &str) -> bool {
    file.contains("/ddp_doctor/_") || file.contains("/ddp_doctor/activate/")
}

/// Whether it is a file such as `…/lib/python3.11/queue.py`, but not
/// `…/lib/python3.11/site-packages/numpy/…`.
fn is_of_python(file: &str) -> bool {
    let library = file.split_once("/lib/python3.").or_else(|| file.split_once("/lib64/python3."));
    library.is_some_and(|(_, rest)| !rest.contains("-packages/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_frame_is_found_behind_library_frames() {
        let frame = |file: &str, line| Where {
            file: file.into(),
            line,
            function: "f".into(),
            ..Where::default()
        };
        let frames = [
            frame("/usr/lib/python3.11/threading.py", 1),
            frame("/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py", 2),
            frame("<frozen importlib._bootstrap>", 3),
            frame("/x/ddp_doctor/_hooks.py", 4),
            frame("train.py", 5),
            frame("main.py", 6),
        ];
        assert_eq!(users_frame(&frames), Some(&frames[4]));
        assert_eq!(users_frame(&frames[..3]), Some(&frames[0]));
        assert_eq!(users_frame(&[]), None);
        for users in [
            "/home/torch/train.py",
            "/home/me/ddp_doctor/train.py",
            "/venv/lib/python3.11/site-packages/numpy/x.py",
        ] {
            assert!(is_users(users), "{users}");
        }
    }
}

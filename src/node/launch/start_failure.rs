//! Why a command could not be started, and what to do.

use std::ffi::OsString;
use std::io;
use std::path::Path;

use ddp_doctor_host::proc;

/// The line for the user about a command that could not be started.
pub(super) fn line(command: &[OsString], error: &io::Error) -> String {
    let name = command.first().map(|it| it.display().to_string());
    let Some(name) = proc::without_secrets(name.into_iter().collect()).pop() else {
        return error.to_string();
    };
    let is_script = Path::new(&name).extension().is_some_and(|it| it == "py");
    let start = format!("`ddp-doctor run --nproc-per-node N {name}` starts it with torchrun");
    match error.kind() {
        io::ErrorKind::NotFound if name == "torchrun" => {
            "torchrun is not on PATH: activate the environment of PyTorch".into()
        }
        io::ErrorKind::NotFound if name.contains('/') => format!("{name} does not exist"),
        io::ErrorKind::NotFound if is_script => format!("{name} is not on PATH: {start}"),
        io::ErrorKind::NotFound => format!("{name} is not on PATH"),
        io::ErrorKind::PermissionDenied if is_script => {
            format!("{name} is not executable: {start}")
        }
        _ => format!("{name}: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_states_what_to_do() {
        let said = |name: &str, kind: io::ErrorKind| line(&[name.into()], &kind.into());
        let missing = io::ErrorKind::NotFound;
        assert_eq!(
            said("train.py", missing),
            "train.py is not on PATH: `ddp-doctor run --nproc-per-node N train.py` starts it with torchrun"
        );
        assert_eq!(
            said("torchrun", missing),
            "torchrun is not on PATH: activate the environment of PyTorch"
        );
        assert_eq!(said("srun", missing), "srun is not on PATH");
        assert_eq!(said("./run.sh", missing), "./run.sh does not exist");
        let denied = said("./train.py", io::ErrorKind::PermissionDenied);
        assert!(denied.starts_with("./train.py is not executable: `ddp-doctor run"), "{denied}");
    }
}

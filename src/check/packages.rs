//! Versions of the Python packages that a command will load, without importing them.

use std::collections::BTreeMap;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ddp_doctor_agent::files;
use ddp_doctor_agent::trust::{self, Origin};
use ddp_doctor_host::{input_files, sys};
use ddp_doctor_node::launch::secrets;
use ddp_doctor_node::sample::environment;

/// Time limit for the interpreter.
const ANSWER: Duration = Duration::from_secs(20);
/// Maximum length of its answer, in bytes.
const MAX_ANSWER: u64 = 16 << 10;
/// Maximum length of a line that names an interpreter, in bytes.
const MAX_LINE: u64 = 512;
/// Maximum length of the settings of a virtual environment, in bytes.
const MAX_SETTINGS: u64 = 64 << 10;
/// The running program.
const OWN: &str = "/proc/self/exe";

/// Prints versions, one line each, from the metadata of packages and from a file of PyTorch. The interpreter is started
/// without `site` and the variables of Python, so that no code of a package, of a `.pth` file or of the working directory
/// is executed; the folders that it would search are only read.
const SCRIPT: &str = r#"
import os, re, sys, sysconfig
from importlib import metadata
version = "python%d.%d" % sys.version_info[:2]
prefix = os.path.dirname(os.path.dirname(os.path.abspath(sys.executable)))
folders = [it for it in os.environ.get("PYTHONPATH", "").split(":") if it.startswith("/")]
folders.append(os.path.join(prefix, "lib", version, "site-packages"))
try:
    with open(os.path.join(prefix, "pyvenv.cfg")) as file:
        is_alone = re.search(r"include-system-site-packages\s*=\s*true", file.read(65536), re.I) is None
except OSError:
    is_alone = False
if not is_alone:
    folders.append(os.path.join(os.path.expanduser("~"), ".local/lib", version, "site-packages"))
    folders += [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    folders += ["/usr/local/lib/%s/dist-packages" % version, "/usr/lib/python3/dist-packages"]
sys.path += folders
found = {"python": "%d.%d.%d" % sys.version_info[:3]}
try:
    torch = metadata.distribution("torch")
    found["torch"] = torch.version
    with open(torch.locate_file("torch/version.py")) as file:
        text = file.read(65536)
    for name, pattern in (("torch", r"__version__\b"), ("torch.cuda", r"cuda\b")):
        match = re.search(r"^%s[^=\n]*=\s*['\"]([^'\"]+)" % pattern, text, re.M)
        if match:
            found[name] = match.group(1)
    if "torch.cuda" in found:
        package = "nvidia-nccl-cu" + found["torch.cuda"].split(".")[0]
        found["nccl"] = metadata.version(package)
except Exception:
    pass
for name, version in found.items():
    print(name, version, sep="\t")
"#;

/// Versions by name; empty if no interpreter is known or it does not answer.
///
/// # Errors
///
/// If the command may start another interpreter, or the same one as another user, such as `sudo -u`: whatever it loads at
/// its start would then be executed as this user.
pub(super) fn versions(command: &[OsString]) -> Result<BTreeMap<String, String>, String> {
    let Some(Interpreter { path, named_by, started_by }) = interpreter(command) else {
        return Ok(BTreeMap::new());
    };
    if let Some(words) = started_by {
        let by = Path::new(&command[0]).display();
        if !is_passed_on(&words) {
            return Err(format!("{by} may start Python as another user"));
        }
        // The program may start it in another directory, container or host, where it is another file.
        if !path.is_absolute() {
            return Err(format!("{by} may start another Python"));
        }
        if let Some(script) = &named_by {
            trusted(script, Origin::Named)?;
        }
        check_python(&path)?;
    }
    let lines = ask(&path).unwrap_or_default();
    let known = ["python", "torch", "torch.cuda", "nccl"];
    let pairs = lines
        .lines()
        .filter_map(|line| line.split_once('\t'))
        .filter(|(name, _)| known.contains(name));
    Ok(pairs.map(|(name, version)| (name.to_owned(), version.trim().to_owned())).collect())
}

/// Checks that no other user can change a Python, or what it loads as it starts: it reads `pyvenv.cfg` in its folder and in
/// the one above, before links are resolved, and searches all folders above for its library afterwards.
///
/// # Errors
///
/// Describes what another user can change.
fn check_python(path: &Path) -> Result<(), String> {
    trusted(&trusted(path, Origin::Named)?, Origin::Python)?;
    for folder in path.ancestors().skip(1).take(2) {
        trusted(folder, Origin::Named)?;
        let settings = folder.join("pyvenv.cfg");
        let own = Path::new(OWN);
        if trust::resolve_existing(&settings, Origin::Named, own)?.is_none() {
            continue;
        }
        let text = input_files::read_text(&settings, MAX_SETTINGS).map_err(|it| it.to_string())?;
        let mut pairs = text.lines().filter_map(|line| line.split_once('='));
        if let Some((_, home)) = pairs.find(|(name, _)| name.trim().eq_ignore_ascii_case("home")) {
            let home = trusted(Path::new(home.trim()), Origin::Named)?;
            trusted(&home, Origin::Python)?;
        }
    }
    Ok(())
}

fn trusted(path: &Path, origin: Origin) -> Result<PathBuf, String> {
    trust::resolve(path, origin, Path::new(OWN))
}

/// The command that asks an interpreter. Modules that it loads at its start inherit no secret.
fn question(python: &Path) -> Command {
    let mut command = Command::new(python);
    command.args(["-I", "-S", "-c", SCRIPT]).env(environment::SWITCH, "0");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    secrets::remove_from(&mut command);
    command
}

fn ask(python: &Path) -> Option<String> {
    let mut child = question(python).spawn().ok()?;
    let answer = child.stdout.take();
    let read = move || {
        let mut text = String::new();
        let limited = answer?.take(MAX_ANSWER).read_to_string(&mut text);
        limited.ok().map(|_| text)
    };
    let text = sys::within(ANSWER, read).flatten();
    end(child);
    text
}

/// Ends a process that has answered or never will.
fn end(mut child: Child) {
    child.kill().ok();
    child.wait().ok();
}

/// A Python interpreter.
#[derive(Debug, PartialEq, Eq)]
struct Interpreter {
    path: PathBuf,
    /// The script whose first line names it.
    named_by: Option<PathBuf>,
    /// The words of another program that starts it; `None`: starting the command executes it as this user.
    started_by: Option<Vec<OsString>>,
}

/// The Python interpreter that a command names; without a command, the first one on `PATH`.
fn interpreter(command: &[OsString]) -> Option<Interpreter> {
    if command.is_empty() {
        let path = on_path("python3".as_ref(), true)?;
        return Some(Interpreter { path, named_by: None, started_by: None });
    }
    command.iter().enumerate().find_map(|(index, word)| {
        let name = Path::new(word).file_name()?.to_str()?;
        let is_launcher = matches!(name, "torchrun" | "accelerate");
        // Other words, such as those that name data, are not looked up.
        let file = (is_launcher || is_python(name)).then(|| on_path(word, index == 0))??;
        // What a relative script is in another directory is unknown.
        let is_read = is_launcher && (index == 0 || file.is_absolute());
        let started_by = (index > 0).then(|| command[..index].to_vec());
        Some(if is_read {
            Interpreter {
                path: interpreter_of(&file, index == 0)?,
                named_by: Some(file),
                started_by,
            }
        } else {
            Interpreter { path: file, named_by: None, started_by }
        })
    })
}

/// Whether what precedes a program executes it as the same user, as far as this is known of its options.
fn is_passed_on(words: &[OsString]) -> bool {
    const PROGRAMS: [&str; 8] =
        ["nice", "nohup", "numactl", "srun", "stdbuf", "taskset", "time", "timeout"];
    /// Beginnings of the options of `srun` that change the user.
    const USERS: [&str; 2] = ["--ui", "--gi"];
    let mut words = words.iter().map(|it| it.to_str().unwrap_or_default());
    let program = words.next().and_then(|it| it.rsplit('/').next()).unwrap_or_default();
    let is_assignment = |word: &str| !word.starts_with('-') && word.contains('=');
    let is_plain = |word: &str| {
        let is_number = !word.is_empty() && word.bytes().all(|it| it.is_ascii_digit());
        let names_user = USERS.iter().any(|it| word.starts_with(it));
        (is_number || word.starts_with('-')) && !names_user && !word.contains(char::is_whitespace)
    };
    if program == "env" {
        words.all(is_assignment)
    } else {
        PROGRAMS.contains(&program) && words.all(is_plain)
    }
}

fn is_python(name: &str) -> bool {
    let version = name.strip_prefix("python");
    version.is_some_and(|it| it.chars().all(|c| c.is_ascii_digit() || c == '.'))
}

/// The interpreter in the first line of a script. `is_executed`: the command itself would execute the script.
fn interpreter_of(script: &Path, is_executed: bool) -> Option<PathBuf> {
    let mut line = String::new();
    let file = File::open(script).ok()?.take(MAX_LINE);
    BufReader::new(file).read_line(&mut line).ok()?;
    let mut words = line.strip_prefix("#!")?.split_whitespace();
    let program = Path::new(words.next()?);
    if program.file_name()? == "env" {
        let name = words.next().filter(|it| is_python(it))?;
        return on_path(name.as_ref(), is_executed);
    }
    is_python(program.file_name()?.to_str()?).then(|| program.to_owned())
}

/// The file that a shell would execute, unless it is on a file system of another user, which may never answer. Links of
/// other users are followed only to what the command itself would execute.
fn on_path(program: &OsStr, is_executed: bool) -> Option<PathBuf> {
    let is_file = |path: &Path| {
        let found = if is_executed { files::find(path) } else { files::find_by_own_links(path) };
        found.and_then(|it| File::from(it).metadata()).is_ok_and(|it| it.is_file())
    };
    let path = Path::new(program);
    if path.components().count() > 1 {
        return is_file(path).then(|| path.to_owned());
    }
    let search_path = env::var_os("PATH")?;
    // Others lead to the working directory, which may be another user's.
    let dirs = env::split_paths(&search_path).filter(|dir| dir.is_absolute());
    dirs.map(|dir| dir.join(program)).find(|it| is_file(it))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A folder that is not below one of all users, as that for temporary files is: the working directory of tests is that
    /// of the package.
    fn folder() -> tempfile::TempDir {
        tempfile::tempdir_in(env::current_dir().unwrap()).unwrap()
    }

    fn script(dir: &Path, name: &str, text: &str) -> OsString {
        let path = dir.join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path.into_os_string()
    }

    #[test]
    fn interpreter_inherits_no_secret() {
        let command = question(Path::new("python3"));
        for name in ["DDP_DOCTOR_TOKEN", "DDP_DOCTOR_METRICS_TOKEN", "DDP_DOCTOR_WEBHOOK"] {
            assert!(command.get_envs().any(|it| it == (OsStr::new(name), None)), "{name}");
        }
    }

    #[test]
    fn interpreter_is_that_of_the_command() {
        let dir = folder();
        let python = script(dir.path(), "python3.11", "");
        let shebang = format!("#!{}\nimport re\n", python.to_str().unwrap());
        let torchrun = script(dir.path(), "torchrun", &shebang);
        let found = |words: &[&OsString]| {
            let words: Vec<OsString> = words.iter().map(|it| (*it).clone()).collect();
            interpreter(&words)
        };
        let train = OsString::from("train.py");
        let expected = |named_by: Option<&OsString>, started_by| Interpreter {
            path: PathBuf::from(&python),
            named_by: named_by.map(PathBuf::from),
            started_by,
        };
        assert_eq!(found(&[&torchrun, &train]).unwrap(), expected(Some(&torchrun), None));
        assert_eq!(found(&[&python, &train]).unwrap(), expected(None, None));
        let srun = OsString::from("srun");
        let by_srun = expected(Some(&torchrun), Some(vec![srun.clone()]));
        assert_eq!(found(&[&srun, &torchrun]).unwrap(), by_srun);
        assert_eq!(found(&[&train]), None);
        // `env` finds any program, such as `script`, to which the same words mean something else.
        for line in ["#!/usr/bin/env sh\n", "#!/usr/bin/env -S python3\n", "#!/bin/sh\n"] {
            assert_eq!(found(&[&script(dir.path(), "torchrun", line)]), None, "{line}");
        }
    }

    #[test]
    fn interpreter_that_may_be_started_as_another_user_is_not_executed() {
        let dir = folder();
        let python = script(dir.path(), "python", "#!/bin/sh\nprintf 'torch\\t2.9.0\\n'\n");
        let found = |words: &str| {
            let before = words.split(' ').map(OsString::from);
            versions(&before.chain([python.clone()]).collect::<Vec<_>>())
        };
        for same in ["env A=b", "srun -n 8 --mpi=none", "/usr/bin/timeout 60", "numactl -N0"] {
            assert_eq!(found(same).unwrap().len(), 1, "{same}");
        }
        for other in [
            "sudo -u bob",
            "setpriv --reuid 7",
            "env sudo",
            "srun --uid=bob",
            "docker run image",
            "env -S sudo",
        ] {
            assert!(
                found(other).unwrap_err().ends_with("may start Python as another user"),
                "{other}"
            );
        }
    }

    #[test]
    fn changeable_interpreter_is_executed_for_no_other_program() {
        let dir = folder();
        let shared = dir.path().join("shared");
        fs::create_dir(&shared).unwrap();
        let python = script(&shared, "python", "#!/bin/sh\nprintf 'torch\\t2.9.0\\n'\n");
        let torchrun = script(dir.path(), "torchrun", &format!("#!{}\n", python.display()));
        let by_srun = |word: &OsString| versions(&["srun".into(), word.clone()]);
        for word in [&python, &torchrun] {
            assert_eq!(by_srun(word).unwrap().len(), 1);
        }
        fs::set_permissions(&shared, fs::Permissions::from_mode(0o777)).unwrap();
        for word in [&python, &torchrun] {
            let refused = by_srun(word).unwrap_err();
            assert!(refused.ends_with("shared is writable by other users"), "{refused}");
        }
        // The same for a script that names the interpreter of the system.
        let shebang = "#!/usr/bin/env python3\n";
        let torchrun = script(&shared, "torchrun", shebang);
        let refused = by_srun(&torchrun).unwrap_err();
        assert!(refused.ends_with("shared is writable by other users"), "{refused}");
        // The first word is executed by the command itself.
        assert_eq!(versions(&[python]).unwrap().len(), 1);
    }

    /// Python reads `pyvenv.cfg` above the folder of an interpreter, and searches its library in all folders above.
    #[test]
    fn python_below_a_folder_to_which_others_can_add_is_not_executed() {
        let dir = folder();
        let place = dir.path().join("shared");
        let (bin, own) = (place.join("bin"), place.join("own"));
        fs::create_dir_all(&bin).unwrap();
        fs::create_dir_all(own.join("bin")).unwrap();
        let python = script(dir.path(), "python", "#!/bin/sh\nprintf 'torch\\t2.9.0\\n'\n");
        for folder in [&bin, &own.join("bin")] {
            std::os::unix::fs::symlink(&python, folder.join("python")).unwrap();
        }
        let by_srun = |path: &Path| versions(&["srun".into(), path.join("python").into()]);
        assert_eq!(by_srun(&bin).unwrap().len(), 1);
        fs::set_permissions(&place, fs::Permissions::from_mode(0o1777)).unwrap();
        let refused = by_srun(&bin).unwrap_err();
        assert!(refused.ends_with("shared is writable by other users"), "{refused}");
        // A virtual environment in a folder of all users.
        assert_eq!(by_srun(&own.join("bin")).unwrap().len(), 1);
        // The same with an interpreter that lies there.
        fs::write(own.join("pyvenv.cfg"), format!("home = {}\n", own.display())).unwrap();
        let refused = by_srun(&own.join("bin")).unwrap_err();
        assert!(refused.ends_with("shared is writable by other users"), "{refused}");
        fs::write(own.join("pyvenv.cfg"), format!("home = {}\n", dir.path().display())).unwrap();
        assert_eq!(by_srun(&own.join("bin")).unwrap().len(), 1);
        script(&own, "python", "#!/bin/sh\n");
        let refused = by_srun(&own).unwrap_err();
        assert!(refused.ends_with("shared is writable by other users"), "{refused}");
    }

    #[test]
    fn relative_script_names_no_interpreter_for_another_program() {
        let dir = folder();
        let python = script(dir.path(), "python", "#!/bin/sh\nprintf 'torch\\t2.9.0\\n'\n");
        let absolute = fs::canonicalize(&python).unwrap();
        let torchrun = script(dir.path(), "torchrun", &format!("#!{}\n", absolute.display()));
        for word in [&python, &torchrun] {
            let word =
                Path::new(word).strip_prefix(env::current_dir().unwrap()).unwrap_or(word.as_ref());
            let refused =
                versions(&["srun".into(), "--chdir=/proj".into(), word.into()]).unwrap_err();
            assert!(refused.ends_with("may start another Python"), "{refused}");
        }
    }

    #[test]
    fn known_versions_are_read_from_the_answer() {
        let dir = folder();
        let answer = "#!/bin/sh\nprintf 'torch\\t2.9.0\\nnoise\\nother\\t1\\nnccl\\t2.27.3\\n'\n";
        let python = script(dir.path(), "python", answer);
        let found = versions(&[python]).unwrap();
        let expected =
            [("nccl", "2.27.3"), ("torch", "2.9.0")].map(|(a, b)| (a.to_owned(), b.to_owned()));
        assert_eq!(found, BTreeMap::from(expected));
        assert_eq!(versions(&["/nowhere/python".into()]), Ok(BTreeMap::new()));
    }
}

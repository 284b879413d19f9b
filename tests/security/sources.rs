//! Source lines in reports: evidence chooses the files that it names, so only files of the job's program are
//! read, and none for evidence of others.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use ddp_doctor::evidence::journal::{Reader, Writer};
use ddp_doctor_proto::v1::event::Kind;
use tempfile::TempDir;

use super::victim::beside_silent_mount;
use crate::support::evidence::{analyze, stderr, stdout};
use crate::support::process::{program, run_to_end};
use crate::support::scenario::Scenario;

const LINE: &str = "line_of_the_program";
const SECRET: &str = "line_of_a_secret";
const NOT_SHOWN: &str = "source lines are not shown";
/// Formats that show source lines.
const FORMATS: [&str; 3] = ["text", "markdown", "html"];

/// A program and the directory of a run of it, whose journal names files of the program and of the user.
struct Job {
    dir: TempDir,
    program: PathBuf,
}

impl Job {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (program_folder, home) = (dir.path().join("program"), dir.path().join("home"));
        fs::create_dir_all(program_folder.join("lib")).unwrap();
        fs::create_dir(&home).unwrap();
        fs::write(program_folder.join("train.py"), format!("import torch\n{LINE}()\n")).unwrap();
        for file in ["credentials", "settings.py"] {
            fs::write(home.join(file), format!("[default]\n{SECRET} = 1\n")).unwrap();
        }
        std::os::unix::fs::symlink(home.join("settings.py"), program_folder.join("lib/link.py"))
            .unwrap();
        let job = Self { program: program_folder, dir };
        let mut run = program(&job.program);
        run.args(["run", "--run-dir", "../run", "--", "true"]);
        assert_eq!(run_to_end(run).status, Some(0));
        job.name("train.py", &job.home("credentials"));
        job
    }

    fn home(&self, file: &str) -> String {
        self.dir.path().join("home").join(file).display().to_string()
    }

    fn run_dir(&self) -> PathBuf {
        self.dir.path().join("run")
    }

    /// Replaces the journal by one that names two files.
    fn name(&self, one: &str, other: &str) {
        let events = format!(
            "1.0 0 all_reduce f32[8] sum @{one}:2\n1.5 1 barrier @{other}:2\n1.6 0 lost 1\n3.0 - ends\n"
        );
        let text = format!(
            "about = \"two ranks make different calls\"\nworld = 2\nevents = \"\"\"\n{events}\"\"\"\n[[expect]]\ncode = \"DD103\"\n"
        );
        let scenario = Scenario::parse(&text).unwrap();
        let scratch = tempfile::tempdir().unwrap();
        let journal = scenario.journals(scratch.path(), 1).unwrap().remove(0);
        fs::copy(journal, self.run_dir().join("journal.ddpj")).unwrap();
    }

    /// Output of `analyze` in the folder of the program, and on standard error.
    #[track_caller]
    fn analyze(&self, path: &Path, format: &str, options: &[&str]) -> (String, String) {
        let arguments = [&[path.to_str().unwrap(), "--format", format], options].concat();
        let output = analyze(&self.program, &arguments);
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        (stdout(&output), stderr(&output))
    }
}

#[test]
fn own_run_shows_sources_of_its_program_alone() {
    let job = Job::new();
    for other in [job.home("credentials"), job.home("settings.py"), "lib/link.py".into()] {
        job.name("train.py", &other);
        for format in FORMATS {
            let (said, errors) = job.analyze(&job.run_dir(), format, &[]);
            assert!(said.contains(LINE), "{format}: {said}");
            assert!(!said.contains(SECRET), "{format}, {other}: {said}");
            assert_eq!(errors, "", "{format}");
        }
    }
    // Elsewhere the folder is known from the directory of the run.
    let away = tempfile::tempdir().unwrap();
    job.name(job.program.join("train.py").to_str().unwrap(), &job.home("credentials"));
    let output = analyze(away.path(), &[job.run_dir().to_str().unwrap()]);
    assert!(stdout(&output).contains(LINE), "{}", stdout(&output));
}

/// Gives the job in a journal another name.
fn rename_job(journal: &Path, name: &str) {
    let mut reader = Reader::open(journal).unwrap();
    let mut reports = Vec::new();
    while let Some(mut report) = reader.read().unwrap() {
        for event in &mut report.events {
            if let Some(Kind::Hello(hello)) = &mut event.kind {
                name.clone_into(&mut hello.job);
            }
        }
        reports.push(report);
    }
    fs::remove_file(journal).unwrap();
    let mut writer = Writer::create(journal).unwrap();
    reports.iter().for_each(|report| writer.append(report).unwrap());
}

/// A report shows files of the program of its own job, whatever other evidence is read with it.
#[test]
fn report_shows_no_source_of_another_job() {
    let (job, other) = (Job::new(), Job::new());
    let file = job.program.join("train.py");
    other.name(file.to_str().unwrap(), file.to_str().unwrap());
    rename_job(&other.run_dir().join("journal.ddpj"), "another");
    job.name(file.to_str().unwrap(), file.to_str().unwrap());
    let away = tempfile::tempdir().unwrap();
    let [own, others] = [&job, &other].map(|it| it.run_dir().display().to_string());
    for format in FORMATS {
        let count = |paths: &[&str]| {
            let said = stdout(&analyze(away.path(), &[&["--format", format], paths].concat()));
            assert_eq!(said.matches("job another").count(), usize::from(paths.len() > 1), "{said}");
            said.matches(LINE).count()
        };
        let alone = count(&[&own]);
        assert!(alone > 0, "{format}");
        assert_eq!(count(&[&own, &others]), alone, "{format}");
    }
    let mut watch = program(away.path());
    watch.args(["watch", "--once", &own, &others]);
    let finished = run_to_end(watch);
    assert!(finished.stdout.contains("another") && !finished.stdout.contains(LINE), "{finished}");
}

#[test]
fn evidence_of_others_shows_sources_only_where_the_user_says() {
    let job = Job::new();
    let copy = job.dir.path().join("copy");
    assert!(
        Command::new("cp").args(["-a"]).args([&job.run_dir(), &copy]).status().unwrap().success()
    );
    let log = job.dir.path().join("job.log");
    let lines = [
        "Traceback (most recent call last):".to_owned(),
        format!("  File \"{}\", line 2, in <module>", job.home("settings.py")),
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied".to_owned(),
    ];
    fs::write(&log, lines.map(|line| format!("[rank1]: {line}\n")).concat()).unwrap();
    let journal = job.run_dir().join("journal.ddpj");
    for path in [&copy, &journal, &log] {
        for format in FORMATS {
            let (said, errors) = job.analyze(path, format, &[]);
            assert!(!said.contains(LINE) && !said.contains(SECRET), "{format}: {said}");
            assert_eq!(errors.matches(NOT_SHOWN).count(), 1, "{format}, {path:?}: {errors}");
            let (said, errors) = job.analyze(path, format, &["--source", "."]);
            assert_eq!(said.contains(LINE), *path != log, "{format}: {said}");
            assert!(!said.contains(SECRET) && !errors.contains(NOT_SHOWN), "{format}: {said}");
        }
        let mut watch = program(&job.program);
        watch.args(["watch", "--once"]).arg(path);
        let said = run_to_end(watch).stdout;
        assert!(!said.contains(LINE) && !said.contains(SECRET), "{said}");
    }
    // A run directory that others can write to may be theirs, and one at another path a copy.
    let shows_line = |path: &Path| job.analyze(path, "text", &[]).0.contains(LINE);
    let run = job.run_dir();
    assert!(shows_line(&run));
    let set_mode = |mode: &str| Command::new("chmod").arg(mode).arg(&run).status().unwrap();
    set_mode("g+w");
    assert!(!shows_line(&run));
    set_mode("g-w");
    let moved = job.dir.path().join("moved");
    fs::rename(&run, &moved).unwrap();
    assert!(!shows_line(&moved));
    fs::rename(&moved, &run).unwrap();
    assert!(shows_line(&run));
}

/// Evidence names any file, and the directory that a user happens to be in is not part of the run.
#[test]
fn source_below_the_working_directory_of_the_analysis_is_not_shown() {
    let job = Job::new();
    job.name(job.program.join("train.py").to_str().unwrap(), &job.home("settings.py"));
    let output = analyze(&job.dir.path().join("home"), &[job.run_dir().to_str().unwrap()]);
    let said = stdout(&output);
    assert!(said.contains(LINE) && !said.contains(SECRET), "{said}");
}

/// A lookup alone can mount the directory of another host, or, as here, never return.
#[test]
fn link_of_another_user_below_a_source_folder_is_not_looked_up() {
    let script = r#"
        silent /home/mount
        mkdir -m 777 /home/shared
        attacker ln -s /home/mount/x /home/shared/link
        printf '%s\n' 'Traceback (most recent call last):' '  File "/home/shared/link/train.py", line 2, in main' \
            'RuntimeError: x' | sed 's/^/[rank0]: /' > job.log
        doctor analyze --source /home/shared job.log
    "#;
    let Some(said) = beside_silent_mount(script) else { return };
    assert!(said.contains("RuntimeError: x") && !said.contains("status 137"), "{said}");
}

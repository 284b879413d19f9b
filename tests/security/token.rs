//! Where the token comes from: the environment, a file, or a prompt on a terminal.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::support::coordinator::Coordinator;
use crate::support::process::{PROGRAM, program, run_to_end};
use crate::support::terminal::Terminal;

const TOKEN: &str = "the-token-of-the-prompt";
const OTHER_TOKEN: &str = "another-token-of-the-prompt";
const PROMPT: &str = "token of the coordinator:";

#[test]
fn prompt_for_the_token_does_not_show_it() {
    let Some(terminal) = Terminal::start(160, 50) else {
        return;
    };
    let coordinator = Coordinator::start_remote(TOKEN);
    // Not a loopback address, which would need no token.
    let address = format!("0.0.0.0:{}", coordinator.port());
    let ask = |number: usize| {
        terminal.line(&format!("clear; {PROGRAM} status {address}; echo ended-{number}=$?"));
        // What is typed before the prompt is dropped.
        let is_new = |screen: &str| screen.contains(PROMPT) && !screen.contains("ended-");
        terminal.until("the prompt", is_new);
    };
    let after = |number: usize| {
        let end = format!("ended-{number}=3");
        terminal.until("the end", |screen| screen.contains(&end))
    };
    ask(1);
    terminal.line(TOKEN);
    let screen = after(1);
    assert!(screen.contains("no such job"), "{screen}");
    assert!(!screen.contains(TOKEN), "{screen}");

    ask(2);
    terminal.line(OTHER_TOKEN);
    let screen = after(2);
    assert!(screen.contains("another token"), "{screen}");
    assert!(!screen.contains(OTHER_TOKEN), "{screen}");

    ask(3);
    terminal.line("short");
    let screen = after(3);
    assert!(screen.contains("it must have 16 to 1024"), "{screen}");

    for (number, key) in [(4, "C-c"), (5, "C-d")] {
        ask(number);
        terminal.key(key);
        let screen = after(number);
        assert!(screen.contains("set DDP_DOCTOR_TOKEN"), "{screen}");
    }
    terminal.line("clear; stty -a");
    let screen = terminal.until("the settings", |screen| screen.contains("echoctl"));
    for setting in [" isig ", " icanon ", " echo "] {
        assert!(screen.replace('\n', " ").contains(setting), "{screen}");
    }
}

#[test]
fn without_a_terminal_the_token_is_not_asked_for() {
    let coordinator = Coordinator::start_remote(TOKEN);
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("token"), TOKEN).unwrap();
    let status = |mode: u32, variable: Option<&str>, options: &[&str]| {
        let permissions = fs::Permissions::from_mode(mode);
        fs::set_permissions(dir.path().join("token"), permissions).unwrap();
        let mut command = program(dir.path());
        command.envs(variable.map(|token| ("DDP_DOCTOR_TOKEN", token)));
        command.arg("status").args(options);
        command.arg(format!("0.0.0.0:{}", coordinator.port()));
        let finished = run_to_end(command);
        assert_eq!(finished.status, Some(3), "{finished}");
        assert!(!finished.stderr.contains(TOKEN), "{finished}");
        finished.stderr
    };
    let file = ["--token-file", "token"];
    for (mode, variable, options, expected) in [
        (0o600, Some(TOKEN), &[][..], "no such job"),
        (0o600, None, &file, "no such job"),
        // The option wins.
        (0o600, Some(OTHER_TOKEN), &file, "no such job"),
        (0o644, None, &file, "chmod 600"),
        (0o600, Some(OTHER_TOKEN), &[], "another token"),
        (0o600, None, &[], "set DDP_DOCTOR_TOKEN"),
    ] {
        let stderr = status(mode, variable, options);
        assert!(stderr.contains(expected), "{expected}: {stderr}");
        assert!(!stderr.contains(PROMPT), "{stderr}");
    }
}

//! The status of a command, as a shell, a script of a batch system or an editor prints it below its output.

/// What precedes the status, in lower case.
const KEYS: [&str; 8] = [
    "exit",
    "rc",
    "exit code",
    "exit_code",
    "exitcode",
    "exit status",
    "return code",
    "returncode",
];
/// Maximum length of such a line, in bytes.
const MAX_LINE: usize = 256;

/// Whether a line states at its end that a command ended with status 0: "exit=0", "[ci] done, rc=0", "Process
/// finished with exit code 0".
pub(super) fn is_zero(line: &str) -> bool {
    let line = line.trim_end().trim_end_matches(['.', ')', ']', '"']);
    let Some(before) = line.strip_suffix('0').filter(|_| line.len() <= MAX_LINE) else {
        return false;
    };
    let stated = before.trim_end_matches([' ', '=', ':']);
    if stated.len() == before.len() {
        return false;
    }
    let stated = stated.to_ascii_lowercase();
    KEYS.iter().any(|key| {
        let before = stated.strip_suffix(key);
        before.is_some_and(|it| !it.ends_with(|it: char| it.is_alphanumeric() || it == '_'))
    })
}

#[cfg(test)]
mod tests {
    use super::is_zero;

    #[test]
    fn status_zero_is_that_of_a_command() {
        for line in [
            "exit=0",
            "[ci] stage finished, rc=0",
            "Process finished with exit code 0",
            "EXIT_CODE: 0",
            "+ exit 0",
            "Exit status: 0",
            "finished (exit code 0).",
        ] {
            assert!(is_zero(line), "{line}");
        }
        for line in [
            "exit=10",
            "exit=1",
            "src=0",
            "loss 0",
            "exit",
            "0",
            "exit0",
            "step rc_ 0",
            "no exits 0",
        ] {
            assert!(!is_zero(line), "{line}");
        }
    }
}

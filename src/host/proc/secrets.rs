//! Leaves secrets of this program out of commands, which reports publish.

/// What precedes a secret in a command, wherever it is in an argument: a shell, for example, gets a whole command as one.
/// With what is shown in place of the secret.
const BEFORE: [(&str, &str); 4] = [
    (OPTION, "URL"),
    ("DDP_DOCTOR_WEBHOOK=", "URL"),
    ("DDP_DOCTOR_TOKEN=", "TOKEN"),
    ("DDP_DOCTOR_METRICS_TOKEN=", "TOKEN"),
];
const OPTION: &str = "--webhook";

/// A command without the URL of a webhook and the tokens of this program.
#[must_use]
pub fn without_secrets(mut command: Vec<String>) -> Vec<String> {
    let mut is_secret = false;
    for argument in &mut command {
        if is_secret {
            *argument = "URL".to_owned();
            is_secret = false;
        } else if BEFORE.iter().any(|(before, _)| argument.contains(before)) {
            is_secret = is_at_end(argument);
            *argument = cleaned(argument);
        }
    }
    command
}

/// Whether the next argument is the value of the option.
fn is_at_end(argument: &str) -> bool {
    let before = argument.strip_suffix(OPTION);
    before.is_some_and(|it| it.is_empty() || it.ends_with(char::is_whitespace))
}

fn cleaned(argument: &str) -> String {
    let mut out = String::with_capacity(argument.len());
    let mut left = argument;
    let next = |text: &str| {
        let found =
            BEFORE.iter().filter_map(|(it, shown)| Some((text.find(it)?, it.len(), *shown)));
        found.min()
    };
    while let Some((at, length, shown)) = next(left) {
        let (before, behind) = left.split_at(at + length);
        out.push_str(before);
        left = behind;
        if before.ends_with(OPTION) {
            let value = left.strip_prefix('=').unwrap_or(left.trim_start());
            // Another option begins with the same letters, or nothing follows.
            if value.len() == left.len() {
                continue;
            }
            out.push_str(&left[..left.len() - value.len()]);
            left = value;
        }
        let end = match left.chars().next() {
            Some(quote @ ('"' | '\'')) => left[1..].find(quote).map(|it| it + 2),
            _ => left.find(char::is_whitespace),
        };
        left = &left[end.unwrap_or(left.len())..];
        out.push_str(shown);
    }
    out + left
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_is_shown_without_secrets_wherever_they_are() {
        for (given, expected) in [
            (
                &[
                    "run",
                    "--webhook",
                    "https://hooks/s",
                    "--webhook=https://s",
                    "--",
                    "sh",
                    "--webhook",
                ][..],
                "run|--webhook|URL|--webhook=URL|--|sh|--webhook",
            ),
            (
                &[
                    "sh",
                    "-c",
                    "ddp-doctor run --webhook  https://s -- a; b --webhook='s s' c --webhook \"s\"",
                ],
                "sh|-c|ddp-doctor run --webhook  URL -- a; b --webhook=URL c --webhook URL",
            ),
            (
                &["sh", "-c", "DDP_DOCTOR_WEBHOOK=https://s DDP_DOCTOR_TOKEN='s s' x"],
                "sh|-c|DDP_DOCTOR_WEBHOOK=URL DDP_DOCTOR_TOKEN=TOKEN x",
            ),
            (
                &["srun", "--export=ALL,DDP_DOCTOR_METRICS_TOKEN=s", "env", "DDP_DOCTOR_TOKEN=s"],
                "srun|--export=ALL,DDP_DOCTOR_METRICS_TOKEN=TOKEN|env|DDP_DOCTOR_TOKEN=TOKEN",
            ),
            (
                &["run", "--webhook-heartbeat", "1", "DDP_DOCTOR_TOKEN_FILE=f", "x --webhook", "s"],
                "run|--webhook-heartbeat|1|DDP_DOCTOR_TOKEN_FILE=f|x --webhook|URL",
            ),
        ] {
            let given = given.iter().map(|it| (*it).to_owned()).collect();
            assert_eq!(without_secrets(given).join("|"), expected);
        }
    }
}

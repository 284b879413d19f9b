//! Leaves secrets of this program, and credentials in addresses, out of commands, which reports publish.

use ddp_doctor_proto::without_credentials;

/// Names of secrets, wherever they are in a command, with what is shown in place of the value. A shell, for example, gets
/// a whole command as one argument.
const NAMES: [(&str, &str); 4] = [
    ("--webhook", "URL"),
    ("DDP_DOCTOR_WEBHOOK", "URL"),
    ("DDP_DOCTOR_TOKEN", "TOKEN"),
    ("DDP_DOCTOR_METRICS_TOKEN", "TOKEN"),
];
/// Options of launchers and container engines that pass on a variable by its name alone.
const BY_NAME: [&str; 3] = ["-x", "-e", "--env"];
/// Characters between a name and its value, in the languages of commands.
const BETWEEN: &str = " \t\n=\"'\\[](){},:?<>";

/// A command without the URL of a webhook, the tokens of this program, and the credentials of addresses. Whatever word
/// follows one of their names is left out.
#[must_use]
pub fn without_secrets(mut command: Vec<String>) -> Vec<String> {
    let mut secret: Option<&str> = None;
    let mut is_by_name = false;
    for argument in &mut command {
        if secret.is_some() && behind_format(argument).is_some() {
            continue;
        }
        if let Some(shown) = secret.take() {
            shown.clone_into(argument);
            continue;
        }
        let (cleaned, follows) = cleaned(&without_credentials(argument));
        secret = follows.filter(|_| !is_by_name);
        is_by_name = BY_NAME.contains(&argument.as_str());
        *argument = cleaned;
    }
    command
}

/// An argument without secrets. Also returns what is shown in place of the next one, if that is the value of a name.
fn cleaned(argument: &str) -> (String, Option<&'static str>) {
    let mut out = String::with_capacity(argument.len());
    let mut left = argument;
    let next = |text: &str| {
        let found = NAMES.iter().filter_map(|(it, shown)| Some((text.find(it)?, it.len(), *shown)));
        found.min()
    };
    while let Some((at, length, shown)) = next(left) {
        let (before, behind) = left.split_at(at + length);
        out.push_str(before);
        left = behind;
        let is_longer = left.starts_with(|c: char| c.is_alphanumeric() || "_-".contains(c));
        let is_unset =
            left.strip_prefix('=').is_some_and(|it| it.trim_start() != it || it.is_empty());
        if is_longer || is_unset {
            continue;
        }
        let mut value = left.trim_start_matches(|c| BETWEEN.contains(c));
        while let Some(behind) = behind_format(value) {
            value = behind.trim_start_matches(|c| BETWEEN.contains(c));
        }
        if value.is_empty() {
            let is_next = left.trim_start().is_empty();
            return (out + left, is_next.then_some(shown));
        }
        let quoted = &left[..left.len() - value.len()];
        let between = quoted.strip_suffix(['"', '\'']).unwrap_or(quoted);
        out.push_str(between);
        out.push_str(shown);
        left = &left[between.len()..];
        left = &left[word_length(left)..];
    }
    (out + left, None)
}

/// What follows the format at the beginning of a text, as in `printf -v NAME %s VALUE`; `None`: it has none.
fn behind_format(text: &str) -> Option<&str> {
    let behind = ["%s", "%b", "%q"].iter().find_map(|it| text.strip_prefix(it))?;
    let is_word = !behind.starts_with(|c: char| !c.is_whitespace() && c != '"' && c != '\'');
    is_word.then_some(behind)
}

/// Length of the word at the beginning of a text, in the language of shells.
fn word_length(text: &str) -> usize {
    let (mut quote, mut is_escaped, mut depth, mut before) = (None, false, 0_usize, ' ');
    for (at, c) in text.char_indices() {
        if is_escaped {
            is_escaped = false;
        } else if c == '\\' && quote != Some('\'') {
            is_escaped = true;
        } else if quote == Some(c) {
            quote = None;
        } else if quote.is_none() {
            match c {
                '"' | '\'' | '`' => quote = Some(c),
                // The output of a command.
                '(' if before == '$' || depth > 0 => depth += 1,
                ')' => depth = depth.saturating_sub(1),
                c if c.is_whitespace() && depth == 0 => return at,
                _ => {}
            }
        }
        before = c;
    }
    text.len()
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
            (
                &["mpiexec", "-genv", "DDP_DOCTOR_TOKEN", "s", "-env", "DDP_DOCTOR_WEBHOOK", "s"],
                "mpiexec|-genv|DDP_DOCTOR_TOKEN|TOKEN|-env|DDP_DOCTOR_WEBHOOK|URL",
            ),
            (
                &[
                    "csh",
                    "-c",
                    "setenv DDP_DOCTOR_TOKEN s; set -x DDP_DOCTOR_METRICS_TOKEN s\\ s x",
                ],
                "csh|-c|setenv DDP_DOCTOR_TOKEN TOKEN set -x DDP_DOCTOR_METRICS_TOKEN TOKEN x",
            ),
            (
                &[
                    "python",
                    "-c",
                    "os.environ['DDP_DOCTOR_TOKEN'] = \"s s\"; a({'DDP_DOCTOR_TOKEN': 's'})",
                ],
                "python|-c|os.environ['DDP_DOCTOR_TOKEN'] = TOKEN a({'DDP_DOCTOR_TOKEN': TOKEN",
            ),
            (
                &["mpirun", "-x", "DDP_DOCTOR_TOKEN", "python", "env", "DDP_DOCTOR_TOKEN=", "a.py"],
                "mpirun|-x|DDP_DOCTOR_TOKEN|python|env|DDP_DOCTOR_TOKEN=|a.py",
            ),
            (&["DDP_DOCTOR_TOKEN=a'b c'd e"], "DDP_DOCTOR_TOKEN=TOKEN e"),
            (
                &["bash", "-c", "read DDP_DOCTOR_TOKEN <<< s; x", "DDP_DOCTOR_TOKEN => \"s\""],
                "bash|-c|read DDP_DOCTOR_TOKEN <<< TOKEN x|DDP_DOCTOR_TOKEN => TOKEN",
            ),
            (
                &[
                    "printf -v DDP_DOCTOR_TOKEN %s s; x",
                    "printf",
                    "-v",
                    "DDP_DOCTOR_TOKEN",
                    "%s",
                    "s",
                ],
                "printf -v DDP_DOCTOR_TOKEN %s TOKEN x|printf|-v|DDP_DOCTOR_TOKEN|%s|TOKEN",
            ),
            (
                &["DDP_DOCTOR_TOKEN=%s-s", "printf -v DDP_DOCTOR_TOKEN '%s' s"],
                "DDP_DOCTOR_TOKEN=TOKEN|printf -v DDP_DOCTOR_TOKEN '%s' TOKEN",
            ),
            (
                &["DDP_DOCTOR_TOKEN=$(echo $(echo s) s) a", "DDP_DOCTOR_TOKEN=`echo s` a"],
                "DDP_DOCTOR_TOKEN=TOKEN a|DDP_DOCTOR_TOKEN=TOKEN a",
            ),
            (
                &["train.py", "--data=https://bob:s@host/x?token=s"],
                "train.py|--data=https://…@host/x?token=…",
            ),
        ] {
            let given = given.iter().map(|it| (*it).to_owned()).collect();
            assert_eq!(without_secrets(given).join("|"), expected);
        }
    }
}

//! Tests on counters of iterations, which have the same result on all ranks that are in the same iteration.

use ddp_doctor_diagnosis::source::python::is_of_word;

use super::subject;

/// Whether a test depends on nothing but counters of iterations and the configuration: it has the same
/// result on all ranks that are in the same iteration.
pub(super) fn is_test_of_counters(test: &str, counters: &[&str]) -> bool {
    const FIXED: [&str; 8] = ["and", "or", "not", "args", "cfg", "config", "hparams", "opt"];
    let of_counter = |name: &str| counters.contains(&name);
    is_of_period(test, counters)
        || subject::names(test).any(of_counter)
            && subject::names(test).all(|name| of_counter(name) || FIXED.contains(&name))
}

/// Whether a test asks if a counter of steps is a multiple of something: `step % self.every == 0`.
fn is_of_period(test: &str, counters: &[&str]) -> bool {
    const COUNTERS: [&str; 8] =
        ["step", "steps", "epoch", "iteration", "iter", "it", "batch_idx", "global_step"];
    let Some((counter, rest)) = test.split_once('%') else { return false };
    let is_name = |text: &str| !text.is_empty() && text.chars().all(|c| is_of_word(c) || c == '.');
    let inner = counter.trim().trim_start_matches("not ").trim_start_matches('(');
    let counter = inner.strip_suffix("+ 1)").unwrap_or(inner).trim();
    let last = counter.rsplit('.').next().unwrap_or(counter);
    let (period, value) = match rest.split_once("==").or_else(|| rest.split_once("!=")) {
        Some((period, value)) => (period.trim(), value.trim()),
        None => (rest.trim(), "0"),
    };
    is_name(counter)
        && (COUNTERS.contains(&last) || counters.contains(&counter))
        && is_name(period)
        && is_name(value)
        && !subject::mentions_rank(rest)
}

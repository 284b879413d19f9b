//! The branch of a model's forward that was not taken, if the source shows one.

use std::sync::Arc;

use ddp_doctor_proto::GuardForm;
use ddp_doctor_proto::report::Where;

use crate::guards;
use crate::input::event::Guard;
use crate::model::parse;
use crate::situation::Situation;
use crate::situation::contract::{self, Breach};
use crate::words;

/// Maximum number of lines reported per breach.
const MAX_LINES: usize = 3;
/// Maximum number of parameters named per line.
const NAMED: usize = 2;

/// A line at which the program uses parameters without a gradient, and the test that it depends on.
#[derive(Clone, Debug)]
pub struct Use<'a> {
    /// The line.
    pub place: Arc<Where>,
    /// The nearest test that decides whether the program reaches the line, if the source has one.
    pub guard: Option<&'a Guard>,
    /// Names of the first of the parameters.
    names: Vec<&'a str>,
    /// Number of parameters.
    total: u64,
}

/// The lines at which ranks in breach of the contract use the parameters that lack gradients; if
/// any of these lines depend on a test, only those.
pub fn left_out<'a>(situation: &Situation<'a>, breach: &Breach) -> Vec<Use<'a>> {
    let mut found: Vec<Use<'a>> = Vec::new();
    for &rank in &breach.root {
        let known = situation.model.member(breach.group, rank).and_then(|process| {
            let replica = process.models.get(breach.group, breach.model)?;
            Some((process, replica, contract::report_of(situation, breach, rank)?))
        });
        let Some((process, replica, lacks)) = known else { continue };
        for used in &replica.used_at {
            let lacking = |name: &str| parse(&lacks.lines).any(|it| it.name == name);
            let Some(place) = &used.place else { continue };
            let is_of_it = parse(&used.lines).next().is_some_and(|it| lacking(it.name));
            if !is_of_it || found.iter().any(|known| known.place == *place) {
                continue;
            }
            let decides = |guard: &Guard| {
                use GuardForm::{Catches, Handles, Unspecified};
                !matches!(guard.form, Handles | Catches | Unspecified)
            };
            let mut around = guards::around(process, place);
            found.push(Use {
                place: Arc::clone(place),
                guard: around.find_map(|(_, guard)| decides(guard).then_some(guard)),
                names: parse(&used.lines).map(|it| it.name).take(NAMED).collect(),
                total: used.total,
            });
        }
    }
    if found.iter().any(|it| it.guard.is_some()) {
        found.retain(|it| it.guard.is_some());
    }
    found.truncate(MAX_LINES);
    found
}

impl Use<'_> {
    /// For example "head.weight and head.bias are used at model.py:24, which is reached only if
    /// `with_head` holds (line 24)."
    pub fn sentence(&self) -> String {
        let more = self.total.saturating_sub(self.names.len() as u64);
        let names = match (&self.names[..], more) {
            (names, 0) => names.join(" and "),
            (names, more) => format!("{} and {more} more", names.join(", ")),
        };
        let are = if self.total == 1 { "is" } else { "are" };
        let depends = self.guard.map(guards::sentence).map(|it| format!(", which {it}"));
        format!(
            "{names} {are} used at {}{}.",
            words::line(&self.place),
            depends.unwrap_or_default()
        )
    }
}

//! Models whose gradients a process averages with its peers, as described by the process.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use ddp_doctor_proto::ParameterFact;
use ddp_doctor_proto::report::{Timestamp, Where};

use crate::input::event::Parameters;
use crate::model::ids::GroupId;

/// Maximum number of models kept per process.
const MAX_MODELS: usize = 64;
/// Maximum number of places kept per model at which the program uses it.
const MAX_USES: usize = 32;
/// Maximum number of pieces kept of a model's layout.
const MAX_PIECES: usize = 64;

/// The models of a process.
#[derive(Debug, Default)]
pub struct Models {
    /// Replicas by the group that averages, and their 1-based index within the group.
    replicas: BTreeMap<(GroupId, u32), Replica>,
}

/// The copy of a model in one process.
#[derive(Debug, Default)]
pub struct Replica {
    /// Number of parameters that need a gradient.
    pub total: u64,
    /// Where the model was wrapped.
    pub place: Option<Arc<Where>>,
    /// When its layout was reported.
    pub at: Timestamp,
    /// Pieces of its layout, by the index of the first parameter of each.
    pieces: BTreeMap<u32, Arc<str>>,
    /// Hash of the layout, for comparison between ranks.
    fingerprint: u64,
    /// The latest report of each fact that holds. Without one of missing gradients, all parameters had one
    /// after the latest backward pass.
    reports: BTreeMap<ParameterFact, ReducerReport>,
    /// Places where the program uses parts of the model that got no gradients.
    pub used_at: Vec<ReducerReport>,
}

/// A fact about some parameters of a model.
#[derive(Clone, Debug)]
pub struct ReducerReport {
    /// Number of parameters concerned, or at least; see [`Self::count`].
    pub total: u64,
    /// Number reported with the fact; its meaning depends on the fact.
    pub number: u32,
    /// Lines that describe the first of the parameters.
    pub lines: Arc<str>,
    /// Line in the user's program.
    pub place: Option<Arc<Where>>,
    /// Training step.
    pub step: u64,
    /// Time of the report.
    pub at: Timestamp,
}

/// Last of the lines if more parameters than the total may be concerned: PyTorch lists the first of them.
const AND_MORE: &str = "...";

/// Number of the parameters that a fact is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ParameterCount {
    /// The number.
    pub total: u64,
    /// Whether there may be more.
    pub is_minimum: bool,
}

impl fmt::Display for ParameterCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at_least = if self.is_minimum { "at least " } else { "" };
        write!(f, "{at_least}{}", self.total)
    }
}

impl ReducerReport {
    /// Number of the parameters concerned.
    pub fn count(&self) -> ParameterCount {
        let is_minimum = self.lines.lines().next_back() == Some(AND_MORE);
        ParameterCount { total: self.total, is_minimum }
    }
}

/// A parameter, as described by a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Parameter<'a> {
    /// Element type.
    pub dtype: &'a str,
    /// Sizes separated by commas; "-": none.
    pub sizes: &'a str,
    /// Name in the model.
    pub name: &'a str,
}

impl Parameter<'_> {
    /// Sizes as numbers.
    pub fn shape(&self) -> Vec<u64> {
        let sizes = self.sizes.split(',');
        sizes.filter_map(|size| size.parse().ok()).collect()
    }
}

/// The parameters in a list of lines. Invalid lines are skipped.
pub fn parse(lines: &str) -> impl Iterator<Item = Parameter<'_>> {
    lines.lines().filter_map(|line| {
        let (dtype, rest) = line.split_once(' ')?;
        let (sizes, name) = rest.split_once(' ')?;
        Some(Parameter { dtype, sizes, name })
    })
}

impl Models {
    /// The replica of a model in the process.
    pub fn get(&self, group: GroupId, model: u32) -> Option<&Replica> {
        self.replicas.get(&(group, model))
    }

    /// All replicas.
    pub fn replicas(&self) -> impl Iterator<Item = (GroupId, u32, &Replica)> {
        let replicas = self.replicas.iter();
        replicas.map(|(&(group, model), replica)| (group, model, replica))
    }

    pub(in crate::model) fn take(&mut self, group: GroupId, report: Parameters, at: Timestamp) {
        let key = (group, report.model);
        if report.fact == ParameterFact::Layout && report.first == 0 {
            // A model that is wrapped again replaces the earlier ones.
            for (_, replica) in self.replicas.range_mut((group, 0)..key) {
                replica.reports.retain(|fact, _| *fact == ParameterFact::NeverUnused);
            }
        }
        if !self.replicas.contains_key(&key) && self.replicas.len() >= MAX_MODELS {
            return;
        }
        let replica = self.replicas.entry(key).or_default();
        let parameters = ReducerReport {
            total: report.total,
            number: report.first,
            lines: Arc::clone(&report.lines),
            place: report.place,
            step: report.step,
            at,
        };
        match report.fact {
            ParameterFact::Layout => {
                // A model is wrapped once; a second first piece begins a new layout.
                if report.first == 0 {
                    replica.pieces.clear();
                }
                replica.total = report.total;
                replica.at = at;
                replica.place = parameters.place;
                if replica.pieces.len() < MAX_PIECES {
                    replica.pieces.insert(report.first, report.lines);
                }
                let mut hasher = DefaultHasher::new();
                (replica.total, &replica.pieces).hash(&mut hasher);
                replica.fingerprint = hasher.finish();
            }
            ParameterFact::WithoutGradient
            | ParameterFact::ReadyTwice
            | ParameterFact::GraphChanged
            | ParameterFact::Outside
            | ParameterFact::Thawed
            | ParameterFact::NeverUnused => drop(replica.reports.insert(report.fact, parameters)),
            ParameterFact::Complete => {
                drop(replica.reports.remove(&ParameterFact::WithoutGradient));
            }
            ParameterFact::UsedAt => {
                if replica.used_at.len() < MAX_USES {
                    replica.used_at.push(parameters);
                }
            }
            ParameterFact::Values | ParameterFact::Unspecified => {}
        }
    }
}

impl Replica {
    /// The reported parameters with their indices, in order.
    pub fn layout(&self) -> impl Iterator<Item = (u64, Parameter<'_>)> {
        let pieces = self.pieces.iter();
        pieces.flat_map(|(&first, lines)| (u64::from(first)..).zip(parse(lines)))
    }

    /// The latest report of a fact, if it holds.
    pub fn report(&self, fact: ParameterFact) -> Option<&ReducerReport> {
        self.reports.get(&fact)
    }

    /// Whether another process reported the same layout.
    pub const fn has_same_report(&self, other: &Self) -> bool {
        self.fingerprint == other.fingerprint
    }

    /// Whether all parameters were reported.
    pub fn is_fully_reported(&self) -> bool {
        self.layout().count() as u64 == self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(fact: ParameterFact, first: u32, total: u64, lines: &str) -> Parameters {
        Parameters { fact, model: 1, first, total, lines: lines.into(), ..Parameters::default() }
    }

    #[test]
    fn layout_is_assembled_from_pieces() {
        let mut models = Models::default();
        let group = GroupId(0);
        let reports = [
            parameters(ParameterFact::Layout, 0, 3, "float32 8,4 a\nnonsense\n"),
            parameters(ParameterFact::Layout, 1, 3, "int8 - b c\nbool 2 d\n"),
        ];
        for report in reports {
            assert!(!models.get(group, 1).is_some_and(Replica::is_fully_reported));
            models.take(group, report, Timestamp(5));
        }
        let replica = models.get(group, 1).unwrap();
        assert!(replica.is_fully_reported());
        let layout: Vec<_> = replica.layout().map(|(i, it)| (i, it.name, it.shape())).collect();
        assert_eq!(layout, [(0, "a", vec![8, 4]), (1, "b c", vec![]), (2, "d", vec![2])]);
    }

    #[test]
    fn wrapping_again_clears_missing_gradients() {
        let mut models = Models::default();
        let group = GroupId(0);
        let without = parameters(ParameterFact::WithoutGradient, 0, 1, "float32 8,4 a\n");
        models.take(group, without, Timestamp(5));
        let again =
            Parameters { model: 2, ..parameters(ParameterFact::Layout, 0, 1, "float32 8,4 a\n") };
        models.take(group, again, Timestamp(6));
        assert!(models.get(group, 1).unwrap().report(ParameterFact::WithoutGradient).is_none());
    }

    #[test]
    fn incomplete_list_states_a_minimum() {
        let mut models = Models::default();
        let fact = ParameterFact::WithoutGradient;
        for (lines, expected) in
            [("float32 8,4 a\n", "100"), ("float32 8,4 a\n...\n", "at least 100")]
        {
            models.take(GroupId(0), parameters(fact, 0, 100, lines), Timestamp(5));
            let report = models.get(GroupId(0), 1).unwrap().report(fact).unwrap();
            assert_eq!(report.count().to_string(), expected);
            assert_eq!(parse(&report.lines).count(), 1);
        }
    }

    #[test]
    fn later_gradient_is_not_missing() {
        let mut models = Models::default();
        let group = GroupId(0);
        let fact = ParameterFact::WithoutGradient;
        models.take(group, parameters(fact, 0, 1, "float32 8,4 a\n"), Timestamp(5));
        assert!(models.get(group, 1).unwrap().report(ParameterFact::WithoutGradient).is_some());
        models.take(group, parameters(ParameterFact::Complete, 0, 0, ""), Timestamp(6));
        assert!(models.get(group, 1).unwrap().report(ParameterFact::WithoutGradient).is_none());
    }
}

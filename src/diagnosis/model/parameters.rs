//! The models whose gradients a process averages with its peers, as it describes them.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use ddp_doctor_proto::ParameterFact;
use ddp_doctor_proto::report::{Timestamp, Where};

use super::group::GroupId;
use crate::diagnosis::event::Parameters;

/// Models of one process that are remembered.
const KEPT_MODELS: usize = 64;
/// Lines of the program that are remembered of one model.
const KEPT_USES: usize = 32;
/// Pieces of a model's layout that are remembered.
const KEPT_PIECES: usize = 64;

/// The models of a process.
#[derive(Debug, Default)]
pub struct Models {
    /// By the group that averages, and the how-manieth of it they are.
    replicas: BTreeMap<(GroupId, u32), Replica>,
}

/// One process's copy of a model.
#[derive(Debug, Default)]
pub struct Replica {
    /// How many parameters it has that need a gradient.
    pub total: u64,
    /// Where it was wrapped.
    pub place: Option<Arc<Where>>,
    /// When its layout was told.
    pub at: Timestamp,
    /// Its layout, by the index of the first parameter of each piece.
    pieces: BTreeMap<u32, Arc<str>>,
    /// Layouts that are the same have the same one.
    fingerprint: u64,
    /// What had no gradient when the last backward was over; `None`: all had.
    pub without: Option<Said>,
    /// What was ready twice, last.
    pub ready_twice: Option<Said>,
    /// The graph was promised to stay the same, and did not.
    pub graph_changed: Option<Said>,
    /// Step after step gradients came from outside the forward after which they are averaged.
    pub outside: Option<Said>,
    /// Searches for parameters without gradient found none.
    pub never_unused: Option<Said>,
    /// Lines by which the program uses what got no gradients.
    pub used_at: Vec<Said>,
}

/// Something that was said of some parameters of a model.
#[derive(Clone, Debug)]
pub struct Said {
    /// How many they are.
    pub total: u64,
    /// What was said with it as a number.
    pub number: u32,
    /// The first of them.
    pub lines: Arc<str>,
    /// The user's line.
    pub place: Option<Arc<Where>>,
    /// Training step.
    pub step: u64,
    /// When.
    pub at: Timestamp,
}

/// A parameter, as a process describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter<'a> {
    /// Element type.
    pub dtype: &'a str,
    /// Sizes with commas between; "-" where there are none.
    pub sizes: &'a str,
    /// Name in the model.
    pub name: &'a str,
}

impl Parameter<'_> {
    /// Its sizes.
    #[must_use]
    pub fn shape(&self) -> Vec<u64> {
        let sizes = self.sizes.split(',');
        sizes.filter_map(|size| size.parse().ok()).collect()
    }
}

/// The parameters in a list of lines. What is no line of one is left out.
pub fn parse(lines: &str) -> impl Iterator<Item = Parameter<'_>> {
    lines.lines().filter_map(|line| {
        let (dtype, rest) = line.split_once(' ')?;
        let (sizes, name) = rest.split_once(' ')?;
        Some(Parameter { dtype, sizes, name })
    })
}

impl Models {
    /// The process's copy of a model.
    #[must_use]
    pub fn get(&self, group: GroupId, model: u32) -> Option<&Replica> {
        self.replicas.get(&(group, model))
    }

    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = (GroupId, u32, &Replica)> {
        let replicas = self.replicas.iter();
        replicas.map(|(&(group, model), replica)| (group, model, replica))
    }

    pub(super) fn take(&mut self, group: GroupId, said: Parameters, at: Timestamp) {
        let key = (group, said.model);
        if said.fact == ParameterFact::Layout && said.first == 0 {
            // Whoever wraps a model again is done with what those before it lacked.
            for (_, replica) in self.replicas.range_mut((group, 0)..key) {
                (replica.without, replica.ready_twice, replica.graph_changed) = (None, None, None);
                replica.outside = None;
            }
        }
        if !self.replicas.contains_key(&key) && self.replicas.len() >= KEPT_MODELS {
            return;
        }
        let replica = self.replicas.entry(key).or_default();
        let parameters = Said {
            total: said.total,
            number: said.first,
            lines: Arc::clone(&said.lines),
            place: said.place,
            step: said.step,
            at,
        };
        match said.fact {
            ParameterFact::Layout => {
                // It is wrapped once: whatever says its beginning again begins anew.
                if said.first == 0 {
                    replica.pieces.clear();
                }
                replica.total = said.total;
                replica.at = at;
                replica.place = parameters.place;
                if replica.pieces.len() < KEPT_PIECES {
                    replica.pieces.insert(said.first, said.lines);
                }
                let mut hasher = DefaultHasher::new();
                (replica.total, &replica.pieces).hash(&mut hasher);
                replica.fingerprint = hasher.finish();
            }
            ParameterFact::WithoutGradient => replica.without = Some(parameters),
            ParameterFact::Complete => replica.without = None,
            ParameterFact::ReadyTwice => replica.ready_twice = Some(parameters),
            ParameterFact::GraphChanged => replica.graph_changed = Some(parameters),
            ParameterFact::Outside => replica.outside = Some(parameters),
            ParameterFact::NeverUnused => replica.never_unused = Some(parameters),
            ParameterFact::UsedAt => {
                if replica.used_at.len() < KEPT_USES {
                    replica.used_at.push(parameters);
                }
            }
            ParameterFact::Unspecified => {}
        }
    }
}

impl Replica {
    /// Its parameters in their order with their indices, as far as they were told.
    pub fn layout(&self) -> impl Iterator<Item = (u64, Parameter<'_>)> {
        let pieces = self.pieces.iter();
        pieces.flat_map(|(&first, lines)| (u64::from(first)..).zip(parse(lines)))
    }

    /// Whether another process told the same of its copy.
    #[must_use]
    pub const fn is_told_like(&self, other: &Self) -> bool {
        self.fingerprint == other.fingerprint
    }

    /// Whether all of its parameters were told.
    #[must_use]
    pub fn is_fully_told(&self) -> bool {
        self.layout().count() as u64 == self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(fact: ParameterFact, first: u32, total: u64, lines: &str) -> Parameters {
        Parameters {
            fact,
            model: 1,
            first,
            total,
            lines: lines.into(),
            ..Parameters::default()
        }
    }

    #[test]
    fn a_layout_comes_in_pieces() {
        let mut models = Models::default();
        let group = GroupId(0);
        let told = [
            said(ParameterFact::Layout, 0, 3, "float32 8,4 a\nnonsense\n"),
            said(ParameterFact::Layout, 1, 3, "int8 - b c\nbool 2 d\n"),
        ];
        for said in told {
            assert!(!models.get(group, 1).is_some_and(Replica::is_fully_told));
            models.take(group, said, Timestamp(5));
        }
        let replica = models.get(group, 1).unwrap();
        assert!(replica.is_fully_told());
        let layout = replica.layout().map(|(i, it)| (i, it.name, it.shape()));
        let layout: Vec<_> = layout.collect();
        assert_eq!(
            layout,
            [(0, "a", vec![8, 4]), (1, "b c", vec![]), (2, "d", vec![2])]
        );
    }

    #[test]
    fn a_model_that_is_wrapped_again_lacks_nothing() {
        let mut models = Models::default();
        let group = GroupId(0);
        let without = said(ParameterFact::WithoutGradient, 0, 1, "float32 8,4 a\n");
        models.take(group, without, Timestamp(5));
        let again = Parameters {
            model: 2,
            ..said(ParameterFact::Layout, 0, 1, "float32 8,4 a\n")
        };
        models.take(group, again, Timestamp(6));
        assert!(models.get(group, 1).unwrap().without.is_none());
    }

    #[test]
    fn a_gradient_that_came_later_is_no_more_missed() {
        let mut models = Models::default();
        let group = GroupId(0);
        let fact = ParameterFact::WithoutGradient;
        models.take(group, said(fact, 0, 1, "float32 8,4 a\n"), Timestamp(5));
        assert!(models.get(group, 1).unwrap().without.is_some());
        models.take(group, said(ParameterFact::Complete, 0, 0, ""), Timestamp(6));
        assert!(models.get(group, 1).unwrap().without.is_none());
    }
}

//! Values of parameters, compared between the replicas of a model.

use std::collections::BTreeMap;
use std::sync::Arc;

use ddp_doctor_proto::DType;
use ddp_doctor_proto::report::{Timestamp, Where};

use crate::input::align;
use crate::input::event::{Parameters, ProcessId};
use crate::model::Model;
use crate::model::ids::GroupId;

/// Maximum number of models per group whose replicas are compared.
const MAX_MODELS: u32 = 64;
/// Number of reported values kept per group that are not known to agree; at least [`MAX_COMPARISONS`]
/// from each member.
const MAX_VALUES: usize = 16_384;
/// Minimum number of incomplete comparisons kept per group.
const MAX_COMPARISONS: usize = 8;

/// The compared replicas of the models of a group.
#[derive(Debug, Default)]
pub struct Replicas {
    /// Comparisons that are incomplete, and the first ones that differ.
    open: BTreeMap<Point, Comparison>,
    /// Number of values in `open`.
    held: usize,
    models: BTreeMap<u32, Compared>,
    /// The latest sequence number and round at which a rank reported values of a model.
    latest: BTreeMap<(u32, u32), (u64, u64)>,
}

/// What is known about the replicas of one model.
#[derive(Clone, Copy, Debug, Default)]
struct Compared {
    /// First comparison that differs.
    first: Option<Point>,
    /// First comparison after a synchronized backward pass that differs.
    synchronized: Option<Point>,
    /// Last complete comparison before the first that differs.
    agreed: Option<Point>,
}

/// What a comparison is about. All ranks that report it have made the same calls of the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Point {
    /// Highest sequence number that the rank had issued in the group.
    pub seq: u64,
    /// 1-based index of the model within the group.
    pub model: u32,
    /// Number of synchronized backward passes so far.
    pub rounds: u64,
    /// Index of the parameter.
    pub parameter: u32,
}

/// The values that ranks reported of the same elements.
#[derive(Debug, Default)]
pub struct Comparison {
    /// Values by rank.
    pub values: BTreeMap<u32, ReplicaValues>,
    /// Range of each element over the ranks.
    spans: Vec<Span>,
}

/// The values that one rank reported.
#[derive(Clone, Debug)]
pub struct ReplicaValues {
    /// Element type of the parameter.
    pub dtype: DType,
    /// The elements.
    pub elements: Vec<f64>,
    /// Line of the forward pass before which they were read.
    pub place: Option<Arc<Where>>,
    /// Time of the report.
    pub at: Timestamp,
}

/// Replicas of a model that differ.
#[derive(Clone, Copy, Debug)]
pub struct Diverged<'a> {
    /// The first comparison after a synchronized backward pass that differs.
    pub point: Point,
    /// Its values.
    pub comparison: &'a Comparison,
    /// Whether all members have reported these values.
    pub is_complete: bool,
    /// Whether the replicas differed before the first synchronized backward pass.
    pub from_the_start: bool,
    /// The last comparison before the first difference, in which all members agreed.
    pub agreed: Option<Point>,
}

/// The values of one element on several ranks.
#[derive(Clone, Copy, Debug, Default)]
struct Span {
    /// Lowest and highest of the finite values.
    finite: Option<(f64, f64)>,
    /// Bits of the kinds of values: finite, not a number, positive and negative infinity.
    kinds: u8,
}

impl Replicas {
    fn take(&mut self, members: usize, rank: u32, point: Point, values: ReplicaValues) {
        if point.model > MAX_MODELS {
            return;
        }
        // Each synchronized backward pass issues collectives. If none was recorded, the sequence
        // number does not tell rounds apart.
        let latest = self.latest.insert((point.model, rank), (point.seq, point.rounds));
        if latest.is_some_and(|(seq, rounds)| point.seq <= seq && point.rounds != rounds) {
            return;
        }
        let comparison = self.open.entry(point).or_default();
        if !comparison.take(rank, values) {
            return;
        }
        self.held += 1;
        let known = self.models.entry(point.model).or_default();
        if comparison.differs() {
            let earlier = |known: Option<Point>| known.is_none_or(|it| point < it);
            if earlier(known.first) {
                known.first = Some(point);
            }
            if point.rounds > 0 && earlier(known.synchronized) {
                known.synchronized = Some(point);
            }
        } else if comparison.values.len() >= members {
            if known.first.is_none_or(|first| point < first) && known.agreed < Some(point) {
                known.agreed = Some(point);
            }
            self.remove(&point);
        }
        let limit = MAX_VALUES.max(members.saturating_mul(MAX_COMPARISONS));
        while self.held > limit {
            let kept = |point: &Point| {
                let known = self.models.get(&point.model);
                known.is_some_and(|it| [it.first, it.synchronized].contains(&Some(*point)))
            };
            let Some(oldest) = self.open.keys().copied().find(|point| !kept(point)) else { return };
            self.remove(&oldest);
        }
    }

    fn remove(&mut self, point: &Point) {
        let removed = self.open.remove(point);
        self.held -= removed.map_or(0, |it| it.values.len());
    }

    /// The models whose replicas differ after a synchronized backward pass.
    pub fn diverged(&self, members: usize) -> impl Iterator<Item = Diverged<'_>> {
        self.models.values().filter_map(move |known| {
            let point = known.synchronized?;
            let first = known.first?;
            let comparison = self.open.get(&point)?;
            Some(Diverged {
                point,
                comparison,
                is_complete: comparison.values.len() >= members,
                from_the_start: first.rounds == 0,
                agreed: known.agreed.filter(|agreed| *agreed < first),
            })
        })
    }
}

impl Comparison {
    /// Adds the values of a rank; false if they cannot be compared with those of the others.
    fn take(&mut self, rank: u32, values: ReplicaValues) -> bool {
        if let Some(other) = self.values.values().next()
            && (other.dtype, other.elements.len()) != (values.dtype, values.elements.len())
        {
            return false;
        }
        self.spans.resize(values.elements.len(), Span::default());
        for (span, &value) in self.spans.iter_mut().zip(&values.elements) {
            span.take(value);
        }
        self.values.insert(rank, values).is_none()
    }

    /// Whether any two ranks differ by more than rounding.
    fn differs(&self) -> bool {
        let Some(dtype) = self.values.values().next().map(|it| it.dtype) else { return false };
        let finite = || self.spans.iter().filter_map(|span| span.finite);
        let scale = finite().fold(0.0, |scale: f64, (low, high)| scale.max(-low).max(high));
        self.spans.iter().any(|span| span.kinds.count_ones() > 1)
            || finite().any(|(low, high)| high - low > tolerance(dtype) * scale)
    }

    /// Ranks grouped by values that agree, largest group first.
    pub fn classes(&self) -> Vec<Vec<u32>> {
        let values = self.values.iter().map(|(&rank, values)| (rank, values));
        let bits = |values: &&ReplicaValues| -> Vec<u64> {
            values.elements.iter().map(|it| it.to_bits()).collect()
        };
        align::classes(values, bits, |a, b| !is_apart(a, b))
    }
}

impl Span {
    fn take(&mut self, value: f64) {
        self.kinds |= match value {
            _ if value.is_nan() => 2,
            f64::INFINITY => 4,
            f64::NEG_INFINITY => 8,
            _ => 1,
        };
        if value.is_finite() {
            let (low, high) = self.finite.unwrap_or((value, value));
            self.finite = Some((low.min(value), high.max(value)));
        }
    }
}

/// Whether the values of two ranks differ by more than rounding.
pub fn is_apart(a: &ReplicaValues, b: &ReplicaValues) -> bool {
    let mut both = Comparison::default();
    both.take(0, a.clone());
    both.take(1, b.clone()) && both.differs()
}

/// Largest difference between two replicas that may be rounding, relative to the largest of the
/// compared elements. The order of operations depends on the processor and the number of threads.
fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::Float16 => 1.0 / 64.0,
        DType::BFloat16 => 1.0 / 16.0,
        _ => 1e-4,
    }
}

/// The number whose bits were reported; `None` for types that are not compared.
fn decode(dtype: DType, bits: u32) -> Option<f64> {
    match dtype {
        DType::Float32 => Some(f64::from(f32::from_bits(bits))),
        DType::Float64 => Some(f64::from_bits(u64::from(bits) << 32)),
        DType::BFloat16 => Some(f64::from(f32::from_bits(bits << 16))),
        DType::Float16 => Some(half(bits)),
        _ => None,
    }
}

/// An IEEE 754 number of 16 bits.
fn half(bits: u32) -> f64 {
    let sign = if bits & 0x8000 == 0 { 1.0 } else { -1.0 };
    let fraction = f64::from(bits & 0x3ff) / 1024.0;
    match (bits >> 10) & 0x1f {
        0 => sign * fraction * 2.0_f64.powi(-14),
        31 if fraction == 0.0 => sign * f64::INFINITY,
        31 => f64::NAN,
        exponent => sign * (1.0 + fraction) * 2.0_f64.powi(exponent.cast_signed() - 15),
    }
}

impl Model {
    /// Compares the values of a rank with those of the other members.
    pub(in crate::model) fn compare_values(
        &mut self,
        process: ProcessId,
        group: GroupId,
        rank: u32,
        said: &Parameters,
        at: Timestamp,
    ) {
        // The sequence number is known only if all calls are.
        if self.processes.get(&process).is_none_or(|it| it.lost > 0) {
            return;
        }
        let elements: Option<Vec<f64>> =
            said.values.iter().map(|&bits| decode(said.dtype, bits)).collect();
        let group = &mut self.groups[group.0 as usize];
        let (Some(elements), Some(member)) = (elements, group.members.get(&rank)) else { return };
        if member.process != process || elements.is_empty() {
            return;
        }
        let point = Point {
            seq: member.issued,
            model: said.model,
            rounds: said.total,
            parameter: said.first,
        };
        let values = ReplicaValues { dtype: said.dtype, elements, place: said.place.clone(), at };
        let members = group.info.key.members.len();
        group.replicas.take(members, rank, point, values);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(elements: &[f64]) -> ReplicaValues {
        ReplicaValues {
            dtype: DType::Float32,
            elements: elements.to_vec(),
            place: None,
            at: Timestamp(0),
        }
    }

    const fn point(seq: u64, rounds: u64) -> Point {
        Point { seq, model: 1, rounds, parameter: 0 }
    }

    #[test]
    fn rounding_is_no_difference() {
        let one = values(&[1.0, 1e-9]);
        assert!(!is_apart(&one, &values(&[1.000_01, 2e-5])));
        assert!(is_apart(&one, &values(&[1.000_2, 1e-9])));
        assert!(!is_apart(&values(&[f64::NAN]), &values(&[f64::NAN])));
        assert!(is_apart(&values(&[f64::NAN]), &values(&[0.0])));
        assert!(!is_apart(&values(&[0.0]), &values(&[-0.0])));
        let coarse = |element| ReplicaValues { dtype: DType::BFloat16, ..values(&[element]) };
        assert!(!is_apart(&coarse(1.0), &coarse(1.007_812_5)));
    }

    #[test]
    fn agreeing_values_are_forgotten_once_complete() {
        let mut replicas = Replicas::default();
        for rank in 0..3 {
            replicas.take(3, rank, point(5, 1), values(&[1.0]));
        }
        assert_eq!((replicas.open.len(), replicas.held), (0, 0));
        assert_eq!(replicas.diverged(3).count(), 0);
        for (rank, value) in [(2, 1.0), (1, 4.0), (0, 1.0)] {
            replicas.take(3, rank, point(9, 2), values(&[value]));
        }
        let found: Vec<_> = replicas.diverged(3).collect();
        assert_eq!(found[0].comparison.classes(), [vec![0, 2], vec![1]]);
        assert_eq!(found[0].agreed, Some(point(5, 1)));
        assert!(found[0].is_complete && !found[0].from_the_start);
    }

    #[test]
    fn values_of_different_rounds_are_not_compared() {
        let mut replicas = Replicas::default();
        replicas.take(2, 0, point(5, 1), values(&[1.0]));
        replicas.take(2, 1, point(5, 2), values(&[2.0]));
        // Rounds without a recorded collective.
        replicas.take(2, 0, point(5, 2), values(&[3.0]));
        assert_eq!(replicas.diverged(2).count(), 0);
    }

    #[test]
    fn values_of_absent_ranks_use_bounded_memory() {
        let mut replicas = Replicas::default();
        for seq in 0..100_000 {
            replicas.take(2, 0, point(seq, seq), values(&[1.0]));
        }
        assert_eq!(replicas.held, MAX_VALUES);
        assert_eq!(replicas.open.len(), MAX_VALUES);
    }

    #[test]
    fn elements_are_decoded_by_type() {
        assert_eq!(decode(DType::Float32, 1.5_f32.to_bits()), Some(1.5));
        assert_eq!(decode(DType::Float64, 0xbff8_0000), Some(-1.5));
        assert_eq!(decode(DType::BFloat16, 0x3fc0), Some(1.5));
        assert_eq!(decode(DType::Float16, 0x3e00), Some(1.5));
        assert_eq!(decode(DType::Float16, 0xfc00), Some(f64::NEG_INFINITY));
        assert_eq!(decode(DType::Float16, 1), Some(2.0_f64.powi(-24)));
        assert_eq!(decode(DType::Int32, 1), None);
    }
}

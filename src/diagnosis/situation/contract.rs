//! DDP's contract with its ranks: the same model on all of them, and a gradient for each parameter
//! after every synchronized backward pass. Determines which ranks broke it, and which stalls follow
//! from that.
//!
//! A rank's report about its own model is certain. Its effect on other ranks shows only when they
//! meet: a rank that lacks gradients may still get them in a second backward pass of the step, and
//! until then no rank is to blame.

use std::cmp::Reverse;

use ddp_doctor_proto::ParameterFact;
use ddp_doctor_proto::report::Timestamp;

use crate::input::align::{OddOnes, by_key, odd_ones};
use crate::model::{Ending, Group, GroupId, Parameter, Process, ReducerReport, Replica, parse};
use crate::situation::moment::Moment;
use crate::situation::origin_kind::{OriginKind, StallOrigin};
use crate::situation::stall_origins::Stalls;

/// Text of the exception that DDP raises at the next forward.
pub const UNFINISHED: &str = "Expected to have finished reduction in the prior iteration";
/// Text of the exception that DDP raises when a gradient is ready twice.
pub const READY_TWICE: &str = "Expected to mark a variable ready only once";
/// Text of the exception that DDP raises when a static graph changes.
pub const GRAPH_CHANGED: &str = "training graph has changed";
/// Maximum number of models compared per group.
const MAX_MODELS: u32 = 64;
/// Maximum number of distinct layouts that are compared parameter by parameter.
const MAX_SORTS: usize = 16;

/// A breach of the contract.
#[derive(Clone, Debug)]
pub struct Breach {
    /// Kind of breach.
    pub kind: Kind,
    /// The group that averages gradients.
    pub group: GroupId,
    /// 1-based index of the model within the group; 0: none in particular.
    pub model: u32,
    /// Ranks that broke it, or all ranks that disagree, ascending.
    pub root: Vec<u32>,
    /// Whether these ranks are a minority.
    pub is_odd: bool,
    /// When the first of them broke it.
    pub at: Timestamp,
    /// When it became certain.
    pub evidence_at: Timestamp,
}

/// Kind of breach.
#[derive(Clone, Debug)]
pub enum Kind {
    /// Models differ between ranks.
    Models(Difference),
    /// Every rank lacks the same gradients.
    Unused,
    /// Ranks lack different gradients, or some ranks lack some.
    UnusedDiffer,
    /// A gradient was ready twice in one backward pass.
    ReadyTwice,
    /// A graph declared static has changed.
    GraphChanged,
    /// Gradients come from outside DDP's forward, and are not averaged.
    Bypassed,
    /// Parameters that DDP does not know got gradients, which are not averaged.
    Thawed,
    /// Some ranks synchronize gradients at a forward at which others only accumulate them.
    Boundaries(Boundary),
}

/// A forward at which ranks behave differently.
#[derive(Clone, Debug)]
pub struct Boundary {
    /// 1-based index of the training forward.
    pub forward: u64,
    /// Ranks that synchronize gradients.
    pub synchronize: Vec<u32>,
    /// Ranks that only accumulate them.
    pub accumulate: Vec<u32>,
    /// Index of the last forward up to which they behaved alike; 0: they never did.
    pub agreed: u64,
}

/// How models differ.
#[derive(Clone, Debug)]
pub struct Difference {
    /// What differs.
    pub what: What,
    /// Index of the first parameter that differs.
    pub index: u64,
    /// Ranks grouped by agreeing models, largest group first.
    pub sides: Vec<SideOfModel>,
}

/// What differs between models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// The number of parameters.
    Count,
    /// A shape.
    Shape,
    /// An element type.
    DType,
    /// The order of the same parameters.
    Order,
}

/// Ranks whose models agree.
#[derive(Clone, Debug)]
pub struct SideOfModel {
    /// The ranks, ascending.
    pub ranks: Vec<u32>,
    /// Number of parameters.
    pub total: u64,
    /// The first differing parameter: dtype, shape and name; `None`: the model has fewer.
    pub parameter: Option<(String, Vec<u64>, String)>,
}

/// A member of a group with its replica of a model.
struct Copy<'a> {
    rank: u32,
    process: &'a Process,
    replica: &'a Replica,
}

/// The copies of one model that the members of a group have.
struct Copies<'a> {
    stalls: &'a Stalls<'a>,
    group: &'a Group,
    model: u32,
    all: Vec<Copy<'a>>,
}

/// The first breach in each group.
pub fn breaches(stalls: &Stalls<'_>) -> Vec<Breach> {
    let groups = stalls.model.groups();
    groups.filter_map(|group| of_group(stalls, group)).collect()
}

/// Whether a stall or a divergence follows from this breach: the missing ranks are missing because
/// of it, or the calls would not have met otherwise.
pub fn explains(breach: &Breach, group: GroupId, origin: &StallOrigin, since: Timestamp) -> bool {
    let missed = |ranks: &[u32], absent: &[u32]| {
        !ranks.is_empty() && ranks.iter().all(|rank| absent.contains(rank))
    };
    match (&breach.kind, origin.why) {
        // Everything after the models were wrapped.
        (Kind::Models(_), _) => group == breach.group && since >= breach.at,
        // No rank waits because of it.
        (Kind::Bypassed | Kind::Thawed, _) => false,
        (_, OriginKind::Diverged(at, _)) => at == breach.group && since >= breach.at,
        // Only ranks that left the group or the program.
        (Kind::Boundaries(at), OriginKind::Left | OriginKind::Leaving) => {
            missed(&origin.ranks, &at.accumulate)
        }
        (Kind::Boundaries(_), _) => false,
        _ => missed(&origin.ranks, &breach.root),
    }
}

/// Replaces origins that follow from a breach of DDP's contract by that breach. A call that DDP did not make is then
/// not an omission of the program.
pub(super) fn trace_back(stalls: &mut Stalls<'_>, breaches: &[Breach]) {
    let breach_of = |group: GroupId, origin: &StallOrigin, since: Timestamp| {
        let mut breaches = breaches.iter();
        let found = breaches.position(|it| explains(it, group, origin, since));
        found.map(|at| StallOrigin::without_ranks(OriginKind::Breach(at)))
    };
    for stall in &mut stalls.stalls {
        if let Some(breach) = breach_of(stall.group, &stall.origin, stall.since) {
            stall.origin = breach;
        }
    }
    for divergence in &mut stalls.earlier.divergences {
        if let Some(breach) = breach_of(divergence.group, &divergence.origin, divergence.at) {
            divergence.origin = breach;
        }
    }
    let Stalls { stalls, omissions, .. } = stalls;
    omissions.retain(|omission| {
        let mut here =
            stalls.iter().filter(|it| (it.group, it.seq) == (omission.group, omission.seq));
        !here.any(|it| matches!(it.origin.why, OriginKind::Breach(_)))
    });
}

fn of_group(stalls: &Stalls<'_>, group: &Group) -> Option<Breach> {
    let models: Vec<Copies<'_>> = (1..=MAX_MODELS)
        .map(|model| Copies::new(stalls, group, model))
        .take_while(|copies| !copies.all.is_empty())
        .collect();
    // Different models explain all later breaches.
    models
        .iter()
        .find_map(Copies::differ)
        .or_else(|| {
            let broken = models.iter().filter_map(|it| it.raised().or_else(|| it.unused()));
            broken.min_by_key(|breach| breach.at)
        })
        .or_else(|| boundaries(stalls, group))
        .or_else(|| models.iter().find_map(Copies::bypassed))
}

impl<'a> Copies<'a> {
    fn new(stalls: &'a Stalls<'_>, group: &'a Group, model: u32) -> Self {
        let members = group.members.keys().filter_map(|&rank| {
            let process = stalls.model.member(group.id, rank)?;
            let replica = process.models.get(group.id, model)?;
            Some(Copy { rank, process, replica })
        });
        Self { stalls, group, model, all: members.collect() }
    }

    /// Models that differ in what ranks exchange.
    fn differ(&self) -> Option<Breach> {
        let mut sorts: Vec<Vec<&Copy<'_>>> = Vec::new();
        for copy in &self.all {
            let same = |sort: &Vec<&Copy<'_>>| sort[0].replica.has_same_report(copy.replica);
            match sorts.iter().position(same) {
                Some(at) => sorts[at].push(copy),
                None if sorts.len() < MAX_SORTS => sorts.push(vec![copy]),
                None => {}
            }
        }
        // Names alone do not matter to DDP.
        let mut merged: Vec<Vec<&Copy<'_>>> = Vec::new();
        for sort in sorts {
            let agrees = |other: &&mut Vec<&Copy<'_>>| {
                first_difference(other[0].replica, sort[0].replica).is_none()
            };
            match merged.iter_mut().find(agrees) {
                Some(known) => known.extend(sort),
                None => merged.push(sort),
            }
        }
        merged.sort_by_key(|sort| (Reverse(sort.len()), sort[0].rank));
        let (reference, rest) = merged.split_first()?;
        let differences = rest
            .iter()
            .filter_map(|other| first_difference(reference[0].replica, other[0].replica));
        let (what, index) = differences.min_by_key(|(_, index)| *index)?;
        let sides: Vec<SideOfModel> = merged
            .iter()
            .map(|sort| {
                let mut ranks: Vec<u32> = sort.iter().map(|copy| copy.rank).collect();
                ranks.sort_unstable();
                let mut layout = sort[0].replica.layout();
                let parameter = layout.find(|(at, _)| *at == index).map(|(_, it)| it);
                SideOfModel {
                    ranks,
                    total: sort[0].replica.total,
                    parameter: parameter.map(|it| (it.dtype.into(), it.shape(), it.name.into())),
                }
            })
            .collect();
        let classes: Vec<Vec<u32>> = sides.iter().map(|side| side.ranks.clone()).collect();
        let OddOnes { ranks: root, is_minority: is_odd } = odd_ones(&classes);
        let times = merged.iter().filter_map(|sort| sort.iter().map(|copy| copy.replica.at).min());
        Some(Breach {
            kind: Kind::Models(Difference { what, index, sides }),
            group: self.group.id,
            model: self.model,
            root,
            is_odd,
            at: times.clone().min()?,
            evidence_at: times.max()?,
        })
    }

    /// A breach that the reducers of these copies reported.
    fn reported(&self, kind: Kind, those: &[(&Copy<'_>, &ReducerReport)]) -> Option<Breach> {
        let at = those.iter().map(|(_, report)| report.at).min()?;
        Some(Breach {
            kind,
            group: self.group.id,
            model: self.model,
            root: those.iter().map(|(copy, _)| copy.rank).collect(),
            is_odd: true,
            at,
            evidence_at: at,
        })
    }

    /// Breaches that a reducer detected and raised for; ignored if the exception was caught and no
    /// rank waits.
    fn raised(&self) -> Option<Breach> {
        let is_missed = |rank: u32| {
            let mut stalls = self.stalls.stalls.iter().filter(|it| it.group == self.group.id);
            stalls.any(|stall| stall.missing.iter().any(|it| it.rank == rank))
        };
        [Kind::ReadyTwice, Kind::GraphChanged].into_iter().find_map(|kind| {
            let those: Vec<(&Copy<'_>, &ReducerReport)> = self
                .all
                .iter()
                .filter_map(|copy| {
                    let report = kind.report(copy.replica)?;
                    let matters = copy.process.uncaught().is_some() || is_missed(copy.rank);
                    matters.then_some((copy, report))
                })
                .collect();
            self.reported(kind, &those)
        })
    }

    /// Gradients that DDP does not average, if no call of the program is large enough to average them.
    fn bypassed(&self) -> Option<Breach> {
        if self.group.info.key.members.len() < 2 {
            return None;
        }
        [Kind::Bypassed, Kind::Thawed].into_iter().find_map(|kind| {
            let candidates = self.all.iter().filter_map(|copy| {
                let report = kind.report(copy.replica)?;
                let layout = copy.replica.layout().map(|(_, parameter)| parameter);
                let largest = match kind {
                    Kind::Thawed => largest(parse(&report.lines)),
                    _ => largest(layout),
                };
                let averages_none = copy.process.largest_own < largest;
                (copy.process.lost == 0 && averages_none).then_some((copy, report))
            });
            let those: Vec<(&Copy<'_>, &ReducerReport)> = candidates.collect();
            self.reported(kind, &those)
        })
    }

    /// Gradients that ranks lack, once these can no longer arrive.
    fn unused(&self) -> Option<Breach> {
        let lacking = self.all.iter().filter_map(|copy| {
            let report = Kind::Unused.report(copy.replica)?;
            // A later report may have been lost.
            let counts = copy.process.lost == 0 || raised_at(copy.process, report).is_some();
            counts.then_some((copy, report))
        });
        let lack: Vec<(&Copy<'_>, &ReducerReport)> = lacking.collect();
        let (_, first) = lack.first()?;
        let breach = self.reported(Kind::UnusedDiffer, &lack)?;
        let others: Vec<u32> =
            self.group.members.keys().copied().filter(|it| !breach.root.contains(it)).collect();
        let same = lack
            .iter()
            .all(|(_, report)| (report.total, &report.lines) == (first.total, &first.lines));
        let raised = lack.iter().filter_map(|(copy, report)| raised_at(copy.process, report));
        let waited_for = waits_for(self.stalls, self.group, &breach.root, &others);
        let certain = match (raised.min(), waited_for) {
            (Some(raised), _) => raised,
            (None, Some(Waits::Hopeless(since))) => since,
            (None, _) => return None,
        };
        let has_ended = |&rank: &u32| {
            let process = self.stalls.model.member(self.group.id, rank);
            process.is_some_and(Process::has_ended)
        };
        let kind = match waited_for {
            Some(_) => Kind::UnusedDiffer,
            // They may still be in their backward pass.
            None if !others.iter().all(has_ended) => return None,
            None if same => Kind::Unused,
            None => Kind::UnusedDiffer,
        };
        let last = lack.iter().map(|(_, report)| report.at).max()?;
        Some(Breach { kind, evidence_at: certain.max(last), ..breach })
    }
}

/// What differs between two models, and the index of the first differing parameter. Parameters that
/// were not reported by both never differ.
fn first_difference(a: &Replica, b: &Replica) -> Option<(What, u64)> {
    let both = || a.layout().zip(b.layout()).filter(|((i, _), (j, _))| i == j);
    let what = match () {
        () if a.total != b.total => What::Count,
        () if both().any(|((_, a), (_, b))| a.sizes != b.sizes) => What::Shape,
        () if both().any(|((_, a), (_, b))| a.dtype != b.dtype) => What::DType,
        () if is_permuted(a, b) => What::Order,
        () => return None,
    };
    let mut pairs = both();
    let differs = pairs.find(|((_, a), (_, b))| a != b).map(|((i, _), _)| i);
    Some((what, differs.unwrap_or_else(|| a.total.min(b.total))))
}

/// Whether two models have the same parameters in a different order.
fn is_permuted(a: &Replica, b: &Replica) -> bool {
    if !a.is_fully_reported() || !b.is_fully_reported() {
        return false;
    }
    let sorted = |replica| -> Vec<&str> {
        let mut names: Vec<&str> = Replica::layout(replica).map(|(_, it)| it.name).collect();
        names.sort_unstable();
        names
    };
    let differs = a.layout().zip(b.layout()).any(|(a, b)| a.1.name != b.1.name);
    differs && sorted(a) == sorted(b)
}

/// Number of elements of the largest parameter.
fn largest<'a>(parameters: impl Iterator<Item = Parameter<'a>>) -> u64 {
    parameters.map(|it| it.shape().iter().product()).max().unwrap_or(0)
}

/// How other ranks wait for the ranks that lack gradients.
#[derive(Clone, Copy)]
enum Waits {
    /// Those may still arrive.
    Open,
    /// Since this time those cannot arrive, or are overdue.
    Hopeless(Timestamp),
}

fn waits_for(stalls: &Stalls<'_>, group: &Group, lack: &[u32], others: &[u32]) -> Option<Waits> {
    let diverged = group.diverged.and_then(|seq| {
        let join = group.join(seq)?;
        let made = |ranks: &[u32]| join.calls.keys().any(|rank| ranks.contains(rank));
        (made(lack) && made(others)).then_some(join.mismatch?.1)
    });
    if let Some(at) = diverged {
        return Some(Waits::Hopeless(at));
    }
    let mut stalled = stalls.stalls.iter().filter(|stall| {
        let waits = stall.waiting.iter().any(|rank| others.contains(rank));
        let mut missing = stall.missing.iter();
        stall.group == group.id && waits && missing.any(|it| lack.contains(&it.rank))
    });
    let stall = stalled.next()?;
    let ended = stall.missing.iter().filter_map(|absent| {
        let process = stalls.model.member(group.id, absent.rank)?;
        (lack.contains(&absent.rank) && stalls.model.ending_of(process) != Ending::None)
            .then(|| process.end.map_or(stall.since, |end| end.at))
    });
    let left = || {
        let members = stall.missing.iter().filter_map(|it| group.members.get(&it.rank));
        members.filter_map(|member| member.destroyed).min()
    };
    let hopeless = ended
        .min()
        .or_else(left)
        .or_else(|| stalls.is_overdue(stall).then(|| stalls.overdue_at(stall)));
    Some(hopeless.map_or(Waits::Open, |at| Waits::Hopeless(at.max(stall.since))))
}

/// Ranks that made a forward which synchronizes gradients on some ranks only: the forward whose
/// backward issued the call that waits. On NCCL, a rank goes on to later forwards meanwhile.
fn boundaries(stalls: &Stalls<'_>, group: &Group) -> Option<Breach> {
    let diverged = group.diverged.and_then(|seq| {
        let join = group.join(seq)?;
        let hidden = join.by_rank().filter(|(_, joined)| joined.call.hidden);
        let waiting: Vec<u32> = hidden.map(|(rank, _)| rank).collect();
        Some((waiting, seq, join.mismatch?.1))
    });
    let stalled = stalls.stalls.iter().find(|it| {
        it.group == group.id && matches!(it.origin.why, OriginKind::Left | OriginKind::Leaving)
    });
    let (waiting, seq, since) =
        diverged.or_else(|| stalled.map(|it| (it.waiting.clone(), it.seq, it.since)))?;
    let of = |rank: u32| Some(&stalls.model.member(group.id, rank)?.accumulation);
    let first = waiting.first()?;
    let call = &stalls.join(group.id, seq)?.calls.get(first)?.call;
    let forward =
        if call.hidden { of(*first)?.synchronized_before(call.at)? } else { of(*first)?.forwards };
    let (mut synchronize, mut accumulate) = (Vec::new(), Vec::new());
    for &rank in group.members.keys() {
        // Every rank must have reached that forward.
        let side =
            if of(rank)?.is_synchronized(forward)? { &mut synchronize } else { &mut accumulate };
        side.push(rank);
    }
    let (one, other) = (*synchronize.first()?, *accumulate.first()?);
    if !waiting.iter().all(|rank| synchronize.contains(rank)) {
        return None;
    }
    let agreed = of(one)?.agreed_until(of(other)?)?;
    let classes = [synchronize.clone(), accumulate.clone()];
    let OddOnes { ranks: root, is_minority: is_odd } = odd_ones(&classes);
    let ended =
        accumulate.iter().filter_map(|&it| Some(stalls.model.member(group.id, it)?.end?.at));
    let evidence_at = ended.fold(since, Timestamp::max);
    Some(Breach {
        kind: Kind::Boundaries(Boundary { forward, synchronize, accumulate, agreed }),
        group: group.id,
        model: 0,
        root,
        is_odd,
        at: since,
        evidence_at,
    })
}

/// When DDP raised because of the missing gradients.
fn raised_at(process: &Process, report: &ReducerReport) -> Option<Timestamp> {
    let mut exceptions = process.exceptions.iter();
    let raised = exceptions.find(|it| it.at >= report.at && it.text.contains(UNFINISHED))?;
    Some(raised.at)
}

/// Parameters without gradients, with the ranks that lack them, in the order of the model.
pub fn missing<'a>(moment: &Moment<'a>, breach: &Breach) -> Vec<(Parameter<'a>, Vec<u32>)> {
    let missing = breach.root.iter().flat_map(|&rank| {
        let report = report_of(moment, breach, rank);
        let parameters = report.into_iter().flat_map(|report| parse(&report.lines));
        parameters.map(move |parameter| (rank, parameter))
    });
    by_key(missing, |it| *it)
}

/// The report of a rank that shows the breach.
pub fn report_of<'a>(moment: &Moment<'a>, breach: &Breach, rank: u32) -> Option<&'a ReducerReport> {
    let process = moment.model.member(breach.group, rank)?;
    breach.kind.report(process.models.get(breach.group, breach.model)?)
}

impl Kind {
    /// The report of a reducer that shows a breach of this kind.
    fn report<'a>(&self, replica: &'a Replica) -> Option<&'a ReducerReport> {
        replica.report(match self {
            Self::Models(_) | Self::Boundaries(_) => return None,
            Self::Unused | Self::UnusedDiffer => ParameterFact::WithoutGradient,
            Self::ReadyTwice => ParameterFact::ReadyTwice,
            Self::GraphChanged => ParameterFact::GraphChanged,
            Self::Bypassed => ParameterFact::Outside,
            Self::Thawed => ParameterFact::Thawed,
        })
    }
}

//! DD701 replica-divergence: parameters differ between the replicas of a model.

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::{Certificate, CertificateKind, Fact, Parameter, ReplicaFact};

use crate::findings::draft::{Draft, KeyPlace};
use crate::findings::view::{last_call, with_place};
use crate::input::align::{OddOnes, odd_ones};
use crate::model::{Comparison, Diverged, Group, is_apart};
use crate::situation::Situation;
use crate::words::{Ranks, joined};

/// DD701: replicas that differ after a synchronized step.
pub(crate) fn detect(situation: &Situation<'_>) -> Vec<Draft> {
    let groups = situation.model.groups();
    groups
        .flat_map(|group| {
            let members = group.info.key.members.len();
            group
                .replicas
                .diverged(members)
                // The rank that differs from the others is known once all have reported.
                .filter(|it| it.is_complete || situation.model.over().is_some())
                .filter_map(|it| draft(situation, group, &it))
        })
        .collect()
}

fn draft(situation: &Situation<'_>, group: &Group, it: &Diverged<'_>) -> Option<Draft> {
    let comparison = it.comparison;
    let classes = comparison.classes();
    let odd = odd_ones(&classes);
    let is_odd = odd.is_minority && it.is_complete;
    let mut root = if is_odd { odd.ranks } else { classes.concat() };
    root.sort_unstable();
    let one = *classes.first()?.first()?;
    let other = *classes.get(1)?.first()?;
    let replica = |rank: u32| {
        let process = situation.model.member(group.id, rank)?;
        process.models.get(group.id, it.point.model)
    };
    let described = replica(one).and_then(|replica| {
        let mut layout = replica.layout();
        let (_, parameter) = layout.find(|(index, _)| *index == u64::from(it.point.parameter))?;
        Some(Parameter {
            name: parameter.name.to_owned(),
            shape: parameter.shape(),
            missing_on: Vec::new(),
        })
    });
    let name = match &described {
        Some(parameter) => parameter.name.clone(),
        None => format!("parameter {}", it.point.parameter),
    };
    let at = comparison.values.values().map(|it| it.at).max()?;
    let place = KeyPlace::Join(group.id, u64::from(it.point.model));
    let mut draft = Draft::new(&catalogue::DD701, place, at);
    draft.place = Some((group.id, 0));
    draft.per_rank = comparison
        .values
        .iter()
        .filter_map(|(&rank, values)| {
            let process = situation.model.member(group.id, rank)?;
            Some(with_place(last_call(rank, process), values.place.as_deref()))
        })
        .collect();
    let others: Vec<u32> =
        comparison.values.keys().copied().filter(|rank| !root.contains(rank)).collect();
    draft.summary = summary(it, &name, &root, &others);
    draft.why = why(it, &name, &classes, one, other);
    draft.next = next(it, is_odd.then_some(&root));
    draft.parameters = described.into_iter().collect();
    draft.blame_odd(OddOnes { ranks: root, is_minority: is_odd });
    draft.victims = others;
    let proof = certificate(group, it, one, other);
    Some(draft.proved_by(proof))
}

fn summary(it: &Diverged<'_>, name: &str, root: &[u32], others: &[u32]) -> String {
    let rounds = it.point.rounds;
    let since = if it.from_the_start {
        "since before the first synchronized step".to_owned()
    } else {
        format!("after synchronized step {rounds}")
    };
    if others.is_empty() {
        format!("the parameters of {} differ {since}, seen in {name}", Ranks(root))
    } else {
        format!(
            "the parameters of {} differ from those of {} {since}, seen in {name}",
            Ranks(root),
            Ranks(others),
        )
    }
}

fn why(it: &Diverged<'_>, name: &str, classes: &[Vec<u32>], one: u32, other: u32) -> Vec<String> {
    let values = &it.comparison.values;
    let element = widest(it.comparison, one, other);
    let sides = classes.iter().take(4).map(|class| {
        let value = values[&class[0]].elements[element];
        format!("{value:.6} on {}", Ranks(class))
    });
    let mut why = vec![format!(
        "The same element of {name}, read before the next forward, is {}.",
        joined(sides, " and ")
    )];
    if it.from_the_start {
        why.push(
            "DDP copies the parameters of one rank to all others when it wraps the model. They \
             changed between then and the first step."
                .into(),
        );
    } else if let Some(agreed) = it.agreed {
        why.push(format!(
            "All ranks agreed on the parameters that were compared after synchronized step {}.",
            agreed.rounds
        ));
    }
    why.push(
        "DDP averages gradients, not parameters: replicas that differ stay different, and the ranks \
         train different models."
            .into(),
    );
    why
}

fn next(it: &Diverged<'_>, odd: Option<&Vec<u32>>) -> Vec<String> {
    let what = "parameters, the optimizer, its learning rate or gradients";
    let when = if it.from_the_start {
        "after the model was wrapped".to_owned()
    } else {
        "between a backward and the next forward".to_owned()
    };
    let first = match odd {
        Some(ranks) => {
            format!(
                "Look for code that changes {what} {when}, or skips optimizer.step(), on {} alone.",
                Ranks(ranks)
            )
        }
        None => format!(
            "Look for code that changes {what} {when}, or skips optimizer.step(), on some ranks only."
        ),
    };
    vec![
        first,
        "If ranks may change parameters, broadcast these from one rank afterwards.".into(),
        "Continue from an earlier checkpoint.".into(),
    ]
}

/// The element that differs most between two ranks.
fn widest(comparison: &Comparison, one: u32, other: u32) -> usize {
    let pairs = comparison.values[&one].elements.iter().zip(&comparison.values[&other].elements);
    let distances = pairs.map(|(a, b)| match (a - b).abs() {
        // Values of different kinds, such as a number and none.
        distance if distance.is_nan() && a.is_nan() != b.is_nan() => f64::INFINITY,
        distance if distance.is_nan() => 0.0,
        distance => distance,
    });
    let widest = distances.enumerate().max_by(|(_, a), (_, b)| a.total_cmp(b));
    widest.map_or(0, |(at, _)| at)
}

fn certificate(group: &Group, it: &Diverged<'_>, one: u32, other: u32) -> Option<Certificate> {
    let values = &it.comparison.values;
    if !is_apart(&values[&one], &values[&other]) {
        return None;
    }
    let fact = |rank: u32| {
        Fact::Holds(ReplicaFact {
            rank,
            group: group.info.key.clone(),
            seq: it.point.seq,
            model: it.point.model,
            rounds: it.point.rounds,
            index: u64::from(it.point.parameter),
            dtype: values[&rank].dtype.name().unwrap_or_default().to_owned(),
            values: values[&rank].elements.iter().map(f64::to_string).collect(),
        })
    };
    Some(Certificate { kind: CertificateKind::Contradiction, facts: vec![fact(one), fact(other)] })
}

//! DD404 model-mismatch: the parameters of a model differ between ranks in count, shape, dtype or
//! order.

use ddp_doctor_proto::report::{
    CauseKind, Certificate, CertificateKind, Effect, Fact, ModelFact, Parameter,
};

use crate::findings::draft::Draft;
use crate::model::Group;
use crate::situation::contract::{Difference, Kind, SideOfModel, What};
use crate::situation::{Breach, Situation};
use crate::source::cause;
use crate::words::{self, Ranks};

/// DD404: different models in one group.
pub(crate) fn complete_draft(
    situation: &Situation<'_>,
    breach: &Breach,
    mut draft: Draft,
) -> Option<Draft> {
    let Kind::Models(difference) = &breach.kind else { return None };
    let group = situation.model.group(breach.group);
    // Errors of DDP state the numbers of parameters alone.
    let is_known = difference.sides.iter().any(|it| it.parameter.is_some());
    let index = if is_known { difference.index } else { 0 };
    let described = difference.sides.iter().map(|it| describe_side(it, difference.what, index));
    let sides = words::joined(described, ", ");
    let first = if is_known { format!(", first in parameter {index}") } else { String::new() };
    draft.summary = format!("the models of {} differ{first}: {sides}", words::group(&group.info));
    draft.say(match difference.what {
        What::Count | What::Shape => {
            "DDP matches parameters across ranks only by their order, and its constructor rejects \
             models that differ in the number or the shapes of parameters."
        }
        What::DType => {
            "DDP matches parameters across ranks only by their order, and sends parameters of one dtype \
             together: different dtypes lead to different messages."
        }
        What::Order => {
            "DDP matches parameters across ranks only by their order. If the order differs, parameters \
             silently receive each other's values and gradients."
        }
    });
    if breach.is_odd {
        draft.say(format!(
            "{} from the others, which agree.",
            words::begin(Ranks(&breach.root).with("differs", "differ")),
        ));
    }
    let hypothesis = cause::of_values(situation, &draft.per_rank);
    // A condition on the rank is what to change.
    let is_of_rank =
        hypothesis.as_ref().is_some_and(|it| it.cause.kind == CauseKind::RankConditional);
    if !is_of_rank {
        draft.advise(
            "Build the model from values that all ranks share: broadcast the configuration from rank 0, \
             and sort the names or files that layers are created from.",
        );
    }
    if difference.what == What::Order {
        // The job continues with wrong results.
        draft.effect = Effect::Corrupts;
    }
    draft.set_victims(group.members.keys().copied());
    draft.parameters = parameters(difference);
    if let Some(hypothesis) = hypothesis {
        draft.explain(hypothesis);
    }
    let proof = certificate(group, breach, difference);
    Some(draft.proved_by(proof))
}

/// "rank 0 has 12 parameters (parameter 10 is head.weight float32[10, 64])".
fn describe_side(side: &SideOfModel, what: What, index: u64) -> String {
    let has = Ranks(&side.ranks).with("has", "have");
    // What the others have there may be unknown as well.
    let is_last = side.parameter.is_none() && what == What::Count && side.total > index;
    if is_last {
        return format!("{has} {} parameters", side.total);
    }
    let there = match &side.parameter {
        Some((dtype, shape, name)) => format!("{name} {dtype}{shape:?}"),
        None => "no such parameter".to_owned(),
    };
    match what {
        What::Count if side.parameter.is_none() => {
            format!("{has} {} parameters (no parameter {index})", side.total)
        }
        What::Count => {
            format!("{has} {} parameters (parameter {index} is {there})", side.total)
        }
        What::Shape | What::DType | What::Order => format!("{has} {there}"),
    }
}

fn parameters(difference: &Difference) -> Vec<Parameter> {
    let mut found: Vec<Parameter> = Vec::new();
    for side in &difference.sides {
        let Some((_, shape, name)) = &side.parameter else { continue };
        if !found.iter().any(|it| it.name == *name && it.shape == *shape) {
            found.push(Parameter {
                name: name.clone(),
                shape: shape.clone(),
                missing_on: Vec::new(),
            });
        }
    }
    found
}

/// The proof: two ranks that differ. `None` for a different order, which only names show.
fn certificate(group: &Group, breach: &Breach, difference: &Difference) -> Option<Certificate> {
    let [a, rest @ ..] = &difference.sides[..] else { return None };
    let signature = |side: &SideOfModel| {
        let (dtype, shape, _) = side.parameter.as_ref()?;
        Some(format!("{dtype}{shape:?}"))
    };
    let b = rest.iter().find(|b| a.total != b.total || signature(a) != signature(b))?;
    let fact = |side: &SideOfModel| {
        // The parameter exists, but was not recorded.
        let is_told = side.parameter.is_some() == (difference.index < side.total);
        is_told.then(|| {
            Fact::Wraps(ModelFact {
                rank: side.ranks[0],
                group: group.info.key.clone(),
                model: breach.model,
                total: side.total,
                index: difference.index,
                parameter: signature(side),
            })
        })
    };
    Some(Certificate { kind: CertificateKind::Contradiction, facts: vec![fact(a)?, fact(b)?] })
}

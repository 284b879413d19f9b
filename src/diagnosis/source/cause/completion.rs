//! A cause that the source shows: what completes first decides which call a rank makes first.

use std::sync::Arc;

use ddp_doctor_proto::GuardForm;
use ddp_doctor_proto::report::{CauseKind, Where};

use crate::guards;
use crate::input::event::Guard;
use crate::model::Process;

use super::{CauseHypothesis, Detail, Mistake, Sides, line_is_guarded, supported};

impl<'a> Sides<'a> {
    /// Calls that do not match, both of which were made when something was complete.
    pub(super) fn order_of_completion(&self) -> Option<CauseHypothesis> {
        self.diverged()?.mismatch?;
        let completed = |side: &[&'a Process]| -> Option<(Arc<Where>, &'a Guard)> {
            let process = *side.first()?;
            let line = self.line_of(process)?;
            let mut around = guards::all_around(process, &line);
            around.find(|(_, guard)| guard.form == GuardForm::Completes)
        };
        let (other, shown) = (completed(&self.others)?, completed(&self.odd)?);
        let mistake = Mistake::as_completed([&other.0, &shown.0], shown.1);
        let hypothesis = supported(CauseKind::SwappedCalls, Some(line_is_guarded(&shown)));
        Some(hypothesis.with_mistake(mistake).with_detail(Detail::Completion))
    }
}

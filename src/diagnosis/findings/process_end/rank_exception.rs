//! DD202 rank-exception: an exception ended a rank, or made it leave the path of the others.

use ddp_doctor_proto::catalogue;

use crate::findings::draft::Draft;
use crate::findings::process_end::exception;
use crate::input::allocation;
use crate::situation::Situation;

/// DD202: exceptions that ended a rank or led it to another call.
pub(crate) fn detect(situation: &Situation<'_>) -> Vec<Draft> {
    let ended = exception::ended(situation)
        .into_iter()
        .filter(|it| allocation::failed(&it.exception.text).is_none());
    ended.map(|it| exception::draft(&catalogue::DD202, situation, &it)).collect()
}

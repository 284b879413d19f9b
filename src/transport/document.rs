//! What viewers receive, as JSON in a message.

use ddp_doctor_proto::{VERSION, v1};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tonic::Status;

/// Encodes what a viewer receives.
///
/// # Errors
///
/// If it has no form in JSON.
pub fn encode(data: &impl Serialize) -> Result<v1::Document, Status> {
    let json = serde_json::to_vec(data).map_err(|error| Status::internal(error.to_string()))?;
    Ok(v1::Document { json })
}

/// Decodes what [`encode`] returned in the coordinator.
///
/// # Errors
///
/// If the coordinator is of a version that sends something else.
pub fn decode<T: DeserializeOwned>(document: &v1::Document) -> Result<T, Status> {
    serde_json::from_slice(&document.json).map_err(|error| {
        Status::data_loss(format!(
            "ddp-doctor {VERSION} cannot read its answer, so use the coordinator's version: {error}"
        ))
    })
}

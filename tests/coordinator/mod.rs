//! The coordinator and its clients.
//!
//! * `job_names`: jobs of one name, and a coordinator of another version.
//! * `foreign_streams`: foreign streams, nodes of other versions, and foreign black boxes.
//! * `loss`: the diagnosis continues on the node when the coordinator is lost.
//! * `metrics`: metrics, scraped by Prometheus.
//! * `webhook`: messages to a webhook.

mod foreign_streams;
mod job_names;
mod loss;
mod metrics;
mod webhook;

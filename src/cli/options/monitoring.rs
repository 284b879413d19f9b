//! Options about metrics and the webhook.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::values::{address, seconds};
use crate::monitoring::Options;
use crate::monitoring::webhook::Url;

#[derive(Debug, Args)]
pub(in super::super) struct Monitoring {
    /// Serve metrics for Prometheus at http://ADDRESS/metrics
    ///
    /// They contain the names of jobs, verdicts, codes of findings, and counts. Users of this machine can read
    /// them at a loopback address. Any other address needs a secret: DDP_DOCTOR_METRICS_TOKEN, which readers send
    /// as a bearer token.
    #[arg(
        long,
        value_name = "ADDRESS",
        value_parser = address,
        env = "DDP_DOCTOR_METRICS"
    )]
    metrics: Option<SocketAddr>,
    /// Read the secret of the metrics from FILE (mode 600) [default: DDP_DOCTOR_METRICS_TOKEN]
    #[arg(long, value_name = "FILE", env = "DDP_DOCTOR_METRICS_TOKEN_FILE")]
    metrics_token_file: Option<PathBuf>,
    /// Post new findings, and the end of a hang, to URL as JSON
    ///
    /// Other users of this machine can read the command line: use the environment variable if the URL is
    /// secret.
    #[arg(long, value_name = "URL", env = "DDP_DOCTOR_WEBHOOK", hide_env_values = true)]
    webhook: Option<Url>,
    /// Also post a heartbeat to the webhook at this interval (at least 1 s)
    #[arg(
        long,
        value_name = "SECONDS",
        value_parser = interval,
        env = "DDP_DOCTOR_WEBHOOK_HEARTBEAT"
    )]
    webhook_heartbeat: Option<Duration>,
}

impl From<Monitoring> for Options {
    fn from(given: Monitoring) -> Self {
        Self {
            metrics: given.metrics,
            metrics_token_file: given.metrics_token_file,
            token_file: None,
            webhook: given.webhook,
            heartbeat: given.webhook_heartbeat,
        }
    }
}

fn interval(text: &str) -> Result<Duration, String> {
    let interval = seconds(text)?;
    if interval < Duration::from_secs(1) {
        return Err("shorter than 1 s".into());
    }
    Ok(interval)
}

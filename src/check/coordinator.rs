//! Asks the coordinator of the job whether it answers.

use anyhow::Context;
use ddp_doctor_proto::v1;
use ddp_doctor_proto::v1::viewer_service_client::ViewerServiceClient;
use ddp_doctor_transport::{Address, CONNECT, Credentials, connect};
use tokio::time::timeout;
use tonic::Code;

use super::facts::{Coordinator, long_text, text};

/// Whether the coordinator at this address answers, and has the token of this node. May take seconds.
#[must_use]
pub(super) fn ask(address: &str, credentials: &Credentials) -> Coordinator {
    let error = answer(address, credentials).err();
    Coordinator { address: text(address), error: error.map(|it| long_text(&it.to_string())) }
}

fn answer(address: &str, credentials: &Credentials) -> anyhow::Result<()> {
    let parsed = Address::parse(address, credentials)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let asked = runtime.block_on(async {
        let mut client = ViewerServiceClient::new(connect(&parsed).await?);
        // The newest job; that there is none is an answer as well.
        let request = client.watch(v1::WatchRequest::default());
        match timeout(CONNECT, request).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(status)) if status.code() == Code::NotFound => Ok(()),
            Ok(Err(status)) => Err(anyhow::anyhow!("{address}: {}", status.message())),
            Err(_) => Err(anyhow::anyhow!("no coordinator answers at {address}")),
        }
    });
    // A name server that does not answer must not delay the exit.
    runtime.shutdown_background();
    asked
}

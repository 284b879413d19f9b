//! `ddp-doctor coordinator`

use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use anyhow::{Context, bail};
use clap::Args;
use tokio::sync::oneshot;

use crate::coordinator::{Hub, serve};
use crate::node::sys;

/// Serve several nodes and jobs until interrupted.
///
/// Prints the address on standard output once it can be used.
#[derive(Debug, Args)]
pub(super) struct Coordinator {
    /// Address to listen on; port 0: a free one
    #[arg(
        long,
        value_name = "ADDRESS",
        default_value = "127.0.0.1:7077",
        env = "DDP_DOCTOR_LISTEN"
    )]
    listen: SocketAddr,
}

impl Coordinator {
    pub(super) fn run(self) -> anyhow::Result<u8> {
        if !self.listen.ip().is_loopback() {
            bail!(
                "{} can be reached from other machines, and what is sent there is not encrypted: \
                 only a loopback address can be used",
                self.listen
            );
        }
        sys::block_interrupts();
        let listener = TcpListener::bind(self.listen)
            .with_context(|| format!("cannot listen on {}", self.listen))?;
        writeln!(io::stdout(), "{}", listener.local_addr()?)?;
        io::stdout().flush()?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()?;
        let (stop, stopped) = oneshot::channel::<()>();
        std::thread::spawn(move || {
            sys::wait_for_interrupt();
            stop.send(()).ok();
        });
        runtime.block_on(serve(listener, Arc::new(Hub::new()), async {
            stopped.await.ok();
        }))?;
        runtime.shutdown_background();
        Ok(0)
    }
}

//! Chooses the coordinator of a run: the given one, the one that the nodes of the launch share, or one
//! of its own in this process.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::sync::Arc;

use ddp_doctor_coordinator::{Access, Hub, Listeners, serve};
use ddp_doctor_host::log::UserLog;
use ddp_doctor_host::sys;
use ddp_doctor_transport::socket::{self, Socket};
use ddp_doctor_transport::{Address, Credentials, Keys, TokenError, loopback};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

use super::rendezvous::Rendezvous;
use crate::blocked::peers;
use crate::upload::attach::Coordinator;

/// Where a coordinator accepts connections, and the socket among them, which is removed at the end.
pub type Listening = (Option<Socket>, Listeners);

/// The coordinator of a run.
#[derive(Debug)]
pub struct Chosen {
    /// Where the diagnosis is made.
    pub coordinator: Coordinator,
    /// Address for processes of this machine; `None`: nothing listens.
    pub address: Option<String>,
    /// Address for other machines, if it differs.
    pub remote_address: Option<String>,
    /// Where a coordinator in this process accepts connections, with its socket.
    pub listening: Option<Listening>,
    /// Id of the job on all its nodes; `None`: nodes do not share a coordinator.
    pub job: Option<String>,
    /// Lines for the user.
    pub notices: Vec<String>,
}

impl Chosen {
    /// Chooses a coordinator. Always succeeds: at worst, this process diagnoses its own ranks.
    #[must_use]
    pub fn new(
        requested: Option<&str>,
        rendezvous: Option<&Rendezvous>,
        credentials: &Credentials,
    ) -> Self {
        if let Some(address) = requested {
            let parsed = Address::parse(address, credentials).and_then(Address::for_evidence);
            return match parsed {
                Ok(address) => Self::there(address, rendezvous),
                Err(error) => Self::alone(format!("{error}; this process diagnoses the job")),
            };
        }
        let Some(rendezvous) = rendezvous else {
            return Self::here(None);
        };
        let shared = match loopback(&rendezvous.host) {
            Some(_) => Self::on_this_machine(rendezvous),
            None => Self::on_one_machine(rendezvous, credentials),
        };
        shared.unwrap_or_else(|why| Self::alone(format!("this node is diagnosed alone: {why}")))
    }

    /// One that the runs of several nodes share, which are all on this machine.
    fn on_this_machine(rendezvous: &Rendezvous) -> Result<Self, String> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, rendezvous.coordinator_port()));
        match Socket::at(address) {
            Ok((socket, listener, _)) => {
                let has_port = socket.has_port();
                let mut here = Self::here(Some((socket, listener)));
                here.address = Some(address.to_string());
                here.job = Some(rendezvous.job());
                if !has_port {
                    here.notices.push(format!(
                        "another user or container has the port of {address}: runs in other containers are not \
                         diagnosed together with this one"
                    ));
                }
                Ok(here)
            }
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                let shared = Address::parse(&address.to_string(), &Credentials::default())
                    .map_err(|error| error.to_string())?;
                Ok(Self::there(shared, Some(rendezvous)))
            }
            Err(error) => Err(format!("cannot listen at {address}: {error}")),
        }
    }

    /// One that the nodes share, on the machine where they meet.
    fn on_one_machine(rendezvous: &Rendezvous, credentials: &Credentials) -> Result<Self, String> {
        let token = credentials.token().map_err(|error| match error {
            TokenError::Missing => format!("to diagnose all nodes together, {error}"),
            error => error.to_string(),
        })?;
        let text = rendezvous.coordinator();
        let shared = || Address::parse(&text, credentials).map_err(|error| error.to_string());
        if !rendezvous.is_here() {
            return Ok(Self::there(shared()?, Some(rendezvous)));
        }
        let keys = Keys::derive(&token).map_err(|error| error.to_string())?;
        match listen_everywhere(rendezvous.coordinator_port()) {
            Ok(listener) => {
                let mut here = Self::here(None);
                here.remote_address = Some(text);
                here.job = Some(rendezvous.job());
                if let Some((_, listeners)) = &mut here.listening {
                    listeners.remote = Some((listener, keys));
                }
                Ok(here)
            }
            // Another run on this machine hosts it.
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                let mut there = Self::there(shared()?, Some(rendezvous));
                there.notices.extend(taken_by_another(rendezvous.coordinator_port()));
                Ok(there)
            }
            Err(error) => Err(format!("cannot listen at {text}: {error}")),
        }
    }

    fn there(address: Address, rendezvous: Option<&Rendezvous>) -> Self {
        Self {
            address: Some(address.to_string()),
            coordinator: Coordinator::There(address),
            remote_address: None,
            listening: None,
            job: rendezvous.map(Rendezvous::job),
            notices: Vec::new(),
        }
    }

    /// One in this process, with a socket of its own unless one is given.
    fn here(given: Option<(Socket, UnixListener)>) -> Self {
        let mut notices = Vec::new();
        let socket = match given {
            Some(given) => Some(given),
            None => Socket::unnamed()
                .map_err(|error| {
                    notices.push(format!(
                        "`ddp-doctor watch`, `status` and `dump` cannot connect to this run: no socket: \
                         {error}"
                    ));
                })
                .ok(),
        };
        let (socket, local) = socket.unzip();
        Self {
            coordinator: Coordinator::Here(Arc::new(Hub::new())),
            address: socket.as_ref().map(Socket::address),
            remote_address: None,
            listening: Some((socket, Listeners { local, remote: None })),
            job: None,
            notices,
        }
    }

    fn alone(why: String) -> Self {
        let mut here = Self::here(None);
        here.notices.insert(0, why);
        here
    }
}

/// Listens on all addresses of this machine: its own name may stand for a loopback address here and
/// for another one elsewhere.
fn listen_everywhere(port: u16) -> io::Result<TcpListener> {
    let both = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port));
    match both {
        Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))
        }
        both => both,
    }
}

/// A message if another user listens at the port of the coordinator.
fn taken_by_another(port: u16) -> Option<String> {
    let users = peers::listeners(|it| it.port() == port);
    let other = users.iter().find(|it| **it != sys::user_id())?;
    Some(format!(
        "user {other} listens at port {port}, where the nodes of this job expect its coordinator: give another \
         MASTER_PORT, or --coordinator"
    ))
}

/// Serves the nodes and viewers of a coordinator, if it is in this process, until `stop`.
pub fn serve_here(
    runtime: &Runtime,
    listening: Option<Listening>,
    coordinator: &Coordinator,
    log: &UserLog,
    stop: oneshot::Receiver<()>,
) {
    let (Some((socket, listeners)), Coordinator::Here(hub)) = (listening, coordinator) else {
        return;
    };
    let (hub, log) = (Arc::clone(hub), log.clone());
    runtime.spawn(socket::sweep());
    runtime.spawn(async move {
        let _removed_at_the_end = socket;
        let stop = async { drop(stop.await) };
        if let Err(error) = serve(listeners, access(), hub, log.clone(), stop).await {
            log.print(&error.to_string());
        }
    });
}

/// Limits of connections to a coordinator in this process.
#[must_use]
pub fn access() -> Access {
    Access { user: sys::user_id(), descriptors: sys::descriptor_limit() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ddp_doctor_host::sys;

    fn rendezvous(host: &str, port: u16) -> Rendezvous {
        Rendezvous { host: host.into(), port, rank: None, id: None }
    }

    fn credentials(dir: &std::path::Path) -> Credentials {
        use std::os::unix::fs::PermissionsExt;
        let file = dir.join("token");
        std::fs::write(&file, "0123456789abcdef").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        Credentials { file: Some(file), can_ask: false }
    }

    /// A port whose coordinator's port is free.
    fn port() -> u16 {
        let free = |port: &u16| listen_everywhere(rendezvous("", *port).coordinator_port()).is_ok();
        (30_000..32_000).find(free).unwrap()
    }

    #[test]
    fn first_run_on_the_machine_hosts_and_others_attach() {
        let dir = tempfile::tempdir().unwrap();
        for (host, credentials) in [
            ("127.0.0.1".to_owned(), Credentials::default()),
            (sys::host_name(), credentials(dir.path())),
        ] {
            let meeting = rendezvous(&host, port());
            let first = Chosen::new(None, Some(&meeting), &credentials);
            assert!(matches!(first.coordinator, Coordinator::Here(_)), "{first:?}");
            let second = Chosen::new(None, Some(&meeting), &credentials);
            let Coordinator::There(address) = &second.coordinator else {
                panic!("{second:?}");
            };
            assert!(address.is_open());
            assert_eq!(first.job, second.job);
            assert_eq!((first.notices.len(), second.notices.len()), (0, 0));
        }
    }

    #[test]
    fn nodes_without_a_token_are_diagnosed_alone() {
        let nowhere = Credentials { file: Some("/nowhere/token".into()), can_ask: false };
        let alone = Chosen::new(None, Some(&rendezvous("192.0.2.1", 29500)), &nowhere);
        assert!(matches!(alone.coordinator, Coordinator::Here(_)));
        assert!(alone.notices[0].starts_with("this node is diagnosed alone: "), "{alone:?}");
        let given = Chosen::new(Some("192.0.2.1:7077"), None, &nowhere);
        assert!(given.notices[0].contains("needs a token"), "{given:?}");
        assert!(alone.job.is_none() && given.job.is_none());
    }

    #[test]
    fn other_machine_is_attached_to() {
        let dir = tempfile::tempdir().unwrap();
        let meeting = rendezvous("192.0.2.1", 29500);
        let chosen = Chosen::new(None, Some(&meeting), &credentials(dir.path()));
        assert_eq!(chosen.address.as_deref(), Some("192.0.2.1:19500"));
        assert_eq!(chosen.job.as_deref(), Some("job-29500"));
        assert!(chosen.listening.is_none());
        // At a given coordinator as well, the nodes of a launch are one job.
        let given = Chosen::new(Some("192.0.2.7:7077"), Some(&meeting), &credentials(dir.path()));
        assert_eq!(given.address.as_deref(), Some("192.0.2.7:7077"));
        assert_eq!(given.job, chosen.job);
    }
}

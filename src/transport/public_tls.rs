//! Encrypted connections to servers on the internet: TLS 1.3 with certificates of public authorities.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsConnector, rustls};

use super::tls::HANDSHAKE;

/// Where distributions keep the certificates of public authorities.
const ROOTS: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
];
/// Variable that names another file.
const VARIABLE: &str = "SSL_CERT_FILE";

/// Connects to servers with a certificate of an authority that this machine trusts.
#[derive(Clone)]
pub struct PublicTls(TlsConnector);

impl PublicTls {
    /// With the authorities in the file that `SSL_CERT_FILE` names, or else in that of the distribution.
    ///
    /// # Errors
    ///
    /// If there is no such file, or no certificate in it.
    pub fn new() -> io::Result<Self> {
        let named = std::env::var_os(VARIABLE).map(PathBuf::from);
        let file = named
            .or_else(|| ROOTS.iter().map(PathBuf::from).find(|it| it.exists()))
            .ok_or_else(|| {
                let why = format!(
                    "no certificates of authorities (install ca-certificates, or set {VARIABLE})"
                );
                io::Error::new(io::ErrorKind::NotFound, why)
            })?;
        let mut roots = RootCertStore::empty();
        let certificates = CertificateDer::pem_file_iter(&file);
        for certificate in certificates.into_iter().flatten().flatten() {
            // Some authorities have certificates that cannot be used here.
            drop(roots.add(certificate));
        }
        if roots.is_empty() {
            let why = format!("{} contains no certificate", file.display());
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&TLS13])
            .map_err(io::Error::other)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self(TlsConnector::from(Arc::new(config))))
    }

    /// Encrypts a connection to the server with this name.
    ///
    /// # Errors
    ///
    /// If the server has no valid certificate for the name, or is too slow.
    pub async fn connect(&self, name: &str, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let name = ServerName::try_from(name.to_owned()).map_err(io::Error::other)?;
        timeout(HANDSHAKE, self.0.connect(name, stream)).await?
    }
}

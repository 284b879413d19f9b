//! Encrypted connections between machines: TLS 1.3 over TCP.
//!
//! Both sides of a connection prove that they know the token: the key pair of a coordinator and that
//! of its clients are derived from it (HKDF with SHA-256, RFC 5869; Ed25519, RFC 8032), and each side
//! accepts only the other's public key. Keys are exchanged without certificates (RFC 7250).

use std::io;
use std::net::{SocketAddr, TcpStream as StdTcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use ring::hkdf::{HKDF_SHA256, KeyType, Salt};
use ring::signature::{Ed25519KeyPair, KeyPair};
use rustls::client::AlwaysResolvesClientRawPublicKeys;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring as provider, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{
    CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer,
    UnixTime,
};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error,
    PeerIncompatible, ServerConfig, SignatureScheme,
};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::rustls;
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

use super::token::Token;

/// Separates these keys from keys that another program derives from the same secret.
const SALT: &[u8] = b"ddp-doctor transport 1";
/// Name in the handshake; peers are identified by their keys.
const NAME: &str = "ddp-doctor";
/// An Ed25519 private key in PKCS #8 (RFC 8410), before its seed.
const PKCS8: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];
/// An Ed25519 public key as `SubjectPublicKeyInfo` (RFC 8410), before its bytes.
const PUBLIC_KEY: [u8; 12] =
    [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
/// Length of a seed and of a public key, in bytes.
const LENGTH: usize = 32;
/// Time limit for the connection to one address.
const CONNECT: Duration = Duration::from_secs(3);
/// Time limit for a handshake.
pub const HANDSHAKE: Duration = Duration::from_secs(5);

/// The keys of both sides, derived from a token.
#[derive(Clone)]
pub struct Keys {
    connector: TlsConnector,
    acceptor: TlsAcceptor,
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Keys")
    }
}

impl Keys {
    /// Derives the keys.
    ///
    /// # Errors
    ///
    /// If the cryptographic library fails, which does not depend on the token.
    pub fn derive(token: &Token) -> io::Result<Self> {
        let provider = Arc::new(provider::default_provider());
        let coordinator =
            Pair::derive(token, b"coordinator", &provider).map_err(io::Error::other)?;
        let client = Pair::derive(token, b"client", &provider).map_err(io::Error::other)?;
        let accepts = |peer: &Pair| {
            Arc::new(Pinned { key: peer.public.clone(), provider: Arc::clone(&provider) })
        };
        let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])
            .map_err(io::Error::other)?
            .with_client_cert_verifier(accepts(&client))
            .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(Arc::clone(
                &coordinator.certified,
            ))));
        let connector = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])
            .map_err(io::Error::other)?
            .dangerous()
            .with_custom_certificate_verifier(accepts(&coordinator))
            .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(
                client.certified,
            )));
        Ok(Self {
            connector: TlsConnector::from(Arc::new(connector)),
            acceptor: TlsAcceptor::from(Arc::new(server)),
        })
    }

    /// Connects to the coordinator at a host and port.
    ///
    /// # Errors
    ///
    /// If the name does not resolve, nothing listens there, or the peer does not know the token.
    pub async fn connect(&self, host: &str, port: u16) -> io::Result<client::TlsStream<TcpStream>> {
        let stream = connect(host, port).await?;
        stream.set_nodelay(true)?;
        let name = ServerName::try_from(NAME).map_err(io::Error::other)?;
        let handshake = timeout(HANDSHAKE, self.connector.connect(name, stream)).await;
        handshake?.map_err(|error| match cause(&error) {
            Some(Error::InvalidCertificate(_)) => {
                io::Error::new(io::ErrorKind::PermissionDenied, "the coordinator has another token")
            }
            // A coordinator refuses no handshake before the client has seen its key.
            Some(
                Error::InvalidMessage(_) | Error::PeerIncompatible(_) | Error::AlertReceived(_),
            ) => io::Error::new(error.kind(), "another program listens there"),
            _ => error,
        })
    }

    /// Accepts a connection whose peer knows the token.
    ///
    /// # Errors
    ///
    /// If the peer does not know it, or is too slow.
    pub async fn accept(&self, stream: TcpStream) -> io::Result<server::TlsStream<TcpStream>> {
        stream.set_nodelay(true)?;
        timeout(HANDSHAKE, self.acceptor.accept(stream)).await?
    }
}

fn cause(error: &io::Error) -> Option<&Error> {
    error.get_ref()?.downcast_ref()
}

/// Connects to the first address of a host that accepts.
///
/// # Errors
///
/// If the name does not resolve, or nothing listens there.
pub async fn connect(host: &str, port: u16) -> io::Result<TcpStream> {
    let addresses = tokio::net::lookup_host((host, port)).await?;
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host name has no address");
    for address in addresses {
        match timeout(CONNECT, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => last = error,
            Err(elapsed) => last = elapsed.into(),
        }
    }
    Err(last)
}

/// Whether something accepts connections at a host and port within the limit for each address.
#[must_use]
pub fn is_open(host: &str, port: u16) -> bool {
    let addresses = (host, port).to_socket_addrs();
    let opens = |it: &SocketAddr| StdTcpStream::connect_timeout(it, CONNECT).is_ok();
    addresses.is_ok_and(|mut all| all.any(|it| opens(&it)))
}

/// A key pair.
struct Pair {
    certified: Arc<CertifiedKey>,
    /// `SubjectPublicKeyInfo` of the public key.
    public: Vec<u8>,
}

/// Length of the output of HKDF.
struct Seed;

impl KeyType for Seed {
    fn len(&self) -> usize {
        LENGTH
    }
}

impl Pair {
    fn derive(token: &Token, side: &[u8], provider: &CryptoProvider) -> Result<Self, Error> {
        let failed = |_unspecified| Error::General("no key can be derived".into());
        let mut seed = [0; LENGTH];
        let secret = Salt::new(HKDF_SHA256, SALT).extract(token.as_bytes());
        let expanded = secret.expand(&[side], Seed).and_then(|it| it.fill(&mut seed));
        expanded.map_err(failed)?;
        let pair = Ed25519KeyPair::from_seed_unchecked(&seed)
            .map_err(|error| Error::General(error.to_string()))?;
        let public = [&PUBLIC_KEY[..], pair.public_key().as_ref()].concat();
        let private = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from([&PKCS8[..], &seed].concat()));
        let key = provider.key_provider.load_private_key(private)?;
        let certified = CertifiedKey::new(vec![CertificateDer::from(public.clone())], key);
        Ok(Self { certified: Arc::new(certified), public })
    }
}

/// Accepts a single public key, on either side.
#[derive(Debug)]
struct Pinned {
    key: Vec<u8>,
    provider: Arc<CryptoProvider>,
}

impl Pinned {
    fn check(&self, key: &CertificateDer<'_>) -> Result<(), Error> {
        // The key is public, but what is compared with it comes from anybody.
        let is_same = self.key.len() == key.len()
            && self.key.iter().zip(key.iter()).fold(0, |it, (a, b)| it | (a ^ b)) == 0;
        if is_same { Ok(()) } else { Err(CertificateError::ApplicationVerificationFailure.into()) }
    }

    fn verify(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature_with_raw_key(
            message,
            &SubjectPublicKeyInfoDer::from(key.as_ref()),
            signature,
            &self.provider.signature_verification_algorithms,
        )
    }
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        key: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(key).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _key: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(PeerIncompatible::Tls12NotOffered.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verify(message, key, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for Pinned {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        key: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(key).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _key: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(PeerIncompatible::Tls12NotOffered.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verify(message, key, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    fn keys(token: &str) -> Keys {
        Keys::derive(&Token::new(token).unwrap()).unwrap()
    }

    /// A server that accepts one connection and sends two bytes; its address and its result.
    async fn serve(keys: Keys) -> (SocketAddr, tokio::task::JoinHandle<io::Result<()>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = tokio::spawn(async move {
            let (stream, _) = listener.accept().await?;
            let mut stream = keys.accept(stream).await?;
            stream.write_all(b"hi").await?;
            stream.shutdown().await
        });
        (address, serving)
    }

    #[tokio::test]
    async fn peers_with_the_same_token_connect() {
        let (address, serving) = serve(keys("0123456789abcdef")).await;
        let client = keys("0123456789abcdef");
        let mut stream = client.connect("127.0.0.1", address.port()).await.unwrap();
        let mut received = [0; 2];
        stream.read_exact(&mut received).await.unwrap();
        assert_eq!(&received, b"hi");
        serving.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn peers_with_different_tokens_refuse_each_other() {
        let (address, serving) = serve(keys("0123456789abcdef")).await;
        let client = keys("0123456789abcdeg");
        let error = client.connect("127.0.0.1", address.port()).await.unwrap_err();
        assert_eq!(error.to_string(), "the coordinator has another token");
        assert!(serving.await.unwrap().is_err());
    }

    /// A client that accepts every server is refused by the server.
    #[tokio::test]
    async fn server_refuses_a_client_without_the_token() {
        let (right, wrong) = (keys("0123456789abcdef"), keys("fedcba9876543210"));
        let (address, serving) = serve(right).await;
        let other = Token::new("fedcba9876543210").unwrap();
        let provider = Arc::new(provider::default_provider());
        let own = Pair::derive(&other, b"client", &provider).unwrap();
        let coordinator = Token::new("0123456789abcdef").unwrap();
        let public = Pair::derive(&coordinator, b"coordinator", &provider).unwrap().public;
        let config = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Pinned { key: public, provider }))
            .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(
                own.certified,
            )));
        let client = Keys { connector: TlsConnector::from(Arc::new(config)), ..wrong };
        let mut stream = client.connect("127.0.0.1", address.port()).await.unwrap();
        assert!(stream.read_u8().await.is_err());
        assert!(serving.await.unwrap().is_err());
    }

    #[tokio::test]
    async fn another_program_at_the_address_is_named() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(b"220 mail.example ESMTP\r\n").await.unwrap();
            stream.read_u8().await.ok();
        });
        let client = keys("0123456789abcdef");
        let error = client.connect("127.0.0.1", address.port()).await.unwrap_err();
        assert_eq!(error.to_string(), "another program listens there");
        assert!(client.connect("127.0.0.1", 1).await.is_err());
    }
}

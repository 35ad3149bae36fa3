//! UNIX sockets and TLS.

use std::io::Read;
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;

use ::serve::{Config, Server, TlsFiles};
use serde_json::json;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::client::exchange;
use super::{TestServer, config};

/// A certificate for `localhost` that is valid for a hundred years, made by
/// `openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 36500`.
pub(super) const CERTIFICATE: &str = "tests/server/localhost-cert.pem";
pub(super) const KEY: &str = "tests/server/localhost-key.pem";

/// A TLS connection to `address` that trusts only `CERTIFICATE`.
pub(super) fn tls_session(address: &str) -> StreamOwned<ClientConnection, TcpStream> {
    let mut roots = RootCertStore::empty();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(CERTIFICATE);
    roots.add(CertificateDer::from_pem_file(path).unwrap()).unwrap();
    let client = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let client = client.with_safe_default_protocol_versions().unwrap();
    let client = client.with_root_certificates(roots).with_no_client_auth();
    let name = ServerName::try_from("localhost").unwrap();
    let session = ClientConnection::new(Arc::new(client), name).unwrap();
    StreamOwned::new(session, TcpStream::connect(address).unwrap())
}

fn tls(certificate: &str, key: &str) -> Config {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = TlsFiles { certificate: root.join(certificate), key: root.join(key) };
    Config { tls: Some(files), ..config() }
}

#[test]
fn tls_answers_clients_that_trust_the_certificate() {
    let server = TestServer::loading(tls(CERTIFICATE, KEY));
    let answer = exchange(tls_session(&server.client.address), "/openapi.json");
    assert_eq!(answer.json()["openapi"], json!("3.1.0"));
    // A client without TLS gets no response.
    let mut plain = server.client.open("GET", "/health", None);
    let mut bytes = Vec::new();
    let _ = plain.read_to_end(&mut bytes);
    assert!(!bytes.starts_with(b"HTTP/1.1 200"));
}

#[test]
fn files_that_are_not_pem_are_named() {
    for (certificate, key) in [(CERTIFICATE, "Cargo.toml"), ("Cargo.toml", KEY), ("gone", KEY)] {
        let error = Server::bind(tls(certificate, key)).unwrap_err().to_string();
        let wrong = if certificate == CERTIFICATE { key } else { certificate };
        assert!(error.contains(wrong), "{error}");
    }
}

#[test]
#[cfg(unix)]
fn a_unix_socket_is_served_and_removed() {
    use ::serve::Address;
    use std::os::unix::net::{UnixListener, UnixStream};
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("serve.sock");
    // Simulate a socket that an earlier process left behind.
    drop(UnixListener::bind(&path).unwrap());
    let address = Address::Unix(path.clone());
    let mut server = TestServer::loading(Config { address, ..config() });
    let answer = exchange(UnixStream::connect(&path).unwrap(), "/health");
    assert_eq!(answer.error(503)["type"], "unavailable_error");
    let second = Server::bind(Config { address: Address::Unix(path.clone()), ..config() });
    assert!(second.is_err(), "the socket is in use");
    assert!(server.stop());
    assert!(!path.exists());
}

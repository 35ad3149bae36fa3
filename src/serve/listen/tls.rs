//! TLS with rustls and ring.

use std::io;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::server::TlsStream;

use crate::Error;
use crate::config::TlsFiles;

#[derive(Clone)]
pub(crate) struct Tls(TlsAcceptor);

impl Tls {
    /// Reads the certificate and the key.
    ///
    /// # Errors
    /// [`Error::Tls`] with the name of the file.
    pub(crate) fn load(files: &TlsFiles) -> Result<Tls, Error> {
        let TlsFiles { certificate, key } = files;
        let bad = |file: &std::path::Path, reason: String| Error::Tls {
            file: file.display().to_string(),
            reason,
        };
        let chain = CertificateDer::pem_file_iter(certificate)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(|e| bad(certificate, e.to_string()))?;
        if chain.is_empty() {
            return Err(bad(certificate, "it has no certificate in PEM format".to_owned()));
        }
        let private = PrivateKeyDer::from_pem_file(key).map_err(|e| bad(key, e.to_string()))?;
        let provider = Arc::new(ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .and_then(|config| config.with_no_client_auth().with_single_cert(chain, private))
            .map_err(|e| bad(certificate, e.to_string()))?;
        Ok(Tls(TlsAcceptor::from(Arc::new(config))))
    }

    pub(super) async fn accept<S>(&self, stream: S) -> io::Result<TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        self.0.accept(stream).await
    }
}

//! TLS for both roles, with certificates that are reloaded when their files change.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

/// Reason why TLS cannot be configured. It names the file.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read or contains no PEM of the expected kind.
    #[error("{what} {path}: {reason}")]
    File {
        /// Expected content.
        what: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        reason: String,
    },
    /// The parts do not match, for example the key and the certificate.
    #[error("{path}: {reason}")]
    Unusable {
        /// Path of the file read last.
        path: PathBuf,
        /// Cause.
        reason: String,
    },
    /// The system has no trusted certificates.
    #[error(
        "the system has no trusted certificates: install ca-certificates, or name a file with --upstream-ca, and for a \
         collector with OTEL_EXPORTER_OTLP_CERTIFICATE"
    )]
    NoRoots,
}

/// A certificate chain and its key.
#[derive(Clone, Copy, Debug)]
pub struct TlsIdentity<'a> {
    /// PEM file with the chain, leaf first.
    pub cert: &'a Path,
    /// PEM file with the key.
    pub key: &'a Path,
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

pub(super) fn file_error(what: &'static str, path: &Path, reason: impl ToString) -> TlsError {
    TlsError::File { what, path: path.to_owned(), reason: reason.to_string() }
}

pub(super) fn certificates(what: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let parsed = CertificateDer::pem_file_iter(path).map_err(|error| file_error(what, path, error))?;
    let chain: Vec<_> = parsed.collect::<Result<_, _>>().map_err(|error| file_error(what, path, error))?;
    if chain.is_empty() {
        return Err(file_error(what, path, "no certificate in PEM"));
    }
    Ok(chain)
}

fn key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_file(path).map_err(|error| match error {
        // The header lines of a key in OpenSSL's legacy encryption are not base64.
        pem::Error::NoItemsFound | pem::Error::Base64Decode(_) => {
            let missing = "no private key in PEM; one with a pass phrase has to be decrypted, as by `openssl pkey`";
            file_error("private key", path, missing)
        }
        error => file_error("private key", path, error),
    })
}

fn roots(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates("certificate authority", path)? {
        roots.add(certificate).map_err(|error| file_error("certificate authority", path, error))?;
    }
    Ok(roots)
}

fn unusable(identity: TlsIdentity<'_>, error: &rustls::Error) -> TlsError {
    let reason = match error {
        rustls::Error::InconsistentKeys(_) => format!(
            "it is not the key of the first certificate in {}, which has to be one's own, before those that have signed it",
            identity.cert.display()
        ),
        error => error.to_string(),
    };
    TlsError::Unusable { path: identity.key.to_owned(), reason }
}

/// Certificates of a server's clients, with the PEM file of the authorities that sign them.
#[derive(Clone, Copy, Debug)]
pub enum ClientCertificates<'a> {
    /// The server asks for none.
    Ignored,
    /// A client may present one. A handshake with one of another authority fails.
    Optional(&'a Path),
    /// A handshake without one fails.
    Required(&'a Path),
}

/// Builds the server configuration; `alpn` lists the accepted protocols.
///
/// # Errors
/// Returns [`TlsError`], which names the file.
pub fn server(
    identity: TlsIdentity<'_>,
    clients: ClientCertificates<'_>,
    alpn: &[&str],
) -> Result<ServerConfig, TlsError> {
    let refused = |path: &Path, error: String| TlsError::Unusable { path: path.to_owned(), reason: error };
    let builder = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| refused(identity.cert, error.to_string()))?;
    let builder = match clients {
        ClientCertificates::Ignored => builder.with_no_client_auth(),
        ClientCertificates::Optional(path) | ClientCertificates::Required(path) => {
            let mut verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots(path)?), provider());
            if matches!(clients, ClientCertificates::Optional(_)) {
                verifier = verifier.allow_unauthenticated();
            }
            let verifier = verifier.build().map_err(|error| refused(path, error.to_string()))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder
        .with_single_cert(certificates("certificate", identity.cert)?, key(identity.key)?)
        .map_err(|error| unusable(identity, &error))?;
    config.alpn_protocols = alpn_protocols(alpn);
    Ok(config)
}

/// Builds the client configuration. Without `ca` it trusts the system's certificates; `alpn` lists the offered
/// protocols.
///
/// # Errors
/// Returns [`TlsError`], which names the file.
pub fn client(ca: Option<&Path>, identity: Option<TlsIdentity<'_>>, alpn: &[&str]) -> Result<ClientConfig, TlsError> {
    let trusted = match ca {
        Some(path) => roots(path)?,
        None => {
            let mut trusted = RootCertStore::empty();
            let (added, _) = trusted.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if added == 0 {
                return Err(TlsError::NoRoots);
            }
            trusted
        }
    };
    let place = ca.unwrap_or(Path::new("system certificates"));
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| TlsError::Unusable { path: place.to_owned(), reason: error.to_string() })?
        .with_root_certificates(trusted);
    let mut config = match identity {
        None => builder.with_no_client_auth(),
        Some(identity) => builder
            .with_client_auth_cert(certificates("certificate", identity.cert)?, key(identity.key)?)
            .map_err(|error| unusable(identity, &error))?,
    };
    config.alpn_protocols = alpn_protocols(alpn);
    Ok(config)
}

fn alpn_protocols(names: &[&str]) -> Vec<Vec<u8>> {
    names.iter().map(|name| name.as_bytes().to_vec()).collect()
}

/// Describes a connection error and appends a remedy if one is known. `trust` is the setting for trusted certificates.
pub fn describe_error(error: impl ToString, trust: &str) -> String {
    let error = error.to_string();
    let has = |words: &str| error.contains(words);
    // A bad signature means a different authority with the same name.
    let remedy = if has("UnknownIssuer") || has("BadSignature") {
        format!("; {trust} names the certificates to trust")
    } else if has("CaUsedAsEndEntity") {
        "; it shows the certificate of an authority, and needs one of its own (CA:FALSE)".to_owned()
    } else if has("InvalidContentType") {
        "; it does not speak TLS: try http://".to_owned()
    } else {
        String::new()
    };
    error + &remedy
}

/// Detects changes in a set of files. Kubernetes swaps a symbolic link, so the watch inspects the link's target.
#[derive(Debug, Default)]
pub struct FileWatch {
    files: Vec<PathBuf>,
    seen: Vec<Option<(u64, i64, i64)>>,
}

impl FileWatch {
    /// Starts to watch `files` from their current state.
    pub fn new(files: Vec<PathBuf>) -> Self {
        let seen = files.iter().map(|file| file_identity(file).ok()).collect();
        Self { files, seen }
    }

    /// Returns `true` if any file has changed since the last call.
    pub fn changed(&mut self) -> bool {
        let now: Vec<_> = self.files.iter().map(|file| file_identity(file).ok()).collect();
        let changed = now != self.seen;
        self.seen = now;
        changed
    }
}

/// Identity and change time of a file. The change time also covers owner, permissions and copies that keep an old
/// modification time.
fn file_identity(file: &Path) -> io::Result<(u64, i64, i64)> {
    let metadata = fs::metadata(file)?;
    Ok((metadata.ino(), metadata.ctime(), metadata.ctime_nsec()))
}

#[cfg(test)]
mod tests {
    use std::fs::{File, Permissions};
    use std::os::unix::fs::PermissionsExt;
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn a_key_with_a_pass_phrase_is_told_with_the_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("key.pem");
        for pem in [
            "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIIB\n-----END ENCRYPTED PRIVATE KEY-----\n",
            "-----BEGIN EC PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,FF\n\nMIIB\n-----END EC PRIVATE KEY-----\n",
        ] {
            fs::write(&file, pem).unwrap();
            let message = key(&file).unwrap_err().to_string();
            assert!(message.ends_with(
                "key.pem: no private key in PEM; one with a pass phrase has to be decrypted, as by `openssl pkey`"
            ));
        }
    }

    #[test]
    fn a_key_of_another_certificate_is_told_with_the_file_of_that() {
        let folder = tempfile::tempdir().unwrap();
        let (cert, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
        let made = rcgen::generate_simple_self_signed(["a.test".to_owned()]).unwrap();
        fs::write(&cert, made.cert.pem()).unwrap();
        fs::write(&key, rcgen::KeyPair::generate().unwrap().serialize_pem()).unwrap();
        let result = server(TlsIdentity { cert: &cert, key: &key }, ClientCertificates::Ignored, &[]);
        let message = result.unwrap_err().to_string();
        assert!(
            message.contains("key.pem: it is not the key of the first certificate in") && message.contains("cert.pem")
        );
    }

    #[test]
    fn a_file_that_may_now_be_read_and_one_that_came_with_an_old_time_have_changed() {
        let folder = tempfile::tempdir().unwrap();
        let (file, other) = (folder.path().join("file"), folder.path().join("other"));
        let write = |path: &Path, text: &str| {
            fs::write(path, text).unwrap();
            File::options().append(true).open(path).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
        };
        write(&file, "one");
        let mut watched = FileWatch::new(vec![file.clone()]);
        assert!(!watched.changed());
        write(&other, "two");
        fs::rename(&other, &file).unwrap();
        assert!(watched.changed() && !watched.changed());
        fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
        assert!(watched.changed() && !watched.changed());
        fs::remove_file(&file).unwrap();
        assert!(watched.changed() && !watched.changed());
    }
}
